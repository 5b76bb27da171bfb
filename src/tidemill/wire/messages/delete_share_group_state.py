"""DeleteShareGroupState (key 86): a group coordinator deletes the state of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.messages.initialize_share_group_state import StateResult
from tidemill.wire.schema import INT32, STRING, UUID, Struct, field


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


class DeleteShareGroupStateResponse(Struct, versions="0", flexible="0+"):
    """The result of each partition."""

    results: list[StateResult] = field([StateResult])
