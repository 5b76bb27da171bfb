"""The fields of a produce request and of its reply. Version 0 to 13; compiled.

    request  = transactional id (v3), acks i16, timeout i32, topics[name (to v12) or id (v13),
               partitions[index i32, records]]
    response = topics[name or id, partitions[index i32, error i16, base offset i64, append time i64 (v2),
               log start i64 (v5), record errors[index i32, text] and message (v8)]], throttle i32 (v1)

Compact lengths and tagged fields from v9 on. Messages stay where they were received: a batch is a position
in the frame until it is written to the log.
"""

from __future__ import annotations

from typing import Final

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
from tidemill.records.batch import ATTRIBUTES, CURRENT_MAGIC, MAGIC, RECORDS, TRANSACTIONAL_FLAG, Batch
from tidemill.records.message_set import MessageSet
from tidemill.replication.partition import Partition
from tidemill.replication.waiting import AppendWaiter
from tidemill.wire.fast import (
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
"""Of a message to the client: it may hold a name that the client made long."""
TEXTS_BYTES_MAX: Final[i64] = 64 * 1024
"""Of all texts of one reply, which would else be a hundred times as large as its request."""


@mypyc_attr(free_list_len=1)
class ProducePart:
    """One partition's records of a request, and what became of them.

    Not acyclic: it refers to the partition, where the request waits.
    """

    def __init__(self, topic: bytes, index: i32, start: i64, end: i64) -> None:
        self.topic = topic
        """As the client names it."""
        self.index: i32 = index
        self.start: i64 = start
        self.end: i64 = end
        self.partition: Partition | None = None
        self.batch: Batch | None = None
        self.messages: MessageSet | None = None
        """In place of a batch, where the topic stores format v0 or v1."""
        self.unchecked = False
        """The batch is still to be checked."""
        self.converts = False
        """The records are still to be brought into the form in which the topic stores them."""
        self.error: i16 = NONE
        self.base_offset: i64 = -1
        self.end_offset: i64 = -1
        """Below 0 there is still something to append."""
        self.append_time: i64 = -1
        self.log_start: i64 = -1
        self.message: str = ""
        self.record_errors: tuple[tuple[int, str], ...] = ()

    def take(self, stored: Batch | MessageSet) -> None:
        """What is to be appended."""
        self.converts = False
        if isinstance(stored, Batch):
            self.batch = stored
        else:
            self.messages = stored

    def fail(self, error: KafkaError) -> None:
        """Answers this partition with an error."""
        self.error = i16(int(error.code))
        self.message = str(error)
        self.base_offset = -1
        if isinstance(error, InvalidRecord):
            self.record_errors = error.record_errors


@mypyc_attr(free_list_len=1)
class ProduceTopic:
    """One topic of a request: its name or id as it came, and its partitions."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.parts: list[ProducePart] = []


class ProduceFields(AppendWaiter):
    """What a request asks to be appended."""

    def __init__(self, version: i16, correlation_id: i32) -> None:
        self.version: i16 = version
        self.correlation_id: i32 = correlation_id
        self.acks: i32 = 0
        self.timeout_ms: i64 = 0
        self.transactional = False
        """It names a transactional id, or a batch says that it belongs to a transaction."""
        self.topics: list[ProduceTopic] = []


def decode(request: ProduceFields, data: bytes, position: i64, end: i64) -> None:
    """Reads a request. IndexError or ProtocolError when it is none."""
    version = request.version
    flexible = version >= FLEXIBLE
    if version >= 3:
        length, position = read_length(data, position, end, flexible, False)
        if length >= 0:
            request.transactional = True
            position += length
    request.acks = i32(read_i16_be(data, position))
    request.timeout_ms = i64(read_i32_be(data, position + 2))
    position += 6
    topics, position = read_length(data, position, end, flexible, True)
    check_items(topics, PRODUCE_ITEMS_MAX)
    left: i64 = PRODUCE_ITEMS_MAX - topics
    while topics > 0:
        key, position = read_topic_key(data, position, end, flexible, version >= BY_ID)
        topic = ProduceTopic(key)
        position = decode_parts(request, topic, data, position, end, flexible, left)
        left -= len(topic.parts)
        request.topics.append(topic)
        topics -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    check_end(position, end)


def decode_parts(
    request: ProduceFields,
    topic: ProduceTopic,
    data: bytes,
    position: i64,
    end: i64,
    flexible: bool,
    count_max: i64,
) -> i64:
    """Reads the partitions of one topic; the position after them."""
    count, position = read_length(data, position, end, flexible, True)
    check_items(count, count_max)
    while count > 0:
        index = read_i32_be(data, position)
        length, position = read_length(data, position + 4, end, flexible, True)
        if length < 0:
            length = 0
        topic.parts.append(ProducePart(topic.key, index, position, position + length))
        if length >= RECORDS and is_transactional(data, position):
            request.transactional = True
        position += length
        if flexible:
            position = skip_tag_section(data, position, end)
        count -= 1
    if flexible:
        position = skip_tag_section(data, position, end)
    return position


def is_transactional(data: bytes, position: i64) -> bool:
    """Whether the batch at ``position`` is transactional. The data must hold a whole v2 header."""
    if data[position + MAGIC] != CURRENT_MAGIC:
        return False
    return i64(read_i16_be(data, position + ATTRIBUTES)) & TRANSACTIONAL_FLAG != 0


class Texts:
    """The error texts of a reply, beside the error codes: one a topic, within a bound for all."""

    def __init__(self) -> None:
        self.left: i64 = TEXTS_BYTES_MAX
        self.topics: set[bytes] = set()
        """Topics that have a text, by the keys that they came with."""

    def write_message(self, out: BytesWriter, part: ProducePart, flexible: bool) -> None:
        """The text of a partition's error; null where there is none, and where the topic has had one."""
        text = ""
        if part.message and self.left > 0 and part.topic not in self.topics:
            self.topics.add(part.topic)
            text = part.message
        self.write(out, text, flexible)

    def write(self, out: BytesWriter, text: str, flexible: bool) -> None:
        """A nullable string: null when empty."""
        data = text[:TEXT_CHARACTERS_MAX].encode()
        self.left -= len(data)
        if flexible:
            append_uvarint(out, len(data) + 1 if data else 0)
        else:
            write_i16_be(out, i16(len(data)) if data else -1)
        out.write(data)


def encode(request: ProduceFields) -> bytes:
    """The reply with its size and header."""
    version = request.version
    flexible = version >= FLEXIBLE
    out = BytesWriter()
    write_i32_be(out, 0)
    write_i32_be(out, request.correlation_id)
    if flexible:
        out.append(0)
    write_count(out, len(request.topics), flexible)
    texts = Texts()
    for topic in request.topics:
        write_topic_key(out, topic.key, flexible, version >= BY_ID)
        write_count(out, len(topic.parts), flexible)
        for part in topic.parts:
            encode_part(out, part, version, texts)
        if flexible:
            out.append(0)
    if version >= 1:
        write_i32_be(out, 0)
    if flexible:
        out.append(0)
    set_i32(out, 0, len(out) - 4)
    return out.getvalue()


def encode_part(out: BytesWriter, part: ProducePart, version: i16, texts: Texts) -> None:
    """One partition's answer."""
    flexible = version >= FLEXIBLE
    write_i32_be(out, part.index)
    write_i16_be(out, known_error(part.error, version, STORAGE_ERROR_FROM))
    write_i64_be(out, part.base_offset)
    if version >= 2:
        write_i64_be(out, part.append_time)
    if version >= 5:
        write_i64_be(out, part.log_start)
    if version >= 8:
        record_errors = part.record_errors if texts.left > 0 else ()
        write_count(out, len(record_errors), flexible)
        for record_index, text in record_errors:
            write_i32_be(out, i32(record_index))
            texts.write(out, text, flexible)
            if flexible:
                out.append(0)
        texts.write_message(out, part, flexible)
    if flexible:
        out.append(0)
