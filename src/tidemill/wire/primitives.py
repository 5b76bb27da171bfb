"""Shared primitives of the message codecs: unsigned varints, and the skipping of tagged fields.

Their layout is in the table of :mod:`tidemill.wire.schema`, whose other types are generated into the codecs;
the signed varints of records are in :mod:`tidemill.records.varint`.

Positions count bytes from the start of ``data``; ``end`` is the first that must not be read. Bytes that are
not a value of the protocol raise :class:`ProtocolError`, and every length is checked before it is used.

Source: the protocol guide, section "protocol primitive types"; KIP-482.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from tidemill.model.errors import ProtocolError

TAGS_MAX: Final = 20
"""Limit of tagged fields per structure: the protocol has ten at most, while a frame could hold 50 million."""


def short(position: i64, size: i64, end: i64) -> ProtocolError:
    """Returns the error for a value that exceeds the end of the bytes."""
    return ProtocolError(f"{size} bytes are due at byte {position}, but the message ends at {end}")


def read_uvarint(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """Reads an unsigned varint of at most 32 bits: returns its value, and the position after it."""
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


def check_tag_count(position: i64, end: i64, count: i64) -> None:
    """Raises ProtocolError when a structure has too many tagged fields for the protocol or its bytes."""
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields before byte {position}; {TAGS_MAX} are allowed")
    if count * 2 > end - position:
        raise ProtocolError(
            f"{count} tagged fields cannot be in the {end - position} bytes from {position} on"
        )


def read_tag_count(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    """Reads and checks the count of tagged fields: returns the count, and the position after it."""
    count, position = read_uvarint(data, position, end)
    if count > 0:
        check_tag_count(position, end, count)
    return count, position


def skip_tags(data: bytes, position: i64, end: i64, count: i64) -> i64:
    """Skips ``count`` unknown tagged fields; returns the position after them."""
    check_tag_count(position, end, count)
    while count > 0:
        _tag, position = read_uvarint(data, position, end)
        size, position = read_uvarint(data, position, end)
        if size > end - position:
            raise short(position, size, end)
        position += size
        count -= 1
    return position


def skip_tag_section(data: bytes, position: i64, end: i64) -> i64:
    """Skips the count of tagged fields and all of them; returns the position after them."""
    count, position = read_uvarint(data, position, end)
    return skip_tags(data, position, end, count) if count > 0 else position


def encode_uvarint(value: i64) -> bytes:
    """Encodes an unsigned varint."""
    out = BytesWriter()
    append_uvarint(out, value)
    return out.getvalue()


def append_uvarint(out: BytesWriter, value: i64) -> None:
    """Writes an unsigned varint of at most 32 bits."""
    if value < 0 or value > 0xFFFFFFFF:
        raise ValueError(f"{value} is not an unsigned varint of 32 bits")
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
