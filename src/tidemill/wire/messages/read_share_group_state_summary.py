"""ReadShareGroupStateSummary (key 87): a coordinator reads the offsets of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.messages.read_share_group_state import ReadStateData
from tidemill.wire.schema import INT16, INT32, INT64, STRING, UUID, Struct, field


class ReadShareGroupStateSummaryRequest(Struct, versions="0-1", flexible="0+"):
    """The partitions."""

    group_id: str = field(STRING)
    topics: list[ReadStateData] = field([ReadStateData])


class PartitionResult(Struct):
    """The result of one partition."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    delivery_complete_count: int = field(INT32, "1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionResult] = field([PartitionResult])


class ReadShareGroupStateSummaryResponse(Struct, versions="0-1", flexible="0+"):
    """Their offsets."""

    results: list[ReadStateSummaryResult] = field([ReadStateSummaryResult])
