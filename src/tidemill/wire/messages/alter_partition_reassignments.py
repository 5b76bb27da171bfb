"""AlterPartitionReassignments (key 45): reassign partitions to other brokers, or cancel that."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, Struct, field


class ReassignablePartition(Struct):
    """The target replicas of one partition."""

    partition_index: int = field(INT32)
    replicas: list[int] | None = field([INT32], nullable="0+", default=None)  # null stops the move


class ReassignableTopic(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partitions: list[ReassignablePartition] = field([ReassignablePartition])


class AlterPartitionReassignmentsRequest(Struct, versions="0-1", flexible="0+"):
    """The reassignments to start or to cancel."""

    timeout_ms: int = field(INT32, default=60000)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    topics: list[ReassignableTopic] = field([ReassignableTopic])


class ReassignablePartitionResponse(Struct):
    """The result of one reassignment."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReassignableTopicResponse(Struct):
    """One topic's results."""

    name: str = field(STRING)
    partitions: list[ReassignablePartitionResponse] = field([ReassignablePartitionResponse])


class AlterPartitionReassignmentsResponse(Struct, versions="0-1", flexible="0+"):
    """The result of each reassignment."""

    throttle_time_ms: int = field(INT32)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    responses: list[ReassignableTopicResponse] = field([ReassignableTopicResponse])
