"""OffsetCommit (key 8): store a group's offsets."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, UUID, Struct, field


class OffsetCommitRequestPartition(Struct):
    """The offset to store for one partition."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)  # of the next record to read
    # of the record before it; -1 where unknown
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    commit_timestamp: int = field(INT64, "1", default=-1)  # ms; -1 for now
    committed_metadata: str | None = field(STRING, nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """One topic's offsets."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = field([OffsetCommitRequestPartition])


class OffsetCommitRequest(Struct, versions="0-10", flexible="8+"):
    """Offsets from a group member, or from a simple consumer."""

    group_id: str = field(STRING)
    # member epoch in the consumer protocol; -1 for a plain consumer
    generation_id_or_member_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING, "1+", ignorable=True)
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)  # -1 for the broker's own
    topics: list[OffsetCommitRequestTopic] = field([OffsetCommitRequestTopic])


class OffsetCommitResponsePartition(Struct):
    """The result of one offset."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetCommitResponseTopic(Struct):
    """One topic's results."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = field([OffsetCommitResponsePartition])


class OffsetCommitResponse(Struct, versions="0-10", flexible="8+"):
    """The result of each offset."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = field([OffsetCommitResponseTopic])
