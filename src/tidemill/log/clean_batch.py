"""What compaction does to one batch of format v2: its keys into the map, its records through the filter.

A record of a key that comes again later goes, one without a key goes, and so does a tombstone whose time is
over. What stays keeps its offset, and the batch keeps its first and last one, so that the producer's sequence
numbers keep their places. A batch from which nothing goes is written as it is.

A batch that holds tombstones (or the marker of a transaction that has no records any more) gets a delete
horizon the first time that it is cleaned: the moment from which they may go. It takes the place of the base
timestamp, and a bit of the attributes says so (KIP-534).

Every batch's checksum is checked before, so that damage is never given a new checksum. Only what goes as a
whole is not checked again that was checked when its keys came into the map.

The map is asked for many keys at a time (:data:`tidemill.log.offset_map.GROUP`), also where each has a batch
of its own: keys for the map are gathered over batches, and batches without a codec that lie in one buffer
form a run, which is sifted as a whole.

Source: Apache Kafka, ``MemoryRecords.java`` (``filterTo``), ``LogCleaner.scala`` (``shouldRetainRecord``).
"""

from __future__ import annotations

from librt.strings import BytesWriter
from librt.vecs import vec
from mypy_extensions import i64

from tidemill.log.offset_map import GROUP, OffsetMap
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    NO_TIMESTAMP,
    NONE,
    RECORDS,
    Batch,
    check_crc,
    wrong_record,
)
from tidemill.records.builder import assemble
from tidemill.records.compression import compress, decompress_range
from tidemill.records.validate import RECORD_LENGTH_MIN, add_timestamp
from tidemill.records.varint import read_varint, read_varlong, varint_size, write_varint


class BatchCleaner:
    """Cleans the batches of one log against a map; ``now_ms`` and the retention decide on tombstones.

    A walk that fills the map calls :meth:`index` and at its end :meth:`put_gathered`. One that writes calls
    :meth:`clean` for a batch by itself; or :meth:`join` for each that :meth:`may_join` while
    :meth:`has_room_for` it, then :meth:`look_up` and :meth:`clean_joined` for each of :attr:`run`, and
    :meth:`end_run`. After each cleaned batch :attr:`max_timestamp` is that of what stays.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        now_ms: i64,
        delete_retention_ms: i64,
        unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX,
    ) -> None:
        self.offsets = offsets
        self.now_ms: i64 = now_ms
        self.delete_retention_ms: i64 = delete_retention_ms
        self.unpacked_bytes_max: i64 = unpacked_bytes_max
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
        # What stays of the batch that is cleaned: (begin, end) of records in a row, and what they are.
        self._spans: list[i64] = []
        self._kept: i64 = 0
        self._tombstones: bool = False
        self._tombstones_go: bool = False
        self.run: list[Batch] = []
        """Batches that are cleaned together."""
        self.indexed: i64 = offsets.latest_offset
        """Up to here the log was walked: keys before this are in the map, or gathered for it."""
        # The records of a group, whose keys are prepared in the map.
        self._gathered: i64 = 0
        self._begins: vec[i64] = vec[i64]([0] * GROUP)
        self._ends: vec[i64] = vec[i64]([0] * GROUP)
        self._record_offsets: vec[i64] = vec[i64]([0] * GROUP)
        self._key_sizes: vec[i64] = vec[i64]([0] * GROUP)
        self._value_sizes: vec[i64] = vec[i64]([0] * GROUP)
        self._indexed_before: vec[i64] = vec[i64]([0] * GROUP)

    def index(self, batch: Batch) -> bool:
        """Gathers the batch's keys for the map; False when the map is full.

        Raises CorruptMessage and InvalidRecord for a batch that makes no sense.
        """
        self._unpack(batch)
        left: i64 = batch.record_count
        while left > 0:
            if self._gathered == GROUP and not self.put_gathered():
                return False
            first: i64 = self._gathered
            self._gather(batch, left)
            left -= self._gathered - first
            while first < self._gathered:
                self._indexed_before[first] = self.indexed
                first += 1
        self._check_end(batch)
        return True

    def put_gathered(self) -> bool:
        """Puts what was gathered into the map, which is up to date then up to :attr:`indexed`.

        False when it is full: it is up to date then up to the last batch of which all keys are in it.
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
        """What stays of the batch; the same bytes when all of it does, none when nothing does.

        ``keep_all`` for control batches, whose records are no data; ``marker_may_go`` for the marker of a
        transaction without records, which needs a delete horizon. Raises as :meth:`index`.
        """
        self._unpack(batch)
        self._begin_sifting(batch)
        left: i64 = batch.record_count
        while left > 0:
            self._gathered = 0
            self._gather(batch, left)
            self.look_up()
            self._sift(0, self._gathered, keep_all)
            left -= self._gathered
        self._gathered = 0
        self._check_end(batch)
        return self._sifted(batch, marker_may_go)

    def may_join(self, batch: Batch) -> bool:
        """Whether the batch may be part of a run, which neither a large one may nor one with a codec."""
        return batch.record_count <= GROUP and batch.codec == NONE

    def has_room_for(self, batch: Batch) -> bool:
        """Whether the batch can join the run that there is. A run lies in one buffer."""
        if not self.run:
            return True
        return batch.record_count <= GROUP - self._gathered and self.run[0].data is batch.data

    def join(self, batch: Batch) -> None:
        """Adds a batch to the run; raises as :meth:`index`."""
        self._take_plain(batch)
        self._gather(batch, batch.record_count)
        self._check_end(batch)
        self.run.append(batch)

    def look_up(self) -> None:
        """Fetches what the map knows of the keys that were gathered."""
        if self._gathered > 1:
            self.offsets.warm(self._gathered)

    def clean_joined(self, batch: Batch, first: i64) -> bytes:
        """As :meth:`clean`, for a data batch of the run; ``first``: how many records come before it there."""
        self._begin_sifting(batch)
        self._sift(first, first + batch.record_count, False)
        last: i64 = batch.last_offset
        if self._kept > 0 or last < self.offsets.first_offset or last > self.offsets.latest_offset:
            check_crc(batch)
        return self._sifted(batch, False)

    def end_run(self) -> None:
        """Lets go of the run's batches."""
        self.run.clear()
        self._gathered = 0

    def _begin_sifting(self, batch: Batch) -> None:
        if self._spans:
            self._spans = []
        self._kept = 0
        self._tombstones = False
        self._tombstones_go = batch.has_delete_horizon and self.now_ms >= batch.base_timestamp >= 0

    def _sift(self, at: i64, end: i64, keep_all: bool) -> None:
        """Notes which records of the group stay, from number ``at`` to before ``end``."""
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

    def _sifted(self, batch: Batch, marker_may_go: bool) -> bytes:
        """What stays of the batch, now that all of its records were sifted."""
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
        if batch.codec == NONE:
            self._take_plain(batch)
        spans = self._spans
        base_timestamp: i64 = self._new_base(batch, spans[0], sets_horizon, horizon)
        self.max_timestamp = NO_TIMESTAMP
        kept = BytesWriter()
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
        """Whether the record number ``at`` of the group stays."""
        offset: i64 = self._record_offsets[at]
        if offset > self.offsets.latest_offset:
            return True
        if self._key_sizes[at] < 0:
            self.records_without_key += 1
            return False
        if self._tombstones_go and self._value_sizes[at] < 0:
            return False
        return offset >= self.offsets.get_prepared(at)

    def _gather(self, batch: Batch, left: i64) -> None:
        """Adds the next records to the group: the ``left`` ones, or as many as it has room for."""
        at: i64 = self._gathered
        end: i64 = at + left if left < GROUP - at else GROUP
        while at < end:
            self._step(batch)
            self._begins[at] = self._begin
            self._ends[at] = self._after
            self._record_offsets[at] = batch.base_offset + self._offset_delta
            self._key_sizes[at] = self._key_bytes
            self._value_sizes[at] = self._value_bytes
            if self._key_bytes >= 0:
                self.offsets.prepare(at, self._data, self._key, self._key_bytes)
            at += 1
        self._gathered = at

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
        if batch.codec == NONE:
            self._take_plain(batch)
        elif batch.record_count > 0:
            begin: i64 = batch.position + RECORDS
            end: i64 = batch.position + batch.size
            self._data = decompress_range(batch.codec, batch.data, begin, end, self.unpacked_bytes_max)
            self._position = 0
            self._end = len(self._data)

    def _take_plain(self, batch: Batch) -> None:
        """Goes to the first record of a batch without a codec."""
        self._data = batch.data
        self._position = batch.position + RECORDS
        self._end = batch.position + batch.size

    def _check_end(self, batch: Batch) -> None:
        if batch.record_count > 0 and self._position != self._end:
            raise wrong_record(batch, "more bytes after its last record:", self._end - self._position)

    def _step(self, batch: Batch) -> None:
        """Reads the next record's frame, key and value lengths."""
        data = self._data
        self._begin = self._position
        length, position = read_varint(data, self._position, self._end)
        if length < RECORD_LENGTH_MIN or length > self._end - position:
            raise wrong_record(batch, "length", length)
        after: i64 = position + length
        delta, position = read_varlong(data, position + 1, after)
        self._rest = position
        self._offset_delta, position = read_varint(data, position, after)
        if self._offset_delta < 0 or self._offset_delta > batch.last_offset_delta:
            raise wrong_record(batch, "offset delta", self._offset_delta)
        size, position = read_varint(data, position, after)
        self._key = position
        self._key_bytes = size
        if size < -1 or size > after - position:
            raise wrong_record(batch, "key length", size)
        if size > 0:
            position += size
        size, position = read_varint(data, position, after)
        self._value_bytes = size
        if size < -1 or size > after - position:
            raise wrong_record(batch, "value length", size)
        self._timestamp = (
            batch.max_timestamp if batch.append_time else add_timestamp(batch.base_timestamp, delta)
        )
        self._after = after
        self._position = after
