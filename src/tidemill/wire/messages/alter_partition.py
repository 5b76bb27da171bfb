"""AlterPartition (key 56)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, INT8, STRING, UUID, Struct, field


class BrokerState(Struct):
    """Broker State."""

    broker_id: int = field(INT32, "3+")
    broker_epoch: int = field(INT64, "3+", default=-1)


class AlterPartitionRequestPartitionData(Struct):
    """Alter Partition Request Partition Data."""

    partition_index: int = field(INT32)
    leader_epoch: int = field(INT32)
    new_isr: list[int] = field([INT32], "0-2")
    new_isr_with_epochs: list[BrokerState] = field([BrokerState], "3+")
    leader_recovery_state: int = field(INT8, "1+")
    partition_epoch: int = field(INT32)


class AlterPartitionRequestTopicData(Struct):
    """Alter Partition Request Topic Data."""

    topic_name: str = field(STRING, "0-1", ignorable=True)
    topic_id: bytes = field(UUID, "2+", ignorable=True)
    partitions: list[AlterPartitionRequestPartitionData] = field([AlterPartitionRequestPartitionData])


class AlterPartitionRequest(Struct, versions="0-3", flexible="0+"):
    """Alter Partition Request."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    topics: list[AlterPartitionRequestTopicData] = field([AlterPartitionRequestTopicData])


class AlterPartitionResponsePartitionData(Struct):
    """Alter Partition Response Partition Data."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    isr: list[int] = field([INT32])
    leader_recovery_state: int = field(INT8, "1+", ignorable=True)
    partition_epoch: int = field(INT32)


class AlterPartitionResponseTopicData(Struct):
    """Alter Partition Response Topic Data."""

    topic_name: str = field(STRING, "0-1", ignorable=True)
    topic_id: bytes = field(UUID, "2+", ignorable=True)
    partitions: list[AlterPartitionResponsePartitionData] = field([AlterPartitionResponsePartitionData])


class AlterPartitionResponse(Struct, versions="0-3", flexible="0+"):
    """Alter Partition Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    topics: list[AlterPartitionResponseTopicData] = field([AlterPartitionResponseTopicData])
