"""TxnOffsetCommit (key 28): offsets that take effect when their transaction commits."""

from __future__ import annotations

from tidemill.wire.messages.offset_commit import OffsetCommitResponsePartition
from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class TxnOffsetCommitRequestPartition(Struct):
    """The offset to store for one partition."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """One topic's offsets."""

    name: str = field(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = field([TxnOffsetCommitRequestPartition])


class TxnOffsetCommitRequest(Struct, versions="0-5", flexible="3+"):
    """Offsets that belong to a transaction."""

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+")
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field([TxnOffsetCommitRequestTopic])


class TxnOffsetCommitResponseTopic(Struct):
    """One topic's results."""

    name: str = field(STRING)
    partitions: list[OffsetCommitResponsePartition] = field([OffsetCommitResponsePartition])


class TxnOffsetCommitResponse(Struct, versions="0-5", flexible="3+"):
    """The result of each offset."""

    throttle_time_ms: int = field(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = field([TxnOffsetCommitResponseTopic])
