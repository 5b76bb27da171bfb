"""DescribeQuorum (key 55): the voters of the metadata log."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, UINT16, UUID, Struct, field


class DescribeQuorumRequestPartitionData(Struct):
    """A partition of the metadata log."""

    partition_index: int = field(INT32)


class DescribeQuorumRequestTopicData(Struct):
    """The topic of the metadata log."""

    topic_name: str = field(STRING)
    partitions: list[DescribeQuorumRequestPartitionData] = field([DescribeQuorumRequestPartitionData])


class DescribeQuorumRequest(Struct, versions="0-2", flexible="0+"):
    """The logs to describe."""

    topics: list[DescribeQuorumRequestTopicData] = field([DescribeQuorumRequestTopicData])


class ReplicaState(Struct):
    """The progress of one replica."""

    replica_id: int = field(INT32)
    replica_directory_id: bytes = field(UUID, "2+")
    log_end_offset: int = field(INT64)
    last_fetch_timestamp: int = field(INT64, "1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = field(INT64, "1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Struct):
    """Leader, voters and observers of one log."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", nullable="2+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    current_voters: list[ReplicaState] = field([ReplicaState])
    observers: list[ReplicaState] = field([ReplicaState])


class DescribeQuorumResponseTopicData(Struct):
    """One topic's logs."""

    topic_name: str = field(STRING)
    partitions: list[DescribeQuorumResponsePartitionData] = field([DescribeQuorumResponsePartitionData])


class Listener(Struct):
    """The address of a voter."""

    name: str = field(STRING, "2+")
    host: str = field(STRING, "2+")
    port: int = field(UINT16, "2+")


class Node(Struct):
    """A voter."""

    node_id: int = field(INT32, "2+")
    listeners: list[Listener] = field([Listener], "2+")


class DescribeQuorumResponse(Struct, versions="0-2", flexible="0+"):
    """The quorum of each log."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "2+", nullable="2+", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = field([DescribeQuorumResponseTopicData])
    nodes: list[Node] = field([Node], "2+")
