"""StopReplica (key 5)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class StopReplicaPartitionV0(Struct):
    """Stop Replica Partition V0."""

    topic_name: str = field(STRING, "0")
    partition_index: int = field(INT32, "0")


class StopReplicaTopicV1(Struct):
    """Stop Replica Topic V1."""

    name: str = field(STRING, "1-2")
    partition_indexes: list[int] = field([INT32], "1-2")


class StopReplicaPartitionState(Struct):
    """Stop Replica Partition State."""

    partition_index: int = field(INT32, "3+")
    leader_epoch: int = field(INT32, "3+", default=-1)
    delete_partition: bool = field(BOOL, "3+")


class StopReplicaTopicState(Struct):
    """Stop Replica Topic State."""

    topic_name: str = field(STRING, "3+")
    partition_states: list[StopReplicaPartitionState] = field([StopReplicaPartitionState], "3+")


class StopReplicaRequest(Struct, versions="0-4", flexible="2+"):
    """Stop Replica Request."""

    controller_id: int = field(INT32)
    is_k_raft_controller: bool = field(BOOL, "4+")
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, "1+", default=-1, ignorable=True)
    delete_partitions: bool = field(BOOL, "0-2")
    ungrouped_partitions: list[StopReplicaPartitionV0] = field([StopReplicaPartitionV0], "0")
    topics: list[StopReplicaTopicV1] = field([StopReplicaTopicV1], "1-2")
    topic_states: list[StopReplicaTopicState] = field([StopReplicaTopicState], "3+")


class StopReplicaPartitionError(Struct):
    """Stop Replica Partition Error."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class StopReplicaResponse(Struct, versions="0-4", flexible="2+"):
    """Stop Replica Response."""

    error_code: int = field(INT16)
    partition_errors: list[StopReplicaPartitionError] = field([StopReplicaPartitionError])
