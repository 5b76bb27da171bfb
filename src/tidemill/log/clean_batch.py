"""What compaction does to one batch of format v2: its keys into the map, its records through the filter.

A record of a key that comes again later goes, one without a key goes, and so does a tombstone whose time is
over. What stays keeps its offset, and the batch keeps its first and last one, so that the producer's sequence
numbers keep their places. A batch from which nothing goes is written as it is.

A batch that holds tombstones (or the marker of a transaction that has no records any more) gets a delete
horizon the first time that it is cleaned: the moment from which they may go. It takes the place of the base
timestamp, and a bit of the attributes says so (KIP-534).

Every batch's checksum is checked before, so that damage is never given a new checksum.

Source: Apache Kafka, ``MemoryRecords.java`` (``filterTo``), ``LogCleaner.scala`` (``shouldRetainRecord``).
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from tidemill.log.offset_map import GROUP, OffsetMap
from tidemill.model.errors import CorruptMessage
from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    NO_TIMESTAMP,
    NONE,
    RECORDS,
    Batch,
    check_crc,
)
from tidemill.records.builder import assemble
from tidemill.records.compression import compress, decompress_range
from tidemill.records.validate import RECORD_LENGTH_MIN, add_timestamp
from tidemill.records.varint import read_varint, read_varlong, varint_size, write_varint

UNPACKED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Unpacked bytes of one batch: more is taken for a bomb."""

MAPPED: Final = -1
"""All keys of a batch are in the map."""


class BatchCleaner:
    """Cleans the batches of one log against a map; ``now_ms`` and the retention decide on tombstones.

    After :meth:`clean` the attributes tell of the batch that it returned.
    """

    def __init__(self, offsets: OffsetMap, now_ms: i64, delete_retention_ms: i64) -> None:
        self.offsets = offsets
        self.now_ms: i64 = now_ms
        self.delete_retention_ms: i64 = delete_retention_ms
        self.records_read: i64 = 0
        self.records_kept: i64 = 0
        self.records_without_key: i64 = 0
        self.max_timestamp: i64 = NO_TIMESTAMP
        self._data: bytes = b""
        self._position: i64 = 0
        self._end: i64 = 0
        # The record at which the walk stands.
        self._begin: i64 = 0
        self._after: i64 = 0
        self._rest: i64 = 0
        self._timestamp: i64 = 0
        self._offset_delta: i64 = 0
        self._key: i64 = 0
        self._key_bytes: i64 = 0
        self._value_bytes: i64 = 0
        # The records of a group, whose keys are prepared in the map.
        self._begins: vec[i64] = vec[i64]([0] * GROUP)
        self._ends: vec[i64] = vec[i64]([0] * GROUP)
        self._record_offsets: vec[i64] = vec[i64]([0] * GROUP)
        self._key_sizes: vec[i64] = vec[i64]([0] * GROUP)
        self._value_sizes: vec[i64] = vec[i64]([0] * GROUP)

    def index(self, batch: Batch, start_offset: i64) -> i64:
        """Puts the batch's keys from ``start_offset`` on into the map.

        Returns :data:`MAPPED`, or the offset of the record at which the map was full. Raises CorruptMessage
        and InvalidRecord for a batch that makes no sense.
        """
        self._unpack(batch)
        left: i64 = batch.record_count
        while left > 0:
            count: i64 = self._gather(batch, left)
            at: i64 = 0
            while at < count:
                offset: i64 = self._record_offsets[at]
                if (
                    self._key_sizes[at] >= 0
                    and offset >= start_offset
                    and not self.offsets.put_prepared(at, offset)
                ):
                    return offset
                at += 1
            left -= count
        self._check_end(batch)
        return MAPPED

    def clean(self, batch: Batch, keep_all: bool, marker_may_go: bool) -> bytes:
        """What stays of the batch; the same bytes when all of it does, none when nothing does.

        ``keep_all`` for control batches, whose records are no data; ``marker_may_go`` for the marker of a
        transaction without records, which needs a delete horizon. Raises as :meth:`index`.
        """
        self._unpack(batch)
        if batch.record_count == 0:
            return b""
        kept = BytesWriter()
        count: i64 = 0
        tombstones = False
        horizon: i64 = batch.base_timestamp if batch.has_delete_horizon else -1
        tombstones_go: bool = horizon >= 0 and self.now_ms >= horizon
        spans: list[i64] = []
        left: i64 = batch.record_count
        while left > 0:
            group: i64 = self._gather(batch, left)
            at: i64 = 0
            while at < group:
                if keep_all or self._stays(at, tombstones_go):
                    if count > 0 and spans[len(spans) - 1] == self._begins[at]:
                        spans[len(spans) - 1] = self._ends[at]
                    else:
                        spans.append(self._begins[at])
                        spans.append(self._ends[at])
                    count += 1
                    tombstones = tombstones or self._value_sizes[at] < 0
                at += 1
            left -= group
        self._check_end(batch)
        self.records_read += batch.record_count
        self.records_kept += count
        if count == 0:
            return b""
        sets_horizon: bool = horizon < 0 and (tombstones or marker_may_go)
        if count == batch.record_count and not sets_horizon:
            self.max_timestamp = batch.max_timestamp
            return batch.to_bytes()
        base_timestamp: i64 = self._new_base(batch, spans[0], sets_horizon, horizon)
        self.max_timestamp = NO_TIMESTAMP
        self._rewrite(batch, spans, base_timestamp, kept)
        attributes: i64 = batch.attributes
        if sets_horizon:
            attributes |= DELETE_HORIZON_FLAG
        if attributes & APPEND_TIME_FLAG != 0:
            self.max_timestamp = batch.max_timestamp
        packed = compress(attributes & CODEC_MASK, kept.getvalue(), None)
        return self._assembled(batch, packed, attributes, base_timestamp, count)

    def empty(self, batch: Batch) -> bytes:
        """The batch without records: what stays for its offsets, its producer and its sequence numbers."""
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

    def _stays(self, at: i64, tombstones_go: bool) -> bool:
        """Whether the record number ``at`` of the group stays."""
        offset: i64 = self._record_offsets[at]
        if offset > self.offsets.latest_offset:
            return True
        if self._key_sizes[at] < 0:
            self.records_without_key += 1
            return False
        if tombstones_go and self._value_sizes[at] < 0:
            return False
        return offset >= self.offsets.get_prepared(at)

    def _gather(self, batch: Batch, left: i64) -> i64:
        """Reads the next records, at most a group of the ``left`` ones; how many."""
        count: i64 = left if left < GROUP else GROUP
        at: i64 = 0
        while at < count:
            self._step(batch)
            self._begins[at] = self._begin
            self._ends[at] = self._after
            self._record_offsets[at] = batch.base_offset + self._offset_delta
            self._key_sizes[at] = self._key_bytes
            self._value_sizes[at] = self._value_bytes
            if self._key_bytes >= 0:
                self.offsets.prepare(at, self._data, self._key, self._key_bytes)
            at += 1
        if count > 1:
            self.offsets.warm(count)
        return count

    def _new_base(self, batch: Batch, first: i64, sets_horizon: bool, horizon: i64) -> i64:
        """The base timestamp of the new batch: the horizon, or the first record's time."""
        if sets_horizon:
            return self.now_ms + self.delete_retention_ms
        if horizon >= 0:
            return horizon
        if batch.append_time:
            return batch.max_timestamp
        self._position = first
        self._step(batch)
        return self._timestamp

    def _rewrite(self, batch: Batch, spans: list[i64], base_timestamp: i64, kept: BytesWriter) -> None:
        """Copies the records of ``spans``, with timestamp deltas for another base timestamp."""
        same: bool = base_timestamp == batch.base_timestamp and not batch.append_time
        data = self._data
        at: i64 = 0
        while at < len(spans):
            begin: i64 = spans[at]
            end: i64 = spans[at + 1]
            if same:
                kept.write(data[begin:end])
            self._position = begin
            while self._position < end:
                self._step(batch)
                if self._timestamp > self.max_timestamp:
                    self.max_timestamp = self._timestamp
                if not same:
                    delta: i64 = add_timestamp(self._timestamp, -base_timestamp)
                    rest: i64 = self._rest
                    after: i64 = self._after
                    write_varint(kept, 1 + varint_size(delta) + after - rest)
                    kept.append(0)
                    write_varint(kept, delta)
                    kept.write(data[rest:after])
            at += 2

    def _unpack(self, batch: Batch) -> None:
        check_crc(batch)
        position: i64 = batch.position + RECORDS
        end: i64 = batch.position + batch.size
        if batch.codec == NONE:
            self._data = batch.data
            self._position = position
            self._end = end
        elif batch.record_count > 0:
            self._data = decompress_range(batch.codec, batch.data, position, end, UNPACKED_BYTES_MAX)
            self._position = 0
            self._end = len(self._data)

    def _check_end(self, batch: Batch) -> None:
        if batch.record_count > 0 and self._position != self._end:
            raise _wrong(batch, "more bytes after its last record:", self._end - self._position)

    def _step(self, batch: Batch) -> None:
        """Reads the next record's frame, key and value lengths."""
        data = self._data
        self._begin = self._position
        length, position = read_varint(data, self._position, self._end)
        if length < RECORD_LENGTH_MIN or length > self._end - position:
            raise _wrong(batch, "length", length)
        after: i64 = position + length
        delta, position = read_varlong(data, position + 1, after)
        self._rest = position
        self._offset_delta, position = read_varint(data, position, after)
        if self._offset_delta < 0 or self._offset_delta > batch.last_offset_delta:
            raise _wrong(batch, "offset delta", self._offset_delta)
        size, position = read_varint(data, position, after)
        self._key = position
        self._key_bytes = size
        if size < -1 or size > after - position:
            raise _wrong(batch, "key length", size)
        if size > 0:
            position += size
        size, position = read_varint(data, position, after)
        self._value_bytes = size
        if size < -1 or size > after - position:
            raise _wrong(batch, "value length", size)
        self._timestamp = (
            batch.max_timestamp if batch.append_time else add_timestamp(batch.base_timestamp, delta)
        )
        self._after = after
        self._position = after


def _wrong(batch: Batch, what: str, value: i64) -> CorruptMessage:
    return CorruptMessage(
        f"a record in the batch with base offset {batch.base_offset} ({batch.record_count} records, "
        f"{batch.size} bytes) has {what} {value}"
    )
