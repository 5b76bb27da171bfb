"""ElectLeaders (key 43): elect leaders of partitions."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class TopicPartitions(Struct):
    """One topic's partitions."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class ElectLeadersRequest(Struct, versions="0-2", flexible="2+"):
    """The partitions and the election type."""

    election_type: int = field(INT8, "1+")  # 0: the preferred replica, 1: any, even out of sync
    topic_partitions: list[TopicPartitions] | None = field([TopicPartitions], nullable="0+")  # null for all
    timeout_ms: int = field(INT32, default=60000)


class PartitionResult(Struct):
    """The election in one partition."""

    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReplicaElectionResult(Struct):
    """One topic's elections."""

    topic: str = field(STRING)
    partition_result: list[PartitionResult] = field([PartitionResult])


class ElectLeadersResponse(Struct, versions="0-2", flexible="2+"):
    """The result of each election."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = field([ReplicaElectionResult])
