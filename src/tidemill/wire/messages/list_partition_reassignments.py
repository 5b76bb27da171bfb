"""ListPartitionReassignments (key 46): the ongoing reassignments."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class ListPartitionReassignmentsTopics(Struct):
    """The partitions to describe."""

    name: str = field(STRING)
    partition_indexes: list[int] = field([INT32])


class ListPartitionReassignmentsRequest(Struct, versions="0", flexible="0+"):
    """The partitions to describe."""

    timeout_ms: int = field(INT32, default=60000)
    # null for all
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        [ListPartitionReassignmentsTopics], nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    """An ongoing reassignment."""

    partition_index: int = field(INT32)
    replicas: list[int] = field([INT32])
    adding_replicas: list[int] = field([INT32])
    removing_replicas: list[int] = field([INT32])


class OngoingTopicReassignment(Struct):
    """One topic's reassignments."""

    name: str = field(STRING)
    partitions: list[OngoingPartitionReassignment] = field([OngoingPartitionReassignment])


class ListPartitionReassignmentsResponse(Struct, versions="0", flexible="0+"):
    """The ongoing reassignments."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    topics: list[OngoingTopicReassignment] = field([OngoingTopicReassignment])
