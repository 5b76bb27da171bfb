"""CreatePartitions (key 37): add partitions to topics."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, Struct, field


class CreatePartitionsAssignment(Struct):
    """The brokers of one new partition, when the client assigns them."""

    broker_ids: list[int] = field([INT32])


class CreatePartitionsTopic(Struct):
    """A topic to extend."""

    name: str = field(STRING)
    count: int = field(INT32)  # in all, with those that there are
    # null for an assignment by the broker
    assignments: list[CreatePartitionsAssignment] | None = field([CreatePartitionsAssignment], nullable="0+")


class CreatePartitionsRequest(Struct, versions="0-3", flexible="2+"):
    """The topics to extend."""

    topics: list[CreatePartitionsTopic] = field([CreatePartitionsTopic])
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)  # check, but change nothing


class CreatePartitionsTopicResult(Struct):
    """The result of one topic."""

    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class CreatePartitionsResponse(Struct, versions="0-3", flexible="2+"):
    """The result of each topic."""

    throttle_time_ms: int = field(INT32)
    results: list[CreatePartitionsTopicResult] = field([CreatePartitionsTopicResult])
