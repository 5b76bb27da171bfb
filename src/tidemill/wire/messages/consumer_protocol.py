"""What consumers put into the metadata and assignment of the group protocol."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT32, STRING, Struct, field


class TopicPartition(Struct):
    """Topic Partition."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class ConsumerProtocolSubscription(Struct, versions="0-3"):
    """Consumer Protocol Subscription."""

    topics: list[str] = field([STRING])
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = field([TopicPartition], "1+", ignorable=True)
    generation_id: int = field(INT32, "2+", default=-1, ignorable=True)
    rack_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Struct, versions="0-3"):
    """Consumer Protocol Assignment."""

    assigned_partitions: list[TopicPartition] = field([TopicPartition])
    user_data: bytes | None = field(BYTES, nullable="0+", default=None)
