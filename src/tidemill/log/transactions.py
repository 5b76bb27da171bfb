"""The transactions of a partition: which are open, and which ended where readers do not come yet.

A transaction begins with its first batch in the partition and ends with its marker: a control batch of one
record, whose key is version int16 and type int16 (0 abort, 1 commit), whose value is version int16 and
coordinator epoch int32. Readers of committed records read up to the *first unstable offset*: where the oldest
transaction begins that is open, or whose marker lies at or above the high watermark.

Append, recovery and the start of a broker all go this way, so that a segment's index of aborted transactions
says the same whoever wrote it.

Source: KIP-98; Apache Kafka, ``ProducerStateManager.java``, ``EndTransactionMarker.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from tidemill.model.errors import KafkaError
from tidemill.records.batch import Batch
from tidemill.records.reader import read_records

ABORT: Final = 0
COMMIT: Final = 1

MARKER_BYTES_MAX: Final = 1024
"""A marker's batch has 78 bytes; one of more than this is none."""

_KEY_BYTES: Final = 2 + 2
_VALUE_BYTES: Final = 2 + 4


class Marker:
    """What the batch at the end of a transaction says. ``kind`` is :data:`ABORT` or :data:`COMMIT`."""

    def __init__(self, kind: i64, coordinator_epoch: i64) -> None:
        self.kind: i64 = kind
        self.coordinator_epoch: i64 = coordinator_epoch


def marker_of(batch: Batch) -> Marker | None:
    """The marker in a control batch; None where there is none: compaction may have taken its record."""
    if batch.size > MARKER_BYTES_MAX:
        return None
    try:
        records = read_records(batch, MARKER_BYTES_MAX)
    except KafkaError:
        return None
    if len(records) == 0:
        return None
    key = records[0].key
    value = records[0].value
    if key is None or len(key) < _KEY_BYTES or value is None or len(value) < _VALUE_BYTES:
        return None
    kind: i64 = i64(read_i16_be(key, 2))
    if kind != ABORT and kind != COMMIT:
        return None
    return Marker(kind, i64(read_i32_be(value, 2)))


class Transactions:
    """Open and lately ended transactions of one partition, by their first offsets."""

    def __init__(self) -> None:
        self.are_none: bool = True
        """Whether there is nothing here that could hold a reader back."""
        self._open: dict[int, int] = {}
        """Producer ids by first offset; in order, as offsets grow."""
        self._ended: list[tuple[int, int]] = []
        """First offset and marker's offset, in the order of the markers."""
        self._known_for: i64 = -1
        self._known: i64 = -1

    def begin(self, producer_id: i64, first_offset: i64) -> None:
        """A transaction begins; ``first_offset`` is above that of every other."""
        self._open[int(first_offset)] = int(producer_id)
        self._changed()

    def end(self, first_offset: i64, marker_offset: i64) -> None:
        """The transaction that began there has its marker."""
        self._open.pop(int(first_offset), None)
        self._ended.append((int(first_offset), int(marker_offset)))
        self._changed()

    def clear(self) -> None:
        """Forgets all of them."""
        self._open.clear()
        self._ended.clear()
        self._changed()

    def forget_ended(self) -> None:
        """Says that every marker so far is below the high watermark."""
        self._ended.clear()
        self._changed()

    def take_ended(self, other: Transactions) -> None:
        """Takes over which transactions ended lately from the log of which this one's is a copy."""
        self._ended = list(other._ended)
        self._changed()

    def _changed(self) -> None:
        self._known_for = -1
        self.are_none = len(self._open) == 0 and len(self._ended) == 0

    def first_open(self, without: i64 = -1) -> i64:
        """Where the oldest open transaction begins, but for that of producer ``without``; -1: none is."""
        for first, producer_id in self._open.items():
            if producer_id != without:
                return first
        return -1

    def first_unstable(self, high_watermark: i64) -> i64:
        """Where the oldest transaction begins of which a reader up to ``high_watermark`` sees no end.

        -1 without one; it may be above the high watermark.
        """
        if self.are_none:
            return -1
        if self._known_for == high_watermark:
            return self._known
        ended = self._ended
        seen = 0
        while seen < len(ended) and ended[seen][1] < high_watermark:
            seen += 1
        if seen > 0:
            del ended[:seen]
            self._changed()
        first: i64 = self.first_open()
        for begin, _ in ended:
            if first < 0 or begin < first:
                first = begin
        self._known = first
        self._known_for = high_watermark
        return first
