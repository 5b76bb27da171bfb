"""The administration calls of each client."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from client_peers import PATIENCE_S
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tidemill.testing import Broker

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

NewTopic = Callable[..., str]
NewName = Callable[[str], str]

TIMEOUT_S = 20


def fill(bootstrap: str, topic: str, count: int = 10) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(count):
        producer.produce(topic, b"value %d" % n, b"%d" % n, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def error_of(future: Any) -> str:
    with pytest.raises(KafkaException) as told:
        future.result(TIMEOUT_S)
    return str(told.value.args[0].name())


# confluent-kafka


def test_confluent_manages_topics(admin: AdminClient, bootstrap: str, new_name: NewName) -> None:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import NewPartitions, NewTopic

    name = new_name("topic")
    wanted = NewTopic(name, 3, 1, config={"retention.ms": "70000"})
    admin.create_topics([wanted], validate_only=True)[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics
    admin.create_topics([wanted])[name].result(TIMEOUT_S)
    assert error_of(admin.create_topics([wanted])[name]) == "TOPIC_ALREADY_EXISTS"
    copied = NewTopic(new_name("topic"), 1, 3)
    assert error_of(admin.create_topics([copied])[copied.topic]) == "INVALID_REPLICATION_FACTOR"
    none = NewTopic(new_name("topic"), 0, 1)
    assert error_of(admin.create_topics([none])[none.topic]) == "INVALID_PARTITIONS"
    odd = NewTopic(new_name("topic"), 1, 1, config={"no.such.key": "1"})
    assert error_of(admin.create_topics([odd])[odd.topic]) == "INVALID_CONFIG"

    described = admin.describe_topics(TopicCollection([name]))[name].result(TIMEOUT_S)
    assert [len(one.replicas) for one in described.partitions] == [1, 1, 1]
    assert str(described.topic_id) != ""

    admin.create_partitions([NewPartitions(name, 5)])[name].result(TIMEOUT_S)
    assert len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) == 5
    assert error_of(admin.create_partitions([NewPartitions(name, 4)])[name]) == "INVALID_PARTITIONS"

    admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert error_of(admin.delete_topics([name])[name]) == "UNKNOWN_TOPIC_OR_PART"
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_confluent_describes_and_alters_configs(admin: AdminClient, new_topic: NewTopic) -> None:
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        ResourceType,
    )

    name = new_topic(**{"retention.ms": 70_000})

    def describe(kind: ResourceType, resource: str) -> dict[str, Any]:
        wanted = ConfigResource(kind, resource)
        found: dict[str, Any] = admin.describe_configs([wanted])[wanted].result(TIMEOUT_S)
        return found

    found = describe(ResourceType.TOPIC, name)
    assert (found["retention.ms"].value, found["retention.ms"].source) == (
        "70000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert found["cleanup.policy"].is_default

    def change(key: str, value: str | None, how: AlterConfigOpType) -> Any:
        entry = ConfigEntry(key, value, incremental_operation=how)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    change("segment.bytes", "2000000", AlterConfigOpType.SET).result(TIMEOUT_S)
    change("cleanup.policy", "compact", AlterConfigOpType.APPEND).result(TIMEOUT_S)
    change("retention.ms", None, AlterConfigOpType.DELETE).result(TIMEOUT_S)
    found = describe(ResourceType.TOPIC, name)
    assert found["segment.bytes"].value == "2000000"
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["retention.ms"].is_default
    assert error_of(change("retention.ms", "soon", AlterConfigOpType.SET)) == "INVALID_CONFIG"

    whole = ConfigResource(ResourceType.TOPIC, name, set_config={"max.message.bytes": "5000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        changed = admin.alter_configs([whole])[whole]
    changed.result(TIMEOUT_S)
    found = describe(ResourceType.TOPIC, name)
    assert found["max.message.bytes"].value == "5000"
    assert found["segment.bytes"].is_default

    (broker_id,) = admin.list_topics(timeout=TIMEOUT_S).brokers
    broker = describe(ResourceType.BROKER, str(broker_id))
    assert broker["message.max.bytes"].value == "2000000"
    assert broker["log.dirs"].is_read_only


def test_all_settings_of_a_topic_can_be_read_and_written_back(
    admin: AdminClient, kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        ResourceType,
    )
    from kafka.admin import ConfigResource as KafkaResource
    from kafka.admin import ConfigResourceType

    name = new_topic(**{"retention.ms": 70_000})
    topic = ConfigResource(ResourceType.TOPIC, name)

    def read() -> dict[str, Any]:
        found: dict[str, Any] = admin.describe_configs([topic])[topic].result(TIMEOUT_S)
        return found

    before = read()
    assert "message.timestamp.difference.max.ms" not in before
    assert all(entry.value is not None for entry in before.values())
    values = {key: entry.value for key, entry in before.items()}

    one_by_one = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()
    ]
    written = ConfigResource(ResourceType.TOPIC, name, incremental_configs=one_by_one)
    admin.incremental_alter_configs([written])[written].result(TIMEOUT_S)
    after = read()
    assert {key: entry.value for key, entry in after.items()} == values
    assert {entry.source for entry in after.values()} == {ConfigSource.DYNAMIC_TOPIC_CONFIG.value}

    whole = ConfigResource(ResourceType.TOPIC, name, set_config=values)
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        changed = admin.alter_configs([whole])[whole]
    changed.result(TIMEOUT_S)
    assert {key: entry.value for key, entry in read().items()} == values

    asked = KafkaResource(ConfigResourceType.TOPIC, name)
    told = kafka_admin.describe_configs([asked], config_filter="all")["topic"][name]
    again = {key: entry["value"] for key, entry in told.items()}
    kafka_admin.alter_configs(
        [KafkaResource(ConfigResourceType.TOPIC, name, configs=again)], incremental=False
    )
    assert {key: entry.value for key, entry in read().items()} == values


def test_the_minimum_in_sync_set_of_a_topic_is_the_clusters(admin: AdminClient, new_topic: NewTopic) -> None:
    """As in Apache Kafka 4.3.1, whose clusters have one value for all topics (KIP-966)."""
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        ResourceType,
    )

    name = new_topic()
    topic = ConfigResource(ResourceType.TOPIC, name)

    def read() -> Any:
        return admin.describe_configs([topic])[topic].result(TIMEOUT_S)["min.insync.replicas"]

    inherited = read()
    assert (inherited.value, inherited.source) == ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value)
    entry = ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
    own = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([own])[own].result(TIMEOUT_S)
    assert read().source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value


def test_confluent_manages_groups(
    admin: AdminClient, bootstrap: str, new_topic: NewTopic, new_name: NewName
) -> None:
    from confluent_kafka import ConsumerGroupState

    topic, group = new_topic(2), new_name("group")
    commit(bootstrap, group, topic, 7)
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert listed.errors == []
    assert group in [one.group_id for one in listed.valid]
    only_stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(TIMEOUT_S)
    assert group not in [one.group_id for one in only_stable.valid]
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert (described.state, described.is_simple_consumer_group) == (ConsumerGroupState.EMPTY, True)

    def offsets() -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = admin.list_consumer_group_offsets(asked)[group].result(TIMEOUT_S)
        return {one.partition: one.offset for one in found.topic_partitions}

    assert offsets() == {0: 7}
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)])
    admin.alter_consumer_group_offsets([moved])[group].result(TIMEOUT_S)
    assert offsets() == {0: 3, 1: 4}
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert error_of(admin.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"
    missing = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert missing.state == ConsumerGroupState.DEAD


def test_confluent_lists_offsets_and_deletes_records(
    admin: AdminClient, bootstrap: str, new_topic: NewTopic
) -> None:
    from confluent_kafka.admin import OffsetSpec

    topic = new_topic(2)
    fill(bootstrap, topic)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def offset(spec: OffsetSpec, partition: TopicPartition = first) -> int:
        found = admin.list_offsets({partition: spec})[partition].result(TIMEOUT_S)
        return int(found.offset)

    assert [offset(one) for one in (OffsetSpec.earliest(), OffsetSpec.latest())] == [0, 10]
    assert 0 <= offset(OffsetSpec.max_timestamp()) < 10
    assert offset(OffsetSpec.for_timestamp(0)) == 0
    assert offset(OffsetSpec.latest(), second) == 0
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0, 4)]
    assert deleted.result(TIMEOUT_S).low_watermark == 4
    assert offset(OffsetSpec.earliest()) == 4
    beyond = TopicPartition(topic, 0, 99)
    assert error_of(admin.delete_records([beyond])[beyond]) == "OFFSET_OUT_OF_RANGE"
    everything = TopicPartition(topic, 0, -1)
    assert admin.delete_records([everything])[everything].result(TIMEOUT_S).low_watermark == 10


def test_confluent_describes_the_cluster(admin: AdminClient, client_broker: Broker) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert described.cluster_id == admin.list_topics(timeout=TIMEOUT_S).cluster_id
    assert [(one.host, one.port) for one in described.nodes] == [("127.0.0.1", client_broker.port)]
    assert described.controller.port == client_broker.port
    assert described.authorized_operations


def test_confluent_access_rules_are_refused(admin: AdminClient) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    assert admin.describe_acls(everything).result(TIMEOUT_S) == []  # The client does not return the error.
    assert error_of(admin.create_acls([rule])[rule]) == "SECURITY_DISABLED"
    assert error_of(admin.delete_acls([everything])[everything]) == "SECURITY_DISABLED"


# kafka-python


@pytest.fixture
def kafka_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_manages_topics(kafka_admin: KafkaAdminClient, new_name: NewName) -> None:
    from kafka.errors import InvalidPartitionsError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

    name = new_name("topic")
    wanted = {name: {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "70000"}}}
    kafka_admin.create_topics(wanted, validate_only=True)
    assert name not in kafka_admin.list_topics()
    made = kafka_admin.create_topics(wanted, wait_for_metadata=True)
    assert made["topics"][0]["num_partitions"] == 3
    with pytest.raises(TopicAlreadyExistsError):
        kafka_admin.create_topics(wanted)
    (described,) = kafka_admin.describe_topics([name])
    assert len(described["partitions"]) == 3
    (by_id,) = kafka_admin.describe_topics([uuid.UUID(described["topic_id"])])
    assert by_id["name"] == name
    kafka_admin.create_partitions({name: 5})
    with pytest.raises(InvalidPartitionsError):
        kafka_admin.create_partitions({name: 2})
    pages = kafka_admin.describe_topic_partitions([name], response_partition_limit=2)
    assert pages is not None
    kafka_admin.delete_topics([name])
    with pytest.raises(UnknownTopicOrPartitionError):
        kafka_admin.delete_topics([name])


def test_kafka_python_describes_and_alters_configs(
    kafka_admin: KafkaAdminClient, new_topic: NewTopic
) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType

    name = new_topic(**{"retention.ms": 70_000})

    def describe(kind: ConfigResourceType = ConfigResourceType.TOPIC, resource: str = name) -> dict[str, Any]:
        found = kafka_admin.describe_configs([ConfigResource(kind, resource)], config_filter="all")
        values: dict[str, Any] = found[kind.name.lower()][resource]
        return values

    assert describe()["retention.ms"]["value"] == "70000"
    for incremental, value in ((True, "80000"), (False, "90000")):
        changed = ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": value})
        kafka_admin.alter_configs([changed], incremental=incremental)
        assert describe()["retention.ms"]["value"] == value
    kafka_admin.reset_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": None})]
    )
    assert describe()["retention.ms"]["value"] == "604800000"
    broker_id = kafka_admin.describe_cluster()["brokers"][0]["broker_id"]
    assert describe(ConfigResourceType.BROKER, str(broker_id))["num.partitions"]["value"] == "2"


def test_kafka_python_manages_groups(
    kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: NewTopic, new_name: NewName
) -> None:
    from kafka import TopicPartition as Partition
    from kafka.structs import OffsetAndMetadata

    topic, group = new_topic(2), new_name("group")
    commit(bootstrap, group, topic, 7)
    assert group in [one["group_id"] for one in kafka_admin.list_groups()]
    described = kafka_admin.describe_groups([group])
    assert described[group]["group_state"] == "Empty"
    found = kafka_admin.list_group_offsets([group])[group]
    assert {key.partition: value.offset for key, value in found.items()} == {0: 7}
    kafka_admin.alter_group_offsets(group, {Partition(topic, 1): OffsetAndMetadata(5, "moved", -1)})
    found = kafka_admin.list_group_offsets({group: [Partition(topic, 1)]})[group]
    assert found[Partition(topic, 1)][:2] == (5, "moved")
    kafka_admin.delete_group_offsets(group, [Partition(topic, 0)])
    found = kafka_admin.list_group_offsets([group])[group]
    assert [key.partition for key in found] == [1]
    assert kafka_admin.delete_groups([group]) == {group: "OK"}
    assert kafka_admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}


def test_kafka_python_deletes_records_and_describes_log_dirs(
    kafka_admin: KafkaAdminClient, bootstrap: str, client_broker: Broker, new_topic: NewTopic
) -> None:
    from kafka import TopicPartition as Partition

    topic = new_topic()
    fill(bootstrap, topic)
    deleted = kafka_admin.delete_records({Partition(topic, 0): 6})
    assert deleted[Partition(topic, 0)]["low_watermark"] == 6
    (told,) = kafka_admin.describe_log_dirs({topic: [0]})
    (directory,) = told["log_dirs"]
    assert directory["log_dir"] == client_broker.data_dir
    assert [one["name"] for one in directory["topics"]] == [topic]
    assert directory["topics"][0]["partitions"][0]["partition_size"] > 0


def test_kafka_python_access_rules_are_refused(kafka_admin: KafkaAdminClient) -> None:
    from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePatternFilter, ResourceType
    from kafka.admin._acls import ACLResourcePatternType
    from kafka.errors import SecurityDisabledError

    everything = ACLFilter(
        principal=None,
        host="*",
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    with pytest.raises(SecurityDisabledError, match="no authorizer"):
        kafka_admin.describe_acls(everything)


# aiokafka


def test_aiokafka_manages_topics_groups_and_records(
    bootstrap: str, client_broker: Broker, new_topic: NewTopic, new_name: NewName
) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
    from aiokafka.structs import TopicPartition as Partition

    kept, group, name = new_topic(2), new_name("group"), new_name("topic")
    fill(bootstrap, kept)
    commit(bootstrap, group, kept, 7)

    async def topics(client: AIOKafkaAdminClient) -> None:
        made = await client.create_topics([NewTopic(name, 3, 1, topic_configs={"retention.ms": "70000"})])
        assert [one[:2] for one in made.topic_errors] == [(name, 0)]
        await client.create_partitions({name: NewPartitions(5)})
        (described,) = await client.describe_topics([name])
        assert len(described["partitions"]) == 5
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (configs,) = await client.describe_configs([resource])
        values = {entry[0]: entry[1] for entry in configs.resources[0][4]}
        assert values["retention.ms"] == "70000"
        changed = ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": "80000"})
        (answer,) = await client.alter_configs([changed])
        assert [one[0] for one in answer.resources] == [0]
        deleted = await client.delete_topics([name])
        assert deleted.topic_error_codes == [(name, 0)]
        assert name not in await client.list_topics()

    async def groups(client: AIOKafkaAdminClient) -> None:
        assert group in [one[0] for one in await client.list_consumer_groups()]
        (described,) = await client.describe_consumer_groups([group])
        assert described.groups[0][:3] == (0, group, "Empty")
        offsets = await client.list_consumer_group_offsets(group)
        assert offsets[Partition(kept, 0)].offset == 7
        assert await client.find_coordinator(group) >= 0

    async def work() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            await topics(client)
            await groups(client)
            low = await client.delete_records({Partition(kept, 0): RecordsToDelete(before_offset=6)})
            assert low == {Partition(kept, 0): 6}
            cluster = await client.describe_cluster()
            assert [one["port"] for one in cluster["brokers"]] == [client_broker.port]
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
