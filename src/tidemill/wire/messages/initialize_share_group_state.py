"""InitializeShareGroupState (key 83): a coordinator initializes the state of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, UUID, Struct, field


class PartitionData(Struct):
    """One partition."""

    partition: int = field(INT32)
    state_epoch: int = field(INT32)
    start_offset: int = field(INT64)


class InitializeStateData(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field([PartitionData])


class InitializeShareGroupStateRequest(Struct, versions="0", flexible="0+"):
    """The start offset of each partition."""

    group_id: str = field(STRING)
    topics: list[InitializeStateData] = field([InitializeStateData])


class PartitionResult(Struct):
    """The result of one partition."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class StateResult(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionResult] = field([PartitionResult])


class InitializeShareGroupStateResponse(Struct, versions="0", flexible="0+"):
    """The result of each partition."""

    results: list[StateResult] = field([StateResult])
