"""AlterPartition (key 56): a leader requests another ISR."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, INT64, STRING, UUID, Struct, field


class BrokerState(Struct):
    """A member of the new ISR, with the epoch of its registration."""

    broker_id: int = field(INT32, "3+")
    broker_epoch: int = field(INT64, "3+", default=-1)  # of the broker's registration


class AlterPartitionRequestPartitionData(Struct):
    """The requested ISR of one partition."""

    partition_index: int = field(INT32)
    leader_epoch: int = field(INT32)
    new_isr: list[int] = field([INT32], "0-2")
    new_isr_with_epochs: list[BrokerState] = field([BrokerState], "3+")
    leader_recovery_state: int = field(INT8, "1+")  # 0: recovered, 1: recovering after an unclean election
    partition_epoch: int = field(INT32)  # counts the changes of the partition's state


class AlterPartitionRequestTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING, "0-1", ignorable=True)
    topic_id: bytes = field(UUID, "2+", ignorable=True)
    partitions: list[AlterPartitionRequestPartitionData] = field([AlterPartitionRequestPartitionData])


class AlterPartitionRequest(Struct, versions="0-3", flexible="0+"):
    """The changes that one leader requests."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)  # of the broker's registration
    topics: list[AlterPartitionRequestTopicData] = field([AlterPartitionRequestTopicData])


class AlterPartitionResponsePartitionData(Struct):
    """The new state of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    isr: list[int] = field([INT32])
    # 0: recovered, 1: recovering after an unclean election
    leader_recovery_state: int = field(INT8, "1+", ignorable=True)
    partition_epoch: int = field(INT32)  # counts the changes of the partition's state


class AlterPartitionResponseTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING, "0-1", ignorable=True)
    topic_id: bytes = field(UUID, "2+", ignorable=True)
    partitions: list[AlterPartitionResponsePartitionData] = field([AlterPartitionResponsePartitionData])


class AlterPartitionResponse(Struct, versions="0-3", flexible="0+"):
    """The result of each change."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    topics: list[AlterPartitionResponseTopicData] = field([AlterPartitionResponseTopicData])
