"""The open transactions of a partition, and ended ones whose markers are above the high watermark.

A transaction begins with its first batch in the partition and ends with its marker
(:mod:`tidemill.records.end_transaction_marker`). read_committed consumers read up to the *first unstable
offset*: the first offset of the oldest transaction that is open, or whose marker is at or above the high
watermark.

Append, recovery and start use this code, so they write equal indexes of aborted transactions.

Source: KIP-98; Apache Kafka, ``ProducerStateManager.java``.
"""

from __future__ import annotations

from mypy_extensions import i64


class PartitionTransactions:
    """Open and recently ended transactions of one partition, by their first offsets."""

    def __init__(self) -> None:
        self.are_none: bool = True
        """Whether there are no transactions, so that the last stable offset is the high watermark."""
        self._open: dict[int, int] = {}
        """Producer ids by first offset, in ascending order."""
        self._ended: list[tuple[int, int]] = []
        """First offset and marker offset, in the order of the markers."""
        self._known_for: i64 = -1
        self._known: i64 = -1

    def begin(self, producer_id: i64, first_offset: i64) -> None:
        """Begins a transaction; ``first_offset`` is above all others."""
        self._open[int(first_offset)] = int(producer_id)
        self._changed()

    def end(self, first_offset: i64, marker_offset: i64) -> None:
        """Ends the transaction that began at ``first_offset``."""
        self._open.pop(int(first_offset), None)
        self._ended.append((int(first_offset), int(marker_offset)))
        self._changed()

    def clear(self) -> None:
        """Removes all transactions."""
        self._open.clear()
        self._ended.clear()
        self._changed()

    def clear_ended(self) -> None:
        """Removes the ended transactions: all their markers are below the high watermark."""
        self._ended.clear()
        self._changed()

    def copy_ended(self, other: PartitionTransactions) -> None:
        """Copies the recently ended transactions of the original log."""
        self._ended = list(other._ended)
        self._changed()

    def _changed(self) -> None:
        self._known_for = -1
        self.are_none = len(self._open) == 0 and len(self._ended) == 0

    def first_open(self, without: i64 = -1) -> i64:
        """The first offset of the oldest open transaction, except that of producer ``without``; -1: none."""
        for first, producer_id in self._open.items():
            if producer_id != without:
                return first
        return -1

    def first_unstable(self, high_watermark: i64) -> i64:
        """The first offset of the oldest transaction without a marker below ``high_watermark``.

        -1 if there is none. It may be above the high watermark.
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
