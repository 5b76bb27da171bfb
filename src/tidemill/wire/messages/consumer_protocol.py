"""What consumers put into the metadata and assignment of the group protocol."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT32, STRING, Struct, field


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    """Consumer Protocol Subscription Topic Partition."""

    topic: str = field(STRING, "1+")
    partitions: list[int] = field([INT32], "1+")


class ConsumerProtocolSubscription(Struct, versions="0-3"):
    """Consumer Protocol Subscription."""

    topics: list[str] = field([STRING])
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = field(
        [ConsumerProtocolSubscriptionTopicPartition], "1+", ignorable=True
    )
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignmentTopicPartition(Struct):
    """Consumer Protocol Assignment Topic Partition."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class ConsumerProtocolAssignment(Struct, versions="0-3"):
    """Consumer Protocol Assignment."""

    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = field(
        [ConsumerProtocolAssignmentTopicPartition]
    )
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
