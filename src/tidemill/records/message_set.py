"""Message sets of formats v0 and v1: built, and given their offsets.

The layout is in :mod:`tidemill.records.legacy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from tidemill.model.errors import InvalidRecord
from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    LENGTH,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    NONE,
)
from tidemill.records.builder import INT32_MAX
from tidemill.records.checksum import crc32
from tidemill.records.legacy import ATTRIBUTES, CRC, KEY_LENGTH_V1, MAGIC, pack

OldRecord = tuple[int, bytes | None, bytes | None]
"""Timestamp in ms (not kept by v0), key, value."""

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class MessageSet:
    """What a topic of format 0 or 1 stores of what a producer sent: checked, with offsets from 0 on.

    Made by :func:`tidemill.records.convert.for_storage`; :meth:`Log.append_messages` takes it.
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
        """Entries in the order of their offsets, or one wrapper. Empty for a wrapper of v0."""
        self.magic: i64 = magic
        self.codec: i64 = codec
        self.record_count: i64 = record_count
        self.max_timestamp: i64 = max_timestamp
        """ms; the largest of the records, -1 when there is none (always in v0)."""
        self.unpacked = unpacked
        """Of a wrapper of v0: its messages, which take absolute offsets before they are compressed."""
        self.level = level

    def stored(self, base_offset: i64, append_time_ms: i64 = NO_TIMESTAMP) -> bytes:
        """The set as the log holds it, its first record at ``base_offset``.

        ``append_time_ms`` is the broker's clock in a topic of append time, -1 in one of create time; v0
        has no place for it.
        """
        last: i64 = base_offset + self.record_count - 1
        if self.unpacked is not None:
            inside = with_offsets(self.unpacked, base_offset)
            return wrap(self.magic, self.codec, inside, last, NO_TIMESTAMP, NO_TIMESTAMP, self.level)
        if self.magic == 0 or (append_time_ms == NO_TIMESTAMP and self.codec == NONE):
            return with_offsets(self.data, base_offset)
        writer = BytesWriter()
        if self.codec != NONE:
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


class MessageSetWriter:
    """Collects messages of format ``magic`` (0 or 1), to be an uncompressed set or the inside of a wrapper.

    ``append_time``: the messages say that their times are a broker's. What they take is bounded by
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
        """The largest so far; -1 without one, and in v0."""
        self.largest_entry: i64 = 0
        """In bytes."""
        self._writer = BytesWriter()
        self._body = BytesWriter()
        """Of one message at a time."""

    @property
    def size_bytes(self) -> i64:
        """Bytes of the messages so far."""
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
        """Adds a message whose key and value lie in ``data``; a length of -1 says that there is none."""
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
        """Adds whole entries, which hold ``count`` messages."""
        self._writer.write(entries)
        self.count += count

    def getvalue(self) -> bytes:
        """The messages."""
        return self._writer.getvalue()

    def _too_large(self, size: i64) -> InvalidRecord:
        return InvalidRecord(
            f"{self.count + 1} records take {self.size_bytes + size} bytes in message format v{self.magic}, "
            f"the limit is {self.bytes_max}: send smaller batches"
        )


def build_message_set(
    magic: i64,
    records: Iterable[OldRecord],
    codec: i64 = NONE,
    level: int | None = None,
    base_offset: i64 = 0,
    append_time_ms: i64 = NO_TIMESTAMP,
) -> bytes:
    """A message set of format ``magic`` (0 or 1) whose records have the offsets from ``base_offset`` on.

    With a codec (gzip, snappy or lz4) it is one wrapper. ``append_time_ms`` other than -1 makes the times
    the broker's (v1). ValueError when there is no record and for another format; InvalidRecord for zstd.
    """
    writer = MessageSetWriter(magic, append_time_ms != NO_TIMESTAMP and codec == NONE)
    offset: i64 = 0 if codec != NONE and magic > 0 else base_offset
    for time_ms, key, value in records:
        timestamp: i64 = append_time_ms if writer.append_time else time_ms
        both = (key or b"") + (value or b"")
        split: i64 = len(key) if key is not None else 0
        writer.append(
            offset,
            timestamp,
            both,
            0,
            split if key is not None else -1,
            split,
            len(both) - split if value is not None else -1,
        )
        offset += 1
    if writer.count == 0:
        raise ValueError("a message set without records cannot be built")
    inside = writer.getvalue()
    if codec == NONE:
        return inside
    last: i64 = base_offset + writer.count - 1
    return wrap(magic, codec, inside, last, writer.max_timestamp, append_time_ms, level)


def wrap(
    magic: i64,
    codec: i64,
    inside: bytes,
    last_offset: i64,
    max_timestamp: i64,
    append_time_ms: i64 = NO_TIMESTAMP,
    level: int | None = None,
) -> bytes:
    """The wrapper around the messages ``inside``, the last of which has ``last_offset``.

    ``append_time_ms`` other than -1 is the time of all of them (v1), ``max_timestamp`` the largest of theirs.
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
    """The entries in ``data`` with the offsets from ``base_offset`` on, which no checksum covers."""
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
    """Writes the entry of v1 at ``position`` with another offset, time and kind of time."""
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
    """Offset, size and checksum before what the checksum covers."""
    size: i64 = MAGIC - CRC + i64(len(body))
    if size > INT32_MAX:
        raise InvalidRecord(f"{size} bytes are more than the int32 size of an entry can say")
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
