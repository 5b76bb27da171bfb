"""StopReplica (key 5): a controller tells a broker to stop replicas."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class StopReplicaPartitionV0(Struct):
    """A replica to stop, as version 0 lists it."""

    topic_name: str = field(STRING, "0")
    partition_index: int = field(INT32, "0")


class StopReplicaTopicV1(Struct):
    """Replicas to stop, as versions 1 and 2 list them."""

    name: str = field(STRING, "1-2")
    partition_indexes: list[int] = field([INT32], "1-2")


class StopReplicaPartitionState(Struct):
    """A replica to stop, with the epoch that fences the command."""

    partition_index: int = field(INT32, "3+")
    leader_epoch: int = field(INT32, "3+", default=-1)
    delete_partition: bool = field(BOOL, "3+")  # with its files


class StopReplicaTopicState(Struct):
    """One topic's replicas to stop."""

    topic_name: str = field(STRING, "3+")
    partition_states: list[StopReplicaPartitionState] = field([StopReplicaPartitionState], "3+")


class StopReplicaRequest(Struct, versions="0-4", flexible="2+"):
    """A controller's command, fenced by its epoch."""

    controller_id: int = field(INT32)
    is_kraft_controller: bool = field(BOOL, "4+")  # false from a controller over the coordination store
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, "1+", default=-1, ignorable=True)  # of the broker's registration
    delete_partitions: bool = field(BOOL, "0-2")  # with their files
    # old versions list partitions without topics
    ungrouped_partitions: list[StopReplicaPartitionV0] = field([StopReplicaPartitionV0], "0")
    topics: list[StopReplicaTopicV1] = field([StopReplicaTopicV1], "1-2")
    topic_states: list[StopReplicaTopicState] = field([StopReplicaTopicState], "3+")


class StopReplicaPartitionError(Struct):
    """The result of one replica."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class StopReplicaResponse(Struct, versions="0-4", flexible="2+"):
    """The results of the command."""

    error_code: int = field(INT16)
    partition_errors: list[StopReplicaPartitionError] = field([StopReplicaPartitionError])
