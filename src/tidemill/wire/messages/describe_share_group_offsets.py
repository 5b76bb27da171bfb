"""DescribeShareGroupOffsets (key 90): the start offsets of share groups (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, UUID, Struct, field


class DescribeShareGroupOffsetsRequestTopic(Struct):
    """One topic."""

    topic_name: str = field(STRING)
    partitions: list[int] = field([INT32])


class DescribeShareGroupOffsetsRequestGroup(Struct):
    """One group."""

    group_id: str = field(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(
        [DescribeShareGroupOffsetsRequestTopic], nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Struct, versions="0-1", flexible="0+"):
    """Groups, topics and partitions."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = field([DescribeShareGroupOffsetsRequestGroup])


class DescribeShareGroupOffsetsResponsePartition(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    start_offset: int = field(INT64)
    leader_epoch: int = field(INT32)
    lag: int = field(INT64, "1+", default=-1, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    """One topic."""

    topic_name: str = field(STRING)
    topic_id: bytes = field(UUID)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(
        [DescribeShareGroupOffsetsResponsePartition]
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    """One group."""

    group_id: str = field(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field([DescribeShareGroupOffsetsResponseTopic])
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Struct, versions="0-1", flexible="0+"):
    """The offsets of each group."""

    throttle_time_ms: int = field(INT32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field([DescribeShareGroupOffsetsResponseGroup])
