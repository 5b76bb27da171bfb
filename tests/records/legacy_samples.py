"""Entries of formats v0 and v1 for tests, built according to their documentation."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from default_limits import open_cursor

ReadRecord = tuple[int, int, int, bytes | None, bytes | None]
"""A record: offset, timestamp, timestamp type, key, value."""


def entry_bytes(
    magic: int,
    *,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = 1,
    key: bytes | None = None,
    value: bytes | None = None,
    key_length: int | None = None,
    value_length: int | None = None,
) -> bytes:
    """An entry with the right checksum and possibly wrong lengths."""
    lengths = [
        (-1 if field is None else len(field)) if said is None else said
        for field, said in ((key, key_length), (value, value_length))
    ]
    body = struct.pack(">BB", magic, attributes)
    if magic:
        body += struct.pack(">q", timestamp)
    body += struct.pack(">i", lengths[0]) + (key or b"") + struct.pack(">i", lengths[1]) + (value or b"")
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def messages(magic: int, records: Iterable[tuple[int, int, bytes | None, bytes | None]]) -> bytes:
    """Entries of (offset, timestamp, key, value)."""
    return b"".join(
        entry_bytes(magic, offset=offset, timestamp=timestamp, key=key, value=value)
        for offset, timestamp, key, value in records
    )


def read_set(data: bytes) -> list[ReadRecord]:
    """The records that Tidemill reads from complete stored bytes of any format."""
    found = []
    position = 0
    while position < len(data):
        cursor = open_cursor(data, position, len(data))
        while cursor.step():
            found.append(
                (
                    int(cursor.offset),
                    int(cursor.timestamp),
                    int(cursor.timestamp_type),
                    cursor.key,
                    cursor.value,
                )
            )
        position += 12 + struct.unpack_from(">i", data, position + 8)[0]
    return found
