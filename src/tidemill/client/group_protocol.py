"""What members tell one another through the coordinator: subscriptions and assignments.

==============  =========================================================================================
subscription    INT16 version; topics ARRAY(STRING); user data BYTES (null: -1); from 1: owned partitions
                ARRAY(STRING, ARRAY(INT32)); from 2: generation INT32; from 3: rack STRING (null: -1)
assignment      INT16 version; ARRAY(STRING, ARRAY(INT32)); user data BYTES (null: -1)
sticky's data   previous partitions ARRAY(STRING, ARRAY(INT32)); from its version 1: generation INT32
==============  =========================================================================================

A later version only adds at the end, so that an unknown one is read as far as it is known.

Source: KIP-429, KIP-792, KIP-881; ``ConsumerProtocolSubscription.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.client.assignors import Assignor, Member
from tidemill.model.errors import ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.wire.primitives import Reader, Writer

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3


def by_topic(items: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, in order."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(items):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _write_partitions(out: Writer, items: Iterable[TopicPartition]) -> None:
    grouped = by_topic(items)
    out.write_count(len(grouped))
    for topic, partitions in grouped.items():
        out.write_string(topic)
        out.write_count(len(partitions))
        for partition in partitions:
            out.write_int32(partition)


def _read_partitions(reader: Reader) -> tuple[TopicPartition, ...]:
    items: list[TopicPartition] = []
    for _ in range(reader.read_count(6)):
        topic = reader.read_string()
        items += [TopicPartition(topic, reader.read_int32()) for _ in range(reader.read_count(4))]
    return tuple(items)


def encode_subscription(
    topics: Iterable[str],
    owned: Sequence[TopicPartition],
    generation: int,
    rack: str | None,
    user_data: bytes | None,
) -> bytes:
    """A member's subscription in version 3."""
    out = Writer()
    names = sorted(topics)
    out.write_int16(SUBSCRIPTION_VERSION)
    out.write_count(len(names))
    for name in names:
        out.write_string(name)
    out.write_bytes(user_data)
    _write_partitions(out, owned)
    out.write_int32(generation)
    out.write_string(rack)
    return out.getvalue()


def decode_subscription(data: bytes, member_id: str, instance_id: str | None, strategy: str) -> Member:
    """A member from its subscription; for ``sticky`` what it had comes from its user data."""
    reader = Reader(data)
    version = reader.read_int16()
    topics = tuple(reader.read_string() for _ in range(reader.read_count(2)))
    user_data = reader.read_nullable_bytes()
    owned: tuple[TopicPartition, ...] = ()
    generation = -1
    rack: str | None = None
    if version >= 1 and reader.remaining():
        owned = _read_partitions(reader)
    if version >= 2 and reader.remaining():
        generation = reader.read_int32()
    if version >= 3 and reader.remaining():
        rack = reader.read_nullable_string()
    if not owned and strategy == "sticky" and user_data:
        owned, generation = decode_sticky_data(user_data)
    return Member(member_id, topics, owned, generation, instance_id, user_data, rack)


def encode_sticky_data(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """What a member of the eager sticky strategy says that it had."""
    out = Writer()
    _write_partitions(out, owned)
    out.write_int32(generation)
    return out.getvalue()


def decode_sticky_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Previous partitions and their generation; nothing where another client put something else there."""
    try:
        reader = Reader(data)
        owned = _read_partitions(reader)
        return owned, reader.read_int32() if reader.remaining() else -1
    except ProtocolError:
        return (), -1


def encode_assignment(items: Sequence[TopicPartition]) -> bytes:
    """What a member is given, for SyncGroup."""
    out = Writer()
    out.write_int16(ASSIGNMENT_VERSION)
    _write_partitions(out, items)
    out.write_bytes(None)
    return out.getvalue()


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions that the leading member gave; none for an empty text."""
    if not data:
        return []
    reader = Reader(data)
    reader.read_int16()
    return list(_read_partitions(reader))


def subscription_for(
    assignor: Assignor,
    topics: Iterable[str],
    owned: Sequence[TopicPartition],
    previous: Sequence[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    """The subscription as ``assignor`` wants it: eager sticky members have user data, what they had."""
    data: bytes | None = None
    if assignor.name == "sticky" and previous:
        data = encode_sticky_data(previous, generation)
    return encode_subscription(topics, owned, generation, rack, data)
