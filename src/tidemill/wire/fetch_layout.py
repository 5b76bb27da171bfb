"""The layout of Fetch requests and responses, versions 0 to 18. Compiled.

    request   = replica i32 (to 14), wait i32, min bytes i32, max bytes i32 (3), isolation i8 (4),
                session id i32, session epoch i32 (7), topics[key, partitions[partition]],
                forgotten topics[key, partitions[i32]] (7), rack string (11),
                tags: 1 replica (15): id i32, epoch i64, tags
    partition = index i32, leader epoch i32 (9), offset i64, last fetched epoch i32 (12), log start i64 (5),
                max bytes i32, tags: 1 high watermark i64 (18)

    response  = throttle i32 (1), error i16, session id i32 (7), topics[key, partitions[fetched]]
    fetched   = index i32, error i16, high watermark i64, last stable offset i64 (4), log start i64 (5),
                aborted transactions[producer i64, first offset i64] (4), preferred replica i32 (11), records,
                tags: 0 diverging epoch (12): epoch i32, end i64, tags
    key       = topic name string (to 12), topic id 16 bytes (13)

A number in parentheses is the first version with the field. From version 12 on, lengths are compact, and
every structure ends with tagged fields. The headers of the messages are not part of this layout.

The broker, the follower and the client use these functions in place of the generated codec of
:mod:`tidemill.wire.messages.fetch`, because a broker handles thousands of fetches a second. They create one
object for each partition, and records stay in the buffer in which they were received.

Source: ``FetchRequest.json`` and ``FetchResponse.json`` of Apache Kafka; KIP-227, KIP-595, KIP-903, KIP-1166.
"""

from __future__ import annotations

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
from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.model.errors import ProtocolError
from tidemill.wire.hot_path_codec import (
    ITEMS_MAX,
    check_end,
    check_items,
    read_length,
    read_topic_key,
    write_count,
    write_topic_key,
)
from tidemill.wire.primitives import read_tag_count, read_uvarint, skip_tag_section

FIRST_VERSION: Final = 0
LAST_VERSION: Final = 18
BYTES_MAX_FROM: Final = 3
WHOLE_FIRST_FROM: Final = 3
"""From this version on the first batch of a response is complete, even if it exceeds the limits."""
ISOLATION_FROM: Final = 4
LOG_START_FROM: Final = 5
SESSIONS_FROM: Final = 7
LEADER_EPOCH_FROM: Final = 9
RACK_FROM: Final = 11
FLEXIBLE: Final = 12
BY_ID: Final = 13
REPLICA_STATE_FROM: Final = 15
HIGH_WATERMARK_FROM: Final = 18

DIVERGING_EPOCH_TAG: Final = 0
REPLICA_STATE_TAG: Final = 1
HIGH_WATERMARK_TAG: Final = 1
REPLICA_STATE_BYTES: Final = 4 + 8 + 1
HIGH_WATERMARK_BYTES: Final = 8
DIVERGING_EPOCH_BYTES: Final = 4 + 8 + 1
DIVERGING_EPOCH_BYTES_MIN: Final = 4 + 8

BYTES_MAX: Final[i64] = 0x7FFFFFFF
"""The limit of a response in versions without the field."""
HIGH_WATERMARK_UNKNOWN: Final[i64] = i64(0x7FFFFFFFFFFFFFFF)
"""The default of the high watermark in a request."""


@mypyc_attr(free_list_len=1)
class RequestedPartition:
    """One partition of a request."""

    def __init__(
        self,
        *,
        key: bytes,
        index: i32,
        leader_epoch: i64 = -1,
        offset: i64 = 0,
        last_fetched_epoch: i64 = -1,
        log_start_offset: i64 = -1,
        high_watermark: i64 = HIGH_WATERMARK_UNKNOWN,
        bytes_max: i64 = 0,
    ) -> None:
        self.key: Final = key
        """The topic's name, from version 13 on its id."""
        self.index: Final[i32] = index
        self.leader_epoch: Final[i64] = leader_epoch
        self.offset: Final[i64] = offset
        self.last_fetched_epoch: Final[i64] = last_fetched_epoch
        """The epoch of a follower's last record; -1 for an empty log."""
        self.log_start_offset: Final[i64] = log_start_offset
        """The start of a follower's own log."""
        self.high_watermark: Final[i64] = high_watermark
        """The high watermark that a follower knows (KIP-1166)."""
        self.bytes_max: Final[i64] = bytes_max


@mypyc_attr(free_list_len=1)
class FetchRequest:
    """A request, immutable. Times in ms."""

    def __init__(
        self,
        *,
        version: i16,
        partitions: tuple[RequestedPartition, ...],
        forgotten: tuple[tuple[bytes, int], ...] = (),
        correlation_id: i32 = 0,
        replica_id: i32 = -1,
        replica_epoch: i64 = -1,
        wait_ms: i64 = 0,
        bytes_min: i64 = 0,
        bytes_max: i64 = 0,
        isolation: i32 = 0,
        session_id: i32 = 0,
        session_epoch: i32 = -1,
        rack: bytes = b"",
    ) -> None:
        self.version: Final[i16] = version
        self.correlation_id: Final[i32] = correlation_id
        """The correlation id of the header."""
        self.replica_id: Final[i32] = replica_id
        """The broker id of a follower, -1 for a consumer."""
        self.replica_epoch: Final[i64] = replica_epoch
        """The epoch of the follower's registration (KIP-903)."""
        self.wait_ms: Final[i64] = wait_ms
        self.bytes_min: Final[i64] = bytes_min
        self.bytes_max: Final[i64] = bytes_max
        self.isolation: Final[i32] = isolation
        self.session_id: Final[i32] = session_id
        self.session_epoch: Final[i32] = session_epoch
        self.by_id: Final[bool] = version >= BY_ID
        """Whether topics are named by their ids."""
        self.partitions: Final = partitions
        self.forgotten: Final = forgotten
        """The topic keys and partition indexes to remove from the session."""
        self.rack: Final = rack
        """The ``client.rack`` of a consumer, in UTF-8."""

    @property
    def is_incremental(self) -> bool:
        """Whether the response has only the partitions that changed since the last one of the session."""
        return self.session_epoch > 0


class DivergingEpoch:
    """The latest epoch that the leader has up to the last one of a follower whose log diverges (KIP-595)."""

    def __init__(self, epoch: i64, end_offset: i64) -> None:
        self.epoch: Final[i64] = epoch
        self.end_offset: Final[i64] = end_offset
        """The end offset of the epoch in the leader's log."""


# -- reading requests


class FetchRequestReader:
    """Reads a request, whole or some items at a time. Raises IndexError or ProtocolError if it is invalid."""

    def __init__(self, version: i16, correlation_id: i32, data: bytes, position: i64, end: i64) -> None:
        self.version: i16 = version
        self.correlation_id: i32 = correlation_id
        self.data = data
        self.end: i64 = end
        self.flexible = version >= FLEXIBLE
        self.replica_id: i32 = -1
        self.replica_epoch: i64 = -1
        if version < REPLICA_STATE_FROM:
            self.replica_id = read_i32_be(data, position)
            position += 4
        self.wait_ms: i64 = i64(read_i32_be(data, position))
        self.bytes_min: i64 = i64(read_i32_be(data, position + 4))
        position += 8
        self.bytes_max: i64 = BYTES_MAX
        if version >= BYTES_MAX_FROM:
            self.bytes_max = i64(read_i32_be(data, position))
            position += 4
        self.isolation: i32 = 0
        if version >= ISOLATION_FROM:
            self.isolation = i32(data[position])
            position += 1
        self.session_id: i32 = 0
        self.session_epoch: i32 = -1
        if version >= SESSIONS_FROM:
            self.session_id = read_i32_be(data, position)
            self.session_epoch = read_i32_be(data, position + 4)
            position += 8
        self.rack = b""
        self.partitions: list[RequestedPartition] = []
        self.forgotten: list[tuple[bytes, int]] = []
        self.is_wanted = True
        """Whether the next topic is one to fetch; otherwise it leaves the session."""
        self.key = b""
        self.topics_left: i64 = 0
        self.parts_left: i64 = 0
        """The partitions of the current topic that were not read yet."""
        self.is_in_topic = False
        self.items_left: i64 = ITEMS_MAX
        """The number of further topics and partitions that the request may have."""
        self.position: i64 = position
        self._begin_list()

    def _begin_list(self) -> None:
        self.topics_left, self.position = read_length(self.data, self.position, self.end, self.flexible, True)
        check_items(self.topics_left, self.items_left)
        self.items_left -= self.topics_left

    def run(self, count: i64) -> bool:
        """Reads up to ``count`` further topics and partitions. Returns whether the request is complete."""
        while self.topics_left > 0 or self.is_wanted:
            if self.topics_left <= 0:
                self.is_wanted = False
                if self.version >= SESSIONS_FROM:
                    self._begin_list()
                continue
            if count <= 0:
                return False
            count -= self._read_items(count)
        self._read_end()
        return True

    def _read_items(self, count_max: i64) -> i64:
        """Reads up to ``count_max`` items of one topic; its key is an item. Returns their number."""
        data, end, version = self.data, self.end, self.version
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
                position = _read_requested(self.partitions, key, data, position, end, version)
                left -= 1
                count += 1
        else:
            while left > 0 and count < count_max:
                self.forgotten.append((key, int(read_i32_be(data, position))))
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
        """Reads the fields after the topics."""
        data, position = self.data, self.position
        if self.version >= RACK_FROM:
            length, position = read_length(data, position, self.end, self.flexible, False)
            if length > 0:
                self.rack = data[position : position + length]
                position += length
        if self.flexible:
            position = self._read_tags(position)
        check_end(position, self.end)

    def _read_tags(self, position: i64) -> i64:
        """Reads the tagged fields of a request: the state of the replica (15). Skips the cluster id."""
        data = self.data
        count, position = read_tag_count(data, position, self.end)
        while count > 0:
            tag, size, position = read_tag(data, position, self.end)
            if tag == REPLICA_STATE_TAG and self.version >= REPLICA_STATE_FROM:
                if size < REPLICA_STATE_BYTES:
                    raise IndexError(f"a replica state takes {size} bytes instead of {REPLICA_STATE_BYTES}")
                self.replica_id = read_i32_be(data, position)
                self.replica_epoch = read_i64_be(data, position + 4)
            position += size
            count -= 1
        return position

    def request(self) -> FetchRequest:
        """Returns the request, after :meth:`run` has returned True."""
        return FetchRequest(
            version=self.version,
            correlation_id=self.correlation_id,
            replica_id=self.replica_id,
            replica_epoch=self.replica_epoch,
            wait_ms=self.wait_ms,
            bytes_min=self.bytes_min,
            bytes_max=self.bytes_max,
            isolation=self.isolation,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            partitions=tuple(self.partitions),
            forgotten=tuple(self.forgotten),
            rack=self.rack,
        )


def read_request(version: i16, correlation_id: i32, data: bytes, position: i64, end: i64) -> FetchRequest:
    """Reads a whole request. Raises IndexError or ProtocolError if it is invalid."""
    reader = FetchRequestReader(version, correlation_id, data, position, end)
    reader.run(ITEMS_MAX * 2)
    return reader.request()


def read_tag(data: bytes, position: i64, end: i64) -> tuple[i64, i64, i64]:
    """Returns the number, the size and the start of a tagged field. Raises IndexError if it is truncated."""
    tag, position = read_uvarint(data, position, end)
    size, position = read_uvarint(data, position, end)
    if size > end - position:
        raise IndexError(f"a tagged field of {size} bytes begins at {position}, the message ends at {end}")
    return tag, size, position


def _read_requested(
    partitions: list[RequestedPartition], key: bytes, data: bytes, position: i64, end: i64, version: i16
) -> i64:
    """Reads one partition of the topic ``key``, and appends it. Returns the position after it."""
    leader_epoch: i64 = -1
    last_fetched_epoch: i64 = -1
    log_start_offset: i64 = -1
    high_watermark: i64 = HIGH_WATERMARK_UNKNOWN
    index = read_i32_be(data, position)
    position += 4
    if version >= LEADER_EPOCH_FROM:
        leader_epoch = i64(read_i32_be(data, position))
        position += 4
    offset = read_i64_be(data, position)
    position += 8
    if version >= FLEXIBLE:
        last_fetched_epoch = i64(read_i32_be(data, position))
        position += 4
    if version >= LOG_START_FROM:
        log_start_offset = read_i64_be(data, position)
        position += 8
    bytes_max: i64 = i64(read_i32_be(data, position))
    position += 4
    if version >= HIGH_WATERMARK_FROM:
        high_watermark, position = _read_requested_tags(data, position, end)
    elif version >= FLEXIBLE:
        position = skip_tag_section(data, position, end)
    partitions.append(
        RequestedPartition(
            key=key,
            index=index,
            leader_epoch=leader_epoch,
            offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            bytes_max=bytes_max,
        )
    )
    return position


def _read_requested_tags(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    high_watermark = HIGH_WATERMARK_UNKNOWN
    count, position = read_tag_count(data, position, end)
    while count > 0:
        tag, size, position = read_tag(data, position, end)
        if tag == HIGH_WATERMARK_TAG:
            if size != HIGH_WATERMARK_BYTES:
                raise IndexError(f"a high watermark takes {size} bytes instead of {HIGH_WATERMARK_BYTES}")
            high_watermark = read_i64_be(data, position)
        position += size
        count -= 1
    return high_watermark, position


# -- writing requests


def write_request(request: FetchRequest) -> bytes:
    """Encodes the body of a request. Adjacent partitions of a topic share its key."""
    version = request.version
    flexible = version >= FLEXIBLE
    out = BytesWriter()
    if version < REPLICA_STATE_FROM:
        write_i32_be(out, request.replica_id)
    write_i32_be(out, i32(request.wait_ms))
    write_i32_be(out, i32(request.bytes_min))
    if version >= BYTES_MAX_FROM:
        write_i32_be(out, i32(request.bytes_max))
    if version >= ISOLATION_FROM:
        out.append(int(request.isolation))
    if version >= SESSIONS_FROM:
        write_i32_be(out, request.session_id)
        write_i32_be(out, request.session_epoch)
    _write_requested(out, request.partitions, version)
    if version >= SESSIONS_FROM:
        write_count(out, len(request.forgotten), flexible)
        for key, number in request.forgotten:
            write_topic_key(out, key, flexible, version >= BY_ID)
            write_count(out, 1, flexible)
            write_i32_be(out, i32(number))
            if flexible:
                out.append(0)
    if version >= RACK_FROM:
        write_topic_key(out, request.rack, flexible, False)
    if flexible:
        if version >= REPLICA_STATE_FROM and request.replica_id >= 0:
            out.append(1)
            out.append(REPLICA_STATE_TAG)
            out.append(REPLICA_STATE_BYTES)
            write_i32_be(out, request.replica_id)
            write_i64_be(out, request.replica_epoch)
        out.append(0)
    return out.getvalue()


def _write_requested(out: BytesWriter, partitions: tuple[RequestedPartition, ...], version: i16) -> None:
    flexible = version >= FLEXIBLE
    total: i64 = len(partitions)
    topics: i64 = 0
    index: i64 = 0
    while index < total:
        if index == 0 or partitions[index].key != partitions[index - 1].key:
            topics += 1
        index += 1
    write_count(out, topics, flexible)
    index = 0
    while index < total:
        key = partitions[index].key
        end: i64 = index
        while end < total and partitions[end].key == key:
            end += 1
        write_topic_key(out, key, flexible, version >= BY_ID)
        write_count(out, end - index, flexible)
        while index < end:
            one = partitions[index]
            write_i32_be(out, one.index)
            if version >= LEADER_EPOCH_FROM:
                write_i32_be(out, i32(one.leader_epoch))
            write_i64_be(out, one.offset)
            if flexible:
                write_i32_be(out, i32(one.last_fetched_epoch))
            if version >= LOG_START_FROM:
                write_i64_be(out, one.log_start_offset)
            write_i32_be(out, i32(one.bytes_max))
            if flexible:
                if version >= HIGH_WATERMARK_FROM and one.high_watermark != HIGH_WATERMARK_UNKNOWN:
                    out.append(1)
                    out.append(HIGH_WATERMARK_TAG)
                    out.append(HIGH_WATERMARK_BYTES)
                    write_i64_be(out, one.high_watermark)
                else:
                    out.append(0)
            index += 1
        if flexible:
            out.append(0)


# -- writing responses


def write_response_head(out: BytesWriter, version: i16, error: i16, session_id: i32) -> None:
    """Writes a response up to its topics, without a throttle time."""
    if version >= 1:
        write_i32_be(out, 0)
    if version >= SESSIONS_FROM:
        write_i16_be(out, error)
        write_i32_be(out, session_id)


def write_fetched(
    out: BytesWriter,
    version: i16,
    index: i32,
    error: i16,
    high_watermark: i64,
    last_stable_offset: i64,
    log_start_offset: i64,
    aborted: list[tuple[int, int]] | None,
    preferred_replica: i32,
    records_bytes: i64,
) -> None:
    """Writes one partition of a response up to its ``records_bytes`` of records, which follow."""
    flexible = version >= FLEXIBLE
    write_i32_be(out, index)
    write_i16_be(out, error)
    write_i64_be(out, high_watermark)
    if version >= ISOLATION_FROM:
        write_i64_be(out, last_stable_offset)
        if version >= LOG_START_FROM:
            write_i64_be(out, log_start_offset)
        write_count(out, -1 if aborted is None else len(aborted), flexible)
        if aborted is not None:
            for producer_id, first_offset in aborted:
                write_i64_be(out, producer_id)
                write_i64_be(out, first_offset)
                if flexible:
                    out.append(0)
    if version >= RACK_FROM:
        write_i32_be(out, preferred_replica)
    write_count(out, records_bytes, flexible)


def write_fetched_tags(out: BytesWriter, diverging_epoch: DivergingEpoch | None) -> None:
    """Writes the fields after the records, from version 12 on."""
    if diverging_epoch is None:
        out.append(0)
        return
    out.append(1)
    out.append(DIVERGING_EPOCH_TAG)
    out.append(DIVERGING_EPOCH_BYTES)
    write_i32_be(out, i32(diverging_epoch.epoch))
    write_i64_be(out, diverging_epoch.end_offset)
    out.append(0)


# -- reading responses


class FetchedPartition:
    """One partition of a response. Its records are ``data[start:end]``, and may end within a batch."""

    def __init__(self, key: bytes, index: i32, data: bytes) -> None:
        self.key = key
        """The topic's name, from version 13 on its id."""
        self.index: i32 = index
        self.data = data
        self.error: i64 = 0
        self.high_watermark: i64 = -1
        self.last_stable_offset: i64 = -1
        self.log_start_offset: i64 = -1
        self.aborted: list[tuple[int, int]] | None = None
        """Producer id and first offset of the aborted transactions of the records; None without any."""
        self.preferred_replica: i32 = -1
        self.start: i64 = 0
        self.end: i64 = 0
        self.diverging_epoch: DivergingEpoch | None = None

    def records(self) -> bytes:
        """Returns a copy of the records."""
        return self.data[self.start : self.end]


class FetchResponse:
    """A response."""

    def __init__(self) -> None:
        self.throttle_ms: i64 = 0
        self.error: i64 = 0
        self.session_id: i32 = 0
        self.partitions: list[FetchedPartition] = []


def read_response(data: bytes, position: i64, end: i64, version: i16, items_max: i64) -> FetchResponse:
    """Reads the response whose body is ``data[position:end]``.

    Raises ProtocolError if it is invalid, or has more than ``items_max`` topics or partitions.
    """
    try:
        return _read_response(data, position, end, version, items_max)
    except IndexError as problem:
        raise ProtocolError(f"a Fetch response of {end - position} bytes is truncated: {problem}") from None


def _read_response(data: bytes, position: i64, end: i64, version: i16, items_max: i64) -> FetchResponse:
    flexible = version >= FLEXIBLE
    response = FetchResponse()
    partitions = response.partitions
    if version >= 1:
        response.throttle_ms = i64(read_i32_be(data, position))
        position += 4
    if version >= SESSIONS_FROM:
        response.error = i64(read_i16_be(data, position))
        response.session_id = read_i32_be(data, position + 2)
        position += 2 + 4
    topics, position = read_length(data, position, end, flexible, True)
    check_items(topics, items_max)
    while topics > 0:
        key, position = read_topic_key(data, position, end, flexible, version >= BY_ID)
        count, position = read_length(data, position, end, flexible, True)
        check_items(count, items_max - len(partitions))
        while count > 0:
            fetched = FetchedPartition(key, read_i32_be(data, position), data)
            position = _read_fetched(fetched, data, position + 4, end, version)
            partitions.append(fetched)
            count -= 1
        if flexible:
            position = skip_tag_section(data, position, end)
        topics -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    check_end(position, end)
    return response


def _read_fetched(fetched: FetchedPartition, data: bytes, position: i64, end: i64, version: i16) -> i64:
    """Reads the fields after the index of a partition. Returns the position after them."""
    flexible = version >= FLEXIBLE
    fetched.error = i64(read_i16_be(data, position))
    fetched.high_watermark = read_i64_be(data, position + 2)
    position += 2 + 8
    if version >= ISOLATION_FROM:
        fetched.last_stable_offset = read_i64_be(data, position)
        position += 8
        if version >= LOG_START_FROM:
            fetched.log_start_offset = read_i64_be(data, position)
            position += 8
        count, position = read_length(data, position, end, flexible, True)
        if count > 0:
            aborted: list[tuple[int, int]] = []
            while count > 0:
                pair = (int(read_i64_be(data, position)), int(read_i64_be(data, position + 8)))
                aborted.append(pair)
                position += 8 + 8
                if flexible:
                    position = skip_tag_section(data, position, end)
                count -= 1
            fetched.aborted = aborted
    if version >= RACK_FROM:
        fetched.preferred_replica = read_i32_be(data, position)
        position += 4
    size, position = read_length(data, position, end, flexible, True)
    if size > 0:
        fetched.start = position
        position += size
        fetched.end = position
    if flexible:
        count, position = read_tag_count(data, position, end)
        while count > 0:
            tag, size, position = read_tag(data, position, end)
            if tag == DIVERGING_EPOCH_TAG and size >= DIVERGING_EPOCH_BYTES_MIN:
                end_offset = read_i64_be(data, position + 4)
                if end_offset >= 0:
                    fetched.diverging_epoch = DivergingEpoch(i64(read_i32_be(data, position)), end_offset)
            position += size
            count -= 1
    return position
