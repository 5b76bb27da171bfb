"""What one fetch brought for one partition, given out record by record or as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.client.fetching import Answer, next_offset
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import Batch
from tidemill.records.builder import ABORT_MARKER
from tidemill.records.columns import OFFSET_MAX, decode_columns, end_marker
from tidemill.records.legacy import Entry
from tidemill.records.reader import Record, iter_stored, read_stored

if TYPE_CHECKING:
    import pyarrow as pa


class ConsumerRecord:
    """One record, and where it came from. ``timestamp`` in ms; ``timestamp_type`` 0 create, 1 append time."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "timestamp_type", "topic", "value")

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self.topic = topic
        self.partition = partition
        self.offset: int = record.offset
        self.timestamp: int = record.timestamp
        self.timestamp_type: int = record.timestamp_type
        self.key: bytes | None = record.key
        self.value: bytes | None = record.value
        self.headers: list[tuple[str, bytes | None]] = record.headers

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


class ConsumerRecords:
    """What one poll() brought: records by partition, in the order of their offsets.

    Iterating gives every record, one partition after the other; ``records[partition]`` those of one. Empty
    when nothing came: ``if records: ...``.
    """

    __slots__ = ("_by_partition", "count")

    def __init__(self, by_partition: dict[TopicPartition, list[Record]]) -> None:
        self._by_partition = by_partition
        self.count = sum(map(len, by_partition.values()))

    def partitions(self) -> list[TopicPartition]:
        """The partitions that have records here."""
        return list(self._by_partition)

    def __getitem__(self, item: TopicPartition) -> list[Record]:
        return self._by_partition[item]

    def __iter__(self) -> Iterator[ConsumerRecord]:
        for (topic, partition), records in self._by_partition.items():
            for record in records:
                yield ConsumerRecord(topic, partition, record)

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def __repr__(self) -> str:
        parts = ", ".join(f"{item}: {len(records)}" for item, records in self._by_partition.items())
        return f"ConsumerRecords({parts})"


class Chunk:
    """The records of one answer not given out yet; ``next_offset`` is the position after the last."""

    def __init__(
        self,
        item: TopicPartition,
        answer: Answer,
        offset: int,
        *,
        committed_only: bool,
        check_crcs: bool,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.item = item
        self.next_offset = offset
        self.exhausted = False
        self._answer = answer
        self._all_aborted = sorted(answer.aborted, key=lambda entry: entry[1]) if committed_only else []
        self._aborted = list(self._all_aborted)
        self._aborting: set[int] = set()
        self._check_crcs = check_crcs
        self._unpacked_bytes_max = unpacked_bytes_max
        self._batches: Iterator[Batch | Entry] | None = None
        self._records: list[Record] = []
        self._taken = 0
        self._batch_end = offset
        self._failure: Exception | None = None

    def take(self, count: int) -> list[Record]:
        """Up to ``count`` records; fewer, perhaps none, once the chunk is exhausted.

        Raises CorruptMessage before a batch that is damaged, each time; what came before it was given out.
        """
        if self._failure is not None:
            raise self._failure
        result: list[Record] = []
        while len(result) < count:
            if self._taken >= len(self._records):
                if not self._next_batch(bool(result)):
                    break
                continue
            more = self._records[self._taken : self._taken + count - len(result)]
            self._taken += len(more)
            result += more
            self.next_offset = self._batch_end if self._taken >= len(self._records) else more[-1].offset + 1
        return result

    def _next_batch(self, some: bool) -> bool:
        """Unpacks the next batch that applications see; False at the end, or to give out ``some`` first."""
        batch: Batch | Entry | None = None
        try:
            if self._batches is None:
                self._batches = iter_stored(self._answer.records())
            batch = next(self._batches, None)
            if batch is None:
                self.exhausted = True
                return False
            self._records, self._taken = [], 0
            if self._is_wanted(batch) and batch.last_offset >= self.next_offset:
                records = read_stored(batch, self._check_crcs, self._unpacked_bytes_max)
                if records and records[0].offset < self.next_offset:
                    records = [record for record in records if record.offset >= self.next_offset]
                self._records = records
            self._batch_end = max(self.next_offset, int(batch.next_offset))
            if not self._records:
                self.next_offset = self._batch_end
            return True
        except Exception as problem:
            if some:
                # The next call meets the same batch again: the position stands right before it.
                self.exhausted = True
                return False
            if isinstance(problem, KafkaError):
                problem.args = (self._placed(str(problem), batch),)
            self._failure = problem
            raise

    def _placed(self, text: str, batch: Batch | Entry | None) -> str:
        """``text`` with the place that it speaks of, and from where one can go on."""
        if batch is None:
            return f"{self.item} cannot be read from offset {self.next_offset} on: {text}"
        first = batch.offset if isinstance(batch, Entry) else batch.base_offset
        return (
            f"{self.item} cannot be read at offsets {first} to {batch.last_offset}: {text}; what is "
            f"behind that is read from offset {batch.next_offset} on"
        )

    def _is_wanted(self, batch: Batch | Entry) -> bool:
        """Whether applications see the batch: neither a marker nor part of an aborted transaction."""
        if isinstance(batch, Entry):
            return True
        while self._aborted and self._aborted[0][1] <= batch.last_offset:
            self._aborting.add(self._aborted.pop(0)[0])
        if batch.is_control:
            if batch.producer_id in self._aborting and end_marker(batch) == ABORT_MARKER:
                self._aborting.discard(int(batch.producer_id))
            return False
        return not (batch.is_transactional and batch.producer_id in self._aborting)

    @property
    def end_offset(self) -> int:
        """The offset after the last whole batch: from there the next fetch goes on."""
        answer = self._answer
        return next_offset(answer.data, answer.start, answer.end, self.next_offset)

    def arrow(self, include_headers: bool, bytes_max: int) -> Iterator[Any]:
        """Everything from the position on as ``pyarrow`` record batches, and moves behind the last batch."""
        from tidemill.client.arrow import record_batch

        answer = self._answer
        position = answer.start
        while not self.exhausted:
            try:
                columns = decode_columns(
                    answer.data,
                    self.next_offset,
                    OFFSET_MAX,
                    position,
                    include_headers,
                    self._check_crcs,
                    bytes_max,
                    self._all_aborted or None,
                    answer.start,
                    answer.end,
                    self._unpacked_bytes_max,
                )
            except KafkaError as problem:
                problem.args = (self._placed(str(problem), None),)
                raise
            self.next_offset = max(self.next_offset, int(columns.next_offset))
            position = int(columns.next_position)
            self.exhausted = not columns.unfinished
            if columns.count:
                batch: pa.RecordBatch = record_batch(columns)
                yield batch
