"""Random frames of an attacker, from noise to almost valid requests, generated from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from wire_values import message_of

from tidemill.records import batch as layout
from tidemill.records.builder import BatchBuilder
from tidemill.records.checksum import crc32c
from tidemill.wire.apis import API, ApiSpec, request_class
from tidemill.wire.header import encode_request
from tidemill.wire.schema import Struct, carries

PRODUCE, FETCH, JOIN_GROUP = 0, 1, 11
VALID_MAX = 2000
"""The number of requests that are kept for mutations."""
WRONG_VALUES = (0, 1, -1, -2, 2, 127, 128, 255, 32767, 32768, 65535, 0x7FFFFFFF, -0x80000000, 1_000_000_000)


class FrameGenerator:
    """Generates frames for an existing topic and group from one seed."""

    def __init__(self, seed: object, topic: str, topic_id: bytes) -> None:
        self.random = random.Random(f"{seed}")
        self.topic = topic
        self.topic_id = topic_id
        self.versions = [(key, version) for key, spec in API.items() for version in _versions(spec)]
        self.valid: list[bytes] = []

    def frame(self) -> bytes:
        """Returns a frame of any kind, mostly with the correct size."""
        kind = self.random.choices(
            (self.noise, self.garbled_body, self.valid_request, self.mutated, self.wrong_size, self.produce),
            (1, 2, 2, 10, 1, 3),
        )[0]
        return kind()

    def noise(self) -> bytes:
        """Returns a frame of random bytes."""
        return framed(self.random.randbytes(self.random.randrange(200)))

    def garbled_body(self) -> bytes:
        """Returns a valid request header with a random body."""
        key, version = self.random.choice(self.versions)
        head = struct.pack(">hhih", key, version, self.random.getrandbits(31), -1)
        tags = b"\0" if API[key].is_flexible(version) else b""
        return framed(head + tags + self.random.randbytes(self.random.randrange(120)))

    def valid_request(self, key: int = -1, version: int = -1) -> bytes:
        """Returns a request with random values, some of which name existing objects."""
        if key < 0:
            key, version = self.random.choice(self.versions)
        message = message_of(self.random, request_class(key), version, items_max=2)
        self.insert_known_names(message, version)
        if key == PRODUCE:
            self.fill_produce(message)
        frame = encode_request(key, version, self.random.getrandbits(31), "generator", message)
        if len(self.valid) < VALID_MAX:
            self.valid.append(frame)
        else:
            self.valid[self.random.randrange(VALID_MAX)] = frame
        return frame

    def insert_known_names(self, message: Struct, version: int) -> None:
        """Sets some fields of a message to existing names."""
        for one in message.fields_:
            if not carries(one, version):
                continue
            value = getattr(message, one.name)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, Struct):
                        self.insert_known_names(item, version)
                if value and isinstance(value[0], str) and self.random.random() < 0.5:
                    value[0] = self.topic
            elif isinstance(value, Struct):
                self.insert_known_names(value, version)
            elif self.random.random() < 0.7:
                replaced = self.known(one.name, value)
                if replaced is not None:
                    setattr(message, one.name, replaced)

    def known(self, name: str, value: Any) -> Any:
        """Returns a meaningful value for a field with this name, or None."""
        if isinstance(value, bytes) and name == "topic_id":
            return self.topic_id
        if isinstance(value, str) and name in ("name", "topic", "topic_name", "resource_name"):
            return self.topic
        if isinstance(value, str) and name == "group_id":
            return "group"
        if isinstance(value, int) and not isinstance(value, bool):
            if name in ("partition_index", "partition", "index", "session_id", "replica_id"):
                return self.random.randrange(-1, 3)
            if name in ("session_epoch", "acks", "producer_epoch", "resource_type", "offset"):
                return self.random.choice((-1, 0, 1, 2, 4, 8))
            if name.endswith(("_ms", "timeout", "wait_time")):
                return self.random.choice((0, 1, 50, 6000))
        return None

    def fill_produce(self, message: Any) -> None:
        """Replaces random bytes by batches."""
        for topic in message.topic_data:
            for part in topic.partition_data:
                part.records = self.batch()

    def batch(self) -> bytes:
        """Returns a batch, mostly with a wrong field in its header or a few damaged bytes."""
        builder = BatchBuilder(self.random.randrange(5))
        for number in range(self.random.randrange(1, 6)):
            builder.append(1_700_000_000_000 + number, b"key", self.random.randbytes(20))
        data = bytearray(
            builder.build(
                self.random.choice((-1, -1, 7)), self.random.choice((-1, 0)), self.random.choice((-1, 0))
            )
        )
        for _ in range(self.random.randrange(3)):
            self.corrupt_batch(data)
        if self.random.random() < 0.9:
            data[layout.CRC : layout.CRC + 4] = struct.pack(">I", crc32c(bytes(data[layout.ATTRIBUTES :])))
        return bytes(data)

    def corrupt_batch(self, data: bytearray) -> None:
        """Changes one field."""
        random_ = self.random
        value = random_.choice(WRONG_VALUES)
        what = random_.randrange(6)
        if what == 0:
            data[layout.RECORD_COUNT : layout.RECORD_COUNT + 4] = struct.pack(">i", _wrap(value, 32))
        elif what == 1:
            data[layout.LAST_OFFSET_DELTA : layout.LAST_OFFSET_DELTA + 4] = struct.pack(
                ">i", _wrap(value, 32)
            )
        elif what == 2:
            data[layout.LENGTH : layout.LENGTH + 4] = struct.pack(">i", _wrap(value, 32))
        elif what == 3:
            data[layout.ATTRIBUTES : layout.ATTRIBUTES + 2] = struct.pack(">H", random_.getrandbits(16))
        elif what == 4:
            position = random_.choice((layout.BASE_TIMESTAMP, layout.MAX_TIMESTAMP, layout.PRODUCER_ID))
            data[position : position + 8] = struct.pack(
                ">q", random_.choice((*WRONG_VALUES, -(1 << 63), (1 << 63) - 1))
            )
        else:
            position = random_.randrange(layout.RECORDS, len(data))
            data[position] = random_.choice((0, 1, 127, 128, 255, random_.randrange(256)))

    def produce(self) -> bytes:
        """Returns a Produce request for the existing topic in any version."""
        version = self.random.randrange(3, 14)
        return produce_frame(version, self.topic, self.topic_id, self.batch(), self.random.choice((0, 1, -1)))

    def mutated(self) -> bytes:
        """Returns a mutated valid request."""
        if len(self.valid) < 100 or self.random.random() < 0.05:
            self.valid_request()
        data = bytearray(self.random.choice(self.valid)[4:])
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            self.random.choice(MUTATIONS)(self.random, data)
        return framed(bytes(data))

    def wrong_size(self) -> bytes:
        """Returns a frame with a wrong size."""
        body = self.random.choice(self.valid)[4:] if self.valid else b"\0" * 20
        return struct.pack(">i", _wrap(self.random.choice((*WRONG_VALUES, len(body) - 1)), 32)) + body


def flip(random_: random.Random, data: bytearray) -> None:
    """Replaces a byte."""
    if data:
        data[random_.randrange(len(data))] = random_.choice((0, 1, 127, 128, 255, random_.randrange(256)))


def truncate(random_: random.Random, data: bytearray) -> None:
    """Removes the end."""
    del data[random_.randrange(len(data) + 1) :]


def duplicate(random_: random.Random, data: bytearray) -> None:
    """Repeats a piece."""
    first = random_.randrange(len(data) + 1)
    piece = data[first : first + random_.randrange(40)]
    data[first:first] = piece


def cut_out(random_: random.Random, data: bytearray) -> None:
    """Removes a piece."""
    first = random_.randrange(len(data) + 1)
    del data[first : first + random_.randrange(12)]


def corrupt_length(random_: random.Random, data: bytearray) -> None:
    """Changes a length or count of two or four bytes, or a varint."""
    value = random_.choice(WRONG_VALUES)
    first = random_.randrange(len(data) + 1)
    form = random_.choice((">h", ">i", "varint"))
    if form == "varint":
        data[first : first + 1] = b"\xff\xff\xff\xff\x07" if random_.random() < 0.5 else b"\xff\xff\x7f"
    else:
        packed = struct.pack(form, _wrap(value, 8 * struct.calcsize(form)))
        data[first : first + len(packed)] = packed


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip,
    flip,
    truncate,
    duplicate,
    cut_out,
    corrupt_length,
)


def framed(body: bytes) -> bytes:
    """Prepends the size to ``body``."""
    return struct.pack(">i", len(body)) + body


def produce_frame(
    version: int,
    topic: str,
    topic_id: bytes,
    records: bytes,
    acks: int = 1,
    correlation_id: int = 1,
    index: int = 0,
) -> bytes:
    """Returns a Produce request with one batch for one partition."""
    from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    part = PartitionProduceData(index=index, records=records)
    data = TopicProduceData(partition_data=[part])
    if version >= 13:
        data.topic_id = topic_id
    else:
        data.name = topic
    request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[data])
    return encode_request(PRODUCE, version, correlation_id, "generator", request)


def _versions(spec: ApiSpec) -> range:
    """Returns all known versions: handlers refuse unsupported APIs, too."""
    return range(spec.version_min, spec.version_max + 1)


def _wrap(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
