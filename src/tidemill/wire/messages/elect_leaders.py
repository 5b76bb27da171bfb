"""ElectLeaders (key 43)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT8, STRING, Struct, field


class TopicPartitions(Struct):
    """Topic Partitions."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class ElectLeadersRequest(Struct, versions="0-2", flexible="2+"):
    """Elect Leaders Request."""

    election_type: int = field(INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = field([TopicPartitions], nullable="0+")
    timeout_ms: int = field(INT32, default=60000)


class PartitionResult(Struct):
    """Partition Result."""

    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReplicaElectionResult(Struct):
    """Replica Election Result."""

    topic: str = field(STRING)
    partition_result: list[PartitionResult] = field([PartitionResult])


class ElectLeadersResponse(Struct, versions="0-2", flexible="2+"):
    """Elect Leaders Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = field([ReplicaElectionResult])
