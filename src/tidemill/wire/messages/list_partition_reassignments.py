"""ListPartitionReassignments (key 46): the moves that are under way."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class ListPartitionReassignmentsTopics(Struct):
    """Partitions to tell of."""

    name: str = field(STRING)
    partition_indexes: list[int] = field([INT32])


class ListPartitionReassignmentsRequest(Struct, versions="0", flexible="0+"):
    """Which partitions to tell of."""

    timeout_ms: int = field(INT32, default=60000)
    # null for all
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        [ListPartitionReassignmentsTopics], nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    """A move that is under way."""

    partition_index: int = field(INT32)
    replicas: list[int] = field([INT32])
    adding_replicas: list[int] = field([INT32])
    removing_replicas: list[int] = field([INT32])


class OngoingTopicReassignment(Struct):
    """One topic's moves."""

    name: str = field(STRING)
    partitions: list[OngoingPartitionReassignment] = field([OngoingPartitionReassignment])


class ListPartitionReassignmentsResponse(Struct, versions="0", flexible="0+"):
    """The moves that are under way."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    topics: list[OngoingTopicReassignment] = field([OngoingTopicReassignment])
