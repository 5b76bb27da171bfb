"""LeaderAndIsr (key 4): a controller tells a broker which replicas it leads and follows."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Struct, field


class LeaderAndIsrPartitionState(Struct):
    """Leader, epochs and replicas of one partition."""

    topic_name: str = field(STRING, "0-1", ignorable=True)
    partition_index: int = field(INT32)
    controller_epoch: int = field(INT32)
    leader: int = field(INT32)  # -1 for none, -2 while the topic is being deleted
    leader_epoch: int = field(INT32)
    isr: list[int] = field([INT32])
    partition_epoch: int = field(INT32)  # counts the changes of the partition's state
    replicas: list[int] = field([INT32])
    adding_replicas: list[int] = field([INT32], "3+", ignorable=True)
    removing_replicas: list[int] = field([INT32], "3+", ignorable=True)
    is_new: bool = field(BOOL, "1+", ignorable=True)  # no broker had the replica before
    leader_recovery_state: int = field(INT8, "6+")  # 0: recovered, 1: recovering after an unclean election


class LeaderAndIsrTopicState(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING, "2+")
    topic_id: bytes = field(UUID, "5+", ignorable=True)
    partition_states: list[LeaderAndIsrPartitionState] = field([LeaderAndIsrPartitionState], "2+")


class LeaderAndIsrLiveLeader(Struct):
    """The address of a leader, for its followers."""

    broker_id: int = field(INT32)
    host_name: str = field(STRING)
    port: int = field(INT32)


class LeaderAndIsrRequest(Struct, versions="0-7", flexible="4+"):
    """A controller's command, fenced by its epoch."""

    controller_id: int = field(INT32)
    is_kraft_controller: bool = field(BOOL, "7+")  # false from a controller over the coordination store
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)  # of the broker's registration
    type: int = field(INT8, "5+")  # 0: changes, 1: all partitions of the broker
    # old versions list partitions without topics
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = field([LeaderAndIsrPartitionState], "0-1")
    topic_states: list[LeaderAndIsrTopicState] = field([LeaderAndIsrTopicState], "2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = field([LeaderAndIsrLiveLeader])


class LeaderAndIsrPartitionError(Struct):
    """The result of one partition."""

    topic_name: str = field(STRING, "0-4", ignorable=True)
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class LeaderAndIsrTopicError(Struct):
    """One topic's results."""

    topic_id: bytes = field(UUID, "5+")
    partition_errors: list[LeaderAndIsrPartitionError] = field([LeaderAndIsrPartitionError], "5+")


class LeaderAndIsrResponse(Struct, versions="0-7", flexible="4+"):
    """The results of the command."""

    error_code: int = field(INT16)
    partition_errors: list[LeaderAndIsrPartitionError] = field([LeaderAndIsrPartitionError], "0-4")
    topics: list[LeaderAndIsrTopicError] = field([LeaderAndIsrTopicError], "5+")
