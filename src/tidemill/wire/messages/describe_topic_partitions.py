"""DescribeTopicPartitions (key 75)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, field


class TopicRequest(Struct):
    """Topic Request."""

    name: str = field(STRING)


class Cursor(Struct):
    """Cursor."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


class DescribeTopicPartitionsRequest(Struct, versions="0", flexible="0+"):
    """Describe Topic Partitions Request."""

    topics: list[TopicRequest] = field([TopicRequest])
    response_partition_limit: int = field(INT32, default=2000)
    cursor: Cursor | None = field(Cursor, nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    """Describe Topic Partitions Response Partition."""

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1, ignorable=True)
    replica_nodes: list[int] = field([INT32])
    isr_nodes: list[int] = field([INT32])
    eligible_leader_replicas: list[int] | None = field([INT32], nullable="0+", default=None)
    last_known_elr: list[int] | None = field([INT32], nullable="0+", default=None)
    offline_replicas: list[int] = field([INT32], ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    """Describe Topic Partitions Response Topic."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="0+")
    topic_id: bytes = field(UUID, ignorable=True)
    is_internal: bool = field(BOOL, ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        [DescribeTopicPartitionsResponsePartition]
    )
    topic_authorized_operations: int = field(INT32, default=-(2**31))


class DescribeTopicPartitionsResponse(Struct, versions="0", flexible="0+"):
    """Describe Topic Partitions Response."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = field([DescribeTopicPartitionsResponseTopic])
    next_cursor: Cursor | None = field(Cursor, nullable="0+", default=None)
