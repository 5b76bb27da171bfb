"""Shared functions of the handwritten Produce and Fetch codecs, over positions in ``bytes`` and a writer.

Reads past the end of the data raise IndexError; reads past the end of the frame are detected by
:func:`check_end`, before the request is processed. Callers turn both into a protocol error.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64

from tidemill import _build_mode
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.primitives import append_uvarint, read_uvarint

ITEMS_MAX: Final[i64] = 100_000 if _build_mode.compiled else 20_000
"""Topics and partitions per request: a few bytes each on the wire, hundreds in memory, and work that blocks
all other clients, in plain Python several times longer."""

PRODUCE_ITEMS_MAX: Final[i64] = 15_000
"""The same for Produce: a request of a megabyte, the producers' limit, cannot hold more batches."""

TOPIC_ID_BYTES: Final = 16


def read_length(data: bytes, position: i64, end: i64, flexible: bool, wide: bool) -> tuple[i64, i64]:
    """Reads the length of a string (i16), bytes or array (``wide``: i32), or its compact form; -1 is null.

    Raises ProtocolError when fewer bytes (or items of one byte) remain.
    """
    length: i64 = 0
    if flexible:
        length, position = read_uvarint(data, position, end)
        length -= 1
    elif wide:
        length = i64(read_i32_be(data, position))
        position += 4
    else:
        length = i64(read_i16_be(data, position))
        position += 2
    if length < -1 or length > end - position:
        raise ProtocolError(
            f"a length of {length} at position {position}, where {end - position} bytes are left"
        )
    return length, position


def read_topic_key(data: bytes, position: i64, end: i64, flexible: bool, by_id: bool) -> tuple[bytes, i64]:
    """Returns a topic's id (``by_id``) or name, and the position after it.

    Raises ProtocolError when the frame ends inside an id, and for a null name.
    """
    length: i64 = TOPIC_ID_BYTES
    if by_id:
        if end - position < length:
            raise ProtocolError(f"a topic id begins at {position}, the frame ends at {end}")
    else:
        length, position = read_length(data, position, end, flexible, False)
        if length < 0:
            raise ProtocolError("a topic's name is null")
    return data[position : position + length], position + length


def write_topic_key(out: BytesWriter, key: bytes, flexible: bool, by_id: bool) -> None:
    """Writes a topic's id or name, as :func:`read_topic_key` returned it."""
    if not by_id:
        if flexible:
            append_uvarint(out, len(key) + 1)
        else:
            write_i16_be(out, i16(len(key)))
    out.write(key)


def write_count(out: BytesWriter, count: i64, flexible: bool) -> None:
    """Writes the count of an array's items, or the length of bytes; -1 is null."""
    if flexible:
        append_uvarint(out, count + 1)
    else:
        write_i32_be(out, i32(count))


def check_items(count: i64, left: i64) -> None:
    """Raises ProtocolError when an array has more items than a request may still contain."""
    if count > left:
        raise ProtocolError(
            f"{count} more topics or partitions exceed the limit of a request: {left} are left"
        )


def check_end(position: i64, end: i64) -> None:
    """Raises when a request exceeds its frame. Leftover bytes are ignored, as in Kafka."""
    if position > end:
        raise ProtocolError(f"the request ends at {position}, its frame at {end}")


def set_i32(out: BytesWriter, position: i64, value: i64) -> None:
    """Overwrites four bytes that were written earlier."""
    out[position] = int((value >> 24) & 0xFF)
    out[position + 1] = int((value >> 16) & 0xFF)
    out[position + 2] = int((value >> 8) & 0xFF)
    out[position + 3] = int(value & 0xFF)


def known_error(error: i16, version: i16, storage_error_from: i16) -> i16:
    """Returns the error code to send to a client of ``version`` for ``error``.

    Clients know KAFKA_STORAGE_ERROR from ``storage_error_from`` on; older clients would give up. They get
    NOT_LEADER_OR_FOLLOWER, look up the leader, and retry. Source: KIP-112.
    """
    if error != 0 and version < storage_error_from and error == i16(int(ErrorCode.KAFKA_STORAGE_ERROR)):
        return i16(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return error
