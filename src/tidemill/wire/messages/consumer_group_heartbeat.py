"""ConsumerGroupHeartbeat (key 68)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class TopicPartitions(Struct):
    """Topic Partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field([INT32])


class ConsumerGroupHeartbeatRequest(Struct, versions="0-1", flexible="0+"):
    """Consumer Group Heartbeat Request."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: list[str] | None = field([STRING], nullable="0+", default=None)
    subscribed_topic_regex: str | None = field(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = field([TopicPartitions], nullable="0+", default=None)


class Assignment(Struct):
    """Assignment."""

    topic_partitions: list[TopicPartitions] = field([TopicPartitions])


class ConsumerGroupHeartbeatResponse(Struct, versions="0-1", flexible="0+"):
    """Consumer Group Heartbeat Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
