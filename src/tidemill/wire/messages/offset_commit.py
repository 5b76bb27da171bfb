"""OffsetCommit (key 8)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, UUID, Struct, field


class OffsetCommitRequestPartition(Struct):
    """Offset Commit Request Partition."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    commit_timestamp: int = field(INT64, "1", default=-1)
    committed_metadata: str | None = field(STRING, nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """Offset Commit Request Topic."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field([OffsetCommitRequestPartition])


class OffsetCommitRequest(Struct, versions="0-10", flexible="8+"):
    """Offset Commit Request."""

    group_id: str = field(STRING)
    generation_id_or_member_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING, "1+", ignorable=True)
    group_instance_id: str | None = field(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = field([OffsetCommitRequestTopic])


class OffsetCommitResponsePartition(Struct):
    """Offset Commit Response Partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetCommitResponseTopic(Struct):
    """Offset Commit Response Topic."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field([OffsetCommitResponsePartition])


class OffsetCommitResponse(Struct, versions="0-10", flexible="8+"):
    """Offset Commit Response."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field([OffsetCommitResponseTopic])
