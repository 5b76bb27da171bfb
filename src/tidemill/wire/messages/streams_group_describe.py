"""StreamsGroupDescribe (key 89): streams groups and their members (KIP-1071)."""

from __future__ import annotations

from tidemill.wire.messages.streams_group_heartbeat import Endpoint, KeyValue, TaskIds, TaskOffset, TopicInfo
from tidemill.wire.schema import BOOL, INT16, INT32, STRING, Struct, field


class StreamsGroupDescribeRequest(Struct, versions="0", flexible="0+"):
    """The groups of the request."""

    group_ids: list[str] = field([STRING])
    include_authorized_operations: bool = field(BOOL)


class Subtopology(Struct):
    """A part of a topology."""

    subtopology_id: str = field(STRING)
    source_topics: list[str] = field([STRING])
    repartition_sink_topics: list[str] = field([STRING])
    state_changelog_topics: list[TopicInfo] = field([TopicInfo])
    repartition_source_topics: list[TopicInfo] = field([TopicInfo])


class Topology(Struct):
    """The topology of the application."""

    epoch: int = field(INT32)
    subtopologies: list[Subtopology] | None = field([Subtopology], nullable="0+", default=None)


class Assignment(Struct):
    """A member's assignment."""

    active_tasks: list[TaskIds] = field([TaskIds])
    standby_tasks: list[TaskIds] = field([TaskIds])
    warmup_tasks: list[TaskIds] = field([TaskIds])


class Member(Struct):
    """A member."""

    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    topology_epoch: int = field(INT32)
    process_id: str = field(STRING)
    user_endpoint: Endpoint | None = field(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] = field([KeyValue])
    task_offsets: list[TaskOffset] = field([TaskOffset])
    task_end_offsets: list[TaskOffset] = field([TaskOffset])
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    is_classic: bool = field(BOOL)


class DescribedGroup(Struct):
    """A group, or the error."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    topology: Topology | None = field(Topology, nullable="0+", default=None)
    members: list[Member] = field([Member])
    authorized_operations: int = field(INT32, default=-(2**31))


class StreamsGroupDescribeResponse(Struct, versions="0", flexible="0+"):
    """The groups."""

    throttle_time_ms: int = field(INT32)
    groups: list[DescribedGroup] = field([DescribedGroup])
