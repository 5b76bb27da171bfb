"""Requests on many existing topics, for bench/loop_hold.py: each costs more than one on missing topics.

In an order in which each finds its topics: they are created first, and deleted last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.controller.configuration_control import AlterOperation, ResourceType
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tidemill.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidemill.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidemill.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tidemill.wire.messages.describe_producers import DescribeProducersRequest
from tidemill.wire.messages.describe_producers import TopicRequest as ProducersOfTopic
from tidemill.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from tidemill.wire.messages.describe_topic_partitions import TopicRequest as DescribedTopic
from tidemill.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.incremental_alter_configs import AlterableConfig as Alteration
from tidemill.wire.messages.incremental_alter_configs import AlterConfigsResource as AlteredResource
from tidemill.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tidemill.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.schema import Struct

PARTITIONS_MAX = 10_000
"""A request makes no more."""
EARLIEST, LATEST = -2, -1
TIMEOUT_MS = 100_000
GROUP = "g"
CLEANUP = "cleanup.policy"


class TimedRequest(NamedTuple):
    """One request."""

    what: str
    api: ApiKey
    version: int
    request: Struct


def requests(count: int, large: int) -> Iterator[TimedRequest]:
    """Returns all requests, on ``count`` topics of one partition and one topic of ``large`` partitions."""
    names = [f"e{number}" for number in range(count)]
    coordinator = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=[GROUP])
    yield TimedRequest("a group", ApiKey.FIND_COORDINATOR, 4, coordinator)
    for at in range(0, count, PARTITIONS_MAX):
        yield creation("new topics", names[at : at + PARTITIONS_MAX], 1)
    yield from reads(names)
    yield from changes(names)
    half = len(names) // 2
    yield deletion("existing topics", names[:half])
    yield deletion("existing topics", names[half:])
    yield creation("one large topic", ["large"], large)
    yield elections("one large topic", [TopicPartitions(topic="large", partitions=list(range(large)))])
    yield growth("one large topic", ["large"], 2 * large)
    yield deletion("one large topic", ["large"])


def creation(what: str, names: Sequence[str], partitions: int) -> TimedRequest:
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=False)
    return TimedRequest(what, ApiKey.CREATE_TOPICS, 7, request)


def deletion(what: str, names: Sequence[str]) -> TimedRequest:
    topics = [DeleteTopicState(name=name, topic_id=bytes(16)) for name in names]
    return TimedRequest(
        what, ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
    )


def growth(what: str, names: Sequence[str], partitions: int) -> TimedRequest:
    topics = [CreatePartitionsTopic(name=name, count=partitions, assignments=None) for name in names]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=False)
    return TimedRequest(what, ApiKey.CREATE_PARTITIONS, 3, request)


def elections(what: str, partitions: list[TopicPartitions] | None) -> TimedRequest:
    request = ElectLeadersRequest(election_type=0, topic_partitions=partitions, timeout_ms=TIMEOUT_MS)
    return TimedRequest(what, ApiKey.ELECT_LEADERS, 2, request)


def reads(names: Sequence[str]) -> Iterator[TimedRequest]:
    """Returns the requests that change nothing."""
    named = [MetadataRequestTopic(topic_id=bytes(16), name=name) for name in names]
    for what, topics in (("existing topics", named), ("all topics", None)):
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        yield TimedRequest(what, ApiKey.METADATA, 12, request)
    yield TimedRequest(
        "existing topics",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        DescribeTopicPartitionsRequest(topics=[DescribedTopic(name=name) for name in names]),
    )
    for time in (EARLIEST, LATEST):
        asked = [ListOffsetsPartition(partition_index=0, timestamp=time)]
        listed = [ListOffsetsTopic(name=name, partitions=asked) for name in names]
        request = ListOffsetsRequest(replica_id=-1, topics=listed)
        yield TimedRequest(f"existing topics at {time}", ApiKey.LIST_OFFSETS, 7, request)
    epochs = [OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    ends = [OffsetForLeaderTopic(topic=name, partitions=epochs) for name in names]
    yield TimedRequest(
        "existing topics",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        OffsetForLeaderEpochRequest(replica_id=-1, topics=ends),
    )
    resources = [
        DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
        for name in names
    ]
    yield TimedRequest(
        "existing topics", ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=resources)
    )
    producers = [ProducersOfTopic(name=name, partition_indexes=[0]) for name in names]
    yield TimedRequest(
        "existing topics", ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=producers)
    )
    stored = [DescribableLogDirTopic(topic=name, partitions=[0]) for name in names]
    yield TimedRequest("existing topics", ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=stored))
    yield TimedRequest("all topics", ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))


def changes(names: Sequence[str]) -> Iterator[TimedRequest]:
    """Returns the requests that change topics without deleting them."""
    commits = [
        OffsetCommitRequestTopic(
            name=name, partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=0)]
        )
        for name in names
    ]
    request = OffsetCommitRequest(group_id=GROUP, topics=commits)
    yield TimedRequest("existing topics", ApiKey.OFFSET_COMMIT, 8, request)
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    yield TimedRequest("all offsets of a group", ApiKey.OFFSET_FETCH, 8, everything)
    forgotten = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in names[: len(names) // 2]
    ]
    request = OffsetDeleteRequest(group_id=GROUP, topics=forgotten)
    yield TimedRequest("existing topics", ApiKey.OFFSET_DELETE, 0, request)
    records = [
        DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
        for name in names
    ]
    yield TimedRequest(
        "existing topics",
        ApiKey.DELETE_RECORDS,
        2,
        DeleteRecordsRequest(topics=records, timeout_ms=TIMEOUT_MS),
    )
    yield elections("existing topics", [TopicPartitions(topic=name, partitions=[0]) for name in names])
    yield elections("all topics", None)
    moved = [ReassignablePartition(partition_index=0, replicas=[0])]
    topics = [ReassignableTopic(name=name, partitions=moved) for name in names]
    reassignments = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
    yield TimedRequest("existing topics", ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassignments)
    listed = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0]) for name in names]
    yield TimedRequest(
        "existing topics",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        ListPartitionReassignmentsRequest(topics=listed, timeout_ms=TIMEOUT_MS),
    )
    yield from settings(names)
    yield growth("existing topics", names[: len(names) // 2], 2)


def settings(names: Sequence[str]) -> Iterator[TimedRequest]:
    """AlterConfigs and IncrementalAlterConfigs: of topics, and of all brokers, which apply to all topics."""
    some = names[: len(names) // 5]  # Each is a separate transaction.
    resources = [
        AlterConfigsResource(
            resource_type=2,
            resource_name=name,
            configs=[AlterableConfig(name=CLEANUP, value="delete")],
        )
        for name in some
    ]
    request = AlterConfigsRequest(resources=resources, validate_only=False)
    yield TimedRequest("existing topics", ApiKey.ALTER_CONFIGS, 2, request)
    for what, kind, key, named in (
        ("existing topics", ResourceType.TOPIC, CLEANUP, some),
        ("settings of all brokers", ResourceType.BROKER, "log.cleanup.policy", [""]),
    ):
        change = Alteration(name=key, config_operation=AlterOperation.SET, value="delete")
        altered = [
            AlteredResource(resource_type=kind, resource_name=name, configs=[change]) for name in named
        ]
        yield TimedRequest(
            what,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            IncrementalAlterConfigsRequest(resources=altered, validate_only=False),
        )
