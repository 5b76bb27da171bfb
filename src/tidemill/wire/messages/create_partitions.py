"""CreatePartitions (key 37)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, Struct, field


class CreatePartitionsAssignment(Struct):
    """Create Partitions Assignment."""

    broker_ids: list[int] = field([INT32])


class CreatePartitionsTopic(Struct):
    """Create Partitions Topic."""

    name: str = field(STRING)
    count: int = field(INT32)
    assignments: list[CreatePartitionsAssignment] | None = field([CreatePartitionsAssignment], nullable="0+")


class CreatePartitionsRequest(Struct, versions="0-3", flexible="2+"):
    """Create Partitions Request."""

    topics: list[CreatePartitionsTopic] = field([CreatePartitionsTopic])
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


class CreatePartitionsTopicResult(Struct):
    """Create Partitions Topic Result."""

    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class CreatePartitionsResponse(Struct, versions="0-3", flexible="2+"):
    """Create Partitions Response."""

    throttle_time_ms: int = field(INT32)
    results: list[CreatePartitionsTopicResult] = field([CreatePartitionsTopicResult])
