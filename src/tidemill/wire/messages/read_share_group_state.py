"""ReadShareGroupState (key 84): a leader reads the state of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, INT64, STRING, UUID, Struct, field


class PartitionData(Struct):
    """One partition."""

    partition: int = field(INT32)
    leader_epoch: int = field(INT32)


class ReadStateData(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field([PartitionData])


class ReadShareGroupStateRequest(Struct, versions="0", flexible="0+"):
    """The partitions."""

    group_id: str = field(STRING)
    topics: list[ReadStateData] = field([ReadStateData])


class StateBatch(Struct):
    """The state of a range of records."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class PartitionResult(Struct):
    """The result of one partition."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    state_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    state_batches: list[StateBatch] = field([StateBatch])


class ReadStateResult(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionResult] = field([PartitionResult])


class ReadShareGroupStateResponse(Struct, versions="0", flexible="0+"):
    """Their state."""

    results: list[ReadStateResult] = field([ReadStateResult])
