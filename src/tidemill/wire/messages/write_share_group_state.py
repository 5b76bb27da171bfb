"""WriteShareGroupState (key 85): a leader writes the state of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, INT64, STRING, UUID, Struct, field


class StateBatch(Struct):
    """The state of a range of records."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class PartitionData(Struct):
    """One partition."""

    partition: int = field(INT32)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    delivery_complete_count: int = field(INT32, "1+", default=-1, ignorable=True)
    state_batches: list[StateBatch] = field([StateBatch])


class WriteStateData(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field([PartitionData])


class WriteShareGroupStateRequest(Struct, versions="0-1", flexible="0+"):
    """The state to write."""

    group_id: str = field(STRING)
    topics: list[WriteStateData] = field([WriteStateData])


class PartitionResult(Struct):
    """The result of one partition."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class WriteStateResult(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionResult] = field([PartitionResult])


class WriteShareGroupStateResponse(Struct, versions="0-1", flexible="0+"):
    """The result of each partition."""

    results: list[WriteStateResult] = field([WriteStateResult])
