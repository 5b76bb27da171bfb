"""StreamsGroupHeartbeat (key 88): a member of a streams group keeps its session alive (KIP-1071)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UINT16, Struct, field


class KeyValue(Struct):
    """A setting."""

    key: str = field(STRING)
    value: str = field(STRING)


class TopicInfo(Struct):
    """A topic that the application needs."""

    name: str = field(STRING)
    partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    topic_configs: list[KeyValue] = field([KeyValue])


class CopartitionGroup(Struct):
    """Topics that need the same number of partitions, by their indexes in the lists."""

    source_topics: list[int] = field([INT16])
    source_topic_regex: list[int] = field([INT16])
    repartition_source_topics: list[int] = field([INT16])


class Subtopology(Struct):
    """A part of a topology."""

    subtopology_id: str = field(STRING)
    source_topics: list[str] = field([STRING])
    source_topic_regex: list[str] = field([STRING])
    state_changelog_topics: list[TopicInfo] = field([TopicInfo])
    repartition_sink_topics: list[str] = field([STRING])
    repartition_source_topics: list[TopicInfo] = field([TopicInfo])
    copartition_groups: list[CopartitionGroup] = field([CopartitionGroup])


class Topology(Struct):
    """The topology of the application."""

    epoch: int = field(INT32)
    subtopologies: list[Subtopology] = field([Subtopology])


class TaskIds(Struct):
    """Tasks of one part."""

    subtopology_id: str = field(STRING)
    partitions: list[int] = field([INT32])


class Endpoint(Struct):
    """The address of a member."""

    host: str = field(STRING)
    port: int = field(UINT16)


class TaskOffset(Struct):
    """The progress of a task."""

    subtopology_id: str = field(STRING)
    partition: int = field(INT32)
    offset: int = field(INT64)


class StreamsGroupHeartbeatRequest(Struct, versions="0", flexible="0+"):
    """A member, its topology and its tasks."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    endpoint_information_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    topology: Topology | None = field(Topology, nullable="0+", default=None)
    active_tasks: list[TaskIds] | None = field([TaskIds], nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = field([TaskIds], nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field([TaskIds], nullable="0+", default=None)
    process_id: str | None = field(STRING, nullable="0+", default=None)
    user_endpoint: Endpoint | None = field(Endpoint, nullable="0+", default=None)
    client_tags: list[KeyValue] | None = field([KeyValue], nullable="0+", default=None)
    task_offsets: list[TaskOffset] | None = field([TaskOffset], nullable="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = field([TaskOffset], nullable="0+", default=None)
    shutdown_application: bool = field(BOOL)


class Status(Struct):
    """A status message for the member."""

    status_code: int = field(INT8)
    status_detail: str = field(STRING)


class TopicPartition(Struct):
    """One topic's partitions."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class EndpointToPartitions(Struct):
    """Partitions that one member serves."""

    user_endpoint: Endpoint = field(Endpoint)
    active_partitions: list[TopicPartition] = field([TopicPartition])
    standby_partitions: list[TopicPartition] = field([TopicPartition])


class StreamsGroupHeartbeatResponse(Struct, versions="0", flexible="0+"):
    """The member's epoch and tasks."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    acceptable_recovery_lag: int = field(INT32)
    task_offset_interval_ms: int = field(INT32)
    status: list[Status] | None = field([Status], nullable="0+")
    active_tasks: list[TaskIds] | None = field([TaskIds], nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = field([TaskIds], nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = field([TaskIds], nullable="0+", default=None)
    endpoint_information_epoch: int = field(INT32)
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = field(
        [EndpointToPartitions], nullable="0+", default=None
    )
