"""The protocol's basic types over ``bytes``: fixed-width integers, varints, strings, tagged fields.

========================  ============================================================================
type                      on the wire
========================  ============================================================================
BOOLEAN                   1 byte, 0 is false
INT8 .. INT64, UINT16     big-endian, two's complement
FLOAT64                   IEEE 754, big-endian
UUID                      16 bytes, most significant first
UNSIGNED_VARINT           7 bits a byte, low ones first, the top bit says that more follows; 1-5 bytes
VARINT, VARLONG           the same over the zigzag form; 1-5 and 1-10 bytes
STRING, NULLABLE_STRING   INT16 length (-1 is null), then UTF-8
COMPACT_STRING            UNSIGNED_VARINT length + 1 (0 is null), then UTF-8
BYTES, ARRAY              INT32 length or count (-1 is null), then the bytes or items
COMPACT_BYTES, _ARRAY     UNSIGNED_VARINT length or count + 1 (0 is null), then the bytes or items
tagged fields             UNSIGNED_VARINT count, then each: tag and size as UNSIGNED_VARINT, size bytes
========================  ============================================================================

Positions count bytes from the start of ``data``; ``end`` is the first one that may not be read. What is no
value of the protocol raises :class:`ProtocolError`, and no length is believed before it was checked.

Source: the protocol guide, section "protocol primitive types"; KIP-482.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from tidemill.model.errors import ProtocolError

STRING_BYTES_MAX: Final = 32767
"""Kafka's own limit: the length of the not-compact form is a signed INT16."""

_FLOAT64: Final = struct.Struct(">d")


def short(position: i64, size: i64, end: i64) -> ProtocolError:
    """The error for a value that the bytes end in."""
    return ProtocolError(f"{size} bytes are due at byte {position}, but the message ends at {end}")


def read_uvarint(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """An unsigned varint of at most 32 bits: its value, and the position behind it."""
    value: i64 = 0
    shift: i64 = 0
    while position < end:
        byte: i64 = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise ProtocolError(f"the varint that ends at byte {position} is over 32 bits")
            return value, position
        shift += 7
        if shift > 28:
            raise ProtocolError(f"the varint before byte {position} is longer than 5 bytes")
    raise short(position, 1, end)


def read_varint(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """A signed (zigzag) varint of at most 32 bits: its value, and the position behind it."""
    raw, after = read_uvarint(data, position, end)
    return (raw >> 1) ^ -(raw & 1), after


def read_varlong(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """A signed (zigzag) varint of at most 64 bits: its value, and the position behind it."""
    # The zigzag form needs 64 unsigned bits: the lowest (the sign) is kept apart, so that 63 fit an i64.
    if position >= end:
        raise short(position, 1, end)
    byte: i64 = data[position]
    position += 1
    sign: i64 = byte & 1
    magnitude: i64 = (byte & 0x7F) >> 1
    shift: i64 = 6
    while byte >= 0x80:
        if position >= end:
            raise short(position, 1, end)
        byte = data[position]
        position += 1
        if shift == 62 and byte > 1:
            raise ProtocolError(f"the varint before byte {position} is over 64 bits or 10 bytes")
        magnitude |= (byte & 0x7F) << shift
        shift += 7
    return magnitude ^ -sign, position


def skip_tags(data: bytes, position: i64, end: i64, count: i64) -> i64:
    """Steps over ``count`` tagged fields that nobody asked for: the position behind them."""
    if count * 2 > end - position:
        raise ProtocolError(
            f"{count} tagged fields cannot be in the {end - position} bytes from {position} on"
        )
    while count > 0:
        _tag, position = read_uvarint(data, position, end)
        size, position = read_uvarint(data, position, end)
        if size > end - position:
            raise short(position, size, end)
        position += size
        count -= 1
    return position


def skip_tag_section(data: bytes, position: i64, end: i64) -> i64:
    """Steps over the count of tagged fields and all of them: the position behind."""
    count, position = read_uvarint(data, position, end)
    return skip_tags(data, position, end, count) if count > 0 else position


def encode_uvarint(value: i64) -> bytes:
    """The bytes of an unsigned varint."""
    out = BytesWriter()
    append_uvarint(out, value)
    return out.getvalue()


def append_uvarint(out: BytesWriter, value: i64) -> None:
    """Writes an unsigned varint of at most 32 bits."""
    if value < 0 or value > 0xFFFFFFFF:
        raise ValueError(f"{value} is no unsigned varint of 32 bits")
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def append_varint(out: BytesWriter, value: i64) -> None:
    """Writes a signed (zigzag) varint of at most 64 bits."""
    sign: i64 = 1 if value < 0 else 0
    magnitude: i64 = -(value + 1) if value < 0 else value
    # The zigzag form is magnitude * 2 + sign; the product is never made, for it may need 65 bits.
    byte: i64 = ((magnitude & 0x3F) << 1) | sign
    magnitude >>= 6
    while magnitude > 0:
        out.append(byte | 0x80)
        byte = magnitude & 0x7F
        magnitude >>= 7
    out.append(byte)


class Reader:
    """Reads values one after the other, from ``position`` up to ``end``.

    For records and headers; messages have generated codecs, the hottest loops use the functions above.
    """

    def __init__(self, data: bytes, position: i64 = 0, end: i64 = -1) -> None:
        self.data: bytes = data
        self.position: i64 = position
        self.end: i64 = len(data) if end < 0 else end
        if not 0 <= position <= self.end <= len(data):
            raise ProtocolError(f"no bytes {position} to {self.end} in {len(data)} bytes")

    def remaining(self) -> i64:
        """Bytes that are left."""
        return self.end - self.position

    def expect_end(self) -> None:
        """Raises when bytes are left."""
        if self.position != self.end:
            raise ProtocolError(f"{self.end - self.position} bytes follow the value at byte {self.position}")

    def _take(self, size: i64) -> i64:
        position = self.position
        if size > self.end - position:
            raise short(position, size, self.end)
        self.position = position + size
        return position

    def read_bool(self) -> bool:
        """One byte; anything but 0 is true."""
        return self.data[self._take(1)] != 0

    def read_int8(self) -> i64:
        """A signed byte."""
        byte: i64 = self.data[self._take(1)]
        return byte - 256 if byte > 127 else byte

    def read_int16(self) -> i64:
        """A signed integer of 2 bytes."""
        return i64(read_i16_be(self.data, self._take(2)))

    def read_uint16(self) -> i64:
        """An unsigned integer of 2 bytes."""
        return i64(read_i16_be(self.data, self._take(2))) & 0xFFFF

    def read_int32(self) -> i64:
        """A signed integer of 4 bytes."""
        return i64(read_i32_be(self.data, self._take(4)))

    def read_uint32(self) -> i64:
        """An unsigned integer of 4 bytes."""
        return i64(read_i32_be(self.data, self._take(4))) & 0xFFFFFFFF

    def read_int64(self) -> i64:
        """A signed integer of 8 bytes."""
        return read_i64_be(self.data, self._take(8))

    def read_float64(self) -> float:
        """A floating-point number of 8 bytes."""
        value: float = _FLOAT64.unpack_from(self.data, self._take(8))[0]
        return value

    def read_uuid(self) -> bytes:
        """The 16 bytes of an id."""
        return self.read_raw(16)

    def read_raw(self, size: i64) -> bytes:
        """The next ``size`` bytes."""
        if size < 0:
            raise ProtocolError(f"the negative length {size} before byte {self.position}")
        position = self._take(size)
        return self.data[position : position + size]

    def read_uvarint(self) -> i64:
        """An unsigned varint of at most 32 bits."""
        value, self.position = read_uvarint(self.data, self.position, self.end)
        return value

    def read_varint(self) -> i64:
        """A signed varint of at most 32 bits."""
        value, self.position = read_varint(self.data, self.position, self.end)
        return value

    def read_varlong(self) -> i64:
        """A signed varint of at most 64 bits."""
        value, self.position = read_varlong(self.data, self.position, self.end)
        return value

    def read_nullable_string(self) -> str | None:
        """UTF-8 behind an INT16 length; None where that is -1."""
        size = self.read_int16()
        return None if size == -1 else self._text(size)

    def read_string(self) -> str:
        """UTF-8 behind an INT16 length."""
        return self._text(self.read_int16())

    def read_nullable_compact_string(self) -> str | None:
        """UTF-8 behind a compact length; None where that is 0."""
        size = self.read_uvarint() - 1
        return None if size == -1 else self._text(size)

    def read_compact_string(self) -> str:
        """UTF-8 behind a compact length."""
        return self._text(self.read_uvarint() - 1)

    def read_nullable_bytes(self) -> bytes | None:
        """Bytes behind an INT32 length; None where that is -1."""
        size = self.read_int32()
        return None if size == -1 else self.read_raw(size)

    def read_bytes(self) -> bytes:
        """Bytes behind an INT32 length."""
        return self.read_raw(self.read_int32())

    def read_nullable_compact_bytes(self) -> bytes | None:
        """Bytes behind a compact length; None where that is 0."""
        size = self.read_uvarint() - 1
        return None if size == -1 else self.read_raw(size)

    def read_compact_bytes(self) -> bytes:
        """Bytes behind a compact length."""
        return self.read_raw(self.read_uvarint() - 1)

    def read_count(self, size_min: i64) -> i64:
        """The INT32 count of an array whose items take ``size_min`` bytes or more; -1 is null."""
        return self._count(self.read_int32(), size_min)

    def read_compact_count(self, size_min: i64) -> i64:
        """The compact count of an array whose items take ``size_min`` bytes or more; -1 is null."""
        return self._count(self.read_uvarint() - 1, size_min)

    def skip_tags(self) -> None:
        """Steps over a section of tagged fields."""
        self.position = skip_tag_section(self.data, self.position, self.end)

    def _text(self, size: i64) -> str:
        if size > STRING_BYTES_MAX:
            raise ProtocolError(
                f"a string of {size} bytes at {self.position}; {STRING_BYTES_MAX} are allowed"
            )
        raw = self.read_raw(size)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise ProtocolError(f"the string before byte {self.position} is not UTF-8: {problem}") from None

    def _count(self, count: i64, size_min: i64) -> i64:
        if count < -1 or count * size_min > self.end - self.position:
            left = self.end - self.position
            raise ProtocolError(f"{count} items cannot be in the {left} bytes from {self.position} on")
        return count


class Writer:
    """Writes values one after the other.

    Raises ValueError (or OverflowError) for what its type cannot hold.
    """

    def __init__(self) -> None:
        self.out: BytesWriter = BytesWriter()

    def getvalue(self) -> bytes:
        """All that was written."""
        return self.out.getvalue()

    def size(self) -> i64:
        """Bytes written so far."""
        return len(self.out)

    def write_raw(self, value: bytes) -> None:
        """The bytes as they are."""
        self.out.write(value)

    def write_bool(self, value: bool) -> None:
        """One byte, 0 or 1."""
        self.out.append(1 if value else 0)

    def write_int8(self, value: i64) -> None:
        """A signed byte."""
        _check(value, -0x80, 0x7F)
        self.out.append(value & 0xFF)

    def write_int16(self, value: i64) -> None:
        """A signed integer of 2 bytes."""
        _check(value, -0x8000, 0x7FFF)
        write_i16_be(self.out, i16(value))

    def write_uint16(self, value: i64) -> None:
        """An unsigned integer of 2 bytes."""
        _check(value, 0, 0xFFFF)
        write_i16_be(self.out, i16(value - 0x10000 if value > 0x7FFF else value))

    def write_int32(self, value: i64) -> None:
        """A signed integer of 4 bytes."""
        _check(value, -0x80000000, 0x7FFFFFFF)
        write_i32_be(self.out, i32(value))

    def write_uint32(self, value: i64) -> None:
        """An unsigned integer of 4 bytes."""
        _check(value, 0, 0xFFFFFFFF)
        write_i32_be(self.out, i32(value - 0x100000000 if value > 0x7FFFFFFF else value))

    def write_int64(self, value: i64) -> None:
        """A signed integer of 8 bytes."""
        write_i64_be(self.out, value)

    def write_float64(self, value: float) -> None:
        """A floating-point number of 8 bytes."""
        self.out.write(_FLOAT64.pack(value))

    def write_uuid(self, value: bytes) -> None:
        """The 16 bytes of an id."""
        if len(value) != 16:
            raise ValueError(f"{value!r} is no id of 16 bytes")
        self.out.write(value)

    def write_uvarint(self, value: i64) -> None:
        """An unsigned varint of at most 32 bits."""
        append_uvarint(self.out, value)

    def write_varint(self, value: i64) -> None:
        """A signed varint of at most 32 bits."""
        _check(value, -0x80000000, 0x7FFFFFFF)
        append_varint(self.out, value)

    def write_varlong(self, value: i64) -> None:
        """A signed varint of at most 64 bits."""
        append_varint(self.out, value)

    def write_string(self, value: str | None) -> None:
        """UTF-8 behind an INT16 length; -1 for None."""
        if value is None:
            write_i16_be(self.out, -1)
            return
        raw = _text_bytes(value)
        write_i16_be(self.out, i16(len(raw)))
        self.out.write(raw)

    def write_compact_string(self, value: str | None) -> None:
        """UTF-8 behind a compact length; 0 for None."""
        if value is None:
            self.out.append(0)
            return
        raw = _text_bytes(value)
        append_uvarint(self.out, len(raw) + 1)
        self.out.write(raw)

    def write_bytes(self, value: bytes | None) -> None:
        """Bytes behind an INT32 length; -1 for None."""
        if value is None:
            write_i32_be(self.out, -1)
            return
        self.write_int32(len(value))
        self.out.write(value)

    def write_compact_bytes(self, value: bytes | None) -> None:
        """Bytes behind a compact length; 0 for None."""
        if value is None:
            self.out.append(0)
            return
        append_uvarint(self.out, len(value) + 1)
        self.out.write(value)

    def write_count(self, count: i64) -> None:
        """The INT32 count of an array; -1 is null."""
        self.write_int32(count)

    def write_compact_count(self, count: i64) -> None:
        """The compact count of an array; -1 is null."""
        append_uvarint(self.out, count + 1)

    def write_no_tags(self) -> None:
        """An empty section of tagged fields."""
        self.out.append(0)


def _check(value: i64, least: i64, most: i64) -> None:
    if not least <= value <= most:
        raise ValueError(f"{value} is outside {least} to {most}")


def _text_bytes(value: str) -> bytes:
    raw = value.encode("utf-8")
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"the string of {len(raw)} bytes is over {STRING_BYTES_MAX}")
    return raw
