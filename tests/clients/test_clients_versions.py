"""Every API in every supported version: a request with real content, and the response in that version."""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wire_peer import WirePeer

from record_builders import build_batch
from tidemill.broker.api_registry import APIS
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import encode_request

ZERO_ID = bytes(16)
NewTopic = Callable[..., str]


def message(api: str, kind: str, /, **fields: Any) -> Any:
    """Creates a message of an API's module with these fields."""
    module = importlib.import_module(f"tidemill.wire.messages.{api}")
    return getattr(module, kind)(**fields)


@pytest.fixture
def peer(bootstrap: str) -> Iterator[WirePeer]:
    with WirePeer(bootstrap) as connected:
        yield connected


def versions(key: ApiKey) -> list[int]:
    return list(range(APIS[key].first, APIS[key].last + 1))


def topic_id(peer: WirePeer, topic: str) -> bytes:
    wanted = message("metadata", "MetadataRequestTopic", name=topic)
    answer = peer.ask(ApiKey.METADATA, 12, message("metadata", "MetadataRequest", topics=[wanted]))
    found: bytes = answer.topics[0].topic_id
    assert found != ZERO_ID
    return found


def batch_of(*values: bytes) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([(now_ms, b"key", value, []) for value in values])


def produce(peer: WirePeer, topic: str, *values: bytes, version: int = 9) -> Any:
    partition = message("produce", "PartitionProduceData", index=0, records=batch_of(*values))
    by_id = topic_id(peer, topic) if version >= 13 else ZERO_ID
    data = message("produce", "TopicProduceData", name=topic, topic_id=by_id, partition_data=[partition])
    request = message("produce", "ProduceRequest", acks=-1, timeout_ms=10_000, topic_data=[data])
    return peer.ask(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_produce_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    first = produce(peer, topic, b"one", b"two", version=version)
    second = produce(peer, topic, b"three", version=version)
    assert (first.error_code, first.base_offset) == (0, 0)
    assert (second.error_code, second.base_offset) == (0, 2)


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.HEARTBEAT])
def test_bytes_behind_a_request_are_ignored(peer: WirePeer, key: ApiKey) -> None:
    requests: dict[ApiKey, tuple[int, Any]] = {
        ApiKey.PRODUCE: (9, message("produce", "ProduceRequest", acks=-1, timeout_ms=1000, topic_data=[])),
        ApiKey.METADATA: (13, message("metadata", "MetadataRequest", topics=[])),
        ApiKey.HEARTBEAT: (4, message("heartbeat", "HeartbeatRequest", group_id="g", member_id="m")),
    }
    version, request = requests[key]
    frame = encode_request(key, version, 1, "peer", request)
    peer.correlation_id = 1
    peer.socket.sendall(struct.pack(">i", len(frame) - 4 + 3) + frame[4:] + b"abc")
    assert peer.receive(key, version) is not None


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    produce(peer, topic, b"one", b"two")
    partition = message("fetch", "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    by_id = topic_id(peer, topic) if version >= 13 else ZERO_ID
    request = message(
        "fetch",
        "FetchRequest",
        max_wait_ms=1000,
        min_bytes=1,
        topics=[message("fetch", "FetchTopic", topic=topic, topic_id=by_id, partitions=[partition])],
    )
    answer = peer.ask(ApiKey.FETCH, version, request).responses[0].partitions[0]
    assert (answer.error_code, answer.high_watermark) == (0, 2)
    assert answer.records.count(b"one") == 1


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS))
@pytest.mark.parametrize(("timestamp", "offset", "since"), [(-1, 2, 1), (-2, 0, 1), (-3, 0, 7), (0, 0, 1)])
def test_list_offsets_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, version: int, timestamp: int, offset: int, since: int
) -> None:
    topic = new_topic()
    produce(peer, topic, b"one", b"two")
    wanted = message("list_offsets", "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    asked = message("list_offsets", "ListOffsetsTopic", name=topic, partitions=[wanted])
    request = message("list_offsets", "ListOffsetsRequest", replica_id=-1, topics=[asked])
    answer = peer.ask(ApiKey.LIST_OFFSETS, version, request).topics[0].partitions[0]
    if version == 0:
        starts = {-1: [2], -2: [0]}.get(timestamp, [])
        assert (answer.error_code, answer.old_style_offsets) == (0, starts)
    elif version < since:
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    else:
        assert (answer.error_code, answer.offset) == (0, offset)


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_metadata_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic, version: int) -> None:
    topic = new_topic(3)
    wanted = message("metadata", "MetadataRequestTopic", name=topic)
    request = message("metadata", "MetadataRequest", topics=[wanted])
    answer = peer.ask(ApiKey.METADATA, version, request)
    assert [one.name for one in answer.topics] == [topic]
    assert [one.partition_index for one in answer.topics[0].partitions] == [0, 1, 2]
    everything = message("metadata", "MetadataRequest", topics=[] if version == 0 else None)
    assert topic in [one.name for one in peer.ask(ApiKey.METADATA, version, everything).topics]


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_metadata_of_a_missing_topic(peer: WirePeer, version: int) -> None:
    wanted = message("metadata", "MetadataRequestTopic", name="not a name")
    answer = peer.ask(ApiKey.METADATA, version, message("metadata", "MetadataRequest", topics=[wanted]))
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", range(4, APIS[ApiKey.METADATA].last + 1))
def test_metadata_creates_a_topic_only_if_allowed(
    peer: WirePeer, new_name: Callable[[str], str], version: int
) -> None:
    wanted = message("metadata", "MetadataRequestTopic", name=new_name("made"))

    def ask(allowed: bool) -> Any:
        request = message("metadata", "MetadataRequest", topics=[wanted], allow_auto_topic_creation=allowed)
        return peer.ask(ApiKey.METADATA, version, request).topics[0]

    for _ in range(2):
        assert ask(False).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made = ask(True)
    assert (made.error_code, len(made.partitions)) == (0, 2)


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_api_versions_is_served_in_every_version(peer: WirePeer, version: int) -> None:
    request = message(
        "api_versions", "ApiVersionsRequest", client_software_name="peer", client_software_version="1.0"
    )
    answer = peer.ask(ApiKey.API_VERSIONS, version, request)
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {api.key: (api.first, api.last) for api in APIS.values()}


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_create_topics_is_served_in_every_version(
    peer: WirePeer, new_name: Callable[[str], str], version: int
) -> None:
    name = new_name("topic")
    topics = [
        message(
            "create_topics",
            "CreatableTopic",
            name=one,
            num_partitions=2,
            replication_factor=1,
            configs=[message("create_topics", "CreatableTopicConfig", name="retention.ms", value="100000")],
        )
        for one in (name, "not a name")
    ]
    answer = peer.ask(
        ApiKey.CREATE_TOPICS, version, message("create_topics", "CreateTopicsRequest", topics=topics)
    )
    codes = {one.name: one.error_code for one in answer.topics}
    assert codes == {name: 0, "not a name": ErrorCode.INVALID_TOPIC_EXCEPTION}


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_delete_topics_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic, version: int) -> None:
    names = [new_topic(), "not-there"]
    states = [message("delete_topics", "DeleteTopicState", name=name) for name in names]
    request = message(
        "delete_topics",
        "DeleteTopicsRequest",
        topics=states if version >= 6 else [],
        topic_names=names,
        timeout_ms=10_000,
    )
    answer = peer.ask(ApiKey.DELETE_TOPICS, version, request)
    assert [one.error_code for one in answer.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_create_partitions_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, version: int
) -> None:
    topics = [
        message("create_partitions", "CreatePartitionsTopic", name=name, count=4, assignments=None)
        for name in (new_topic(2), "not-there")
    ]
    request = message("create_partitions", "CreatePartitionsRequest", topics=topics, timeout_ms=10_000)
    answer = peer.ask(ApiKey.CREATE_PARTITIONS, version, request)
    assert [one.error_code for one in answer.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
def test_delete_records_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic, version: int) -> None:
    topic = new_topic()
    produce(peer, topic, b"one", b"two")
    partitions = [
        message("delete_records", "DeleteRecordsPartition", partition_index=index, offset=1)
        for index in (0, 9)
    ]
    asked = message("delete_records", "DeleteRecordsTopic", name=topic, partitions=partitions)
    request = message("delete_records", "DeleteRecordsRequest", topics=[asked], timeout_ms=10_000)
    answer = peer.ask(ApiKey.DELETE_RECORDS, version, request).topics[0].partitions
    assert [(one.error_code, one.low_watermark) for one in answer] == [
        (0, 1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_idempotent_producers_get_their_id_in_every_version(peer: WirePeer, version: int) -> None:
    request = message(
        "init_producer_id", "InitProducerIdRequest", transactional_id=None, transaction_timeout_ms=1000
    )
    first, second = [peer.ask(ApiKey.INIT_PRODUCER_ID, version, request) for _ in range(2)]
    assert (first.error_code, second.error_code) == (0, 0)
    assert first.producer_id != second.producer_id
    assert (first.producer_epoch, second.producer_epoch) == (0, 0)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
def test_offset_for_leader_epoch_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic()
    produce(peer, topic, b"one", b"two")
    asked = [
        message("offset_for_leader_epoch", "OffsetForLeaderPartition", partition=index, leader_epoch=0)
        for index in (0, 9)
    ]
    named = message("offset_for_leader_epoch", "OffsetForLeaderTopic", topic=topic, partitions=asked)
    request = message("offset_for_leader_epoch", "OffsetForLeaderEpochRequest", replica_id=-1, topics=[named])
    answer = peer.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request).topics[0].partitions
    assert (answer[0].error_code, answer[0].end_offset) == (0, 2)
    assert answer[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_describe_configs_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic(1, **{"retention.ms": 77_000})
    (broker,) = peer.ask(
        ApiKey.DESCRIBE_CLUSTER, 0, message("describe_cluster", "DescribeClusterRequest")
    ).brokers
    resources = [
        message(
            "describe_configs",
            "DescribeConfigsResource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=None,
        )
        for kind, name in (
            (2, topic),
            (4, str(broker.broker_id)),
            (4, ""),
            (8, str(broker.broker_id)),
            (32, "g"),
            (2, "not-there"),
            (99, "x"),
        )
    ]
    request = message(
        "describe_configs",
        "DescribeConfigsRequest",
        resources=resources,
        include_synonyms=version >= 1,
        include_documentation=version >= 3,
    )
    results = peer.ask(ApiKey.DESCRIBE_CONFIGS, version, request).results
    assert [one.error_code for one in results] == [
        0,
        0,
        0,
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]
    values = {entry.name: entry for entry in results[0].configs}
    assert values["retention.ms"].value == "77000"
    if version == 0:
        assert not values["retention.ms"].is_default
        assert values["cleanup.policy"].is_default
    else:
        assert values["retention.ms"].config_source == 1
        assert values["cleanup.policy"].config_source == 5


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_alter_configs_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic, version: int) -> None:
    entry = message("alter_configs", "AlterableConfig", name="retention.ms", value="88000")
    resources = [
        message("alter_configs", "AlterConfigsResource", resource_type=2, resource_name=name, configs=[entry])
        for name in (new_topic(), "not-there")
    ]
    request = message("alter_configs", "AlterConfigsRequest", resources=resources)
    answer = peer.ask(ApiKey.ALTER_CONFIGS, version, request).responses
    assert [one.error_code for one in answer] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_incremental_alter_configs_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, version: int
) -> None:
    def resource(name: str, key: str) -> Any:
        entry = message(
            "incremental_alter_configs", "AlterableConfig", name=key, config_operation=0, value="88000"
        )
        return message(
            "incremental_alter_configs",
            "AlterConfigsResource",
            resource_type=2,
            resource_name=name,
            configs=[entry],
        )

    request = message(
        "incremental_alter_configs",
        "IncrementalAlterConfigsRequest",
        resources=[resource(new_topic(), "retention.ms"), resource(new_topic(), "no.such.key")],
    )
    answer = peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request).responses
    assert [one.error_code for one in answer] == [0, ErrorCode.INVALID_CONFIG]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_describe_log_dirs_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic()
    produce(peer, topic, b"one")
    answer = peer.ask(
        ApiKey.DESCRIBE_LOG_DIRS, version, message("describe_log_dirs", "DescribeLogDirsRequest", topics=None)
    )
    (directory,) = answer.results
    sizes = {one.name: one.partitions[0].partition_size for one in directory.topics}
    assert directory.error_code == 0
    assert sizes[topic] > 60


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster_is_served_in_every_version(
    peer: WirePeer, client_broker: Broker, version: int
) -> None:
    request = message(
        "describe_cluster", "DescribeClusterRequest", include_cluster_authorized_operations=True
    )
    answer = peer.ask(ApiKey.DESCRIBE_CLUSTER, version, request)
    assert (answer.error_code, [one.port for one in answer.brokers]) == (0, [client_broker.port])


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_ACLS))
def test_access_rules_are_refused_with_a_reason(peer: WirePeer, version: int) -> None:
    everything: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    described = peer.ask(
        ApiKey.DESCRIBE_ACLS, version, message("describe_acls", "DescribeAclsRequest", **everything)
    )
    rule = message(
        "create_acls",
        "AclCreation",
        resource_type=2,
        resource_name="t",
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    created = peer.ask(
        ApiKey.CREATE_ACLS, version, message("create_acls", "CreateAclsRequest", creations=[rule, rule])
    )
    matching = message("delete_acls", "DeleteAclsFilter", **everything)
    deleted = peer.ask(
        ApiKey.DELETE_ACLS, version, message("delete_acls", "DeleteAclsRequest", filters=[matching])
    )
    answers = [described, *created.results, *deleted.filter_results]
    assert [one.error_code for one in answers] == [ErrorCode.SECURITY_DISABLED] * 4
    assert all("no authorizer" in one.error_message for one in answers)


def test_describe_producers_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic) -> None:
    asked = message("describe_producers", "TopicRequest", name=new_topic(), partition_indexes=[0, 9])
    request = message("describe_producers", "DescribeProducersRequest", topics=[asked])
    answer = peer.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request).topics[0].partitions
    assert [one.error_code for one in answer] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_describe_topic_partitions_is_served_in_every_version(peer: WirePeer, new_topic: NewTopic) -> None:
    topic = new_topic(5)
    asked = [message("describe_topic_partitions", "TopicRequest", name=topic)]
    request = message(
        "describe_topic_partitions",
        "DescribeTopicPartitionsRequest",
        topics=asked,
        response_partition_limit=3,
    )
    answer = peer.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [one.partition_index for one in answer.topics[0].partitions] == [0, 1, 2]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (topic, 3)


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_find_coordinator_is_served_in_every_version(
    peer: WirePeer, client_broker: Broker, version: int
) -> None:
    def ask(key: str, kind: int) -> Any:
        fields: dict[str, Any] = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
        if version >= 1:
            fields["key_type"] = kind
        answer = peer.ask(
            ApiKey.FIND_COORDINATOR, version, message("find_coordinator", "FindCoordinatorRequest", **fields)
        )
        return answer.coordinators[0] if version >= 4 else answer

    for kind in range(2 if version >= 1 else 1):
        found = ask("readers", kind)
        assert (found.error_code, found.port) == (0, client_broker.port)


GROUP_VERSIONS = range(max(len(versions(key)) for key in (ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT)))


def capped(key: ApiKey, version: int) -> int:
    """Returns ``version``, or the last version of that API."""
    return min(version, APIS[key].last)


class Member:
    """A group member that uses one version of every API."""

    def __init__(self, peer: WirePeer, group: str, version: int) -> None:
        self.peer, self.group, self.version = peer, group, version
        self.member_id, self.generation = "", -1

    def ask(self, key: ApiKey, api: str, request: str, **fields: Any) -> Any:
        return self.peer.ask(key, capped(key, self.version), message(api, request, **fields))

    def find_coordinator(self) -> None:
        """Creates the offsets topic, as every client does before it joins."""
        request = message("find_coordinator", "FindCoordinatorRequest", key=self.group)
        assert self.peer.ask(ApiKey.FIND_COORDINATOR, 0, request).error_code == 0

    def join(self) -> Any:
        subscription = struct.pack(">hihsii", 0, 1, 1, b"t", -1, 0)[: 2 + 4 + 2 + 1] + struct.pack(">i", -1)
        protocol = message("join_group", "JoinGroupRequestProtocol", name="range", metadata=subscription)
        fields = {
            "group_id": self.group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [protocol],
        }
        answer = self.ask(ApiKey.JOIN_GROUP, "join_group", "JoinGroupRequest", member_id="", **fields)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.ask(
                ApiKey.JOIN_GROUP, "join_group", "JoinGroupRequest", member_id=answer.member_id, **fields
            )
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self) -> Any:
        mine = message(
            "sync_group", "SyncGroupRequestAssignment", member_id=self.member_id, assignment=b"all"
        )
        return self.ask(
            ApiKey.SYNC_GROUP,
            "sync_group",
            "SyncGroupRequest",
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[mine],
        )

    def heartbeat(self) -> int:
        code: int = self.ask(
            ApiKey.HEARTBEAT,
            "heartbeat",
            "HeartbeatRequest",
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
        ).error_code
        return code

    def commit(self, topic: str, offset: int) -> int:
        partition = message(
            "offset_commit",
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=offset,
            committed_metadata="note",
        )
        by_id = topic_id(self.peer, topic) if self.version >= 10 else ZERO_ID
        asked = message(
            "offset_commit", "OffsetCommitRequestTopic", name=topic, topic_id=by_id, partitions=[partition]
        )
        answer = self.ask(
            ApiKey.OFFSET_COMMIT,
            "offset_commit",
            "OffsetCommitRequest",
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if self.version else -1,
            member_id=self.member_id if self.version else "",
            topics=[asked],
        )
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def committed(self, topic: str) -> tuple[int, str]:
        if self.version >= 8:
            by_id = topic_id(self.peer, topic) if self.version >= 10 else ZERO_ID
            asked = message(
                "offset_fetch", "OffsetFetchRequestTopic", name=topic, topic_id=by_id, partition_indexes=[0]
            )
            group = message("offset_fetch", "OffsetFetchRequestGroup", group_id=self.group, topics=[asked])
            answer = self.ask(ApiKey.OFFSET_FETCH, "offset_fetch", "OffsetFetchRequest", groups=[group])
            topics = answer.groups[0].topics
        else:
            old = message("offset_fetch", "OffsetFetchRequestTopic", name=topic, partition_indexes=[0])
            answer = self.ask(
                ApiKey.OFFSET_FETCH, "offset_fetch", "OffsetFetchRequest", group_id=self.group, topics=[old]
            )
            topics = answer.topics
        found = topics[0].partitions[0]
        assert found.error_code == 0
        return found.committed_offset, found.metadata

    def leave(self) -> Any:
        if self.version >= 3:
            member = message("leave_group", "MemberIdentity", member_id=self.member_id)
            return self.ask(
                ApiKey.LEAVE_GROUP, "leave_group", "LeaveGroupRequest", group_id=self.group, members=[member]
            )
        return self.ask(
            ApiKey.LEAVE_GROUP,
            "leave_group",
            "LeaveGroupRequest",
            group_id=self.group,
            member_id=self.member_id,
        )


@pytest.mark.parametrize("version", GROUP_VERSIONS)
def test_a_group_is_joined_synced_and_left_in_all_versions(
    peer: WirePeer, new_topic: NewTopic, new_name: Callable[[str], str], version: int
) -> None:
    member = Member(peer, new_name("group"), version)
    topic = new_topic()
    member.find_coordinator()
    joined = member.join()
    assert (joined.error_code, joined.leader) == (0, member.member_id)
    synced = member.sync()
    assert (synced.error_code, synced.assignment) == (0, b"all")
    assert member.heartbeat() == 0
    assert member.commit(topic, 5) == 0
    assert member.committed(topic) == (5, "note" if version else "")  # Version 0 stores no other field.

    described = member.ask(
        ApiKey.DESCRIBE_GROUPS,
        "describe_groups",
        "DescribeGroupsRequest",
        groups=[member.group],
        include_authorized_operations=version >= 3,
    ).groups[0]
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert [one.member_id for one in described.members] == [member.member_id]
    listed = member.ask(ApiKey.LIST_GROUPS, "list_groups", "ListGroupsRequest")
    assert member.group in [one.group_id for one in listed.groups]

    left = member.leave()
    assert left.error_code == 0
    deleted = member.ask(
        ApiKey.DELETE_GROUPS, "delete_groups", "DeleteGroupsRequest", groups_names=[member.group, "not-there"]
    )
    assert [one.error_code for one in deleted.results] == [0, ErrorCode.GROUP_ID_NOT_FOUND]


def test_offset_delete_is_served_in_every_version(
    peer: WirePeer, new_topic: NewTopic, new_name: Callable[[str], str]
) -> None:
    topic = new_topic()
    member = Member(peer, new_name("group"), 2)
    member.find_coordinator()
    assert member.commit(topic, 5) == 0
    partition = message("offset_delete", "OffsetDeleteRequestPartition", partition_index=0)
    asked = message("offset_delete", "OffsetDeleteRequestTopic", name=topic, partitions=[partition])
    request = message("offset_delete", "OffsetDeleteRequest", group_id=member.group, topics=[asked])
    answer = peer.ask(ApiKey.OFFSET_DELETE, 0, request)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert member.committed(topic) == (-1, "")


@pytest.mark.parametrize("key", sorted(APIS))
def test_an_unannounced_version_closes_the_connection_except_for_api_versions(
    bootstrap: str, key: int
) -> None:
    version = APIS[key].last + 1
    with WirePeer(bootstrap) as peer:
        peer.socket.sendall(struct.pack(">ihhih", 11, key, version, 7, 1) + b"x")
        if key == ApiKey.API_VERSIONS:
            answer = peer.receive_frame()
            assert struct.unpack(">ih", answer[:6]) == (7, ErrorCode.UNSUPPORTED_VERSION)
        else:
            with pytest.raises(ConnectionError):
                peer.receive_frame()
