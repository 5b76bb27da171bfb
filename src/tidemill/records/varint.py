"""Zig-zag varints of message format v2: read from ``bytes`` by position, written to a ``BytesWriter``.

=========  =======  ==========================================  ====================
name       value    bytes                                       used for
=========  =======  ==========================================  ====================
varint     int32    1 to 5; the fifth carries 4 bits            lengths, offset delta, counts
varlong    int64    1 to 10; the tenth carries 1 bit            timestamp delta
=========  =======  ==========================================  ====================

Each byte holds 7 bits, lowest first; the high bit means that another byte follows. The sign is in the lowest
bit of the value (``(n << 1) ^ (n >> 31)``), so that small negative numbers are short as well.

Stricter than the original (``ByteUtils.readVarint``), which drops the bits that do not fit: no writer
produces them, and compiled and plain code must agree on every input.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from tidemill.model.errors import InvalidRecord

# mypyc boxes an integer literal of more than 62 bits each time, but not the result of a call.
INT64_MAX: Final[i64] = i64(0x7FFFFFFFFFFFFFFF)
INT64_MIN: Final[i64] = -INT64_MAX - 1

VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10


def read_varint(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """Reads an int32; returns it and the next position. InvalidRecord if it does not end before ``end``."""
    if position >= end:
        raise _cut(end)
    byte: i64 = data[position]
    position += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position
    value: i64 = byte & 0x7F
    shift: i64 = 7
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if shift == 28 and byte > 0x0F:
                raise _beyond(position, VARINT_BYTES_MAX)
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 28:
            raise _beyond(position, VARINT_BYTES_MAX)
    raise _cut(end)


def read_varlong(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """Reads an int64; returns it and the next position. InvalidRecord if it does not end before ``end``."""
    value: i64 = 0
    shift: i64 = 0
    while position < end:
        byte: i64 = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            if shift < 63:
                return (value >> 1) ^ -(value & 1), position
            if byte > 1:
                raise _beyond(position, VARLONG_BYTES_MAX)
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise _beyond(position, VARLONG_BYTES_MAX)
    raise _cut(end)


def varint_size(value: i64) -> i64:
    """Returns the size of ``value`` in bytes, as a varint or a varlong."""
    rest: i64 = (value << 1) ^ (value >> 63)
    size: i64 = 1
    while rest & -128 != 0:
        size += 1
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
    return size


def write_varint(writer: BytesWriter, value: i64) -> None:
    """Writes ``value``, an int64, in zig-zag encoding."""
    rest: i64 = (value << 1) ^ (value >> 63)
    while rest & -128 != 0:
        writer.append(int((rest & 0x7F) | 0x80))
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
    writer.append(int(rest))


def _beyond(position: i64, bytes_max: i64) -> InvalidRecord:
    return InvalidRecord(
        f"a varint before byte {position} is longer than {bytes_max} bytes or too large for its type"
    )


def _cut(end: i64) -> InvalidRecord:
    return InvalidRecord(f"a varint runs past the end of its record or batch at byte {end}")
