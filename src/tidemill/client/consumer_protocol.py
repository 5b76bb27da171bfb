"""The consumer protocol: the subscriptions and assignments that members exchange through the coordinator.

:mod:`tidemill.wire.consumer_protocol_codec` reads both. The eager sticky strategy keeps a member's former
partitions in the subscription's user data, in a format of its own.

Source: KIP-429, KIP-792, KIP-881; ``ConsumerProtocolSubscription.json``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from tidemill.client.assignors import Assignor, Member
from tidemill.model.errors import ProtocolError
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.codec import decode_prefix, encode, encode_versioned
from tidemill.wire.consumer_protocol_codec import decode_message
from tidemill.wire.messages import consumer_protocol as messages
from tidemill.wire.schema import INT32, Struct, field

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3
STICKY_VERSION = 1


class StickyUserData(Struct, versions="0-1"):
    """The former partitions of a member of the eager sticky strategy, as the member reports them."""

    previous: list[messages.TopicPartition] = field([messages.TopicPartition])
    generation: int = field(INT32, "1+", default=-1, ignorable=True)


def _grouped(items: Iterable[TopicPartition]) -> list[messages.TopicPartition]:
    return [
        messages.TopicPartition(topic=topic, partitions=partitions)
        for topic, partitions in by_topic(items).items()
    ]


def _listed(grouped: Iterable[messages.TopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, partition) for topic in grouped for partition in topic.partitions]


def encode_subscription(
    topics: Iterable[str],
    owned: Sequence[TopicPartition],
    generation: int,
    rack: str | None,
    user_data: bytes | None,
) -> bytes:
    """Encodes a member's subscription in version 3."""
    message = messages.ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=_grouped(owned),
        generation_id=generation,
        rack_id=rack,
    )
    return encode_versioned(message, SUBSCRIPTION_VERSION)


def decode_subscription(data: bytes, member_id: str, instance_id: str | None, strategy: str) -> Member:
    """Decodes a member's subscription; for ``sticky``, its former partitions come from the user data."""
    message = decode_message(messages.ConsumerProtocolSubscription, data)
    owned, generation = tuple(_listed(message.owned_partitions)), message.generation_id
    if not owned and strategy == "sticky" and message.user_data:
        owned, generation = decode_sticky_data(message.user_data)
    return Member(
        member_id, tuple(message.topics), owned, generation, instance_id, message.user_data, message.rack_id
    )


def encode_sticky_data(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Encodes the user data of a member of the eager sticky strategy, in version 1."""
    return encode(StickyUserData(previous=_grouped(owned), generation=generation), STICKY_VERSION)


def decode_sticky_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Returns the former partitions and their generation; none for the user data of another client."""
    for version in range(STICKY_VERSION, -1, -1):
        with contextlib.suppress(ProtocolError):
            message, _ = decode_prefix(StickyUserData, version, data, 0, len(data))
            return tuple(_listed(message.previous)), message.generation
    return (), -1


def encode_assignment(items: Sequence[TopicPartition]) -> bytes:
    """Encodes a member's assignment for SyncGroup."""
    message = messages.ConsumerProtocolAssignment(assigned_partitions=_grouped(items))
    return encode_versioned(message, ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decodes the assignment from the group leader; empty data has no partitions."""
    if not data:
        return []
    return _listed(decode_message(messages.ConsumerProtocolAssignment, data).assigned_partitions)


def subscription_for(
    assignor: Assignor,
    topics: Iterable[str],
    owned: Sequence[TopicPartition],
    previous: Sequence[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    """Builds the subscription for ``assignor``; for eager sticky, with the former partitions as user data."""
    data = encode_sticky_data(previous, generation) if assignor.name == "sticky" and previous else None
    return encode_subscription(topics, owned, generation, rack, data)
