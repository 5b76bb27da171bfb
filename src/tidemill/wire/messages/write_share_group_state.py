"""WriteShareGroupState (key 85): a leader writes the state of share partitions (KIP-932)."""

from __future__ import annotations

from tidemill.wire.messages.initialize_share_group_state import StateResult
from tidemill.wire.messages.read_share_group_state import StateBatch
from tidemill.wire.schema import INT32, INT64, STRING, UUID, Struct, field


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


class WriteShareGroupStateResponse(Struct, versions="0-1", flexible="0+"):
    """The result of each partition."""

    results: list[StateResult] = field([StateResult])
