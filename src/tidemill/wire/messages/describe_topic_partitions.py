"""DescribeTopicPartitions (key 75): topics and partitions, page by page."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, field


class TopicRequest(Struct):
    """A topic to describe."""

    name: str = field(STRING)


class Cursor(Struct):
    """The start of a page."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


class DescribeTopicPartitionsRequest(Struct, versions="0", flexible="0+"):
    """Requests a page of topics and partitions."""

    topics: list[TopicRequest] = field([TopicRequest])  # empty for all
    response_partition_limit: int = field(INT32, default=2000)  # limit of partitions per page
    cursor: Cursor | None = field(Cursor, nullable="0+", default=None)  # null for the first page


class DescribeTopicPartitionsResponsePartition(Struct):
    """Leader and replicas of one partition."""

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1, ignorable=True)
    replica_nodes: list[int] = field([INT32])
    isr_nodes: list[int] = field([INT32])  # replicas that are in sync
    eligible_leader_replicas: list[int] | None = field([INT32], nullable="0+", default=None)
    last_known_elr: list[int] | None = field([INT32], nullable="0+", default=None)
    # replicas whose broker or directory is offline
    offline_replicas: list[int] = field([INT32], ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic, or the error."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="0+")
    topic_id: bytes = field(UUID, ignorable=True)
    is_internal: bool = field(BOOL, ignorable=True)  # such as __consumer_offsets
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        [DescribeTopicPartitionsResponsePartition]
    )
    # bit set by operation code; the default means that it was not requested
    topic_authorized_operations: int = field(INT32, default=-(2**31))


class DescribeTopicPartitionsResponse(Struct, versions="0", flexible="0+"):
    """A page, in the order of names and partition numbers."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = field([DescribeTopicPartitionsResponseTopic])
    next_cursor: Cursor | None = field(Cursor, nullable="0+", default=None)  # null on the last page
