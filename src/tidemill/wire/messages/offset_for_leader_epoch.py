"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch, to detect a divergence."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class OffsetForLeaderPartition(Struct):
    """The epoch to look up in one partition."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)  # fences; -1 for none
    leader_epoch: int = field(INT32)


class OffsetForLeaderTopic(Struct):
    """One topic's partitions."""

    topic: str = field(STRING)
    partitions: list[OffsetForLeaderPartition] = field([OffsetForLeaderPartition])


class OffsetForLeaderEpochRequest(Struct, versions="0-4", flexible="4+"):
    """Requests the end offsets of epochs from leaders."""

    # the follower's broker id; -1 from a consumer
    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = field([OffsetForLeaderTopic])


class EpochEndOffset(Struct):
    """The end offset of the epoch in one partition."""

    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, "1+", default=-1, ignorable=True)
    end_offset: int = field(INT64, default=-1)


class OffsetForLeaderTopicResult(Struct):
    """One topic's results."""

    topic: str = field(STRING)
    partitions: list[EpochEndOffset] = field([EpochEndOffset])


class OffsetForLeaderEpochResponse(Struct, versions="0-4", flexible="4+"):
    """The end offsets of the epochs."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = field([OffsetForLeaderTopicResult])
