"""LeaderAndIsr (key 4)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, INT8, STRING, UUID, Struct, field


class LeaderAndIsrPartitionState(Struct):
    """Leader And Isr Partition State."""

    topic_name: str = field(STRING, "0-1", ignorable=True)
    partition_index: int = field(INT32)
    controller_epoch: int = field(INT32)
    leader: int = field(INT32)
    leader_epoch: int = field(INT32)
    isr: list[int] = field([INT32])
    partition_epoch: int = field(INT32)
    replicas: list[int] = field([INT32])
    adding_replicas: list[int] = field([INT32], "3+", ignorable=True)
    removing_replicas: list[int] = field([INT32], "3+", ignorable=True)
    is_new: bool = field(BOOL, "1+", ignorable=True)
    leader_recovery_state: int = field(INT8, "6+")


class LeaderAndIsrTopicState(Struct):
    """Leader And Isr Topic State."""

    topic_name: str = field(STRING, "2+")
    topic_id: bytes = field(UUID, "5+", ignorable=True)
    partition_states: list[LeaderAndIsrPartitionState] = field([LeaderAndIsrPartitionState], "2+")


class LeaderAndIsrLiveLeader(Struct):
    """Leader And Isr Live Leader."""

    broker_id: int = field(INT32)
    host_name: str = field(STRING)
    port: int = field(INT32)


class LeaderAndIsrRequest(Struct, versions="0-7", flexible="4+"):
    """Leader And Isr Request."""

    controller_id: int = field(INT32)
    is_k_raft_controller: bool = field(BOOL, "7+")
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)
    type: int = field(INT8, "5+")
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = field([LeaderAndIsrPartitionState], "0-1")
    topic_states: list[LeaderAndIsrTopicState] = field([LeaderAndIsrTopicState], "2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = field([LeaderAndIsrLiveLeader])


class LeaderAndIsrPartitionError(Struct):
    """Leader And Isr Partition Error."""

    topic_name: str = field(STRING, "0-4", ignorable=True)
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class LeaderAndIsrTopicError(Struct):
    """Leader And Isr Topic Error."""

    topic_id: bytes = field(UUID, "5+")
    partition_errors: list[LeaderAndIsrPartitionError] = field([LeaderAndIsrPartitionError], "5+")


class LeaderAndIsrResponse(Struct, versions="0-7", flexible="4+"):
    """Leader And Isr Response."""

    error_code: int = field(INT16)
    partition_errors: list[LeaderAndIsrPartitionError] = field([LeaderAndIsrPartitionError], "0-4")
    topics: list[LeaderAndIsrTopicError] = field([LeaderAndIsrTopicError], "5+")
