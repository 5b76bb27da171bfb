"""Builds record batches: of producers, of the broker's own records, and transaction markers.

It also rewrites the header of a batch that is stored with another timestamp or codec. The layout is in
:mod:`tidemill.records.batch`, that of records in :mod:`tidemill.records.record_cursor`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64

from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    CONTROL_FLAG,
    CRC,
    CURRENT_MAGIC,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    NO_COMPRESSION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_ID,
    RECORDS,
    TRANSACTIONAL_FLAG,
    ZSTD,
    Batch,
    parse_batch,
)
from tidemill.records.checksum import crc32c
from tidemill.records.compression import compress
from tidemill.records.end_transaction_marker import ABORT, COMMIT, EndTransactionMarker
from tidemill.records.varint import varint_size, write_varint

Headers = list[tuple[str, bytes | None]]
"""The headers of a record: keys may repeat, and order is kept."""

INT32_MAX: Final = 0x7FFFFFFF


class BatchBuilder:
    """Collects records for one batch.

    ``codec`` and ``level`` are as in :func:`tidemill.records.compression.compress`. The base timestamp is the
    first record's. Not thread-safe.
    """

    def __init__(self, codec: i64 = NO_COMPRESSION, level: int | None = None) -> None:
        if codec < NO_COMPRESSION or codec > ZSTD:
            raise ValueError(
                f"compression codec {codec} does not exist: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"
            )
        self.codec: i64 = codec
        self.level = level
        self.count: i64 = 0
        self.base_timestamp: i64 = NO_TIMESTAMP
        self.max_timestamp: i64 = NO_TIMESTAMP
        self._writer = BytesWriter()

    @property
    def size_bytes(self) -> i64:
        """The size of the batch if it were built now without compression."""
        return RECORDS + i64(len(self._writer))

    def append(
        self, timestamp: i64, key: bytes | None, value: bytes | None, headers: Headers | None = None
    ) -> i64:
        """Adds a record (time in ms); returns the new :attr:`size_bytes`. Adds nothing when it raises."""
        if self.count == 0:
            self.base_timestamp = timestamp
        delta: i64 = timestamp - self.base_timestamp
        if self.count == INT32_MAX:
            raise _full(self.count)
        length: i64 = 1 + varint_size(delta) + varint_size(self.count) + _field_size(key) + _field_size(value)
        if headers is None:
            length += 1
        else:
            length += _headers_size(headers)
        if length > INT32_MAX:
            raise _too_long(length)
        writer = self._writer
        before: i64 = len(writer)
        try:
            write_varint(writer, length)
            writer.append(0)
            write_varint(writer, delta)
            write_varint(writer, self.count)
            _write_field(writer, key)
            _write_field(writer, value)
            if headers is None:
                writer.append(0)
            else:
                _write_headers(writer, headers)
        except BaseException:
            writer.truncate(before)
            raise
        self.count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        return RECORDS + i64(len(writer))

    def build(
        self,
        producer_id: i64 = NO_PRODUCER_ID,
        producer_epoch: i64 = NO_PRODUCER_EPOCH,
        base_sequence: i64 = NO_SEQUENCE,
        transactional: bool = False,
        leader_epoch: i64 = -1,
        base_offset: i64 = 0,
        control: bool = False,
    ) -> bytes:
        """Returns the batch, with its checksum. Raises ValueError when it has no records.

        It may be called again, for instance with another sequence number, and after more records.
        """
        if self.count == 0:
            raise ValueError("a batch without records cannot be built")
        attributes: i64 = self.codec
        if transactional:
            attributes |= TRANSACTIONAL_FLAG
        if control:
            attributes |= CONTROL_FLAG
        return assemble(
            compress(self.codec, self._writer.getvalue(), self.level),
            base_offset,
            leader_epoch,
            attributes,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )


def build_end_marker(
    committed: bool,
    timestamp: i64,
    producer_id: i64,
    producer_epoch: i64,
    coordinator_epoch: i64,
    leader_epoch: i64 = -1,
    base_offset: i64 = 0,
) -> bytes:
    """Builds the control batch that ends a producer's transaction in a partition."""
    marker = EndTransactionMarker(COMMIT if committed else ABORT, coordinator_epoch)
    builder = BatchBuilder()
    builder.append(timestamp, marker.key(), marker.value(), None)
    return builder.build(producer_id, producer_epoch, NO_SEQUENCE, True, leader_epoch, base_offset, True)


def stamp_append_time(batch: Batch, now_ms: i64) -> bytes:
    """Returns the batch for a topic with append time: its bit set, the broker's clock as max timestamp."""
    if batch.append_time and batch.max_timestamp == now_ms:
        return batch.to_bytes()
    return _with_times(batch, batch.attributes | APPEND_TIME_FLAG, now_ms)


def with_max_timestamp(batch: Batch, max_timestamp: i64) -> Batch:
    """Returns the batch with create time and another max timestamp in its header."""
    data = _with_times(batch, batch.attributes & ~APPEND_TIME_FLAG, max_timestamp)
    return parse_batch(data, 0, len(data))


def assemble(
    records: bytes,
    base_offset: i64,
    leader_epoch: i64,
    attributes: i64,
    last_offset_delta: i64,
    base_timestamp: i64,
    max_timestamp: i64,
    producer_id: i64,
    producer_epoch: i64,
    base_sequence: i64,
    count: i64,
) -> bytes:
    """Assembles header fields and packed records, with a checksum. Raises ValueError beyond 2 GiB."""
    size: i64 = RECORDS - LOG_OVERHEAD + i64(len(records))
    if size > INT32_MAX:
        raise _too_long(size)
    checked = BytesWriter()
    write_i16_be(checked, i16(attributes))
    write_i32_be(checked, i32(last_offset_delta))
    write_i64_be(checked, base_timestamp)
    write_i64_be(checked, max_timestamp)
    write_i64_be(checked, producer_id)
    write_i16_be(checked, i16(producer_epoch))
    write_i32_be(checked, i32(base_sequence))
    write_i32_be(checked, i32(count))
    header = checked.getvalue()
    batch = BytesWriter()
    write_i64_be(batch, base_offset)
    write_i32_be(batch, i32(size))
    write_i32_be(batch, i32(leader_epoch))
    batch.append(CURRENT_MAGIC)
    _write_u32(batch, crc32c(records, crc32c(header)))
    batch.write(header)
    batch.write(records)
    return batch.getvalue()


def _with_times(batch: Batch, attributes: i64, max_timestamp: i64) -> bytes:
    data = batch.data
    first: i64 = batch.position
    last: i64 = first + batch.size
    checked = BytesWriter()
    write_i16_be(checked, i16(attributes))
    checked.write(data[first + LAST_OFFSET_DELTA : first + MAX_TIMESTAMP])
    write_i64_be(checked, max_timestamp)
    checked.write(data[first + PRODUCER_ID : last])
    rest = checked.getvalue()
    stamped = BytesWriter()
    stamped.write(data[first : first + CRC])
    _write_u32(stamped, crc32c(rest))
    stamped.write(rest)
    return stamped.getvalue()


def _write_u32(writer: BytesWriter, value: i64) -> None:
    write_i32_be(writer, i32(value - 0x100000000 if value > INT32_MAX else value))


def _field_size(field: bytes | None) -> i64:
    if field is None:
        return 1
    size: i64 = len(field)
    return varint_size(size) + size


def _headers_size(headers: Headers) -> i64:
    size: i64 = varint_size(len(headers))
    for name, value in headers:
        size += _field_size(name.encode()) + _field_size(value)
    return size


def _write_field(writer: BytesWriter, field: bytes | None) -> None:
    if field is None:
        writer.append(1)
    else:
        write_varint(writer, len(field))
        writer.write(field)


def _write_headers(writer: BytesWriter, headers: Headers) -> None:
    write_varint(writer, len(headers))
    for name, value in headers:
        _write_field(writer, name.encode())
        _write_field(writer, value)


def _full(count: i64) -> ValueError:
    return ValueError(f"a batch of {count} records is full")


def _too_long(size: i64) -> ValueError:
    return ValueError(f"{size} bytes exceed the int32 length of a record or batch")
