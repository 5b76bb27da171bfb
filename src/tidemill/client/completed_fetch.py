"""The records of one partition in a Fetch response, returned as records or as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.client.fetch_requests import next_offset, no_whole_batch
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.columns import OFFSET_MAX, decode_columns
from tidemill.records.end_transaction_marker import is_abort
from tidemill.records.legacy_formats import Entry
from tidemill.records.record_reader import Record, iter_stored, read_stored
from tidemill.wire.fetch_layout import FetchedPartition

if TYPE_CHECKING:
    import pyarrow as pa


class ConsumerRecord:
    """A record, its topic and partition. ``timestamp`` in ms; ``timestamp_type`` 0 create, 1 append time."""

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
    """The result of one poll(): records by partition, in the order of their offsets.

    Iteration returns every record, one partition after the other; ``records[partition]`` those of one
    partition. False if there are no records: ``if records: ...``.
    """

    __slots__ = ("_by_partition", "count")

    def __init__(self, by_partition: dict[TopicPartition, list[Record]]) -> None:
        self._by_partition = by_partition
        self.count = sum(map(len, by_partition.values()))

    def partitions(self) -> list[TopicPartition]:
        """Returns the partitions that have records here."""
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


class CompletedFetch:
    """The unread records of one response; ``next_offset`` is the position after the last returned record."""

    def __init__(
        self,
        item: TopicPartition,
        response: FetchedPartition,
        offset: int,
        *,
        committed_only: bool,
        check_crcs: bool,
        unpacked_bytes_max: int,
    ) -> None:
        self.topic_partition = item
        self.next_offset = offset
        self.is_consumed = False
        self._response = response
        self._aborted_transactions = (
            sorted(response.aborted or [], key=lambda entry: entry[1]) if committed_only else []
        )
        self._aborted_after = list(self._aborted_transactions)
        self._aborted_producer_ids: set[int] = set()
        self._check_crcs = check_crcs
        self._unpacked_bytes_max = unpacked_bytes_max
        self._batches: Iterator[Batch | Entry] | None = None
        self._records: list[Record] = []
        self._returned = 0
        self._next_batch_offset = offset
        self.end_offset = next_offset(response.data, response.start, response.end, offset)
        """The offset after the last whole batch: the start of the next fetch."""
        self._cached_error: KafkaError | None = None
        if self.end_offset == offset and response.end > response.start:
            self._cached_error = no_whole_batch(item, offset, response)

    def fetch_records(self, count: int) -> list[Record]:
        """Returns up to ``count`` records; fewer, or none, once all are returned.

        Raises CorruptMessage at a damaged batch, on each call; the records before it were returned. After
        another exception, as of a signal handler, a batch may be missing: drop the object then.
        """
        if self._cached_error is not None:
            raise self._cached_error
        result: list[Record] = []
        while len(result) < count:
            if self._returned >= len(self._records):
                if not self._next_batch(bool(result)):
                    break
                continue
            more = self._records[self._returned : self._returned + count - len(result)]
            self._returned += len(more)
            result += more
            is_batch_returned = self._returned >= len(self._records)
            self.next_offset = self._next_batch_offset if is_batch_returned else more[-1].offset + 1
        return result

    def _next_batch(self, has_records: bool) -> bool:
        """Reads the next visible batch; False at the end, or at an error after ``has_records`` records."""
        batch: Batch | Entry | None = None
        try:
            if self._batches is None:
                self._batches = iter_stored(self._response.records())
            batch = next(self._batches, None)
            if batch is None:
                self.is_consumed = True
                return False
            self._records, self._returned = [], 0
            if self._is_visible(batch) and batch.last_offset >= self.next_offset:
                records = read_stored(batch, self._check_crcs, self._unpacked_bytes_max)
                if records and records[0].offset < self.next_offset:
                    records = [record for record in records if record.offset >= self.next_offset]
                self._records = records
            self._next_batch_offset = max(self.next_offset, int(batch.next_offset))
            if not self._records:
                self.next_offset = self._next_batch_offset
            return True
        except KafkaError as problem:
            if has_records:
                # The next fetch reads the same batch again: the position is right before it.
                self.is_consumed = True
                return False
            problem.args = (self._with_offsets(str(problem), batch),)
            self._cached_error = problem
            raise

    def _with_offsets(self, text: str, batch: Batch | Entry | None) -> str:
        """Adds to ``text`` the offsets that it concerns, and the offset from which reading can continue."""
        if batch is None:
            return f"{self.topic_partition} cannot be read from offset {self.next_offset} on: {text}"
        first = batch.offset if isinstance(batch, Entry) else batch.base_offset
        return (
            f"{self.topic_partition} cannot be read at offsets {first} to {batch.last_offset}: {text}; to "
            f"skip them, read from offset {batch.next_offset} on"
        )

    def _is_visible(self, batch: Batch | Entry) -> bool:
        """Whether applications see the batch: it is neither a marker nor part of an aborted transaction."""
        if isinstance(batch, Entry):
            return True
        while self._aborted_after and self._aborted_after[0][1] <= batch.last_offset:
            self._aborted_producer_ids.add(self._aborted_after.pop(0)[0])
        if batch.is_control:
            if batch.producer_id in self._aborted_producer_ids and is_abort(batch):
                self._aborted_producer_ids.discard(int(batch.producer_id))
            return False
        return not (batch.is_transactional and batch.producer_id in self._aborted_producer_ids)

    def fetch_arrow(self, include_headers: bool, bytes_max: int) -> Iterator[Any]:
        """Yields the remaining records as ``pyarrow`` record batches, and moves the position past them."""
        from tidemill.client.arrow import record_batch

        if self._cached_error is not None:
            raise self._cached_error
        response = self._response
        position = response.start
        while not self.is_consumed:
            try:
                columns = decode_columns(
                    response.data,
                    self.next_offset,
                    OFFSET_MAX,
                    position,
                    include_headers,
                    self._check_crcs,
                    bytes_max,
                    self._aborted_transactions or None,
                    response.start,
                    response.end,
                    unpacked_bytes_max=self._unpacked_bytes_max,
                )
            except KafkaError as problem:
                problem.args = (self._with_offsets(str(problem), None),)
                raise
            self.next_offset = max(self.next_offset, int(columns.next_offset))
            position = int(columns.next_position)
            self.is_consumed = not columns.unfinished
            if columns.count:
                batch: pa.RecordBatch = record_batch(columns)
                yield batch
