"""The codec of Produce requests and responses, version 0 to 13. Compiled.

    request  = transactional id (v3), acks i16, timeout i32, topics[name (to v12) or id (v13),
               partitions[index i32, records]]
    response = topics[name or id, partitions[index i32, error i16, base offset i64, append time i64 (v2),
               log start i64 (v5), record errors[index i32, text] and message (v8)]], throttle i32 (v1)

Compact lengths and tagged fields from v9 on. Records are not copied: a batch is a position in the frame until
it is written to the log. A decoded request is immutable.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.model.errors import InvalidRecord, KafkaError
from tidemill.model.log_lines import cut_short
from tidemill.model.types import NO_OFFSET
from tidemill.records.batch import (
    ATTRIBUTES,
    CURRENT_MAGIC,
    MAGIC,
    NO_TIMESTAMP,
    RECORDS,
    TRANSACTIONAL_FLAG,
)
from tidemill.wire.hot_path_codec import (
    PRODUCE_ITEMS_MAX,
    check_end,
    check_items,
    known_error,
    read_length,
    read_topic_key,
    set_i32,
    write_count,
    write_topic_key,
)
from tidemill.wire.primitives import append_uvarint, skip_tag_section

FIRST_VERSION: Final = 0
LAST_VERSION: Final = 13
FLEXIBLE: Final = 9
BY_ID: Final = 13
STORAGE_ERROR_FROM: Final = 4
NONE: Final[i16] = 0
TEXT_CHARACTERS_MAX: Final = 1000
"""The limit of one error text, which may contain a long name that the client sent."""
TOPIC_CHARACTERS_MAX: Final = 300
"""The limit of a topic name of a client in a log line; the names of existing topics are shorter."""
TEXTS_BYTES_MAX: Final[i64] = 64 * 1024
"""The limit of all error texts of one response, which could be a hundred times as large as its request."""


@mypyc_attr(acyclic=True, free_list_len=1)
class PartitionRecords:
    """The records of one partition in a request: a range of the bytes of the frame."""

    def __init__(self, topic: bytes, index: i32, start: i64, end: i64) -> None:
        self.topic: Final = topic
        """The name or id that the client sent."""
        self.index: Final[i32] = index
        self.start: Final[i64] = start
        self.end: Final[i64] = end


@mypyc_attr(acyclic=True, free_list_len=1)
class TopicRecords:
    """The records of one topic in a request, by partition."""

    def __init__(self, key: bytes, partitions: list[PartitionRecords], is_transactional: bool) -> None:
        self.key: Final = key
        """The name or id that the client sent."""
        self.partitions: Final = partitions
        self.is_transactional: Final = is_transactional
        """One of the batches belongs to a transaction."""


@mypyc_attr(acyclic=True, free_list_len=1)
class ProduceRequest:
    """A decoded request. It holds positions in the frame, and not the frame."""

    def __init__(
        self,
        version: i16,
        correlation_id: i32,
        acks: i32,
        timeout_ms: i64,
        is_transactional: bool,
        topics: list[TopicRecords],
        transactional_id: bytes | None,
    ) -> None:
        self.version: Final[i16] = version
        self.correlation_id: Final[i32] = correlation_id
        self.acks: Final[i32] = acks
        self.timeout_ms: Final[i64] = timeout_ms
        self.is_transactional: Final = is_transactional
        """One of the batches belongs to a transaction."""
        self.topics: Final = topics
        self.transactional_id: Final = transactional_id


@mypyc_attr(acyclic=True, free_list_len=1)
class Appended:
    """The records of a partition are in the log."""

    def __init__(self, index: i32, base_offset: i64, append_time_ms: i64, log_start_offset: i64) -> None:
        self.index: Final[i32] = index
        self.base_offset: Final[i64] = base_offset
        self.append_time_ms: Final[i64] = append_time_ms
        """As in :class:`~tidemill.log.log.AppendResult`."""
        self.log_start_offset: Final[i64] = log_start_offset


@mypyc_attr(acyclic=True)
class NothingToAppend:
    """The request has an empty message set for the partition, which is a success."""

    def __init__(self, index: i32) -> None:
        self.index: Final[i32] = index


class Refused:
    """The records of a partition were not appended, or may be lost after their append."""

    def __init__(self, index: i32, error: KafkaError) -> None:
        self.index: Final[i32] = index
        # The stack frames of the error refer to the frame of the request.
        self.error: Final = error.as_result()


PartitionResult: TypeAlias = Appended | NothingToAppend | Refused


def first_error(request: ProduceRequest, results: list[PartitionResult]) -> str:
    """Returns the topic, partition and error of the first failed partition of a request, for a log line."""
    number = 0
    for topic in request.topics:
        for records in topic.partitions:
            result = results[number]
            number += 1
            if isinstance(result, Refused):
                name = topic.key.hex() if request.version >= BY_ID else topic.key.decode("utf-8", "replace")
                shown = cut_short(name, TOPIC_CHARACTERS_MAX)
                return f"partition {records.index} of {shown!r}: {result.error.code.name}"
    return "no partition has an error"


def decode(data: bytes, position: i64, end: i64, version: i16, correlation_id: i32) -> ProduceRequest:
    """Decodes a request. Raises IndexError or ProtocolError for bytes that are not a request."""
    flexible = version >= FLEXIBLE
    is_transactional = False
    transactional_id: bytes | None = None
    if version >= 3:
        length, position = read_length(data, position, end, flexible, False)
        if length >= 0:
            transactional_id = data[position : position + length]
            position += length
    acks = i32(read_i16_be(data, position))
    timeout_ms = i64(read_i32_be(data, position + 2))
    position += 6
    count, position = read_length(data, position, end, flexible, True)
    check_items(count, PRODUCE_ITEMS_MAX)
    left: i64 = PRODUCE_ITEMS_MAX - count
    topics: list[TopicRecords] = []
    while count > 0:
        topic, position = decode_topic(data, position, end, version, left)
        left -= len(topic.partitions)
        is_transactional = is_transactional or topic.is_transactional
        topics.append(topic)
        count -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    check_end(position, end)
    return ProduceRequest(
        version, correlation_id, acks, timeout_ms, is_transactional, topics, transactional_id
    )


def decode_topic(
    data: bytes, position: i64, end: i64, version: i16, partitions_max: i64
) -> tuple[TopicRecords, i64]:
    """Decodes one topic; returns it and the position after it."""
    flexible = version >= FLEXIBLE
    key, position = read_topic_key(data, position, end, flexible, version >= BY_ID)
    count, position = read_length(data, position, end, flexible, True)
    check_items(count, partitions_max)
    partitions: list[PartitionRecords] = []
    is_transactional = False
    while count > 0:
        index = read_i32_be(data, position)
        length, position = read_length(data, position + 4, end, flexible, True)
        if length < 0:
            length = 0
        partitions.append(PartitionRecords(key, index, position, position + length))
        if length >= RECORDS and is_transactional_batch(data, position):
            is_transactional = True
        position += length
        if flexible:
            position = skip_tag_section(data, position, end)
        count -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    return TopicRecords(key, partitions, is_transactional), position


def is_transactional_batch(data: bytes, position: i64) -> bool:
    """Whether the batch at ``position`` is transactional. The data must hold a whole v2 header."""
    if data[position + MAGIC] != CURRENT_MAGIC:
        return False
    return i64(read_i16_be(data, position + ATTRIBUTES)) & TRANSACTIONAL_FLAG != 0


class ErrorTexts:
    """The error texts of one response: one for each topic, within a limit for all of them."""

    def __init__(self) -> None:
        self.bytes_left: i64 = TEXTS_BYTES_MAX
        self.topics: set[bytes] = set()
        """The keys of the topics that have a text."""

    def write_error(self, out: BytesWriter, topic: bytes, error: KafkaError, flexible: bool) -> None:
        """Writes the errors of single records, and the text of a partition's error.

        The text is null where the topic already has one.
        """
        record_errors: tuple[tuple[int, str], ...] = ()
        if isinstance(error, InvalidRecord) and self.bytes_left > 0:
            record_errors = error.record_errors
        write_count(out, len(record_errors), flexible)
        for record_index, text in record_errors:
            write_i32_be(out, i32(record_index))
            self.write(out, text, flexible)
            if flexible:
                out.append(0)
        if self.bytes_left > 0 and topic not in self.topics:
            self.topics.add(topic)
            self.write(out, str(error), flexible)
        else:
            self.write(out, "", flexible)

    def write(self, out: BytesWriter, text: str, flexible: bool) -> None:
        """Writes a nullable string: null when empty."""
        data = text[:TEXT_CHARACTERS_MAX].encode()
        self.bytes_left -= len(data)
        if flexible:
            append_uvarint(out, len(data) + 1 if data else 0)
        else:
            write_i16_be(out, i16(len(data)) if data else -1)
        out.write(data)


def encode(request: ProduceRequest, results: list[PartitionResult]) -> bytes:
    """Returns the response with its size and header.

    ``results``: one for each partition of ``request``, in the same order.
    """
    version = request.version
    flexible = version >= FLEXIBLE
    out = BytesWriter()
    write_i32_be(out, 0)
    write_i32_be(out, request.correlation_id)
    if flexible:
        out.append(0)
    write_count(out, len(request.topics), flexible)
    texts = ErrorTexts()
    begin: i64 = 0
    for topic in request.topics:
        end: i64 = begin + len(topic.partitions)
        write_topic_key(out, topic.key, flexible, version >= BY_ID)
        write_count(out, end - begin, flexible)
        while begin < end:
            encode_partition(out, topic.key, results[begin], version, texts)
            begin += 1
        if flexible:
            out.append(0)
    if version >= 1:
        write_i32_be(out, 0)
    if flexible:
        out.append(0)
    set_i32(out, 0, len(out) - 4)
    return out.getvalue()


def encode_partition(
    out: BytesWriter, topic: bytes, result: PartitionResult, version: i16, texts: ErrorTexts
) -> None:
    """Writes the response for one partition."""
    flexible = version >= FLEXIBLE
    error_code = NONE
    base_offset: i64 = NO_OFFSET
    append_time_ms: i64 = NO_TIMESTAMP
    log_start_offset: i64 = NO_OFFSET
    if isinstance(result, Appended):
        base_offset = result.base_offset
        append_time_ms = result.append_time_ms
        log_start_offset = result.log_start_offset
    elif isinstance(result, Refused):
        error_code = known_error(i16(int(result.error.code)), version, STORAGE_ERROR_FROM)
    write_i32_be(out, result.index)
    write_i16_be(out, error_code)
    write_i64_be(out, base_offset)
    if version >= 2:
        write_i64_be(out, append_time_ms)
    if version >= 5:
        write_i64_be(out, log_start_offset)
    if version >= 8:
        if isinstance(result, Refused):
            texts.write_error(out, topic, result.error, flexible)
        else:
            write_count(out, 0, flexible)
            texts.write(out, "", flexible)
    if flexible:
        out.append(0)
