"""ConsumerGroupHeartbeat (key 68): joins, heartbeats and leaves of the consumer protocol (KIP-848)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class TopicPartitions(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field([INT32])


class ConsumerGroupHeartbeatRequest(Struct, versions="0-1", flexible="0+"):
    """The member's subscription and owned partitions; null where unchanged."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)  # 0 joins, -1 leaves, -2 leaves for a while
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)  # -1 where it did not change
    subscribed_topic_names: list[str] | None = field([STRING], nullable="0+", default=None)
    subscribed_topic_regex: str | None = field(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = field([TopicPartitions], nullable="0+", default=None)


class Assignment(Struct):
    """The member's target assignment."""

    topic_partitions: list[TopicPartitions] = field([TopicPartitions])


class ConsumerGroupHeartbeatResponse(Struct, versions="0-1", flexible="0+"):
    """The member's epoch, and its assignment where that changed."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    # null where it did not change
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
