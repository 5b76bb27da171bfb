"""TxnOffsetCommit (key 28)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class TxnOffsetCommitRequestPartition(Struct):
    """Txn Offset Commit Request Partition."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """Txn Offset Commit Request Topic."""

    name: str = field(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = field([TxnOffsetCommitRequestPartition])


class TxnOffsetCommitRequest(Struct, versions="0-5", flexible="3+"):
    """Txn Offset Commit Request."""

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field([TxnOffsetCommitRequestTopic])


class TxnOffsetCommitResponsePartition(Struct):
    """Txn Offset Commit Response Partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class TxnOffsetCommitResponseTopic(Struct):
    """Txn Offset Commit Response Topic."""

    name: str = field(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = field([TxnOffsetCommitResponsePartition])


class TxnOffsetCommitResponse(Struct, versions="0-5", flexible="3+"):
    """Txn Offset Commit Response."""

    throttle_time_ms: int = field(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = field([TxnOffsetCommitResponseTopic])
