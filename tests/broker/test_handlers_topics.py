"""The APIs of topics, partitions, settings and the cluster, over a real controller and a real store.

Every request and response goes through the wire codec of its version.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from broker_listeners import RecordingLeaderAndIsrListener
from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.broker import Broker
from tidemill.broker.delayed_metadata import DelayedMetadata
from tidemill.broker.dynamic_broker_config import effective_config
from tidemill.broker.metadata_cache import Delta, MetadataCache
from tidemill.broker.request_context import RequestContext
from tidemill.broker.store_connectivity import StoreConnectivity
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Create, ensure_paths, parent_of
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import DEFAULT_ENTITY, BrokerRegistration, ConfigNode, Endpoint
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.configs import BROKER_KEYS, TOPIC_KEYS, BrokerConfig
from tidemill.model.configs.config_def import PASSWORD
from tidemill.model.configs.source_descriptions import provenance_in
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.system_interfaces import Clock
from tidemill.net.peer import Listener, Peer
from tidemill.replication.hosted_topics import TopicEntry, TopicTable
from tidemill.wire.apis import ApiKey, request_class, response_class
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.alter_configs import AlterConfigsRequest
from tidemill.wire.messages.create_partitions import CreatePartitionsRequest
from tidemill.wire.messages.create_topics import CreateTopicsRequest
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.describe_configs import DescribeConfigsRequest
from tidemill.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from tidemill.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tidemill.wire.messages.metadata import MetadataRequest
from unwatched_controller import new_controller

INSIDE = Endpoint("INSIDE", "PLAINTEXT", "10.0.0.1", 19092)
OUTSIDE = Endpoint("OUTSIDE", "PLAINTEXT", "broker.example", 9092)
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SECRETS = {
    "ssl_key_password": "hunter2",
    "tidemill_zookeeper_digest": "admin:hunter2",
    "tidemill_zookeeper_sasl_password": "hunter2",
    "zookeeper_ssl_keystore_password": "hunter2",
}
SET, DELETE, APPEND = 0, 1, 2


class StillClock(Clock):
    """A clock that stands still."""

    def wall_ms(self) -> int:
        """Some time in 2023."""
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


class SmallBroker:
    """A broker without partitions: configuration, store, controller and metadata are the real ones."""

    node_id = 7
    is_from_broker = Broker.is_from_broker

    def __init__(self, store: EmbeddedStore, **config: Any) -> None:
        self.static_config = BrokerConfig.of(**config)
        self.config = self.static_config
        self.store = store
        self.clock = StillClock()
        self.store_connectivity = StoreConnectivity(self.clock)
        self.metadata_cache = MetadataCache()
        self.controller = new_controller(
            store, self.node_id, lambda: self.config, self.announce, self.clock, Random(1)
        )
        self.cluster: Any = SimpleNamespace(
            inter_broker_listener=OUTSIDE.listener, delayed_metadata=DelayedMetadata()
        )
        self.made: list[str] = []
        self.replica_manager: Any = SimpleNamespace(topics=TopicTable())
        no_logs: Any = None
        self.leader_and_isr = LeaderAndIsrApplier(
            self.node_id,
            lambda: self.config,
            self.clock,
            no_logs,
            self.replica_manager,
            self.metadata_cache,
            removed=self.removed,
            listener=RecordingLeaderAndIsrListener(),
        )
        self.fail_with: KafkaError | None = None
        self.metadata_cache.on_change(self.apply)

    async def announce(self, delta: Delta) -> Announcement:
        """Publishes a change in this broker."""
        announcement = Announcement(delta)
        announcement.failures.update(await self.metadata_cache.publish(delta))
        return announcement

    async def removed(self) -> None:
        """There are no logs."""

    async def apply(self, delta: Delta) -> None:
        """What the real broker does about its configuration, and a log of what it would do about topics."""
        await asyncio.sleep(0)
        if delta.broker_configs_changed:
            self.config = effective_config(self.static_config, delta.image, self.node_id)
        if self.fail_with is not None:
            raise self.fail_with
        self.made += [topic.name for topic in delta.created]

    async def ask(self, request: Any, version: int, listener: Endpoint = OUTSIDE) -> Any:
        """Sends a request through the codec of ``version``, and returns the response that came back."""
        name = type(request).__name__.removesuffix("Request")
        key = ApiKey[re_snake(name).upper()]
        arrived = decode(request_class(key), version, encode(request, version))
        peer = Peer(
            Listener(listener.listener, listener.host, listener.port),
            "User:ANONYMOUS",
            "127.0.0.1",
            1,
        )
        context = RequestContext(peer, "test", key, version, 1)
        handle = importlib.import_module(f"tidemill.broker.handlers.{re_snake(name)}").handle
        answer = handle(self, context, arrived)
        if inspect.isawaitable(answer):
            answer = await answer
        return decode(response_class(key), version, encode(answer, version))


def re_snake(name: str) -> str:
    """``CreateTopics`` as ``create_topics``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


@asynccontextmanager
async def broker_in(directory: Path, **config: Any) -> AsyncIterator[SmallBroker]:
    """A broker that has taken office."""
    store = EmbeddedStore.open(str(directory / "coordination.db"))
    broker = SmallBroker(store, **config)
    image = await broker.controller.context.load()
    broker.config = effective_config(broker.static_config, image, broker.node_id)
    await broker.controller.election.register(BrokerRegistration(broker.node_id, (INSIDE, OUTSIDE), "rack-1"))
    await broker.controller.context.activate()
    try:
        yield broker
    finally:
        await store.close()


def new_topics(
    *names: str, count: int = 1, factor: int = 1, validate_only: bool = False, **config: str
) -> CreateTopicsRequest:
    """A request for topics that are alike."""
    from tidemill.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig

    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=factor,
                assignments=[],
                configs=[
                    CreatableTopicConfig(name=key.replace("_", "."), value=value)
                    for key, value in config.items()
                ],
            )
            for name in names
        ],
        timeout_ms=10_000,
        validate_only=validate_only,
    )


def metadata_of(*names: str | None, ids: tuple[bytes, ...] = (), create: bool = False) -> MetadataRequest:
    """A request for these topics."""
    from tidemill.wire.messages.metadata import MetadataRequestTopic

    topics = [MetadataRequestTopic(name=name, topic_id=bytes(16)) for name in names]
    topics += [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


# Metadata


@pytest.mark.parametrize("version", range(14))
async def test_metadata_names_brokers_controller_and_leaders(tmp_path: Path, version: int) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", "__consumer_offsets", count=2), 7)
        answer = await broker.ask(MetadataRequest(topics=[] if version == 0 else None), version)
        (node,) = answer.brokers
        assert (node.node_id, node.host, node.port) == (7, "broker.example", 9092)
        assert node.rack == ("rack-1" if version >= 1 else None)
        assert answer.controller_id == (7 if version >= 1 else -1)
        assert answer.cluster_id == (broker.metadata_cache.image.cluster_id if version >= 2 else None)
        topics = {topic.name: topic for topic in answer.topics}
        assert set(topics) == {"t", "__consumer_offsets"}
        assert topics["__consumer_offsets"].is_internal == (version >= 1)
        topic = topics["t"]
        assert topic.error_code == 0
        known = broker.metadata_cache.topic("t")
        assert known is not None
        assert topic.topic_id == (known.topic_id if version >= 10 else bytes(16))
        for number, partition in enumerate(topic.partitions):
            assert (partition.error_code, partition.partition_index, partition.leader_id) == (
                0,
                number,
                7,
            )
            assert (partition.replica_nodes, partition.isr_nodes) == ([7], [7])
            assert partition.leader_epoch == (0 if version >= 7 else -1)


async def test_a_partition_with_a_failed_log_has_no_leader_and_an_offline_replica(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", count=3), 7)
        known = broker.metadata_cache.topic("t")
        assert known is not None
        entry = TopicEntry("t", known.topic_id, False)
        states: list[Any] = [SimpleNamespace(index=at, is_offline=at == 1) for at in range(3)]
        entry.partitions.extend(states)
        broker.replica_manager.topics.put(entry)
        (topic,) = (await broker.ask(metadata_of("t"), 12)).topics
        pages = await broker.ask(DescribeTopicPartitionsRequest(response_partition_limit=9), 0)
        for partitions in (topic.partitions, pages.topics[0].partitions):
            assert [(one.leader_id, one.error_code, one.offline_replicas) for one in partitions] == [
                (7, ErrorCode.NONE, []),
                (-1, ErrorCode.LEADER_NOT_AVAILABLE, [7]),
                (7, ErrorCode.NONE, []),
            ]
            assert partitions[1].replica_nodes == partitions[1].isr_nodes == [7]
        # Versions without offline_replicas have the error instead.
        (old,) = (await broker.ask(metadata_of("t"), 4)).topics
        assert (old.partitions[1].leader_id, old.partitions[1].error_code) == (-1, 5)


@pytest.mark.parametrize(
    ("version", "error", "nodes"),
    [(0, ErrorCode.REPLICA_NOT_AVAILABLE, [7]), (1, ErrorCode.NONE, [7, 8]), (12, ErrorCode.NONE, [7, 8])],
)
async def test_the_oldest_metadata_versions_list_only_replicas_on_live_brokers(
    tmp_path: Path, version: int, error: ErrorCode, nodes: list[int]
) -> None:
    async with broker_in(tmp_path) as broker:
        partitions = (PartitionImage(0, 7, 0, [7, 8], [7, 8]), PartitionImage(1, 7, 0, [7], [7]))
        topic = TopicImage("t", b"t" * 16, partitions, {})
        broker.metadata_cache.image = ClusterImage(
            "c",
            7,
            1,
            broker.metadata_cache.image.brokers,
            {"t": topic},
            broker.metadata_cache.image.broker_configs,
        )
        request = metadata_of("t")
        request.allow_auto_topic_creation = True  # which versions before 4 always say
        (answer,) = (await broker.ask(request, version)).topics
        first, second = sorted(answer.partitions, key=lambda one: int(one.partition_index))
        assert (first.error_code, first.leader_id) == (error, 7)
        assert (first.replica_nodes, first.isr_nodes) == (nodes, nodes)
        assert (second.error_code, second.leader_id, second.replica_nodes) == (0, 7, [7])


async def test_metadata_has_the_address_of_the_requested_listener(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        answer = await broker.ask(metadata_of(), 12, INSIDE)
        assert [(node.host, node.port) for node in answer.brokers] == [("10.0.0.1", 19092)]


async def test_metadata_has_no_leader_without_the_requested_listener(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)
        other = Endpoint("OTHER", "PLAINTEXT", "h", 1)
        for version, code in (
            (5, ErrorCode.LEADER_NOT_AVAILABLE),
            (6, ErrorCode.LISTENER_NOT_FOUND),
        ):
            (topic,) = (await broker.ask(metadata_of("t"), version, other)).topics
            assert (topic.partitions[0].error_code, topic.partitions[0].leader_id) == (code, -1)
        answer = await broker.ask(metadata_of("t"), 12, other)
        assert answer.brokers == []
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, -1)


async def test_an_empty_list_of_topics_requests_all_only_in_version_0(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)
        assert (await broker.ask(metadata_of(create=True), 1)).topics == []
        assert len((await broker.ask(metadata_of(create=True), 0)).topics) == 1


async def test_metadata_is_requested_by_topic_id(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        created = await broker.ask(new_topics("t"), 7)
        topic_id = created.topics[0].topic_id
        unknown = bytes(range(16))
        known, missing = (await broker.ask(metadata_of(ids=(topic_id, unknown)), 12)).topics
        assert (known.name, known.topic_id, known.error_code) == ("t", topic_id, 0)
        assert (missing.name, missing.topic_id) == (None, unknown)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        (refused,) = (await broker.ask(metadata_of(ids=(topic_id,)), 11)).topics
        assert refused.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1, 3, 4, 12])
async def test_metadata_creates_a_requested_topic(tmp_path: Path, version: int) -> None:
    async with broker_in(tmp_path, num_partitions=3) as broker:
        answer = await broker.ask(metadata_of("new", "bad name", "new", create=True), version)
        new, bad = answer.topics
        assert (new.name, new.error_code, len(new.partitions)) == ("new", 0, 3)
        assert new.partitions[0].leader_id == 7
        assert (bad.name, bad.error_code) == ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert broker.made == ["new"]


async def test_metadata_creates_no_topic_if_client_or_broker_disable_it(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        answer = await broker.ask(metadata_of("new", create=False), 4)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[0].partitions == []
    (tmp_path / "other").mkdir()
    async with broker_in(tmp_path / "other", auto_create_topics_enable=False) as broker:
        answer = await broker.ask(metadata_of("new", create=True), 12)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.made == []


async def test_metadata_has_the_error_of_a_failed_topic_creation(tmp_path: Path) -> None:
    async with broker_in(tmp_path, default_replication_factor=3) as broker:
        answer = await broker.ask(metadata_of("new", create=True), 12)
        assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_concurrent_metadata_requests_for_a_name_create_one_topic(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        answers = await asyncio.gather(*(broker.ask(metadata_of("new", create=True), 12) for _ in range(20)))
        assert {answer.topics[0].error_code for answer in answers} == {0}
        assert len({answer.topics[0].topic_id for answer in answers}) == 1


async def test_metadata_lists_authorized_operations_on_request(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)
        plain = await broker.ask(MetadataRequest(topics=None), 8)
        assert plain.topics[0].topic_authorized_operations == -(2**31)
        request = MetadataRequest(
            topics=None,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        asked = await broker.ask(request, 8)
        # READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: bits 3-8, 10, 11.
        assert asked.topics[0].topic_authorized_operations == 0b1101_1111_1000
        # CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE.
        assert asked.cluster_authorized_operations == 0b1_1111_1010_0000


# CreateTopics


@pytest.mark.parametrize("version", range(8))
async def test_a_created_topic_is_described_in_the_response(tmp_path: Path, version: int) -> None:
    async with broker_in(tmp_path) as broker:
        answer = await broker.ask(new_topics("t", count=3, retention_ms="5"), version)
        (topic,) = answer.topics
        assert (topic.name, topic.error_code) == ("t", 0)
        assert broker.made == ["t"]
        known = broker.metadata_cache.topic("t")
        assert known is not None
        if version >= 7:
            assert topic.topic_id == known.topic_id
        if version >= 5:
            assert (topic.num_partitions, topic.replication_factor) == (3, 1)
            configs = {config.name: config for config in topic.configs}
            retention, segment = configs["retention.ms"], configs["segment.bytes"]
            assert (retention.value, retention.config_source) == ("5", 1)
            assert (segment.value, segment.config_source) == ("1073741824", 5)
            assert not any(config.read_only or config.is_sensitive for config in topic.configs)


async def test_each_topic_that_cannot_be_created_has_its_error(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("old"), 7)
        request = new_topics("old", "ok", "twice", "twice", "a/b")
        answer = await broker.ask(request, 7)
        codes = {topic.name: topic.error_code for topic in answer.topics}
        assert codes == {
            "old": ErrorCode.TOPIC_ALREADY_EXISTS,
            "ok": 0,
            "twice": ErrorCode.INVALID_REQUEST,
            "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert all(topic.error_message for topic in answer.topics if topic.error_code)
        bad = (await broker.ask(new_topics("c", retention_ms="soon"), 7)).topics[0]
        assert bad.error_code == ErrorCode.INVALID_CONFIG
        assert "retention.ms=soon" in bad.error_message
        factor = (await broker.ask(new_topics("d", factor=2), 7)).topics[0]
        assert factor.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_counts_of_minus_one_are_the_broker_defaults(tmp_path: Path) -> None:
    async with broker_in(tmp_path, num_partitions=4) as broker:
        (topic,) = (await broker.ask(new_topics("t", count=-1, factor=-1), 7)).topics
        assert (topic.num_partitions, topic.replication_factor) == (4, 1)


async def test_replicas_can_be_assigned_explicitly(tmp_path: Path) -> None:
    from tidemill.wire.messages.create_topics import CreatableReplicaAssignment

    async with broker_in(tmp_path) as broker:
        request = new_topics("t", count=-1, factor=-1)
        request.topics[0].assignments = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=[7]) for number in (1, 0)
        ]
        (topic,) = (await broker.ask(request, 7)).topics
        assert (topic.error_code, topic.num_partitions) == (0, 2)
        request.topics[0].name = "u"
        request.topics[0].assignments[0].partition_index = 0
        (topic,) = (await broker.ask(request, 7)).topics
        assert topic.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_validate_only_creates_no_topic(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        (topic,) = (await broker.ask(new_topics("t", count=5, validate_only=True), 7)).topics
        assert (topic.error_code, topic.num_partitions, topic.topic_id) == (0, 5, bytes(16))
        assert broker.metadata_cache.topic("t") is None
        assert broker.made == []


async def test_the_error_of_a_topic_without_logs_is_returned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_in(tmp_path) as broker:
        broker.fail_with = KafkaError("no room", ErrorCode.KAFKA_STORAGE_ERROR)
        (topic,) = (await broker.ask(new_topics("t"), 7)).topics
        assert topic.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert topic.error_message == "the topic was created, but no room"


async def test_a_creation_continues_after_its_timeout(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        request = new_topics("t")
        request.timeout_ms = 0
        (topic,) = (await broker.ask(request, 7)).topics
        assert topic.error_code == ErrorCode.REQUEST_TIMED_OUT
        (later,) = (await broker.ask(new_topics("t"), 7)).topics
        assert later.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


# DeleteTopics


@pytest.mark.parametrize("version", range(7))
async def test_topics_are_deleted_by_name(tmp_path: Path, version: int) -> None:
    from tidemill.wire.messages.delete_topics import DeleteTopicState

    def delete(*names: str) -> DeleteTopicsRequest:
        if version >= 6:
            states = [DeleteTopicState(name=name, topic_id=bytes(16)) for name in names]
            return DeleteTopicsRequest(topics=states, topic_names=[], timeout_ms=5000)
        return DeleteTopicsRequest(topics=[], topic_names=list(names), timeout_ms=5000)

    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", "u"), 7)
        known = broker.metadata_cache.topic("t")
        assert known is not None
        gone, missing = (await broker.ask(delete("t", "missing"), version)).responses
        assert (gone.name, gone.error_code) == ("t", 0)
        assert gone.topic_id == (known.topic_id if version >= 6 else bytes(16))
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert list(broker.metadata_cache.topics) == ["u"]


async def test_topics_are_deleted_by_id(tmp_path: Path) -> None:
    from tidemill.wire.messages.delete_topics import DeleteTopicState

    async with broker_in(tmp_path) as broker:
        created = await broker.ask(new_topics("t", "u", "v"), 7)
        ids = {topic.name: topic.topic_id for topic in created.topics}
        states = [
            DeleteTopicState(name=None, topic_id=ids["t"]),
            DeleteTopicState(name=None, topic_id=bytes(range(16))),
            DeleteTopicState(name=None, topic_id=bytes(16)),
            DeleteTopicState(name="u", topic_id=ids["u"]),
            DeleteTopicState(name=None, topic_id=ids["v"]),
            DeleteTopicState(name="v", topic_id=bytes(16)),
        ]
        request = DeleteTopicsRequest(topics=states, topic_names=[], timeout_ms=5000)
        responses = (await broker.ask(request, 6)).responses
        assert [response.error_code for response in responses] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert (responses[0].name, responses[0].topic_id) == ("t", ids["t"])
        assert responses[1].name is None
        assert list(broker.metadata_cache.topics) == ["u", "v"]


async def test_a_deletion_by_id_keeps_a_topic_recreated_under_the_name(tmp_path: Path) -> None:
    """A client sends its deletion twice while the controller is busy."""
    from tidemill.wire.messages.delete_topics import DeleteTopicState

    async with broker_in(tmp_path) as broker:
        old_id = (await broker.ask(new_topics("t"), 7)).topics[0].topic_id
        state = DeleteTopicState(name=None, topic_id=old_id)
        deletion = DeleteTopicsRequest(topics=[state], topic_names=[], timeout_ms=5000)
        hasty = DeleteTopicsRequest(topics=[state], topic_names=[], timeout_ms=10)
        asked = []
        async with broker.controller.context.change_lock():
            for request, version in ((deletion, 6), (new_topics("t"), 7), (deletion, 6), (hasty, 6)):
                asked.append(asyncio.ensure_future(broker.ask(request, version)))
                await asyncio.wait(asked, timeout=0.05)
        gone, made, *late = await asyncio.gather(*asked)
        assert gone.responses[0].error_code == 0
        codes = [one.responses[0].error_code for one in late]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.REQUEST_TIMED_OUT]
        async with broker.controller.context.change_lock():
            """The request without a response in time has ended by now."""
        known = broker.metadata_cache.topic("t")
        assert known is not None
        assert known.topic_id == made.topics[0].topic_id != old_id


async def test_a_deletion_by_name_returns_the_id_of_the_deleted_topic(tmp_path: Path) -> None:
    from tidemill.wire.messages.delete_topics import DeleteTopicState

    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)
        state = DeleteTopicState(name="t", topic_id=bytes(16))
        deletion = DeleteTopicsRequest(topics=[state], topic_names=[], timeout_ms=5000)
        asked = []
        async with broker.controller.context.change_lock():
            for request, version in ((deletion, 6), (new_topics("t"), 7), (deletion, 6)):
                asked.append(asyncio.ensure_future(broker.ask(request, version)))
                await asyncio.wait(asked, timeout=0.05)
        _, made, late = await asyncio.gather(*asked)
        assert late.responses[0].topic_id == made.topics[0].topic_id
        assert broker.metadata_cache.topic("t") is None


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
async def test_disabled_topic_deletion_is_an_error(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async with broker_in(tmp_path, delete_topic_enable=False) as broker:
        await broker.ask(new_topics("t"), 7)
        request = DeleteTopicsRequest(topics=[], topic_names=["t"], timeout_ms=5000)
        (response,) = (await broker.ask(request, version)).responses
        assert response.error_code == code
        assert broker.metadata_cache.topic("t") is not None


# CreatePartitions


@pytest.mark.parametrize("version", range(4))
async def test_topics_grow(tmp_path: Path, version: int) -> None:
    from tidemill.wire.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic

    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", "u", "v"), 7)
        assigned = [CreatePartitionsAssignment(broker_ids=[7])]
        topics = [
            CreatePartitionsTopic(name="t", count=3, assignments=None),
            CreatePartitionsTopic(name="u", count=1, assignments=None),
            CreatePartitionsTopic(name="v", count=2, assignments=assigned),
            CreatePartitionsTopic(name="missing", count=2, assignments=None),
            CreatePartitionsTopic(name="twice", count=2, assignments=None),
            CreatePartitionsTopic(name="twice", count=3, assignments=None),
        ]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=5000, validate_only=True)
        for request.validate_only in (True, False):
            results = (await broker.ask(request, version)).results
            assert {result.name: result.error_code for result in results} == {
                "t": 0,
                "u": ErrorCode.INVALID_PARTITIONS,
                "v": 0,
                "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "twice": ErrorCode.INVALID_REQUEST,
            }
            counts = {name: len(topic.partitions) for name, topic in broker.metadata_cache.topics.items()}
            grown = not request.validate_only
            assert counts == {"t": 3 if grown else 1, "u": 1, "v": 2 if grown else 1}


# DescribeConfigs


def describe(
    kind: int, name: str, *keys: str, synonyms: bool = False, docs: bool = False
) -> DescribeConfigsRequest:
    """A request for one resource's settings."""
    from tidemill.wire.messages.describe_configs import DescribeConfigsResource

    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    return DescribeConfigsRequest(resources=[resource], include_synonyms=synonyms, include_documentation=docs)


@pytest.mark.parametrize("version", range(5))
async def test_a_topics_settings_are_described(tmp_path: Path, version: int) -> None:
    async with broker_in(tmp_path, log_segment_bytes=2_000_000) as broker:
        await broker.ask(new_topics("t", retention_ms="5"), 7)
        request = describe(TOPIC, "t", synonyms=version >= 1, docs=version >= 3)
        (result,) = (await broker.ask(request, version)).results
        assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "t")
        configs = {config.name: config for config in result.configs}
        hidden = {"message.timestamp.difference.max.ms", "internal.segment.bytes"}  # They have no value.
        assert set(configs) == set(TOPIC_KEYS) - hidden
        retention, segment, policy = (
            configs[name] for name in ("retention.ms", "segment.bytes", "cleanup.policy")
        )
        assert (retention.value, segment.value, policy.value) == ("5", "2000000", "delete")
        assert not retention.read_only
        if version == 0:
            assert [retention.is_default, segment.is_default, policy.is_default] == [False, False, True]
            return
        assert [c.config_source for c in (retention, segment, policy)] == [1, 4, 5]
        assert [(s.name, s.value, s.source) for s in segment.synonyms] == [
            ("log.segment.bytes", "2000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
        assert (retention.synonyms[0].name, retention.synonyms[0].source) == ("retention.ms", 1)
        if version >= 3:
            assert [c.config_type for c in (retention, segment, policy)] == [5, 3, 7]
            assert all(config.documentation for config in result.configs)


async def test_only_requested_keys_are_described(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)
        (result,) = (await broker.ask(describe(TOPIC, "t", "segment.bytes", "no.such.key"), 4)).results
        (config,) = result.configs
        assert config.name == "segment.bytes"
        assert (config.synonyms, config.documentation) == ([], None)


async def test_a_brokers_settings_are_described(tmp_path: Path) -> None:
    async with broker_in(tmp_path, num_partitions=3) as broker:
        (result,) = (await broker.ask(describe(BROKER, "7", synonyms=True), 4)).results
        configs = {config.name: config for config in result.configs}
        assert set(configs) == {name for name in BROKER_KEYS if not name.startswith("internal.")}
        partitions = configs["num.partitions"]
        assert (partitions.value, partitions.config_source) == ("3", 4)
        assert configs["broker.rack"].read_only
        assert not configs["log.retention.ms"].read_only
        (empty,) = (await broker.ask(describe(BROKER, ""), 4)).results
        assert (empty.error_code, empty.configs) == (0, [])


async def test_the_documentation_of_a_config_names_the_source_of_its_static_value(tmp_path: Path) -> None:
    """Defaults and dynamic values have no source."""

    async with broker_in(tmp_path, num_partitions=3, log_segment_bytes=2_000_000) as broker:
        await broker.ask(new_topics("t", retention_ms="5"), 7)
        for kind, name, key, expected in (
            (BROKER, "7", "num.partitions", "--set num.partitions"),
            (BROKER, "7", "log.retention.ms", None),
            (TOPIC, "t", "segment.bytes", "--set log.segment.bytes"),
            (TOPIC, "t", "retention.ms", None),
            (TOPIC, "t", "cleanup.policy", None),
        ):
            (result,) = (await broker.ask(describe(kind, name, key, docs=True), 4)).results
            (config,) = result.configs
            assert provenance_in(config.documentation) == expected, key


async def test_a_deprecated_key_is_described_for_a_topic_that_sets_it(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        made = await broker.ask(new_topics("t", message_timestamp_difference_max_ms="5"), 7)
        name = "message.timestamp.difference.max.ms"
        assert [one.value for one in made.topics[0].configs if one.name == name] == ["5"]
        (result,) = (await broker.ask(describe(TOPIC, "t", name), 4)).results
        assert [(one.name, one.value, one.config_source) for one in result.configs] == [(name, "5", 1)]
        plain = await broker.ask(new_topics("u"), 7)
        assert name not in [one.name for one in plain.topics[0].configs]


@pytest.mark.parametrize("include_synonyms", [False, True])
async def test_a_secret_of_the_configuration_is_not_returned(tmp_path: Path, include_synonyms: bool) -> None:
    async with broker_in(tmp_path, **SECRETS) as broker:
        request = describe(BROKER, "7", synonyms=include_synonyms)
        (result,) = (await broker.ask(request, 4)).results
        configs = {config.name: config for config in result.configs}
        for name in SECRETS:
            secret = configs[name.replace("_", ".")]
            assert (secret.is_sensitive, secret.value, secret.config_source) == (True, None, 4)
            assert bool(secret.synonyms) == include_synonyms
            assert all(one.value is None for one in secret.synonyms)
        sensitive = {name for name, config in configs.items() if config.is_sensitive}
        assert sensitive == {name for name, key in BROKER_KEYS.items() if key.type == PASSWORD}
        assert "hunter2" not in repr(result)


async def test_a_stored_secret_of_all_brokers_is_not_returned(tmp_path: Path) -> None:
    """Other programs may have written it to the store."""

    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    path = ConfigNode.path("brokers", DEFAULT_ENTITY)
    settings = {"ssl.key.password": "hunter2", "log.retention.ms": "5"}
    await ensure_paths(store, [parent_of(path)])
    await store.transact([Create(path, ConfigNode.encode(settings))])
    await store.close()
    async with broker_in(tmp_path) as broker:
        (result,) = (await broker.ask(describe(BROKER, "", synonyms=True), 4)).results
        told = {one.name: (one.is_sensitive, one.value) for one in result.configs}
        assert told == {"ssl.key.password": (True, None), "log.retention.ms": (False, "5")}
        assert {one.config_source for one in result.configs} == {3}
        assert "hunter2" not in repr(result)


async def test_a_groups_settings_are_the_brokers(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        (result,) = (await broker.ask(describe(GROUP, "g", synonyms=True), 4)).results
        configs = {config.name: config for config in result.configs}
        timeout = configs["consumer.session.timeout.ms"]
        assert (timeout.value, timeout.config_source) == ("45000", 5)
        assert [synonym.name for synonym in timeout.synonyms] == ["group.consumer.session.timeout.ms"]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "8", ErrorCode.INVALID_REQUEST),
        (BROKER, "seven", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_invalid_resources_are_not_described(
    tmp_path: Path, kind: int, name: str, code: ErrorCode
) -> None:
    async with broker_in(tmp_path) as broker:
        (result,) = (await broker.ask(describe(kind, name), 4)).results
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message


# AlterConfigs, IncrementalAlterConfigs


def change(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """A request that changes one resource: key, operation, value."""
    from tidemill.wire.messages import incremental_alter_configs as messages

    configs = [
        messages.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = messages.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


async def test_settings_that_kafka_refuses_are_refused(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)

        async def code_of(kind: int, name: str, key: str, value: str) -> tuple[int, str]:
            (found,) = (await broker.ask(change(kind, name, (key, SET, value)), 1)).responses
            return found.error_code, found.error_message or ""

        assert (await code_of(TOPIC, "t", "max.compaction.lag.ms", "5000"))[0] == 0
        code, text = await code_of(TOPIC, "t", "min.compaction.lag.ms", "6000")
        assert code == ErrorCode.INVALID_CONFIG
        assert "min.compaction.lag.ms=6000 and max.compaction.lag.ms=5000 do not go together" in text
        assert (await code_of(TOPIC, "t", "min.compaction.lag.ms", "5000"))[0] == 0
        # What comes twice counts once, as with Kafka since 4.2.
        assert (await code_of(TOPIC, "t", "cleanup.policy", "compact,compact"))[0] == 0
        (described,) = (await broker.ask(describe(TOPIC, "t", "cleanup.policy"), 4)).results
        assert [entry.value for entry in described.configs] == ["compact"]
        code, text = await code_of(BROKER, "7", "log.cleaner.threads", "0")
        assert code == ErrorCode.INVALID_REQUEST
        assert "log.cleaner.threads=0: allowed is 1 or more while the broker runs" in text


@pytest.mark.parametrize("version", [0, 1])
async def test_settings_are_changed_one_by_one(tmp_path: Path, version: int) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", retention_ms="5"), 7)
        request = change(
            TOPIC,
            "t",
            ("segment.bytes", SET, "1048576"),
            ("retention.ms", DELETE, None),
            ("cleanup.policy", APPEND, "compact"),
            validate_only=True,
        )
        (checked,) = (await broker.ask(request, version)).responses
        assert (checked.error_code, checked.error_message) == (0, None)
        topic = broker.metadata_cache.topic("t")
        assert topic is not None
        assert topic.config == {"retention.ms": "5"}
        request.validate_only = False
        (done,) = (await broker.ask(request, version)).responses
        assert (done.error_code, done.resource_type, done.resource_name) == (0, TOPIC, "t")
        topic = broker.metadata_cache.topic("t")
        assert topic is not None
        assert topic.config == {"segment.bytes": "1048576", "cleanup.policy": "delete,compact"}
        (bad,) = (await broker.ask(change(TOPIC, "t", ("retention.ms", SET, "x")), version)).responses
        assert bad.error_code == ErrorCode.INVALID_CONFIG
        assert "retention.ms=x" in bad.error_message


def test_a_brokers_settings_change_at_once_and_stay(tmp_path: Path) -> None:
    async def alter() -> None:
        async with broker_in(tmp_path) as broker:
            request = change(BROKER, "7", ("log.retention.ms", SET, "1000"))
            assert (await broker.ask(request, 1)).responses[0].error_code == 0
            assert broker.config.int("log.retention.ms") == 1000
            request = change(
                BROKER, "", ("log.retention.ms", SET, "2000"), ("message.max.bytes", SET, "3000")
            )
            assert (await broker.ask(request, 1)).responses[0].error_code == 0
            assert broker.config.int("log.retention.ms") == 1000
            assert broker.config.int("message.max.bytes") == 3000
            (own,) = (await broker.ask(describe(BROKER, "7", "log.retention.ms", synonyms=True), 4)).results
            assert [(s.value, s.source) for s in own.configs[0].synonyms][:2] == [("1000", 2), ("2000", 3)]
            (every,) = (await broker.ask(describe(BROKER, ""), 4)).results
            assert {c.name: (c.value, c.config_source) for c in every.configs} == {
                "log.retention.ms": ("2000", 3),
                "message.max.bytes": ("3000", 3),
            }
            refused = await broker.ask(change(BROKER, "7", ("broker.id", SET, "8")), 1)
            assert refused.responses[0].error_code == ErrorCode.INVALID_REQUEST

    async def find() -> None:
        async with broker_in(tmp_path) as broker:
            assert broker.config.int("log.retention.ms") == 1000
            assert broker.config.int("message.max.bytes") == 3000
            await broker.ask(change(BROKER, "7", ("log.retention.ms", DELETE, None)), 1)
            assert broker.config.int("log.retention.ms") == 2000
            await broker.ask(new_topics("t"), 7)
            (result,) = (await broker.ask(describe(TOPIC, "t", "retention.ms"), 4)).results
            assert (result.configs[0].value, result.configs[0].config_source) == ("2000", 3)

    asyncio.run(alter())
    asyncio.run(find())


@pytest.mark.parametrize("version", range(3))
async def test_settings_are_replaced_as_a_whole(tmp_path: Path, version: int) -> None:
    from tidemill.wire.messages import alter_configs as messages

    def replace(name: str, **settings: str | None) -> messages.AlterConfigsResource:
        configs = [messages.AlterableConfig(name=k.replace("_", "."), value=v) for k, v in settings.items()]
        return messages.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)

    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", "u", retention_ms="5"), 7)
        request = AlterConfigsRequest(
            resources=[
                replace("t", segment_bytes="1048576"),
                replace("u", retention_ms=None),
                replace("twice"),
                replace("twice"),
            ],
            validate_only=False,
        )
        responses = (await broker.ask(request, version)).responses
        assert [response.error_code for response in responses] == [
            0,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert {name: topic.config for name, topic in broker.metadata_cache.topics.items()} == {
            "t": {"segment.bytes": "1048576"},
            "u": {"retention.ms": "5"},
        }


def test_loggers_are_listed_and_set(tmp_path: Path) -> None:
    logger = logging.getLogger("tidemill.test_handlers_topics")
    before = logger.level

    async def story() -> None:
        async with broker_in(tmp_path) as broker:
            (result,) = (await broker.ask(describe(LOGGER, "7"), 4)).results
            names = [config.name for config in result.configs]
            assert names[0] == "root"
            assert logger.name in names
            assert {config.config_source for config in result.configs} == {6}
            assert not any(config.read_only or config.is_sensitive for config in result.configs)
            await broker.ask(change(LOGGER, "7", (logger.name, SET, "DEBUG"), validate_only=True), 1)
            assert logger.level == before
            await broker.ask(change(LOGGER, "7", (logger.name, SET, "DEBUG")), 1)
            assert logger.level == logging.DEBUG
            (result,) = (await broker.ask(describe(LOGGER, "7", logger.name), 4)).results
            assert result.configs[0].value == "DEBUG"
            for wrong in (
                (logger.name, SET, "LOUD"),
                ("no.such", SET, "INFO"),
                ("zookeeper", SET, "INFO"),
                ("root", DELETE, None),
            ):
                (refused,) = (await broker.ask(change(LOGGER, "7", wrong), 1)).responses
                assert refused.error_code != 0

    try:
        asyncio.run(story())
    finally:
        logger.setLevel(before)


# DescribeCluster


async def test_the_cluster_is_described(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        for version in range(3):
            answer = await broker.ask(
                DescribeClusterRequest(include_cluster_authorized_operations=True), version
            )
            assert (answer.error_code, answer.cluster_id) == (0, broker.metadata_cache.image.cluster_id)
            assert answer.controller_id == 7
            (node,) = answer.brokers
            assert (node.broker_id, node.host, node.port, node.rack) == (
                7,
                "broker.example",
                9092,
                "rack-1",
            )
            assert answer.cluster_authorized_operations == 0b1_1111_1010_0000
        plain = await broker.ask(DescribeClusterRequest(), 0)
        assert plain.cluster_authorized_operations == -(2**31)
        assert plain.store_silent_ms == 0
        broker.store_connectivity.store_disconnected()
        assert (await broker.ask(DescribeClusterRequest(), 0)).store_silent_ms == 1  # the clock is still
        broker.store_connectivity.store_reconnected()
        assert (await broker.ask(DescribeClusterRequest(), 0)).store_silent_ms == 0
        for endpoint_type, code in (
            (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
            (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        ):
            refused = await broker.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
            assert refused.error_code == code
            assert refused.brokers == []


# DescribeTopicPartitions


def pages(
    *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsRequest:
    """A request for a page."""
    from tidemill.wire.messages.describe_topic_partitions import Cursor, TopicRequest

    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None,
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 2000])
async def test_pages_hold_every_partition_once(tmp_path: Path, limit: int) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("b", count=3), 7)
        await broker.ask(new_topics("a", "c", count=2), 7)
        for names in ((), ("a", "b", "c")):
            seen = []
            cursor = None
            while True:
                answer = await broker.ask(pages(*names, limit=limit, cursor=cursor), 0)
                page = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
                assert 1 <= len(page) <= limit
                seen += page
                if answer.next_cursor is None:
                    break
                cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
            assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]


async def test_a_page_has_the_errors_of_missing_topics(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        created = await broker.ask(new_topics("t"), 7)
        answer = await broker.ask(pages("t", "missing", "a/b"), 0)
        found = {topic.name: topic for topic in answer.topics}
        assert {name: topic.error_code for name, topic in found.items()} == {
            "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "t": 0,
        }
        assert found["t"].topic_id == created.topics[0].topic_id
        (partition,) = found["t"].partitions
        assert (partition.leader_id, partition.leader_epoch) == (7, 0)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == (
            [7],
            [7],
            [],
        )


async def test_an_invalid_cursor_is_refused(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t", "u"), 7)
        for cursor in (("other", 0), ("t", -1)):
            answer = await broker.ask(pages("t", "u", cursor=cursor), 0)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST] * 2
        beyond = await broker.ask(pages("t", "u", cursor=("t", 9)), 0)
        assert [len(topic.partitions) for topic in beyond.topics] == [0, 1]
        gone = await broker.ask(pages(cursor=("tt", 3)), 0)
        assert [topic.name for topic in gone.topics] == ["u"]


async def test_the_page_limit_of_the_broker_applies(tmp_path: Path) -> None:
    async with broker_in(tmp_path, max_request_partition_size_limit=2) as broker:
        await broker.ask(new_topics("t", count=5), 7)
        answer = await broker.ask(pages(), 0)
        assert len(answer.topics[0].partitions) == 2
        assert answer.next_cursor.partition_index == 2
