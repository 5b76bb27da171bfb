"""DeleteShareGroupState (key 86): a group coordinator deletes the state of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class PartitionData(Struct):
    """One partition."""

    partition: int = field(INT32)


class DeleteStateData(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field([PartitionData])


class DeleteShareGroupStateRequest(Struct, versions="0", flexible="0+"):
    """The partitions."""

    group_id: str = field(STRING)
    topics: list[DeleteStateData] = field([DeleteStateData])


class PartitionResult(Struct):
    """The result of one partition."""

    partition: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DeleteStateResult(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionResult] = field([PartitionResult])


class DeleteShareGroupStateResponse(Struct, versions="0", flexible="0+"):
    """The result of each partition."""

    results: list[DeleteStateResult] = field([DeleteStateResult])
