"""OffsetForLeaderEpoch (key 23)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class OffsetForLeaderPartition(Struct):
    """Offset For Leader Partition."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    leader_epoch: int = field(INT32)


class OffsetForLeaderTopic(Struct):
    """Offset For Leader Topic."""

    topic: str = field(STRING)
    partitions: list[OffsetForLeaderPartition] = field([OffsetForLeaderPartition])


class OffsetForLeaderEpochRequest(Struct, versions="0-4", flexible="4+"):
    """Offset For Leader Epoch Request."""

    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field([OffsetForLeaderTopic])


class EpochEndOffset(Struct):
    """Epoch End Offset."""

    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    end_offset: int = field(INT64, default=-1)


class OffsetForLeaderTopicResult(Struct):
    """Offset For Leader Topic Result."""

    topic: str = field(STRING)
    partitions: list[EpochEndOffset] = field([EpochEndOffset])


class OffsetForLeaderEpochResponse(Struct, versions="0-4", flexible="4+"):
    """Offset For Leader Epoch Response."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = field([OffsetForLeaderTopicResult])
