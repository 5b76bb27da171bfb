"""AlterPartitionReassignments (key 45)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, Struct, field


class ReassignablePartition(Struct):
    """Reassignable Partition."""

    partition_index: int = field(INT32)
    replicas: list[int] | None = field([INT32], nullable="0+", default=None)


class ReassignableTopic(Struct):
    """Reassignable Topic."""

    name: str = field(STRING)
    partitions: list[ReassignablePartition] = field([ReassignablePartition])


class AlterPartitionReassignmentsRequest(Struct, versions="0-1", flexible="0+"):
    """Alter Partition Reassignments Request."""

    timeout_ms: int = field(INT32, default=60000)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    topics: list[ReassignableTopic] = field([ReassignableTopic])


class ReassignablePartitionResponse(Struct):
    """Reassignable Partition Response."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReassignableTopicResponse(Struct):
    """Reassignable Topic Response."""

    name: str = field(STRING)
    partitions: list[ReassignablePartitionResponse] = field([ReassignablePartitionResponse])


class AlterPartitionReassignmentsResponse(Struct, versions="0-1", flexible="0+"):
    """Alter Partition Reassignments Response."""

    throttle_time_ms: int = field(INT32)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    responses: list[ReassignableTopicResponse] = field([ReassignableTopicResponse])
