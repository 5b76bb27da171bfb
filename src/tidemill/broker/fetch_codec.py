"""The fields of a fetch request and of its reply. Version 0 to 18; compiled.

    request  = replica i32 (to v14), wait i32, min bytes i32, max bytes i32 (v3), isolation i8 (v4), session
               id and epoch i32 (v7), topics[name (to v12) or id (v13), partitions[index i32, leader epoch
               i32 (v9), offset i64, last fetched epoch i32 (v12), log start i64 (v5), max bytes i32]],
               forgotten topics (v7), rack (v11), tags: 1 who follows: id i32, epoch i64, tags (v15)
    response = throttle i32 (v1), error i16 and session id i32 (v7), topics[name or id, partitions[index i32,
               error i16, high watermark i64, last stable offset i64 (v4), log start i64 (v5), aborted
               transactions (v4), preferred replica i32 (v11), records]]

Compact lengths and tagged fields from v12 on. Records are never read here: a reply is made of its fields
as ``bytes`` and of ranges of log files.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import (
    BytesWriter,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from tidemill.broker.fetch_sessions import FetchPart, FetchSession
from tidemill.log.segment import Slice
from tidemill.net.sending import FileRange
from tidemill.replication.fetch_frames import HIGH_WATERMARK_FROM, HIGH_WATERMARK_TAG
from tidemill.replication.waiting import FetchWaiter
from tidemill.wire.fast import (
    ITEMS_MAX,
    check_end,
    check_items,
    known_error,
    read_length,
    read_topic_key,
    set_i32,
    write_count,
    write_topic_key,
)
from tidemill.wire.primitives import read_uvarint, skip_tag_section

FIRST_VERSION: Final = 0
LAST_VERSION: Final = 18
FLEXIBLE: Final = 12
BY_ID: Final = 13
STORAGE_ERROR_FROM: Final = 6
REPLICA_STATE_TAG: Final = 1
REPLICA_STATE_BYTES_MIN: Final = 4 + 8 + 1
DIVERGING_EPOCH_TAG: Final = 0
DIVERGING_EPOCH_BYTES: Final = 13
FRAME_BYTES_MAX: Final = 0x7FFFFFFF
BYTES_MAX: Final[i64] = 0x7FFFFFFF
"""Of a reply, where the version has no such field."""


class FetchFields(FetchWaiter):
    """What a request asks for, and the session that it belongs to."""

    def __init__(self, version: i16, correlation_id: i32) -> None:
        self.version: i16 = version
        self.correlation_id: i32 = correlation_id
        self.replica_id: i32 = -1
        self.replica_epoch: i64 = -1
        """Of the registration of a broker that follows (KIP-903)."""
        self.wait_ms: i64 = 0
        self.bytes_min: i64 = 0
        self.bytes_max: i64 = 0
        self.isolation: i32 = 0
        self.session_id: i32 = 0
        self.session_epoch: i32 = -1
        self.parts: list[FetchPart] = []
        self.forgotten: list[FetchPart] = []
        self.session: FetchSession | None = None
        self.rack: bytes = b""
        """Where the consumer is (``client.rack``), as it is written."""


def decode(request: FetchFields, data: bytes, position: i64, end: i64) -> None:
    """Reads a request. IndexError or ProtocolError when it is none."""
    version = request.version
    flexible = version >= FLEXIBLE
    if version <= 14:
        request.replica_id = read_i32_be(data, position)
        position += 4
    request.wait_ms = i64(read_i32_be(data, position))
    request.bytes_min = i64(read_i32_be(data, position + 4))
    position += 8
    request.bytes_max = BYTES_MAX
    if version >= 3:
        request.bytes_max = i64(read_i32_be(data, position))
        position += 4
    if version >= 4:
        request.isolation = i32(data[position])
        position += 1
    if version >= 7:
        request.session_id = read_i32_be(data, position)
        request.session_epoch = read_i32_be(data, position + 4)
        position += 8
    topics, position = read_length(data, position, end, flexible, True)
    check_items(topics, ITEMS_MAX)
    left: i64 = ITEMS_MAX - topics
    while topics > 0:
        position = decode_topic(request.parts, data, position, end, version, left)
        topics -= 1
    if version >= 7:
        topics, position = read_length(data, position, end, flexible, True)
        left -= topics
        while topics > 0:
            position = decode_forgotten(request.forgotten, data, position, end, version, left)
            topics -= 1
    if version >= 11:
        length, position = read_length(data, position, end, flexible, False)
        if length > 0:
            request.rack = data[position : position + length]
            position += length
    if flexible:
        position = decode_tags(request, data, position, end)
    check_end(position, end)


def decode_tags(request: FetchFields, data: bytes, position: i64, end: i64) -> i64:
    """The tagged fields of a request: who follows (v15), which cluster is meant."""
    count, position = read_uvarint(data, position, end)
    while count > 0:
        tag, size, position = read_tag(data, position, end)
        if tag == REPLICA_STATE_TAG and request.version >= 15:
            if size < REPLICA_STATE_BYTES_MIN:
                raise IndexError(f"who follows takes {size} bytes instead of {REPLICA_STATE_BYTES_MIN}")
            request.replica_id = read_i32_be(data, position)
            request.replica_epoch = read_i64_be(data, position + 4)
        position += size
        count -= 1
    return position


def read_tag(data: bytes, position: i64, end: i64) -> tuple[i64, i64, i64]:
    """A tagged field's number, its size, and where its value begins."""
    tag, position = read_uvarint(data, position, end)
    size, position = read_uvarint(data, position, end)
    if position + size > end:
        raise IndexError("a tagged field reaches beyond the request")
    return tag, size, position


def decode_topic(
    parts: list[FetchPart], data: bytes, position: i64, end: i64, version: i16, count_max: i64
) -> i64:
    """Reads one topic's partitions, behind those in ``parts``; the position after them."""
    flexible = version >= FLEXIBLE
    key, position = read_topic_key(data, position, end, flexible, version >= BY_ID)
    count, position = read_length(data, position, end, flexible, True)
    check_items(count, count_max - len(parts))
    while count > 0:
        part = FetchPart(key, read_i32_be(data, position))
        position += 4
        if version >= 9:
            part.leader_epoch = i64(read_i32_be(data, position))
            position += 4
        part.offset = read_i64_be(data, position)
        position += 8
        if version >= 12:
            part.last_fetched_epoch = i64(read_i32_be(data, position))
            position += 4
        if version >= 5:
            part.log_start_there = read_i64_be(data, position)
            position += 8
        part.bytes_max = i64(read_i32_be(data, position))
        position += 4
        if version >= HIGH_WATERMARK_FROM:
            position = decode_part_tags(part, data, position, end)
        elif flexible:
            position = skip_tag_section(data, position, end)
        parts.append(part)
        count -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    return position


def decode_part_tags(part: FetchPart, data: bytes, position: i64, end: i64) -> i64:
    """The tagged fields of a partition from version 18 on: how far the follower knows it to be committed."""
    count, position = read_uvarint(data, position, end)
    while count > 0:
        tag, size, position = read_tag(data, position, end)
        if tag == HIGH_WATERMARK_TAG:
            if size != 8:
                raise IndexError(f"a high watermark takes {size} bytes instead of 8")
            part.high_watermark_there = read_i64_be(data, position)
        position += size
        count -= 1
    return position


def decode_forgotten(
    parts: list[FetchPart], data: bytes, position: i64, end: i64, version: i16, count_max: i64
) -> i64:
    """Reads what the session shall forget of one topic; the position after it."""
    flexible = version >= FLEXIBLE
    key, position = read_topic_key(data, position, end, flexible, version >= BY_ID)
    count, position = read_length(data, position, end, flexible, True)
    check_items(count, count_max - len(parts))
    while count > 0:
        parts.append(FetchPart(key, read_i32_be(data, position)))
        position += 4
        count -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    return position


def encode_head(request: FetchFields, error: i16, session_id: i32) -> BytesWriter:
    """The reply up to its topics; the size is set at the end."""
    out = BytesWriter()
    write_i32_be(out, 0)
    write_i32_be(out, request.correlation_id)
    if request.version >= FLEXIBLE:
        out.append(0)
    if request.version >= 1:
        write_i32_be(out, 0)
    if request.version >= 7:
        write_i16_be(out, error)
        write_i32_be(out, session_id)
    return out


def encode_error(request: FetchFields, error: i16) -> bytes:
    """A reply that carries nothing but an error of the session."""
    out = encode_head(request, error, 0)
    flexible = request.version >= FLEXIBLE
    write_count(out, 0, flexible)
    if flexible:
        out.append(0)
    set_i32(out, 0, len(out) - 4)
    return out.getvalue()


def count_topics(parts: list[FetchPart]) -> i64:
    """How many runs of partitions of the same topic there are."""
    count: i64 = 0
    key = b""
    for part in parts:
        if count == 0 or part.key != key:
            key = part.key
            count += 1
    return count


def encode(request: FetchFields, parts: list[FetchPart]) -> list[Any]:
    """The reply: ``bytes`` and file ranges in turn."""
    version = request.version
    flexible = version >= FLEXIBLE
    session = request.session
    out = encode_head(request, 0, 0 if session is None else session.session_id)
    write_count(out, count_topics(parts), flexible)
    pieces: list[Any] = []
    ranges: i64 = 0
    written: i64 = 0
    index: i64 = 0
    total: i64 = len(parts)
    while index < total:
        key = parts[index].key
        run = index
        while run < total and parts[run].key == key:
            run += 1
        write_topic_key(out, key, flexible, version >= BY_ID)
        write_count(out, run - index, flexible)
        while index < run:
            part = parts[index]
            encode_part(out, part, request)
            slice_ = part.slice
            if slice_ is not None and slice_.size > 0:
                pieces.append(out.getvalue())
                written += len(out)
                out = BytesWriter()
                pieces.append(file_range(part, slice_))
                ranges += slice_.size
            if flexible:
                encode_tags(out, part)
            index += 1
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    pieces.append(out.getvalue())
    written += len(out)
    return with_size(pieces, written + ranges - 4)


def with_size(pieces: list[Any], size: i64) -> list[Any]:
    """Puts the size of the whole reply at its head. RuntimeError: it has more than a frame can have."""
    if size > FRAME_BYTES_MAX:
        raise RuntimeError(f"a fetch reply of {size} bytes is larger than a frame")
    head = BytesWriter()
    write_i32_be(head, i32(size))
    first: bytes = pieces[0]
    head.write(first[4:])
    pieces[0] = head.getvalue()
    return pieces


def file_range(part: FetchPart, found: Slice) -> FileRange:
    """The range to send; what was not appended just now may have to come from the disk."""
    partition = part.partition
    if partition is not None:
        partition.bytes_out += found.size
    return FileRange(found.file, found.position, found.size, not found.recent)


def encode_tags(out: BytesWriter, part: FetchPart) -> None:
    """The tagged fields of one partition's answer: where the follower's log has to be cut."""
    if part.diverging_end < 0:
        out.append(0)
        return
    out.append(1)
    out.append(DIVERGING_EPOCH_TAG)
    out.append(DIVERGING_EPOCH_BYTES)
    write_i32_be(out, i32(part.diverging_epoch))
    write_i64_be(out, part.diverging_end)
    out.append(0)


def encode_aborted(out: BytesWriter, part: FetchPart, request: FetchFields) -> None:
    """The aborted transactions among the records; null unless they were asked for."""
    flexible = request.version >= FLEXIBLE
    aborted = part.aborted
    count: i64 = -1
    if aborted is not None:
        count = len(aborted)
    elif request.isolation == 1:
        count = 0
    write_count(out, count, flexible)
    if aborted is None:
        return
    for producer_id, first_offset in aborted:
        write_i64_be(out, producer_id)
        write_i64_be(out, first_offset)
        if flexible:
            out.append(0)


def encode_part(out: BytesWriter, part: FetchPart, request: FetchFields) -> None:
    """One partition's answer up to its records."""
    version = request.version
    flexible = version >= FLEXIBLE
    write_i32_be(out, part.index)
    write_i16_be(out, known_error(part.error, version, STORAGE_ERROR_FROM))
    write_i64_be(out, part.high_watermark)
    if version >= 4:
        write_i64_be(out, part.last_stable_offset)
        if version >= 5:
            write_i64_be(out, part.log_start)
        encode_aborted(out, part, request)
    if version >= 11:
        write_i32_be(out, part.preferred)
    slice_ = part.slice
    write_count(out, 0 if slice_ is None else slice_.size, flexible)
