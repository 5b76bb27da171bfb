"""What the codecs by hand of Produce and Fetch share: positions in ``bytes`` in, a writer out.

Reading past the end of the data raises IndexError; reading past the end of the frame is found by
:func:`check_end`, before anything is done. Callers turn both into a protocol error.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64

from tidemill import _mode
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.primitives import append_uvarint, read_uvarint

ITEMS_MAX: Final[i64] = 100_000 if _mode.compiled else 20_000
"""Topics and partitions of one request: a few bytes each on the wire, hundreds in memory, and work that
holds up everybody else, plain Python several times longer."""

PRODUCE_ITEMS_MAX: Final[i64] = 15_000
"""The same for Produce: a request of a megabyte, the limit of producers, has room for no more batches."""

TOPIC_ID_BYTES: Final = 16


def read_length(data: bytes, position: i64, end: i64, flexible: bool, wide: bool) -> tuple[i64, i64]:
    """The length before a string (i16), bytes or array (``wide``: i32), or the compact form; -1 is null.

    Raises ProtocolError when that many bytes (or items of one byte) cannot be there.
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
    """What names a topic, its id (``by_id``) or its name, and the position after it.

    Raises ProtocolError when the frame ends inside an id, and for a name that is null.
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
    """A topic's id or name, as :func:`read_topic_key` found it."""
    if not by_id:
        if flexible:
            append_uvarint(out, len(key) + 1)
        else:
            write_i16_be(out, i16(len(key)))
    out.write(key)


def write_count(out: BytesWriter, count: i64, flexible: bool) -> None:
    """The count before the items of an array, or the length before bytes; -1 is null."""
    if flexible:
        append_uvarint(out, count + 1)
    else:
        write_i32_be(out, i32(count))


def check_items(count: i64, left: i64) -> None:
    """Raises ProtocolError when an array holds more items than are left of those that a request may name."""
    if count > left:
        raise ProtocolError(
            f"{count} more topics or partitions are more than one request may name: {left} are left"
        )


def check_end(position: i64, end: i64) -> None:
    """Raises when a request reached beyond its frame. Bytes that it left over are ignored, as Kafka does."""
    if position > end:
        raise ProtocolError(f"the request ends at {position}, its frame at {end}")


def set_i32(out: BytesWriter, position: i64, value: i64) -> None:
    """Overwrites four bytes that were written before."""
    out[position] = int((value >> 24) & 0xFF)
    out[position + 1] = int((value >> 16) & 0xFF)
    out[position + 2] = int((value >> 8) & 0xFF)
    out[position + 3] = int(value & 0xFF)


def known_error(error: i16, version: i16, storage_error_from: i16) -> i16:
    """What a client of ``version`` is told in the place of ``error``.

    KAFKA_STORAGE_ERROR is a number that clients know from ``storage_error_from`` on, and give up at before.
    With NOT_LEADER_OR_FOLLOWER they look for the leader, and try again. Source: KIP-112.
    """
    if error != 0 and version < storage_error_from and error == i16(int(ErrorCode.KAFKA_STORAGE_ERROR)):
        return i16(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return error
