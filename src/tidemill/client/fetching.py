"""Fetch, as the client uses it: requests out, and answers read by positions.

The records of an answer stay where they were received. What comes out are positions into that one buffer::

    header   INT32 correlation id; flexible: tagged fields
    body     INT32 throttle; from 7: INT16 error, INT32 session
             topics: name (to 12) or id (from 13)
               partitions: INT32 number, INT16 error, INT64 high watermark, INT64 last stable offset,
                           from 5: INT64 log start; aborted transactions (INT64 producer, INT64 first offset);
                           from 11: INT32 preferred replica; records

Strings, arrays and records are compact, and every structure ends in tagged fields, from version 12.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tidemill.model.errors import ProtocolError
from tidemill.model.types import ZERO_ID
from tidemill.records.batch import (
    CURRENT_MAGIC,
    LAST_OFFSET_DELTA,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    OLD_ENTRY_BYTES_MIN,
    RECORDS,
)
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.primitives import read_uvarint, skip_tag_section

VERSION_MIN = 4
FLEXIBLE_FROM = 12
TOPIC_ID_FROM = 13

_FIXED = struct.Struct(">ihqq")
_PAIR = struct.Struct(">qq")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


class Asked:
    """What is asked of one partition."""

    __slots__ = ("bytes_max", "leader_epoch", "offset", "partition", "topic", "topic_id")

    def __init__(
        self, topic: str, topic_id: bytes, partition: int, offset: int, leader_epoch: int, bytes_max: int
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.bytes_max = bytes_max


class Answer:
    """What came for one partition: its records are ``data[start:end]``, and may end in part of a batch."""

    __slots__ = (
        "aborted",
        "data",
        "end",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "preferred_replica",
        "start",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: bytes, data: bytes) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.data = data
        self.partition = -1
        self.error_code = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred_replica = -1
        self.aborted: list[tuple[int, int]] = []
        self.start = 0
        self.end = 0

    def records(self) -> bytes:
        """The batches by themselves."""
        return self.data[self.start : self.end]


def fetch_request(
    items: Iterable[Asked],
    *,
    wait_ms: int,
    bytes_min: int,
    bytes_max: int,
    committed_only: bool,
    rack: str,
) -> FetchRequest:
    """A request outside any session, for the partitions in ``items``."""
    topics: dict[str, FetchTopic] = {}
    for item in items:
        topic = topics.get(item.topic)
        if topic is None:
            topic = topics[item.topic] = FetchTopic(topic=item.topic, topic_id=item.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=item.partition,
                current_leader_epoch=item.leader_epoch,
                fetch_offset=item.offset,
                partition_max_bytes=item.bytes_max,
            )
        )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        isolation_level=1 if committed_only else 0,
        session_id=0,
        session_epoch=-1,
        topics=list(topics.values()),
        rack_id=rack,
    )


def version_for(highest: int, topic_ids: Iterable[bytes]) -> int:
    """The version to ask with: topics without an id can only be named, up to version 12."""
    if highest >= TOPIC_ID_FROM and any(topic_id == ZERO_ID for topic_id in topic_ids):
        return TOPIC_ID_FROM - 1
    return highest


def parse_answer(frame: bytes, version: int) -> tuple[int, int, list[Answer]]:
    """Error code, throttle time in ms, and the partitions, of a whole answer without its size.

    Raises ProtocolError when it does not add up.
    """
    try:
        return _parse(frame, version)
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise ProtocolError(
            f"a Fetch answer of {len(frame)} bytes is cut short or no answer: {problem}"
        ) from problem


def _parse(frame: bytes, version: int) -> tuple[int, int, list[Answer]]:
    flexible = version >= FLEXIBLE_FROM
    at, end = 4, len(frame)
    if flexible:
        at = skip_tag_section(frame, at, end)
    throttle: int = _I32.unpack_from(frame, at)[0]
    at += 4
    error = 0
    if version >= 7:
        error = _I16.unpack_from(frame, at)[0]
        at += 6
    answers: list[Answer] = []
    topics, at = _count(frame, at, end, flexible)
    for _ in range(topics):
        name, topic_id = "", ZERO_ID
        if version >= TOPIC_ID_FROM:
            topic_id = frame[at : at + 16]
            at += 16
        else:
            name, at = _string(frame, at, end, flexible)
        partitions, at = _count(frame, at, end, flexible)
        for _ in range(partitions):
            answer = Answer(name, topic_id, frame)
            at = _partition(frame, at, end, version, flexible, answer)
            answers.append(answer)
        if flexible:
            at = skip_tag_section(frame, at, end)
    return error, throttle, answers


def _partition(frame: bytes, at: int, end: int, version: int, flexible: bool, answer: Answer) -> int:
    answer.partition, answer.error_code, answer.high_watermark, answer.last_stable_offset = (
        _FIXED.unpack_from(frame, at)
    )
    at += 4 + 2 + 8 + 8
    if version >= 5:
        answer.log_start_offset = _I64.unpack_from(frame, at)[0]
        at += 8
    aborted, at = _count(frame, at, end, flexible)
    for _ in range(aborted):
        answer.aborted.append(_PAIR.unpack_from(frame, at))
        at += 16
        if flexible:
            at = skip_tag_section(frame, at, end)
    if version >= 11:
        answer.preferred_replica = _I32.unpack_from(frame, at)[0]
        at += 4
    size, at = _size(frame, at, end, flexible)
    answer.start, answer.end = at, at + size
    at += size
    return skip_tag_section(frame, at, end) if flexible else at


def _size(frame: bytes, at: int, end: int, flexible: bool) -> tuple[int, int]:
    """A length in bytes (null is 0) that the frame has room for, and the position after it."""
    if flexible:
        size, at = read_uvarint(frame, at, end)
        size -= 1
    else:
        size = _I32.unpack_from(frame, at)[0]
        at += 4
    if size > end - at:
        raise ProtocolError(f"a Fetch answer promises {size} bytes at {at}, and has {end - at}")
    return max(0, size), at


def _count(frame: bytes, at: int, end: int, flexible: bool) -> tuple[int, int]:
    """As :func:`_size`: every element takes at least a byte."""
    return _size(frame, at, end, flexible)


def _string(frame: bytes, at: int, end: int, flexible: bool) -> tuple[str, int]:
    if flexible:
        size, at = _size(frame, at, end, True)
    else:
        size = _I16.unpack_from(frame, at)[0]
        at += 2
    if not 0 <= size <= end - at:
        raise ProtocolError(f"a Fetch answer promises a name of {size} bytes at {at}, and has {end - at}")
    return frame[at : at + size].decode(), at + size


def next_offset(data: bytes, start: int, end: int, default: int) -> int:
    """The offset after the last whole batch in ``data[start:end]``; ``default`` when there is none."""
    after = default
    while end - start >= OLD_ENTRY_BYTES_MIN:
        size = _I32.unpack_from(data, start + LENGTH)[0] + LOG_OVERHEAD
        is_old = data[start + MAGIC] < CURRENT_MAGIC
        if size < (OLD_ENTRY_BYTES_MIN if is_old else RECORDS) or size > end - start:
            break
        last = _I64.unpack_from(data, start)[0]
        if not is_old:
            last += _I32.unpack_from(data, start + LAST_OFFSET_DELTA)[0]
        after = max(after, last + 1)
        start += size
    return after
