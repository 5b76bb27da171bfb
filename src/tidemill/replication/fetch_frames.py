"""What a follower writes and reads when it fetches: Fetch, versions 15 to 18, without its headers. Compiled.

    request  = wait i32, min bytes i32, max bytes i32, isolation i8, session id i32 and epoch i32,
               topics[id 16 bytes, partitions[index i32, leader epoch i32, offset i64, last fetched epoch i32,
               log start i64, max bytes i32, tags: 1 high watermark i64 (v18)]],
               forgotten topics[id 16 bytes, partitions[i32]], rack,
               tags: 1 who follows (id i32, epoch i64)
    response = throttle i32, error i16, session id i32, topics[id 16 bytes, partitions[index i32, error i16,
               high watermark i64, last stable offset i64, log start i64, aborted transactions[producer i64,
               first offset i64], preferred replica i32, records,
               tags: 0 diverging epoch (epoch i32, end i64)]]

All lengths are compact, and every structure ends with tagged fields. Records stay where they were received:
an answer has their positions. A broker that follows does this a thousand times in a second, so it goes
without the objects of the generated codecs, which the tests hold it against.

Source: ``FetchRequest.json`` and ``FetchResponse.json`` of Apache Kafka; KIP-227, KIP-595, KIP-903, KIP-1166.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from tidemill.model.errors import ProtocolError
from tidemill.wire.fast import ITEMS_MAX, TOPIC_ID_BYTES, check_end, check_items, read_length
from tidemill.wire.primitives import append_uvarint, read_uvarint, skip_tag_section

FIRST_VERSION: Final = 15
LAST_VERSION: Final = 18
HIGH_WATERMARK_FROM: Final = 18

DIVERGING_EPOCH_TAG: Final = 0
REPLICA_STATE_TAG: Final = 1
HIGH_WATERMARK_TAG: Final = 1
REPLICA_STATE_BYTES: Final = 4 + 8 + 1
DIVERGING_EPOCH_BYTES_MIN: Final = 4 + 8
ABORTED_BYTES: Final = 8 + 8
NONE: Final[i64] = -1


class Told:
    """One partition as a request names it."""

    def __init__(self, topic_id: bytes, index: i32) -> None:
        self.topic_id = topic_id
        self.index: i32 = index
        self.leader_epoch: i64 = NONE
        self.fetch_offset: i64 = 0
        self.last_fetched_epoch: i64 = NONE
        """Of the last record that is there; -1 without one."""
        self.log_start_offset: i64 = 0
        self.high_watermark: i64 = NONE


class Request:
    """What a request holds beside its partitions: ms and bytes."""

    def __init__(
        self, replica_id: i32, replica_epoch: i64, wait_ms: i64, session_id: i32, session_epoch: i32
    ) -> None:
        self.replica_id: i32 = replica_id
        self.replica_epoch: i64 = replica_epoch
        self.wait_ms: i64 = wait_ms
        self.session_id: i32 = session_id
        self.session_epoch: i32 = session_epoch
        self.bytes_min: i64 = 1
        self.bytes_max: i64 = 0
        self.partition_bytes_max: i64 = 0


class Found:
    """What an answer says of one partition. Its records are ``data[records:records_end]`` of the answer."""

    def __init__(self, topic_id: bytes, index: i32) -> None:
        self.topic_id = topic_id
        self.index: i32 = index
        self.error: i64 = 0
        self.high_watermark: i64 = NONE
        self.log_start_offset: i64 = NONE
        self.records: i64 = 0
        self.records_end: i64 = 0
        self.diverging_epoch: i64 = NONE
        self.diverging_end: i64 = NONE
        """Where the leader's log of that epoch ends; -1 unless ours has to be cut."""


class Answer:
    """A decoded answer."""

    def __init__(self, error: i64, session_id: i32) -> None:
        self.error: i64 = error
        self.session_id: i32 = session_id
        self.found: list[Found] = []


def encode_request(
    request: Request, told: list[Told], forgotten: list[tuple[bytes, int]], version: i16
) -> bytes:
    """The body of a request that names ``told``, and takes ``forgotten`` out of the session."""
    out = BytesWriter()
    write_i32_be(out, i32(request.wait_ms))
    write_i32_be(out, i32(request.bytes_min))
    write_i32_be(out, i32(request.bytes_max))
    out.append(0)
    write_i32_be(out, request.session_id)
    write_i32_be(out, request.session_epoch)
    _write_told(out, told, request.partition_bytes_max, version)
    _write_forgotten(out, forgotten)
    out.append(1)  # no rack
    out.append(1)
    out.append(REPLICA_STATE_TAG)
    out.append(REPLICA_STATE_BYTES)
    write_i32_be(out, request.replica_id)
    write_i64_be(out, request.replica_epoch)
    out.append(0)
    return out.getvalue()


def _write_told(out: BytesWriter, told: list[Told], bytes_max: i64, version: i16) -> None:
    """Partitions of one topic that follow each other go below one mention of it."""
    total: i64 = len(told)
    topics: i64 = 0
    index: i64 = 0
    while index < total:
        if index == 0 or told[index].topic_id != told[index - 1].topic_id:
            topics += 1
        index += 1
    append_uvarint(out, topics + 1)
    index = 0
    while index < total:
        topic_id = told[index].topic_id
        end: i64 = index
        while end < total and told[end].topic_id == topic_id:
            end += 1
        out.write(topic_id)
        append_uvarint(out, end - index + 1)
        while index < end:
            one = told[index]
            write_i32_be(out, one.index)
            write_i32_be(out, i32(one.leader_epoch))
            write_i64_be(out, one.fetch_offset)
            write_i32_be(out, i32(one.last_fetched_epoch))
            write_i64_be(out, one.log_start_offset)
            write_i32_be(out, i32(bytes_max))
            if version >= HIGH_WATERMARK_FROM:
                out.append(1)
                out.append(HIGH_WATERMARK_TAG)
                out.append(8)
                write_i64_be(out, one.high_watermark)
            else:
                out.append(0)
            index += 1
        out.append(0)


def _write_forgotten(out: BytesWriter, forgotten: list[tuple[bytes, int]]) -> None:
    append_uvarint(out, len(forgotten) + 1)
    for topic_id, index in forgotten:
        out.write(topic_id)
        append_uvarint(out, 1 + 1)
        write_i32_be(out, i32(index))
        out.append(0)


def decode_answer(data: bytes, position: i64, end: i64) -> Answer:
    """The answer whose body is ``data[position:end]``. Raises ProtocolError when it is none."""
    try:
        return _decode(data, position, end)
    except IndexError as problem:
        raise ProtocolError(f"the answer to a fetch is cut short: {problem}") from None


def _decode(data: bytes, position: i64, end: i64) -> Answer:
    position += 4
    answer = Answer(i64(read_i16_be(data, position)), read_i32_be(data, position + 2))
    position += 2 + 4
    topics, position = read_length(data, position, end, True, True)
    check_items(topics, ITEMS_MAX)
    while topics > 0:
        if end - position < TOPIC_ID_BYTES:
            raise ProtocolError(f"a topic id begins at {position}, the answer ends at {end}")
        topic_id = data[position : position + TOPIC_ID_BYTES]
        position += TOPIC_ID_BYTES
        count, position = read_length(data, position, end, True, True)
        check_items(count, ITEMS_MAX - len(answer.found))
        while count > 0:
            found = Found(topic_id, read_i32_be(data, position))
            position = _decode_partition(found, data, position + 4, end)
            answer.found.append(found)
            count -= 1
        position = skip_tag_section(data, position, end)
        topics -= 1
    position = skip_tag_section(data, position, end)
    check_end(position, end)
    return answer


def _decode_partition(found: Found, data: bytes, position: i64, end: i64) -> i64:
    """Reads what stands behind the index of a partition; the position after it."""
    found.error = i64(read_i16_be(data, position))
    found.high_watermark = read_i64_be(data, position + 2)
    found.log_start_offset = read_i64_be(data, position + 18)
    position += 26
    aborted, position = read_length(data, position, end, True, True)
    while aborted > 0:
        position = skip_tag_section(data, position + ABORTED_BYTES, end)
        aborted -= 1
    position += 4
    size, position = read_length(data, position, end, True, True)
    if size > 0:
        found.records = position
        position += size
        found.records_end = position
    tags, position = read_uvarint(data, position, end)
    while tags > 0:
        tag, position = read_uvarint(data, position, end)
        length, position = read_uvarint(data, position, end)
        if length > end - position:
            raise ProtocolError(
                f"a tagged field of {length} bytes begins at {position}, the answer ends at {end}"
            )
        if tag == DIVERGING_EPOCH_TAG and length >= DIVERGING_EPOCH_BYTES_MIN:
            found.diverging_epoch = i64(read_i32_be(data, position))
            found.diverging_end = read_i64_be(data, position + 4)
        position += length
        tags -= 1
    return position
