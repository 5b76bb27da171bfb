"""Requests of controllers in other brokers: fencing, settings, recreated topics, invalid requests."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faulty_files import FaultyFiles
from wire_values import message_of

from broker_listeners import IgnoringReplicaManagerListener, RecordingLeaderAndIsrListener
from record_builders import build_batch
from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.broker import Broker
from tidemill.broker.controller_request_handler import ControllerRequestHandler
from tidemill.broker.controller_requests import DURING_DELETION, FULL_REQUEST
from tidemill.broker.dynamic_broker_config import effective_config
from tidemill.broker.dynamic_config_manager import DynamicConfigManager
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.coordination_store import Create, Node, SetData, StoreUnavailable, ensure_paths
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    DEFAULT_ENTITY,
    PERSISTENT_PATHS,
    BrokerNode,
    ConfigChangeNode,
    ConfigNode,
    ConfigResource,
)
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.log.checkpoint_files import read_partition_metadata
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.replication.abstract_fetcher_manager import AbstractFetcherManager
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.apis import ApiKey, request_class
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tidemill.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from tidemill.wire.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tidemill.wire.schema import parse_versions
from unwatched_controller import announce_to, new_controller

NODE, CONTROLLER = 1, 2
FIRST, SECOND = b"1" * 16, b"2" * 16
"""The ids of two topics with the same name."""


class Settings:
    """The part of the store that requests read."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, str]] = {}
        self.unreadable: dict[str, bytes] = {}
        self.registered = 10
        self.controller_epoch: bytes | None = b"2"

    async def get(self, path: str) -> Node:
        if path == BrokerNode.path(NODE):
            return Node(b"", 0, self.registered, 1)
        assert path == CONTROLLER_EPOCH
        if self.controller_epoch is None:
            raise StoreUnavailable("the store does not response")
        return Node(self.controller_epoch, 0, 0, 0)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        names = [path.rpartition("/")[2] for path in paths]
        data = [self.unreadable.get(name, ConfigNode.encode(self.topics.get(name, {}))) for name in names]
        return [Node(one, 0, 0, 0) for one in data]


class BrokerStage:
    """A broker whose logs are in memory."""

    def __init__(self, pool: ThreadPoolExecutor, *directories: str) -> None:
        broker = self.broker = Broker()
        broker.node_id = NODE
        broker.config = BrokerConfig.of()
        broker.clock = SystemClock()
        broker.metadata_cache = MetadataCache()
        broker.log_manager = LogManager(FaultyFiles(), directories or ["/d"])
        broker.log_manager.dirs.lock()
        broker.log_manager.dirs.claim("c" * 22, NODE)
        broker.log_manager.load(0, lambda topic: LogConfig())
        loop = asyncio.get_running_loop()
        broker.replica_manager = ReplicaManager(
            NODE, broker.log_manager, broker.clock, loop, pool, pool, IgnoringReplicaManagerListener()
        )
        self.settings = Settings()
        broker.store = self.settings  # type: ignore[assignment]
        self.listener = RecordingLeaderAndIsrListener()
        self.applier = LeaderAndIsrApplier(
            NODE,
            lambda: broker.config,
            broker.clock,
            broker.log_manager,
            broker.replica_manager,
            broker.metadata_cache,
            removed=self.removed,
            listener=self.listener,
        )
        self.unreadable_settings: list[ConfigResource] = []
        self.requests = ControllerRequestHandler(
            NODE,
            lambda: broker.config,
            broker.clock,
            broker.store,
            broker.replica_manager,
            broker.metadata_cache,
            self.applier,
            settings_unreadable=self.unreadable_settings.append,
        )
        self.applier.broker_epoch = 10
        self.files_are_slow: asyncio.Event | None = None

    async def removed(self) -> None:
        """Waits for slow files, if a test has them."""
        if self.files_are_slow is not None:
            await self.files_are_slow.wait()

    async def lead(
        self,
        name: str,
        topic_id: bytes,
        *indexes: int,
        is_full: bool = False,
        leader: int = NODE,
        leader_epoch: int = 0,
        fails: bool = False,
        is_new: bool = False,
    ) -> None:
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index,
                controller_epoch=1,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=[leader],
                partition_epoch=leader_epoch,
                replicas=[NODE] if leader == NODE else [leader, NODE],
                is_new=is_new,
            )
            for index in indexes
        ]
        topic = LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=states)
        request = LeaderAndIsrRequest(
            controller_id=CONTROLLER,
            controller_epoch=1,
            broker_epoch=10,
            type=FULL_REQUEST if is_full else 0,
            topic_states=[topic],
            live_leaders=[],
        )
        response = await self.requests.leader_and_isr(request)
        assert response.error_code == 0
        assert all(bool(one.error_code) == fails for one in response.topics[0].partition_errors)

    async def update_metadata(
        self,
        *topics: tuple[str, bytes, Sequence[int]],
        leader: int = NODE,
        is_full: bool = False,
        connection: int = 0,
        epoch: int = 1,
        error: int = 0,
        broker_epoch: int = 10,
    ) -> None:
        states = [
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=index,
                        controller_epoch=1,
                        leader=leader,
                        leader_epoch=0,
                        isr=[NODE],
                        zk_version=0,
                        replicas=[NODE],
                        offline_replicas=[],
                    )
                    for index in indexes
                ],
            )
            for name, topic_id, indexes in topics
        ]
        request = UpdateMetadataRequest(
            controller_id=CONTROLLER,
            controller_epoch=epoch,
            broker_epoch=broker_epoch,
            type=FULL_REQUEST if is_full else 0,
            topic_states=states,
            live_brokers=[],
        )
        response = await self.requests.update_metadata(request, connection)
        assert response.error_code == error

    async def stop(
        self,
        name: str,
        index: int,
        connection: int = 0,
        error: int = 0,
        leader_epoch: int = DURING_DELETION,
        partition_error: int = 0,
    ) -> None:
        state = StopReplicaPartitionState(
            partition_index=index, leader_epoch=leader_epoch, delete_partition=True
        )
        topic = StopReplicaTopicState(topic_name=name, partition_states=[state])
        request = StopReplicaRequest(
            controller_id=CONTROLLER, controller_epoch=1, broker_epoch=10, topic_states=[topic]
        )
        response = await self.requests.stop_replica(request, connection)
        assert response.error_code == error
        errors = [] if error else [partition_error]
        assert [one.error_code for one in response.partition_errors] == errors

    def retention_ms(self, name: str) -> int:
        found = self.broker.log_manager.get(TopicPartition(name, 0))
        assert found is not None
        return found.config.retention_ms


@asynccontextmanager
async def broker_stage(*directories: str) -> AsyncIterator[BrokerStage]:
    with ThreadPoolExecutor(1) as pool:
        yield BrokerStage(pool, *directories)


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", ".", "n" * 250, "a\0b"])
async def test_invalid_topic_names_create_neither_directory_nor_topic(name: str) -> None:
    async with broker_stage() as stage:
        with pytest.raises(ProtocolError, match="topic"):
            await stage.lead(name, FIRST, 0)
        with pytest.raises(ProtocolError, match="topic"):
            await stage.update_metadata((name, FIRST, [0]))
        assert not stage.broker.log_manager.logs
        assert not stage.broker.metadata_cache.topics


@pytest.mark.parametrize("index", [-1, 2**31 - 1])
async def test_invalid_partition_indexes_allocate_no_memory(index: int) -> None:
    async with broker_stage() as stage:
        with pytest.raises(ProtocolError, match="partition"):
            await stage.lead("t", FIRST, index)
        with pytest.raises(ProtocolError, match="partition"):
            await stage.update_metadata(("t", FIRST, [index]))
        assert not stage.broker.log_manager.logs
        assert not stage.broker.metadata_cache.topics


async def test_a_broker_applies_a_few_of_many_partitions() -> None:
    async with broker_stage() as stage:
        await stage.lead("t", FIRST, 9_999)
        await stage.update_metadata(("t", FIRST, range(10_000)))
        await stage.update_metadata(("t", FIRST, [10_001]))
        assert stage.broker.replica_manager.find("t", 9_999) is not None
        assert len(stage.broker.metadata_cache.topics["t"].partitions) == 10_002


async def test_a_recreated_topic_does_not_have_the_settings_of_the_former_one() -> None:
    async with broker_stage() as stage:
        stage.settings.topics["t"] = {"retention.ms": "1000"}
        await stage.lead("t", FIRST, 0)
        await stage.update_metadata(("t", FIRST, [0]))
        assert stage.retention_ms("t") == 1000
        await stage.stop("t", 0)
        # The broker receives the deletion of the first topic together with the second one.
        stage.settings.topics["t"] = {"retention.ms": "9000"}
        await stage.lead("t", SECOND, 0)
        assert stage.retention_ms("t") == 9000
        await stage.update_metadata(("t", SECOND, [0]))
        assert stage.broker.metadata_cache.topics["t"].config == {"retention.ms": "9000"}


async def test_settings_changed_between_two_requests_stay_in_effect() -> None:
    async with broker_stage() as stage:
        stage.settings.topics["t"] = {"retention.ms": "1000"}
        await stage.lead("t", FIRST, 0)
        await stage.requests.apply_settings({ConfigResource("topics", "t"): {"retention.ms": "9000"}})
        await stage.update_metadata(("t", FIRST, [0]))
        assert stage.retention_ms("t") == 9000
        assert stage.broker.metadata_cache.topics["t"].config == {"retention.ms": "9000"}


async def test_a_cluster_default_changed_between_two_requests_stays_in_effect() -> None:
    """With the former value this broker would acknowledge records that no other replica has."""

    async with broker_stage() as stage:
        broker = stage.broker

        async def apply(delta: Delta) -> None:  # As the server does.
            broker.config = effective_config(BrokerConfig.of(), delta.image, NODE)

        broker.metadata_cache.on_change(apply)
        stage.settings.topics["own"] = {"min.insync.replicas": "3"}
        await stage.lead("t", FIRST, 0)
        await stage.lead("own", SECOND, 0)
        await stage.requests.apply_settings(
            {ConfigResource("brokers", DEFAULT_ENTITY): {"min.insync.replicas": "2"}}
        )
        await stage.update_metadata(("t", FIRST, [0]), ("own", SECOND, [0]))
        found = [broker.replica_manager.find(name, 0) for name in ("t", "own")]
        assert [one and one.min_insync_replicas for one in found] == [2, 3]


async def test_settings_changed_between_two_requests_are_read_without_their_notification(
    tmp_path: Path,
) -> None:
    async with broker_stage() as stage:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await ensure_paths(store, PERSISTENT_PATHS)
        path = ConfigNode.path("topics", "t")
        before, after = (ConfigNode.encode({"retention.ms": text}) for text in ("1000", "9000"))
        await store.transact([Create(path, before), Create(CONTROLLER_EPOCH, b"2")])
        controller = new_controller(
            store, NODE, BrokerConfig.of, announce_to(stage.applier), stage.broker.clock
        )
        watch = DynamicConfigManager(
            NODE, store, stage.broker.metadata_cache, controller, stage.applier, stage.requests
        )
        try:
            await stage.lead("t", FIRST, 0)
            note = Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "t"), sequential=True)
            await store.transact([SetData(path, after), note])
            watch.start()  # It has processed no notification yet, and reads all settings.
            async with asyncio.timeout(5):
                while stage.retention_ms("t") != 9000:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
            await stage.update_metadata(("t", FIRST, [0]))
            assert stage.broker.metadata_cache.topics["t"].config == {"retention.ms": "9000"}
        finally:
            await watch.stop()
            await store.close()


async def test_settings_read_by_a_replaced_controller_are_applied(tmp_path: Path) -> None:
    """This broker ignores the changes of the replaced controller, and gets no further notification."""

    async with broker_stage() as stage:
        broker = stage.broker
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await ensure_paths(store, PERSISTENT_PATHS)
        controller = new_controller(store, NODE, BrokerConfig.of, announce_to(stage.applier), broker.clock)
        await controller.context.load()
        assert await controller.context.activate()
        stage.applier.controller_epoch += 1
        watch = DynamicConfigManager(
            NODE, store, broker.metadata_cache, controller, stage.applier, stage.requests
        )
        try:
            path = ConfigNode.path("brokers", DEFAULT_ENTITY)
            await store.transact([Create(path, ConfigNode.encode({"min.insync.replicas": "2"}))])
            watch.start()
            async with asyncio.timeout(5):
                while not broker.metadata_cache.image.default_broker_config():  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
            assert broker.metadata_cache.image.default_broker_config() == {"min.insync.replicas": "2"}
        finally:
            await watch.stop()
            await store.close()


async def test_a_new_controller_leads_by_the_minimum_of_the_cluster_that_it_has_just_read() -> None:
    """By the former one it would commit what no other replica has."""

    async with broker_stage() as stage:
        broker = stage.broker
        log = broker.log_manager.create(TopicPartition("t", 0), FIRST, LogConfig(), 0)
        data = build_batch([(0, b"k", b"not committed", None)])
        log.append(parse_batch(data, 0, len(data)), 0, 0)
        partition = PartitionImage(0, NODE, 1, [NODE, CONTROLLER], [NODE], 1)
        image = ClusterImage(
            topics={"t": TopicImage("t", FIRST, (partition,), {})},
            broker_configs={DEFAULT_ENTITY: {"min.insync.replicas": "2"}},
        )
        await stage.applier.apply_delta(Announcement(Delta.between(ClusterImage(), image)))
        led = broker.replica_manager.find("t", 0)
        assert led is not None
        assert (led.is_leader, led.min_insync_replicas, led.high_watermark) == (True, 2, 0)


async def test_settings_read_before_this_broker_became_the_controller_do_not_replace_its_later_ones() -> None:
    async with broker_stage() as stage:
        await stage.lead("t", FIRST, 0)
        await stage.update_metadata(("t", FIRST, [0]))
        stage.files_are_slow = asyncio.Event()
        partition = PartitionImage(0, NODE, 1, [NODE], [NODE], 1)
        now = TopicImage("t", FIRST, (partition,), {"retention.ms": "9000"})
        delta = Delta.between(ClusterImage(), ClusterImage("c", NODE, 2, {}, {"t": now}))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stage.stop("u", 0))  # From the former controller.
            await asyncio.sleep(0)
            before = {ConfigResource("topics", "t"): {"retention.ms": "1000"}}
            tasks.create_task(stage.requests.apply_settings(before))
            await asyncio.sleep(0)
            tasks.create_task(stage.applier.apply_delta(Announcement(delta)))
            await asyncio.sleep(0)
            stage.files_are_slow.set()
        assert stage.retention_ms("t") == 9000
        assert stage.broker.metadata_cache.topics["t"].config == {"retention.ms": "9000"}


async def test_requests_are_applied_with_unreadable_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker_stage() as stage:
        stage.settings.unreadable["t"] = b"{"
        stage.settings.topics["u"] = {"retention.ms": "9000"}
        await stage.lead("t", FIRST, 0)
        await stage.lead("u", SECOND, 0)
        await stage.update_metadata(("t", FIRST, [0]), ("u", SECOND, [0]))
        assert (stage.retention_ms("t"), stage.retention_ms("u")) == (-1, 9000)
        assert stage.unreadable_settings == [ConfigResource("topics", "t")]
        await stage.requests.apply_settings({ConfigResource("topics", "t"): {"retention.ms": "7000"}})
        assert stage.broker.metadata_cache.topics["t"].config == {"retention.ms": "7000"}
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().startswith("/config/topics/t holds '{', which cannot be read")


async def test_only_topics_that_are_marked_as_deleted_are_reported_as_deleted() -> None:
    async with broker_stage() as stage:
        deleted: list[str] = []

        async def note_deleted(delta: Delta) -> None:
            deleted.extend(topic.name for topic in delta.deleted)

        stage.broker.metadata_cache.on_change(note_deleted)
        await stage.update_metadata(*((name, FIRST, [0]) for name in ("kept", "gone", "left-out", "anew")))
        await stage.update_metadata(("gone", FIRST, [0]), leader=DURING_DELETION)
        await stage.update_metadata(("kept", FIRST, [0]), ("anew", SECOND, [0]), is_full=True)
        assert deleted == ["gone", "anew"]
        assert sorted(stage.broker.metadata_cache.topics) == ["anew", "kept"]


async def test_a_topic_that_gets_an_id_is_the_same_topic() -> None:
    """Otherwise the offsets of groups would be deleted. Older versions of Kafka have topics without ids."""

    async with broker_stage() as stage:
        deleted: list[tuple[str, bytes]] = []

        async def note_deleted(delta: Delta) -> None:
            deleted.extend((one.name, one.topic_id) for one in delta.deleted)

        stage.broker.metadata_cache.on_change(note_deleted)
        await stage.update_metadata(("t", ZERO_ID, [0]), ("u", ZERO_ID, [0]))
        await stage.update_metadata(("t", FIRST, [0]), ("u", FIRST, [0]), is_full=True)
        assert deleted == []
        await stage.update_metadata(("t", SECOND, [0]))
        await stage.update_metadata(("u", FIRST, [0]), leader=DURING_DELETION)
        assert deleted == [("t", FIRST), ("u", FIRST)]


@pytest.mark.parametrize("known_id", [FIRST, ZERO_ID])
async def test_no_log_is_created_if_a_failed_directory_may_have_it(known_id: bytes) -> None:
    async with broker_stage("/d", "/e") as stage:
        await stage.update_metadata(("t", known_id, [0]))
        stage.broker.log_manager.dirs.fail_directory("/e", "it is not mounted")
        await stage.lead("t", FIRST, 0, is_full=True, fails=True)
        await stage.lead("u", FIRST, 0)


class Followed(AbstractFetcherManager):
    """Records the partitions to follow."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []

    def add_partition(self, partition: Partition) -> None:
        self.partitions.append(partition)

    def remove_partition(self, partition: Partition) -> None:
        pass


@pytest.mark.parametrize(
    ("leader", "leader_epoch", "is_reported"),
    [(CONTROLLER, 0, False), (CONTROLLER, 7, False), (NODE, 0, False), (NODE, 2, True), (-1, 1, True)],
)
async def test_the_log_of_a_former_topic_is_set_aside_for_the_recreated_one(
    caplog: pytest.LogCaptureFixture, leader: int, leader_epoch: int, is_reported: bool
) -> None:
    async with broker_stage() as stage:
        broker = stage.broker
        broker.replica_manager.replica_fetcher_manager = Followed()
        broker.log_manager.create(TopicPartition("t", 0), FIRST, LogConfig(), 0)
        if is_reported:
            # No other broker has a replica, and this broker has reported its own as missing.
            broker.log_manager.dirs.reported_missing = frozenset([TopicPartition("t", 0)])
        await stage.lead("t", SECOND, 0, leader=leader, leader_epoch=leader_epoch)
        partition = broker.replica_manager.find("t", 0)
        assert partition is not None
        assert not partition.is_offline
        assert partition.log.topic_id == SECOND
        assert partition.log is broker.log_manager.get(TopicPartition("t", 0))
        names = sorted(broker.log_manager.files.list("/d"))
        (aside,) = [name for name in names if name.startswith("t-0.")]
        assert aside.endswith("-stray")
        assert "t-0" in names
        # The deletion of the first topic deletes neither log.
        list(broker.replica_manager.deleting("t", FIRST))
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().startswith("/d/t-0 held a topic of this name with another id")


@pytest.mark.parametrize("has_others", [True, False])
async def test_the_log_of_another_topic_is_kept_if_no_other_broker_has_the_records(has_others: bool) -> None:
    async with broker_stage() as stage:
        broker = stage.broker
        broker.replica_manager.replica_fetcher_manager = Followed() if has_others else None
        broker.log_manager.create(TopicPartition("t", 0), FIRST, LogConfig(), 0)
        # The store may be a restored backup: the partition is not new, and no other broker leads it.
        await stage.lead("t", SECOND, 0, leader_epoch=3 if has_others else 0, fails=True)
        assert "t-0" in broker.log_manager.files.list("/d")
        found = broker.log_manager.get(TopicPartition("t", 0))
        assert found is not None
        assert found.topic_id == FIRST


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_recreated_topic_serves_no_records_of_a_directory_of_the_former_one(
    is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    key = TopicPartition("t", 0)

    async with broker_stage() as stage:
        broker = stage.broker
        broker.replica_manager.replica_fetcher_manager = Followed()
        log = broker.log_manager.create(key, FIRST, LogConfig(), 0)
        data = build_batch([(0, b"k", b"former", None)])
        log.append(parse_batch(data, 0, len(data)), 0, 0)
        files = broker.log_manager.files
        files.rename("/d/t-0", "/kept")
        broker.log_manager.delete(key, 0)
        files.rename("/kept", "/d/t-0")
        # No other broker leads. In a later epoch the partition is not new: the store may be a restored
        # backup.
        await stage.lead("t", SECOND, 0, leader_epoch=0 if is_first else 3, fails=not is_first)
        partition = broker.replica_manager.find("t", 0)
        assert partition is not None
        assert partition.log.end_offset == 0
        (former,) = [name for name in files.list("/d") if name.endswith("-stray" if is_first else "t-0")]
        assert read_partition_metadata(files, f"/d/{former}/partition.metadata") == FIRST
        if not is_first:
            assert "holds a topic of this name with another id" in partition.offline_reason
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "/d/t-0 held a topic of this name" in told if is_first else "/d/t-0 holds a topic of this" in told


async def test_a_request_for_another_broker_at_the_address_is_refused() -> None:
    async with broker_stage() as stage:
        await stage.update_metadata(("t", FIRST, [0]), broker_epoch=11, error=ErrorCode.STALE_BROKER_EPOCH)
        await stage.update_metadata(("t", FIRST, [0]), broker_epoch=9, error=ErrorCode.STALE_BROKER_EPOCH)
        assert not stage.broker.metadata_cache.topics
        # The controller may know the new registration earlier than this broker.
        stage.settings.registered = 11
        await stage.update_metadata(("t", FIRST, [0]), broker_epoch=11)
        assert list(stage.broker.metadata_cache.topics) == ["t"]


async def test_an_unknown_controller_epoch_is_refused() -> None:
    async with broker_stage() as stage:
        await stage.update_metadata(("t", FIRST, [0]))
        await stage.update_metadata(("u", FIRST, [0]), epoch=2**31 - 1, error=ErrorCode.NOT_CONTROLLER)
        await stage.update_metadata(("v", SECOND, [0]))
        await stage.update_metadata(("w", b"3" * 16, [0]), epoch=2)
        assert sorted(stage.broker.metadata_cache.topics) == ["t", "v", "w"]
        # While the store does not respond, a new controller epoch is accepted.
        stage.settings.controller_epoch = None
        await stage.update_metadata(("x", b"4" * 16, [0]), epoch=3)


REQUESTS_TRIED = 300
BYTES_MAX = 32_000_000


@pytest.mark.parametrize("key", [ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA])
async def test_random_requests_raise_only_protocol_errors(key: ApiKey) -> None:
    random = Random(int(key))

    async def story(stage: BrokerStage) -> None:
        handler: Any = {
            ApiKey.LEADER_AND_ISR: stage.requests.leader_and_isr,
            ApiKey.STOP_REPLICA: stage.requests.stop_replica,
            ApiKey.UPDATE_METADATA: stage.requests.update_metadata,
        }[key]
        first, last = parse_versions(request_class(key).versions_)
        taken = 0
        for number in range(REQUESTS_TRIED):
            message: Any = message_of(
                random, request_class(key), random.randrange(first, last + 1), items_max=3
            )
            message.controller_epoch, message.broker_epoch = 1, 10
            if number % 2:
                for topic in message.topic_states:
                    topic.topic_name = random.choice("abc")
            try:
                response = await handler(message)
            except ProtocolError:
                continue
            taken += response.error_code == 0
        assert taken > REQUESTS_TRIED / 10
        assert len(stage.broker.log_manager.logs) < REQUESTS_TRIED

    tracemalloc.start()
    try:
        async with broker_stage() as stage:
            await story(stage)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < BYTES_MAX


def of_one_partition(state: LeaderAndIsrPartitionState) -> LeaderAndIsrRequest:
    """A LeaderAndIsr request for one partition of ``t``."""
    topic = LeaderAndIsrTopicState(topic_name="t", topic_id=FIRST, partition_states=[state])
    return LeaderAndIsrRequest(
        controller_id=CONTROLLER,
        controller_epoch=1,
        broker_epoch=10,
        topic_states=[topic],
        live_leaders=[],
    )


async def test_no_log_is_created_for_a_partition_without_a_replica_on_this_broker() -> None:
    async with broker_stage() as stage:
        state = LeaderAndIsrPartitionState(
            partition_index=0, controller_epoch=1, leader=7, isr=[7], replicas=[7, 8]
        )
        response = await stage.requests.leader_and_isr(of_one_partition(state))
        assert [one.error_code for one in response.topics[0].partition_errors] == [
            ErrorCode.KAFKA_STORAGE_ERROR
        ]
        assert not stage.broker.log_manager.logs


async def test_a_leader_has_the_adding_replicas_of_a_reassignment() -> None:
    async with broker_stage() as stage:
        state = LeaderAndIsrPartitionState(
            partition_index=0,
            controller_epoch=1,
            leader=NODE,
            isr=[NODE, 7],
            replicas=[8, 9, NODE, 7],
            adding_replicas=[8, 9],
            removing_replicas=[NODE, 7],
        )
        await stage.requests.leader_and_isr(of_one_partition(state))
        partition = stage.broker.partition("t", 0)
        assert partition.adding == (8, 9)
        assert not partition.is_under_replicated


@pytest.mark.parametrize(
    ("leader_epoch", "is_late"),
    [(0, True), (1, True), (4, True), (5, False), (6, False), (-1, False), (DURING_DELETION, False)],
)
async def test_a_late_stop_does_not_remove_a_replica_that_is_assigned_again(
    leader_epoch: int, is_late: bool
) -> None:
    async with broker_stage() as stage:
        await stage.lead("t", FIRST, 0, leader_epoch=5)
        error = ErrorCode.FENCED_LEADER_EPOCH if is_late else ErrorCode.NONE
        await stage.stop("t", 0, leader_epoch=leader_epoch, partition_error=error)
        assert (stage.broker.replica_manager.find("t", 0) is not None) == is_late
        assert (stage.broker.log_manager.get(TopicPartition("t", 0)) is not None) == is_late


async def test_a_late_request_over_a_replaced_connection_is_refused() -> None:
    async with broker_stage() as stage:
        await stage.update_metadata(("t", FIRST, [0]), connection=5)
        await stage.stop("t", 0, connection=7)
        await stage.update_metadata(("t", FIRST, [0]), leader=DURING_DELETION, connection=7)
        await stage.lead("t", SECOND, 0)
        await stage.update_metadata(("t", SECOND, [0]), connection=7)
        # The deletion of the first topic was sent before its connection broke.
        await stage.stop("t", 0, connection=5, error=ErrorCode.STALE_BROKER_EPOCH)
        await stage.update_metadata(
            ("t", FIRST, [0]), leader=DURING_DELETION, connection=5, error=ErrorCode.STALE_BROKER_EPOCH
        )
        assert stage.broker.metadata_cache.topics["t"].topic_id == SECOND
        assert stage.broker.replica_manager.find("t", 0) is not None
        assert stage.broker.log_manager.get(TopicPartition("t", 0)) is not None
        # The connection of another controller may be older than all of these.
        await stage.update_metadata(("u", FIRST, [0]), connection=2, epoch=2)
        await stage.update_metadata(("v", FIRST, [0]), connection=9, error=ErrorCode.STALE_CONTROLLER_EPOCH)
        assert sorted(stage.broker.metadata_cache.topics) == ["t", "u"]


async def test_stopped_replicas_leave_no_topic_entry() -> None:
    async with broker_stage() as stage:
        await stage.lead("t", FIRST, 0, 1)
        await stage.stop("t", 0)
        topics = stage.broker.replica_manager.topics
        assert list(topics.by_name) == [b"t"]
        await stage.stop("t", 1)
        assert not topics.by_name
        assert not topics.by_id
        await stage.lead("t", FIRST, 1)
        assert stage.broker.replica_manager.find("t", 1) is not None


async def test_stray_logs_are_logged_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker_stage() as stage:
        broker = stage.broker
        for index in range(3):
            broker.log_manager.create(TopicPartition("t", index), FIRST, LogConfig(), 0)
        await stage.lead("t", FIRST, 1)
        assert not caplog.records
        await stage.lead("t", FIRST, 1, is_full=True)
        assert len(broker.log_manager.logs) == 3
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "directories of partitions of which this broker has no replica: 2, /d/t-0 for instance"
    )


class SlowDisk(Clock):
    """A clock that advances by 6 ms at each reading, as if the creation of a log took so long."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        self.now += 0.006
        return self.now


async def test_creating_many_logs_yields_to_the_event_loop() -> None:
    async with broker_stage() as stage:
        stage.requests._clock = SlowDisk()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.get_running_loop().create_task(others())
        await stage.lead("t", FIRST, *range(20))
        beside.cancel()
        assert turns >= 10
