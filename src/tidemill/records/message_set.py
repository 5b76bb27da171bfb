"""Message sets of formats v0 and v1: construction, and assignment of offsets.

The layout is in :mod:`tidemill.records.legacy_formats`.
"""

from __future__ import annotations

from librt.strings import BytesWriter, read_i32_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from tidemill.model.errors import InvalidRecord
from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    LENGTH,
    LOG_OVERHEAD,
    NO_COMPRESSION,
    NO_TIMESTAMP,
)
from tidemill.records.builder import INT32_MAX
from tidemill.records.checksum import crc32
from tidemill.records.legacy_formats import ATTRIBUTES, CRC, KEY_LENGTH_V1, MAGIC, pack


class MessageSet:
    """A producer's records for a topic of format 0 or 1: checked, with offsets from 0.

    Created by :func:`tidemill.records.format_conversion.for_storage` for :meth:`Log.append_messages`.
    """

    def __init__(
        self,
        data: bytes,
        magic: i64,
        codec: i64,
        record_count: i64,
        max_timestamp: i64,
        unpacked: bytes | None = None,
        level: int | None = None,
    ) -> None:
        self.data = data
        """Entries in offset order, or one wrapper. Empty for a wrapper of v0."""
        self.magic: i64 = magic
        self.codec: i64 = codec
        self.record_count: i64 = record_count
        self.max_timestamp: i64 = max_timestamp
        """In ms; the largest of the records, -1 when there is none (always in v0)."""
        self.unpacked = unpacked
        """For a wrapper of v0: its messages, which get absolute offsets before they are compressed."""
        self.level = level

    def stored(self, base_offset: i64, append_time_ms: i64 = NO_TIMESTAMP) -> bytes:
        """Returns the set as stored in the log, with its first record at ``base_offset``.

        ``append_time_ms`` is the broker's clock in a topic with append time, -1 in one with create time; v0
        cannot store it.
        """
        last: i64 = base_offset + self.record_count - 1
        if self.unpacked is not None:
            inside = with_offsets(self.unpacked, base_offset)
            return wrap(self.magic, self.codec, inside, last, NO_TIMESTAMP, NO_TIMESTAMP, self.level)
        if self.magic == 0 or (append_time_ms == NO_TIMESTAMP and self.codec == NO_COMPRESSION):
            return with_offsets(self.data, base_offset)
        writer = BytesWriter()
        if self.codec != NO_COMPRESSION:
            timestamp: i64 = self.max_timestamp if append_time_ms == NO_TIMESTAMP else append_time_ms
            _restamp(writer, self.data, 0, len(self.data), last, timestamp, append_time_ms != NO_TIMESTAMP)
            return writer.getvalue()
        position: i64 = 0
        offset: i64 = base_offset
        while position < len(self.data):
            size: i64 = i64(read_i32_be(self.data, position + LENGTH)) + LOG_OVERHEAD
            _restamp(writer, self.data, position, size, offset, append_time_ms, True)
            position += size
            offset += 1
        return writer.getvalue()


class PlacedMessageSet(MessageSet):
    """A wrapper of format v0 whose messages contain their offsets: it is stored at ``base_offset`` only."""

    def __init__(self, data: bytes, base_offset: i64, codec: i64, record_count: i64) -> None:
        super().__init__(data, 0, codec, record_count, NO_TIMESTAMP)
        self.base_offset: i64 = base_offset

    def stored(self, base_offset: i64, append_time_ms: i64 = NO_TIMESTAMP) -> bytes:
        """Returns the wrapper; raises RuntimeError for another offset."""
        if base_offset != self.base_offset:
            raise RuntimeError(f"a set made for offset {self.base_offset} was to be stored at {base_offset}")
        return self.data


class MessageSetWriter:
    """Collects messages of format ``magic`` (0 or 1) for an uncompressed set or the inside of a wrapper.

    ``append_time``: the messages are marked as having the broker's time. Their total size is limited to
    ``bytes_max``.
    """

    def __init__(self, magic: i64, append_time: bool = False, bytes_max: i64 = INT32_MAX) -> None:
        if magic < 0 or magic > 1:
            raise ValueError(f"a message set has format 0 or 1, not {magic}")
        self.magic: i64 = magic
        self.append_time: bool = append_time and magic > 0
        self.bytes_max: i64 = bytes_max
        self.count: i64 = 0
        self.max_timestamp: i64 = NO_TIMESTAMP
        """The largest so far; -1 without a timestamp, and in v0."""
        self.largest_entry: i64 = 0
        """Size in bytes."""
        self._writer = BytesWriter()
        self._body = BytesWriter()
        """The body of the current message."""

    @property
    def size_bytes(self) -> i64:
        """The total size of the messages so far."""
        return i64(len(self._writer))

    def append(
        self,
        offset: i64,
        timestamp: i64,
        data: bytes,
        key_position: i64,
        key_length: i64,
        value_position: i64,
        value_length: i64,
    ) -> None:
        """Adds a message whose key and value are in ``data``; a length of -1 means that there is none."""
        size: i64 = KEY_LENGTH_V1 + 8 if self.magic > 0 else KEY_LENGTH_V1
        if key_length > 0:
            size += key_length
        if value_length > 0:
            size += value_length
        if size > self.bytes_max - i64(len(self._writer)):
            raise self._too_large(size)
        body = self._body
        body.truncate(0)
        body.append(int(self.magic))
        body.append(int(APPEND_TIME_FLAG if self.append_time else 0))
        if self.magic > 0:
            write_i64_be(body, timestamp)
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
        _write_field(body, data, key_position, key_length)
        _write_field(body, data, value_position, value_length)
        _write_entry(self._writer, offset, body.getvalue())
        self.count += 1
        if size > self.largest_entry:
            self.largest_entry = size

    def extend(self, entries: bytes, count: i64) -> None:
        """Adds whole entries that contain ``count`` messages."""
        self._writer.write(entries)
        self.count += count

    def getvalue(self) -> bytes:
        """Returns the messages."""
        return self._writer.getvalue()

    def _too_large(self, size: i64) -> InvalidRecord:
        return InvalidRecord(
            f"{self.count + 1} records take {self.size_bytes + size} bytes in message format v{self.magic}, "
            f"the limit is {self.bytes_max}: send smaller batches"
        )


def wrap(
    magic: i64,
    codec: i64,
    inside: bytes,
    last_offset: i64,
    max_timestamp: i64,
    append_time_ms: i64 = NO_TIMESTAMP,
    level: int | None = None,
) -> bytes:
    """Returns the wrapper around the messages ``inside``, the last of which has ``last_offset``.

    ``append_time_ms`` other than -1 applies to all of them (v1), ``max_timestamp`` is their largest
    timestamp.
    """
    packed = pack(magic, codec, inside, level)
    attributes: i64 = codec
    timestamp: i64 = max_timestamp
    if append_time_ms != NO_TIMESTAMP and magic > 0:
        attributes |= APPEND_TIME_FLAG
        timestamp = append_time_ms
    body = BytesWriter()
    body.append(int(magic))
    body.append(int(attributes))
    if magic > 0:
        write_i64_be(body, timestamp)
    write_i32_be(body, -1)
    _write_field(body, packed, 0, len(packed))
    writer = BytesWriter()
    _write_entry(writer, last_offset, body.getvalue())
    return writer.getvalue()


def with_offsets(data: bytes, base_offset: i64) -> bytes:
    """Returns the entries in ``data`` with offsets from ``base_offset``, which no checksum covers."""
    writer = BytesWriter()
    position: i64 = 0
    offset: i64 = base_offset
    while position < len(data):
        size: i64 = i64(read_i32_be(data, position + LENGTH)) + LOG_OVERHEAD
        write_i64_be(writer, offset)
        _write_range(writer, data, position + LENGTH, position + size)
        position += size
        offset += 1
    return writer.getvalue()


def _restamp(
    writer: BytesWriter, data: bytes, position: i64, size: i64, offset: i64, timestamp: i64, append_time: bool
) -> None:
    """Writes the entry of v1 at ``position`` with another offset, timestamp and timestamp type."""
    attributes: i64 = i64(data[position + ATTRIBUTES]) & ~APPEND_TIME_FLAG
    if append_time:
        attributes |= APPEND_TIME_FLAG
    body = BytesWriter()
    body.append(int(data[position + MAGIC]))
    body.append(int(attributes))
    write_i64_be(body, timestamp)
    _write_range(body, data, position + KEY_LENGTH_V1, position + size)
    _write_entry(writer, offset, body.getvalue())


def _write_entry(writer: BytesWriter, offset: i64, body: bytes) -> None:
    """Writes offset, size and checksum, followed by the bytes that the checksum covers."""
    size: i64 = MAGIC - CRC + i64(len(body))
    if size > INT32_MAX:
        raise InvalidRecord(f"{size} bytes exceed the int32 size of an entry")
    write_i64_be(writer, offset)
    write_i32_be(writer, i32(size))
    crc: i64 = crc32(body)
    write_i32_be(writer, i32(crc - 0x100000000 if crc > INT32_MAX else crc))
    writer.write(body)


def _write_field(writer: BytesWriter, data: bytes, position: i64, length: i64) -> None:
    if length < 0:
        write_i32_be(writer, -1)
        return
    write_i32_be(writer, i32(length))
    _write_range(writer, data, position, position + length)


def _write_range(writer: BytesWriter, data: bytes, begin: i64, end: i64) -> None:
    if begin == 0 and end == len(data):
        writer.write(data)
    else:
        writer.write(data[begin:end])
