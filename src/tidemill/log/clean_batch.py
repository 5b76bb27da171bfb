"""Compacts one batch of format v2: adds its keys to the offset map, or filters its records by it.

A record is removed if its key has a later record, if it has no key, or if it is a tombstone after its delete
horizon. Remaining records keep their offsets, and the batch keeps its first and last offset, so that the
producer's sequence numbers stay aligned. A batch that loses no record is copied unchanged.

A batch with tombstones (or the marker of a transaction without remaining records) gets a delete horizon when
it is first cleaned: the time from which they may be removed. It replaces the base timestamp, marked by a bit
of the attributes (KIP-534).

The checksum of every batch is verified first, so that damage never gets a new checksum. A batch that is
removed completely is not verified again if that was done when its keys were added to the map.

The map is queried for many keys at a time (:data:`tidemill.log.offset_map.GROUP`), even if each is in its own
batch: keys for the map are gathered over batches, and uncompressed batches in one buffer form a run, which is
filtered as a whole.

Source: Apache Kafka, ``MemoryRecords.java`` (``filterTo``), ``LogCleaner.scala`` (``shouldRetainRecord``).
"""

from __future__ import annotations

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from tidemill.log.offset_map import GROUP, OffsetMap
from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    NO_COMPRESSION,
    NO_TIMESTAMP,
    Batch,
    check_crc,
)
from tidemill.records.builder import assemble
from tidemill.records.compression import compress
from tidemill.records.record_cursor import BatchCursor, add_timestamp
from tidemill.records.varint import varint_size, write_varint


class BatchCleaner:
    """Cleans the batches of one log with a map; ``now_ms`` and the retention decide on tombstones.

    A pass that fills the map calls :meth:`index`, and :meth:`put_gathered` at its end. A pass that writes
    calls :meth:`clean` for a single batch; or :meth:`join` for each that :meth:`may_join` while
    :meth:`has_room_for` it, then :meth:`look_up`, then :meth:`clean_joined` for each of :attr:`run`, then
    :meth:`end_run`. After each cleaned batch :attr:`max_timestamp` is that of the remaining records.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        now_ms: i64,
        delete_retention_ms: i64,
        unpacked_bytes_max: i64,
    ) -> None:
        self.offsets = offsets
        self.now_ms: i64 = now_ms
        self.delete_retention_ms: i64 = delete_retention_ms
        self.unpacked_bytes_max: i64 = unpacked_bytes_max
        self.records_read: i64 = 0
        self.records_kept: i64 = 0
        self.records_without_key: i64 = 0
        self.max_timestamp: i64 = NO_TIMESTAMP
        # The remaining parts of the batch: (begin, end) of consecutive records, and their properties.
        self._spans: list[i64] = []
        self._kept: i64 = 0
        self._tombstones: bool = False
        self._tombstones_go: bool = False
        self.run: list[Batch] = []
        """Batches that are cleaned together."""
        self.indexed: i64 = offsets.latest_offset
        """The offset up to which the log was read: lower keys are in the map, or gathered for it."""
        # The records of a group, whose keys are prepared in the map.
        self._gathered: i64 = 0
        self._begins: vec[i64] = vec[i64]([0] * GROUP)
        self._ends: vec[i64] = vec[i64]([0] * GROUP)
        self._record_offsets: vec[i64] = vec[i64]([0] * GROUP)
        self._key_sizes: vec[i64] = vec[i64]([0] * GROUP)
        self._value_sizes: vec[i64] = vec[i64]([0] * GROUP)
        self._indexed_before: vec[i64] = vec[i64]([0] * GROUP)

    def index(self, batch: Batch) -> bool:
        """Gathers the batch's keys for the map. Returns False if the map is full.

        Raises CorruptMessage and InvalidRecord for an invalid batch.
        """
        check_crc(batch)
        if batch.record_count == 0:
            return True
        cursor = self._open(batch)
        is_done = False
        while not is_done:
            if self._gathered == GROUP and not self.put_gathered():
                return False
            first: i64 = self._gathered
            is_done = self._gather(cursor)
            while first < self._gathered:
                self._indexed_before[first] = self.indexed
                first += 1
        return True

    def put_gathered(self) -> bool:
        """Adds the gathered keys to the map, which then covers the log up to :attr:`indexed`.

        Returns False if it is full: it then covers the log up to the last batch with all keys in it.
        """
        offsets = self.offsets
        count: i64 = self._gathered
        self._gathered = 0
        if count > 1:
            offsets.warm(count)
        indexed: i64 = self.indexed
        is_full = False
        at: i64 = 0
        while at < count and not is_full:
            offset: i64 = self._record_offsets[at]
            if (
                self._key_sizes[at] >= 0
                and offset >= offsets.first_offset
                and not offsets.put_prepared(at, offset)
            ):
                is_full = True
                indexed = self._indexed_before[at]
            at += 1
        if indexed > offsets.latest_offset:
            offsets.latest_offset = indexed
        return not is_full

    def clean(self, batch: Batch, keep_all: bool, marker_may_go: bool) -> bytes:
        """The remaining part of the batch: the same bytes if no record was removed, empty if all were.

        ``keep_all`` for control batches, whose records are no data; ``marker_may_go`` for the marker of a
        transaction without records, which needs a delete horizon. Raises the errors of :meth:`index`.
        """
        check_crc(batch)
        if batch.record_count == 0:
            return b""
        cursor = self._open(batch)
        self._begin_sifting(batch)
        is_done = False
        while not is_done:
            self._gathered = 0
            is_done = self._gather(cursor)
            self.look_up()
            self._sift(0, self._gathered, keep_all)
        self._gathered = 0
        return self._sifted(batch, cursor, marker_may_go)

    def may_join(self, batch: Batch) -> bool:
        """Whether the batch may be part of a run: it is small and uncompressed."""
        return batch.record_count <= GROUP and batch.codec == NO_COMPRESSION

    def has_room_for(self, batch: Batch) -> bool:
        """Whether the batch can be added to the current run, which lies in one buffer."""
        if not self.run:
            return True
        return batch.record_count <= GROUP - self._gathered and self.run[0].data is batch.data

    def join(self, batch: Batch) -> None:
        """Adds a batch to the run. Raises the errors of :meth:`index`."""
        if batch.record_count > 0:
            self._gather(self._open(batch))
        self.run.append(batch)

    def look_up(self) -> None:
        """Prefetches the map entries of the gathered keys."""
        if self._gathered > 1:
            self.offsets.warm(self._gathered)

    def clean_joined(self, batch: Batch, first: i64) -> bytes:
        """Same as :meth:`clean`, for a data batch of the run; ``first``: the number of records before it."""
        self._begin_sifting(batch)
        self._sift(first, first + batch.record_count, False)
        last: i64 = batch.last_offset
        if self._kept > 0 or last < self.offsets.first_offset or last > self.offsets.latest_offset:
            check_crc(batch)
        return self._sifted(batch, None, False)

    def end_run(self) -> None:
        """Releases the batches of the run."""
        self.run.clear()
        self._gathered = 0

    def _begin_sifting(self, batch: Batch) -> None:
        if self._spans:
            self._spans = []
        self._kept = 0
        self._tombstones = False
        self._tombstones_go = batch.has_delete_horizon and self.now_ms >= batch.base_timestamp >= 0

    def _sift(self, at: i64, end: i64, keep_all: bool) -> None:
        """Determines which records of the group remain, from number ``at`` to before ``end``."""
        spans = self._spans
        while at < end:
            if keep_all or self._stays(at):
                if self._kept > 0 and spans[len(spans) - 1] == self._begins[at]:
                    spans[len(spans) - 1] = self._ends[at]
                else:
                    spans.append(self._begins[at])
                    spans.append(self._ends[at])
                self._kept += 1
                if self._value_sizes[at] < 0:
                    self._tombstones = True
            at += 1

    def _sifted(self, batch: Batch, cursor: BatchCursor | None, marker_may_go: bool) -> bytes:
        """The remaining part of the batch after :meth:`_sift`. If ``cursor`` is None, a cursor is opened."""
        count: i64 = self._kept
        self.records_read += batch.record_count
        self.records_kept += count
        if count == 0:
            return b""
        horizon: i64 = batch.base_timestamp if batch.has_delete_horizon else -1
        sets_horizon: bool = horizon < 0 and (self._tombstones or marker_may_go)
        if count == batch.record_count and not sets_horizon:
            self.max_timestamp = batch.max_timestamp
            return batch.to_bytes()
        if cursor is None:
            cursor = self._open(batch)
        base_timestamp: i64 = self._new_base(cursor, sets_horizon, horizon)
        self.max_timestamp = NO_TIMESTAMP
        kept = BytesWriter()
        self._rewrite(batch, cursor, base_timestamp, kept)
        attributes: i64 = batch.attributes
        if sets_horizon:
            attributes |= DELETE_HORIZON_FLAG
        if attributes & APPEND_TIME_FLAG != 0:
            self.max_timestamp = batch.max_timestamp
        packed = compress(attributes & CODEC_MASK, kept.getvalue(), None)
        return self._assembled(batch, packed, attributes, base_timestamp, count)

    def empty(self, batch: Batch) -> bytes:
        """The batch without records, which keeps its offsets, its producer and its sequence numbers."""
        check_crc(batch)
        self.max_timestamp = batch.max_timestamp
        attributes: i64 = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
        return self._assembled(batch, b"", attributes, NO_TIMESTAMP, 0)

    def _assembled(
        self, batch: Batch, records: bytes, attributes: i64, base_timestamp: i64, count: i64
    ) -> bytes:
        return assemble(
            records,
            batch.base_offset,
            batch.leader_epoch,
            attributes,
            batch.last_offset_delta,
            base_timestamp,
            self.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            count,
        )

    def _stays(self, at: i64) -> bool:
        """Whether record number ``at`` of the group remains."""
        offset: i64 = self._record_offsets[at]
        if offset > self.offsets.latest_offset:
            return True
        if self._key_sizes[at] < 0:
            self.records_without_key += 1
            return False
        if self._tombstones_go and self._value_sizes[at] < 0:
            return False
        return offset >= self.offsets.get_prepared(at)

    def _gather(self, cursor: BatchCursor) -> bool:
        """Adds the next records to the group, up to its limit. Returns True after the last of the batch."""
        at: i64 = self._gathered
        while cursor.step():
            self._begins[at] = cursor.record_position
            self._ends[at] = cursor.position
            self._record_offsets[at] = cursor.offset
            self._key_sizes[at] = cursor.key_length
            self._value_sizes[at] = cursor.value_length
            if cursor.key_length >= 0:
                self.offsets.prepare(at, cursor.data, cursor.key_position, cursor.key_length)
            at += 1
            if at == GROUP and cursor.index < cursor.count - 1:
                self._gathered = at
                return False
        self._gathered = at
        return True

    def _new_base(self, cursor: BatchCursor, sets_horizon: bool, horizon: i64) -> i64:
        """The base timestamp of the new batch: the delete horizon, or the first record's timestamp."""
        if sets_horizon:
            return self.now_ms + self.delete_retention_ms
        if horizon >= 0:
            return horizon
        cursor.seek(self._spans[0])
        cursor.step()
        return cursor.timestamp

    def _rewrite(self, batch: Batch, cursor: BatchCursor, base_timestamp: i64, kept: BytesWriter) -> None:
        """Copies the records that stay, with timestamp deltas for another base timestamp."""
        same: bool = base_timestamp == batch.base_timestamp and not batch.append_time
        data = cursor.data
        spans = self._spans
        at: i64 = 0
        while at < len(spans):
            begin: i64 = spans[at]
            end: i64 = spans[at + 1]
            if same:
                kept.write(data[begin:end])
            cursor.seek(begin)
            while cursor.position < end:
                cursor.step()
                if cursor.timestamp > self.max_timestamp:
                    self.max_timestamp = cursor.timestamp
                if not same:
                    delta: i64 = add_timestamp(cursor.timestamp, -base_timestamp)
                    rest: i64 = cursor.offset_position
                    after: i64 = cursor.position
                    write_varint(kept, 1 + varint_size(delta) + after - rest)
                    kept.append(0)
                    write_varint(kept, delta)
                    kept.write(data[rest:after])
            at += 2

    def _open(self, batch: Batch) -> BatchCursor:
        return BatchCursor(batch, None, self.unpacked_bytes_max)
