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


class FetchDecoder:
    """Reads a request, whole or some items at a time. IndexError or ProtocolError when it is none."""

    def __init__(self, request: FetchFields, data: bytes, position: i64, end: i64) -> None:
        self.request = request
        self.data = data
        self.end: i64 = end
        version = request.version
        self.flexible = version >= FLEXIBLE
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
        self.is_wanted = True
        """The topics that are wanted are read now, else those that the session shall forget."""
        self.key = b""
        self.topics_left: i64 = 0
        self.parts_left: i64 = 0
        """Of the topic that is being read."""
        self.is_in_topic = False
        self.items_left: i64 = ITEMS_MAX
        """More topics and partitions may not come."""
        self.position: i64 = position
        self._begin_list()

    def _begin_list(self) -> None:
        self.topics_left, self.position = read_length(self.data, self.position, self.end, self.flexible, True)
        check_items(self.topics_left, self.items_left)
        self.items_left -= self.topics_left

    def run(self, count: i64) -> bool:
        """Reads ``count`` topics and partitions more; whether that was all."""
        while self.topics_left > 0 or self.is_wanted:
            if self.topics_left <= 0:
                self.is_wanted = False
                if self.request.version >= 7:
                    self._begin_list()
                continue
            if count <= 0:
                return False
            count -= self._read_items(count)
        self._read_end()
        return True

    def _read_items(self, count_max: i64) -> i64:
        """Reads of one topic ``count_max`` items at most, its name being one; how many these were."""
        request = self.request
        data, end, version = self.data, self.end, request.version
        position = self.position
        count: i64 = 0
        if not self.is_in_topic:
            self.key, position = read_topic_key(data, position, end, self.flexible, version >= BY_ID)
            self.parts_left, position = read_length(data, position, end, self.flexible, True)
            check_items(self.parts_left, self.items_left)
            self.items_left -= self.parts_left
            self.is_in_topic = True
            count = 1
        key = self.key
        left = self.parts_left
        if self.is_wanted:
            while left > 0 and count < count_max:
                position = decode_part(request.parts, key, data, position, end, version)
                left -= 1
                count += 1
        else:
            while left > 0 and count < count_max:
                request.forgotten.append(FetchPart(key, read_i32_be(data, position)))
                position += 4
                left -= 1
                count += 1
        self.parts_left = left
        if left <= 0:
            if self.flexible:
                position = skip_tag_section(data, position, end)
            self.is_in_topic = False
            self.topics_left -= 1
        self.position = position
        return count

    def _read_end(self) -> None:
        """Reads what follows the topics."""
        request, data, position = self.request, self.data, self.position
        if request.version >= 11:
            length, position = read_length(data, position, self.end, self.flexible, False)
            if length > 0:
                request.rack = data[position : position + length]
                position += length
        if self.flexible:
            position = decode_tags(request, data, position, self.end)
        check_end(position, self.end)


def decode(request: FetchFields, data: bytes, position: i64, end: i64) -> None:
    """Reads a whole request. IndexError or ProtocolError when it is none."""
    FetchDecoder(request, data, position, end).run(ITEMS_MAX * 2)


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


def decode_part(
    parts: list[FetchPart], key: bytes, data: bytes, position: i64, end: i64, version: i16
) -> i64:
    """Reads one partition of the topic ``key``, behind those in ``parts``; the position after it."""
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
    elif version >= FLEXIBLE:
        position = skip_tag_section(data, position, end)
    parts.append(part)
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


class FetchEncoder:
    """Makes a reply, whole or so many partitions at a time: ``bytes`` and file ranges in turn."""

    def __init__(self, request: FetchFields, parts: list[FetchPart]) -> None:
        self.request = request
        self.parts = parts
        self.flexible = request.version >= FLEXIBLE
        self.pieces: list[Any] = []
        """The reply, once :meth:`run` has returned True."""
        session = request.session
        self.out = encode_head(request, 0, 0 if session is None else session.session_id)
        write_count(self.out, count_topics(parts), self.flexible)
        self.size: i64 = 0
        """Bytes in ``pieces``."""
        self.index: i64 = 0
        self.run_end: i64 = 0
        """Where the partitions of the topic end that is being written."""

    def run(self, count: i64) -> bool:
        """Writes ``count`` partitions more; whether that was all."""
        request, parts, flexible = self.request, self.parts, self.flexible
        version = request.version
        out = self.out
        index = self.index
        run = self.run_end
        total: i64 = len(parts)
        end = total if total - index <= count else index + count
        while index < end:
            if index == run:
                key = parts[index].key
                while run < total and parts[run].key == key:
                    run += 1
                write_topic_key(out, key, flexible, version >= BY_ID)
                write_count(out, run - index, flexible)
            part = parts[index]
            encode_part(out, part, request)
            slice_ = part.slice
            if slice_ is not None and slice_.size > 0:
                self.pieces.append(out.getvalue())
                self.size += len(out) + slice_.size
                out = BytesWriter()
                self.pieces.append(file_range(part, slice_))
            if flexible:
                encode_tags(out, part)
            index += 1
            if index == run and flexible:
                out.append(0)
        self.out = out
        self.index = index
        self.run_end = run
        if index < total:
            return False
        if flexible:
            out.append(0)
        self.pieces.append(out.getvalue())
        self.size += len(out)
        with_size(self.pieces, self.size - 4)
        return True


def encode(request: FetchFields, parts: list[FetchPart]) -> list[Any]:
    """The whole reply."""
    encoder = FetchEncoder(request, parts)
    encoder.run(len(parts))
    return encoder.pieces


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
