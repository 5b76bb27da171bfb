"""Commands of controllers, as a broker takes them: what it believes, and what becomes of topics made anew."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from wire_values import message_of

from tidemill.broker.broker import Broker
from tidemill.broker.commands import DURING_DELETION, WHOLE_IMAGE, Commands
from tidemill.broker.metadata import MetadataCache, effective_config
from tidemill.broker.settings_watch import SettingsWatch
from tidemill.controller.shell import Controller
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    DEFAULT_ENTITY,
    PERSISTENT_PATHS,
    BrokerNode,
    ConfigChangeNode,
    ConfigNode,
)
from tidemill.coordination.port import Create, Node, SetData, StoreUnavailable, ensure_paths
from tidemill.log.checkpoints import read_partition_metadata
from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.ports import Clock
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.follows import Follows
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.testing.files import FaultyFiles
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

NODE, CONTROLLER = 1, 2
FIRST, SECOND = b"1" * 16, b"2" * 16
"""Ids of two topics of one name."""


class Settings:
    """The store, as far as commands ask it."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, str]] = {}
        self.spoilt: dict[str, bytes] = {}
        self.registered = 10
        self.controller_epoch: bytes | None = b"2"

    async def get(self, path: str) -> Node:
        if path == BrokerNode.path(NODE):
            return Node(b"", 0, self.registered, 1)
        assert path == CONTROLLER_EPOCH
        if self.controller_epoch is None:
            raise StoreUnavailable("the store does not answer")
        return Node(self.controller_epoch, 0, 0, 0)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        names = [path.rpartition("/")[2] for path in paths]
        data = [self.spoilt.get(name, ConfigNode.encode(self.topics.get(name, {}))) for name in names]
        return [Node(one, 0, 0, 0) for one in data]


class Commanded:
    """A broker whose logs are in memory."""

    def __init__(self, pool: ThreadPoolExecutor, *directories: str) -> None:
        broker = self.broker = Broker()
        broker.node_id = NODE
        broker.config = BrokerConfig.of()
        broker.clock = SystemClock()
        broker.metadata = MetadataCache()
        broker.logs = LogManager(FaultyFiles(), directories or ["/d"])
        broker.logs.lock()
        broker.logs.claim("c" * 22, NODE)
        broker.logs.load(0, lambda topic: LogConfig())
        loop = asyncio.get_running_loop()
        broker.partitions = ReplicaManager(NODE, broker.logs, broker.clock, loop, pool, pool)
        self.settings = Settings()
        broker.store = self.settings  # type: ignore[assignment]
        self.commands = Commands(broker, self.removed)
        self.commands.broker_epoch = 10
        self.files_are_slow: asyncio.Event | None = None

    async def removed(self) -> None:
        """Nothing is left to be done, but it may take a while."""
        if self.files_are_slow is not None:
            await self.files_are_slow.wait()

    async def lead(
        self,
        name: str,
        topic_id: bytes,
        *indexes: int,
        whole: bool = False,
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
            type=WHOLE_IMAGE if whole else 0,
            topic_states=[topic],
            live_leaders=[],
        )
        answer = await self.commands.leader_and_isr(request)
        assert answer.error_code == 0
        assert all(bool(one.error_code) == fails for one in answer.topics[0].partition_errors)

    async def tell(
        self,
        *topics: tuple[str, bytes, Sequence[int]],
        leader: int = NODE,
        whole: bool = False,
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
            type=WHOLE_IMAGE if whole else 0,
            topic_states=states,
            live_brokers=[],
        )
        answer = await self.commands.update_metadata(request, connection)
        assert answer.error_code == error

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
        answer = await self.commands.stop_replica(request, connection)
        assert answer.error_code == error
        errors = [] if error else [partition_error]
        assert [one.error_code for one in answer.partition_errors] == errors

    def retention_ms(self, name: str) -> int:
        found = self.broker.logs.get(TopicPartition(name, 0))
        assert found is not None
        return found.config.retention_ms


def commanded(test: Callable[[Commanded], Awaitable[None]], *directories: str) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            await test(Commanded(pool, *directories))

    asyncio.run(run())


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", ".", "n" * 250, "a\0b"])
def test_names_that_no_topic_has_make_no_directory_and_no_topic(name: str) -> None:
    async def story(commanded: Commanded) -> None:
        with pytest.raises(ProtocolError, match="topic"):
            await commanded.lead(name, FIRST, 0)
        with pytest.raises(ProtocolError, match="topic"):
            await commanded.tell((name, FIRST, [0]))
        assert not commanded.broker.logs.logs
        assert not commanded.broker.metadata.topics

    commanded(story)


@pytest.mark.parametrize("index", [-1, 2**31 - 1])
def test_numbers_that_no_partition_has_cost_no_memory(index: int) -> None:
    async def story(commanded: Commanded) -> None:
        with pytest.raises(ProtocolError, match="partition"):
            await commanded.lead("t", FIRST, index)
        with pytest.raises(ProtocolError, match="partition"):
            await commanded.tell(("t", FIRST, [index]))
        assert not commanded.broker.logs.logs
        assert not commanded.broker.metadata.topics

    commanded(story)


def test_a_broker_that_has_few_of_many_partitions_takes_them() -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.lead("t", FIRST, 9_999)
        await commanded.tell(("t", FIRST, range(10_000)))
        await commanded.tell(("t", FIRST, [10_001]))
        assert commanded.broker.partitions.find("t", 9_999) is not None
        assert len(commanded.broker.metadata.topics["t"].partitions) == 10_002

    commanded(story)


def test_a_topic_made_anew_has_nothing_of_the_settings_of_the_one_before() -> None:
    async def story(commanded: Commanded) -> None:
        commanded.settings.topics["t"] = {"retention.ms": "1000"}
        await commanded.lead("t", FIRST, 0)
        await commanded.tell(("t", FIRST, [0]))
        assert commanded.retention_ms("t") == 1000
        await commanded.stop("t", 0)
        # That the first is gone is told together with the second: it was not heard of before.
        commanded.settings.topics["t"] = {"retention.ms": "9000"}
        await commanded.lead("t", SECOND, 0)
        assert commanded.retention_ms("t") == 9000
        await commanded.tell(("t", SECOND, [0]))
        assert commanded.broker.metadata.topics["t"].config == {"retention.ms": "9000"}

    commanded(story)


def test_settings_that_change_between_two_commands_hold() -> None:
    async def story(commanded: Commanded) -> None:
        commanded.settings.topics["t"] = {"retention.ms": "1000"}
        await commanded.lead("t", FIRST, 0)
        await commanded.commands.take_settings({("topics", "t"): {"retention.ms": "9000"}})
        await commanded.tell(("t", FIRST, [0]))
        assert commanded.retention_ms("t") == 9000
        assert commanded.broker.metadata.topics["t"].config == {"retention.ms": "9000"}

    commanded(story)


def test_a_minimum_of_the_cluster_that_changes_between_two_commands_holds() -> None:
    """By the former one this broker would acknowledge what no other replica has, for good."""

    async def story(commanded: Commanded) -> None:
        broker = commanded.broker

        async def apply(delta: Delta) -> None:  # As the server does, for what it knows of.
            broker.config = effective_config(BrokerConfig.of(), delta.image, NODE)

        broker.metadata.on_change(apply)
        commanded.settings.topics["own"] = {"min.insync.replicas": "3"}
        await commanded.lead("t", FIRST, 0)
        await commanded.lead("own", SECOND, 0)
        await commanded.commands.take_settings({("brokers", DEFAULT_ENTITY): {"min.insync.replicas": "2"}})
        await commanded.tell(("t", FIRST, [0]), ("own", SECOND, [0]))
        found = [broker.partitions.find(name, 0) for name in ("t", "own")]
        assert [one and one.min_insync_replicas for one in found] == [2, 3]

    commanded(story)


def test_settings_that_change_between_two_commands_hold_where_notes_were_missed(tmp_path: Path) -> None:
    async def story(commanded: Commanded) -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await ensure_paths(store, PERSISTENT_PATHS)
        path = ConfigNode.path("topics", "t")
        before, after = (ConfigNode.encode({"retention.ms": text}) for text in ("1000", "9000"))
        await store.transact([Create(path, before), Create(CONTROLLER_EPOCH, b"2")])
        commanded.broker.store = store
        commanded.broker.commands = commanded.commands
        commanded.broker.controller = Controller(
            store, NODE, BrokerConfig.of, commanded.commands.carry_out, commanded.broker.clock
        )
        watch = SettingsWatch(commanded.broker)
        try:
            await commanded.lead("t", FIRST, 0)
            note = Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "t"), sequential=True)
            await store.transact([SetData(path, after), note])
            watch.start()  # It has seen no note yet, and reads all that this broker knows of.
            async with asyncio.timeout(5):
                while commanded.retention_ms("t") != 9000:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            await commanded.tell(("t", FIRST, [0]))
            assert commanded.broker.metadata.topics["t"].config == {"retention.ms": "9000"}
        finally:
            await watch.stop()
            await store.close()

    commanded(story)


def test_settings_hold_that_a_controller_reads_after_a_later_one_has_sent_commands(tmp_path: Path) -> None:
    """What it announces is not carried out, and no note has this broker read them once more."""

    async def story(commanded: Commanded) -> None:
        broker = commanded.broker
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await ensure_paths(store, PERSISTENT_PATHS)
        broker.store, broker.commands = store, commanded.commands
        broker.controller = Controller(
            store, NODE, BrokerConfig.of, commanded.commands.carry_out, broker.clock
        )
        await broker.controller.load()
        assert await broker.controller.activate()
        commanded.commands.controller_epoch += 1
        watch = SettingsWatch(broker)
        try:
            path = ConfigNode.path("brokers", DEFAULT_ENTITY)
            await store.transact([Create(path, ConfigNode.encode({"min.insync.replicas": "2"}))])
            watch.start()
            async with asyncio.timeout(5):
                while not broker.metadata.image.default_broker_config():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert broker.metadata.image.default_broker_config() == {"min.insync.replicas": "2"}
        finally:
            await watch.stop()
            await store.close()

    commanded(story)


def test_a_new_controller_leads_by_the_minimum_of_the_cluster_that_it_has_just_read() -> None:
    """By the former one it would commit what no other replica has."""

    async def story(commanded: Commanded) -> None:
        broker = commanded.broker
        log = broker.logs.create(TopicPartition("t", 0), FIRST, LogConfig(), 0)
        data = build_batch([(0, b"k", b"not committed", None)])
        log.append([parse_batch(data, 0, len(data))], 0, 0)
        partition = PartitionImage(0, NODE, 1, [NODE, CONTROLLER], [NODE], 1)
        image = ClusterImage(
            topics={"t": TopicImage("t", FIRST, (partition,), {})},
            broker_configs={DEFAULT_ENTITY: {"min.insync.replicas": "2"}},
        )
        await commanded.commands.carry_out(Delta.between(ClusterImage(), image))
        led = broker.partitions.find("t", 0)
        assert led is not None
        assert (led.is_leader, led.min_insync_replicas, led.high_watermark) == (True, 2, 0)

    commanded(story)


def test_settings_read_before_this_broker_took_the_office_come_not_after_those_of_the_controller() -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.lead("t", FIRST, 0)
        await commanded.tell(("t", FIRST, [0]))
        commanded.files_are_slow = asyncio.Event()
        partition = PartitionImage(0, NODE, 1, [NODE], [NODE], 1)
        now = TopicImage("t", FIRST, (partition,), {"retention.ms": "9000"})
        delta = Delta.between(ClusterImage(), ClusterImage("c", NODE, 2, {}, {"t": now}))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commanded.stop("u", 0))  # Of the controller before.
            await asyncio.sleep(0)
            before = {("topics", "t"): {"retention.ms": "1000"}}
            tasks.create_task(commanded.commands.take_settings(before))
            await asyncio.sleep(0)
            tasks.create_task(commanded.commands.carry_out(delta))
            await asyncio.sleep(0)
            commanded.files_are_slow.set()
        assert commanded.retention_ms("t") == 9000
        assert commanded.broker.metadata.topics["t"].config == {"retention.ms": "9000"}

    commanded(story)


def test_settings_that_cannot_be_read_keep_no_command_from_being_carried_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(commanded: Commanded) -> None:
        commanded.settings.spoilt["t"] = b"{"
        commanded.settings.topics["u"] = {"retention.ms": "9000"}
        missed: list[tuple[str, str]] = []
        commanded.commands.settings_unreadable = lambda kind, name: missed.append((kind, name))
        await commanded.lead("t", FIRST, 0)
        await commanded.lead("u", SECOND, 0)
        await commanded.tell(("t", FIRST, [0]), ("u", SECOND, [0]))
        assert (commanded.retention_ms("t"), commanded.retention_ms("u")) == (-1, 9000)
        assert missed == [("topics", "t")]
        await commanded.commands.take_settings({("topics", "t"): {"retention.ms": "7000"}})
        assert commanded.broker.metadata.topics["t"].config == {"retention.ms": "7000"}

    commanded(story)
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().startswith("/config/topics/t holds '{', which cannot be read")


def test_only_topics_that_are_said_to_be_deleted_are_forgotten() -> None:
    async def story(commanded: Commanded) -> None:
        deleted: list[str] = []
        commanded.broker.metadata.on_change(lambda delta: deleted.extend(t.name for t in delta.deleted))
        await commanded.tell(*((name, FIRST, [0]) for name in ("kept", "gone", "left-out", "anew")))
        await commanded.tell(("gone", FIRST, [0]), leader=DURING_DELETION)
        await commanded.tell(("kept", FIRST, [0]), ("anew", SECOND, [0]), whole=True)
        assert deleted == ["gone", "anew"]
        assert sorted(commanded.broker.metadata.topics) == ["anew", "kept"]

    commanded(story)


def test_a_topic_that_gets_an_id_is_not_taken_for_another() -> None:
    """What groups have read of it would be forgotten. Older versions of Kafka gave no ids."""

    async def story(commanded: Commanded) -> None:
        deleted: list[tuple[str, bytes]] = []
        commanded.broker.metadata.on_change(
            lambda delta: deleted.extend((one.name, one.topic_id) for one in delta.deleted)
        )
        await commanded.tell(("t", ZERO_ID, [0]), ("u", ZERO_ID, [0]))
        await commanded.tell(("t", FIRST, [0]), ("u", FIRST, [0]), whole=True)
        assert deleted == []
        await commanded.tell(("t", SECOND, [0]))
        await commanded.tell(("u", FIRST, [0]), leader=DURING_DELETION)
        assert deleted == [("t", FIRST), ("u", FIRST)]

    commanded(story)


@pytest.mark.parametrize("known_id", [FIRST, ZERO_ID])
def test_no_log_is_made_beside_one_that_a_failed_disk_may_have(known_id: bytes) -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.tell(("t", known_id, [0]))
        commanded.broker.logs.fail_directory("/e", "it is not mounted")
        await commanded.lead("t", FIRST, 0, whole=True, fails=True)
        await commanded.lead("u", FIRST, 0)

    commanded(story, "/d", "/e")


class Followed(Follows):
    """Follows nobody, and notes whom it should."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []

    def follow(self, partition: Partition) -> None:
        self.partitions.append(partition)

    def leave(self, partition: Partition) -> None:
        pass


@pytest.mark.parametrize(
    ("leader", "leader_epoch", "is_reported"),
    [(CONTROLLER, 0, False), (CONTROLLER, 7, False), (NODE, 0, False), (NODE, 2, True), (-1, 1, True)],
)
def test_a_topic_made_anew_while_a_broker_was_away_begins_there_and_the_old_one_makes_room(
    caplog: pytest.LogCaptureFixture, leader: int, leader_epoch: int, is_reported: bool
) -> None:
    async def story(commanded: Commanded) -> None:
        broker = commanded.broker
        broker.partitions.following = Followed()
        broker.logs.create(TopicPartition("t", 0), FIRST, LogConfig(), 0)
        if is_reported:
            # Nobody else has a replica: the controller has heard that there is none here.
            broker.logs.reported_missing = frozenset([TopicPartition("t", 0)])
        await commanded.lead("t", SECOND, 0, leader=leader, leader_epoch=leader_epoch)
        partition = broker.partitions.find("t", 0)
        assert partition is not None
        assert not partition.failed
        assert partition.log.topic_id == SECOND
        assert partition.log is broker.logs.get(TopicPartition("t", 0))
        names = sorted(broker.logs.files.list("/d"))
        (aside,) = [name for name in names if name.startswith("t-0.")]
        assert aside.endswith("-stray")
        assert "t-0" in names
        # What is said of the first topic does not reach the files of either.
        list(broker.partitions.removing("t", FIRST))

    commanded(story)
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().startswith("/d/t-0 held a topic of this name with another id")


@pytest.mark.parametrize("has_others", [True, False])
def test_a_log_of_another_topic_stays_where_only_this_broker_could_have_the_records(has_others: bool) -> None:
    async def story(commanded: Commanded) -> None:
        broker = commanded.broker
        broker.partitions.following = Followed() if has_others else None
        broker.logs.create(TopicPartition("t", 0), FIRST, LogConfig(), 0)
        # The store may be an old one that was brought back: this is no new partition, and nobody else leads.
        await commanded.lead("t", SECOND, 0, leader_epoch=3 if has_others else 0, fails=True)
        assert "t-0" in broker.logs.files.list("/d")
        found = broker.logs.get(TopicPartition("t", 0))
        assert found is not None
        assert found.topic_id == FIRST

    commanded(story)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_topic_made_anew_serves_no_record_of_a_directory_that_the_former_one_left(
    is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    key = TopicPartition("t", 0)

    async def story(commanded: Commanded) -> None:
        broker = commanded.broker
        broker.partitions.following = Followed()
        log = broker.logs.create(key, FIRST, LogConfig(), 0)
        data = build_batch([(0, b"k", b"former", None)])
        log.append([parse_batch(data, 0, len(data))], 0, 0)
        files = broker.logs.files
        files.rename("/d/t-0", "/kept")
        broker.logs.delete(key, 0)
        files.rename("/kept", "/d/t-0")
        # Nobody else leads. With a later epoch it is no new partition: the store may be an old one.
        await commanded.lead("t", SECOND, 0, leader_epoch=0 if is_first else 3, fails=not is_first)
        partition = broker.partitions.find("t", 0)
        assert partition is not None
        assert partition.log.end_offset == 0
        (former,) = [name for name in files.list("/d") if name.endswith("-stray" if is_first else "t-0")]
        assert read_partition_metadata(files, f"/d/{former}/partition.metadata") == FIRST
        if not is_first:
            assert "holds a topic of this name with another id" in partition.failed

    commanded(story)
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "/d/t-0 held a topic of this name" in told if is_first else "/d/t-0 holds a topic of this" in told


def test_a_command_for_another_broker_that_had_the_address_is_refused() -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.tell(("t", FIRST, [0]), broker_epoch=11, error=ErrorCode.STALE_BROKER_EPOCH)
        await commanded.tell(("t", FIRST, [0]), broker_epoch=9, error=ErrorCode.STALE_BROKER_EPOCH)
        assert not commanded.broker.metadata.topics
        # The controller may hear sooner than this broker that it has registered anew.
        commanded.settings.registered = 11
        await commanded.tell(("t", FIRST, [0]), broker_epoch=11)
        assert list(commanded.broker.metadata.topics) == ["t"]

    commanded(story)


def test_an_epoch_that_no_controller_had_shuts_out_none_to_come() -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.tell(("t", FIRST, [0]))
        await commanded.tell(("u", FIRST, [0]), epoch=2**31 - 1, error=ErrorCode.NOT_CONTROLLER)
        await commanded.tell(("v", SECOND, [0]))
        await commanded.tell(("w", b"3" * 16, [0]), epoch=2)
        assert sorted(commanded.broker.metadata.topics) == ["t", "v", "w"]
        # A controller is believed while the store does not answer: it may be the only one to be had.
        commanded.settings.controller_epoch = None
        await commanded.tell(("x", b"4" * 16, [0]), epoch=3)

    commanded(story)


COMMANDS_TRIED = 300
BYTES_MAX = 32_000_000


@pytest.mark.parametrize("key", [ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA])
def test_commands_without_sense_raise_nothing_else_than_that_they_make_none(key: ApiKey) -> None:
    random = Random(int(key))

    async def story(commanded: Commanded) -> None:
        carry_out: Any = {
            ApiKey.LEADER_AND_ISR: commanded.commands.leader_and_isr,
            ApiKey.STOP_REPLICA: commanded.commands.stop_replica,
            ApiKey.UPDATE_METADATA: commanded.commands.update_metadata,
        }[key]
        first, last = parse_versions(request_class(key).versions_)
        taken = 0
        for number in range(COMMANDS_TRIED):
            message: Any = message_of(
                random, request_class(key), random.randrange(first, last + 1), items_max=3
            )
            message.controller_epoch, message.broker_epoch = 1, 10
            if number % 2:
                for topic in message.topic_states:
                    topic.topic_name = random.choice("abc")
            try:
                answer = await carry_out(message)
            except ProtocolError:
                continue
            taken += answer.error_code == 0
        assert taken > COMMANDS_TRIED / 10
        assert len(commanded.broker.logs.logs) < COMMANDS_TRIED

    tracemalloc.start()
    try:
        commanded(story)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < BYTES_MAX


def of_one_partition(state: LeaderAndIsrPartitionState) -> LeaderAndIsrRequest:
    """A controller's request for a partition of ``t``."""
    topic = LeaderAndIsrTopicState(topic_name="t", topic_id=FIRST, partition_states=[state])
    return LeaderAndIsrRequest(
        controller_id=CONTROLLER,
        controller_epoch=1,
        broker_epoch=10,
        topic_states=[topic],
        live_leaders=[],
    )


def test_no_log_is_made_of_a_partition_without_a_replica_here() -> None:
    async def story(commanded: Commanded) -> None:
        state = LeaderAndIsrPartitionState(
            partition_index=0, controller_epoch=1, leader=7, isr=[7], replicas=[7, 8]
        )
        answer = await commanded.commands.leader_and_isr(of_one_partition(state))
        assert [one.error_code for one in answer.topics[0].partition_errors] == [
            ErrorCode.KAFKA_STORAGE_ERROR
        ]
        assert not commanded.broker.logs.logs

    commanded(story)


def test_a_leader_is_told_which_replicas_a_move_brings_in() -> None:
    async def story(commanded: Commanded) -> None:
        state = LeaderAndIsrPartitionState(
            partition_index=0,
            controller_epoch=1,
            leader=NODE,
            isr=[NODE, 7],
            replicas=[8, 9, NODE, 7],
            adding_replicas=[8, 9],
            removing_replicas=[NODE, 7],
        )
        await commanded.commands.leader_and_isr(of_one_partition(state))
        partition = commanded.broker.partition("t", 0)
        assert partition.adding == (8, 9)
        assert not partition.is_under_replicated

    commanded(story)


@pytest.mark.parametrize(
    ("leader_epoch", "is_late"), [(4, True), (5, False), (6, False), (-1, False), (DURING_DELETION, False)]
)
def test_a_replica_that_was_moved_away_and_back_stays_when_the_first_removal_comes_late(
    leader_epoch: int, is_late: bool
) -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.lead("t", FIRST, 0, leader_epoch=5)
        error = ErrorCode.FENCED_LEADER_EPOCH if is_late else ErrorCode.NONE
        await commanded.stop("t", 0, leader_epoch=leader_epoch, partition_error=error)
        assert (commanded.broker.partitions.find("t", 0) is not None) == is_late
        assert (commanded.broker.logs.get(TopicPartition("t", 0)) is not None) == is_late

    commanded(story)


def test_what_comes_late_over_a_connection_that_was_given_up_changes_nothing() -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.tell(("t", FIRST, [0]), connection=5)
        await commanded.stop("t", 0, connection=7)
        await commanded.tell(("t", FIRST, [0]), leader=DURING_DELETION, connection=7)
        await commanded.lead("t", SECOND, 0)
        await commanded.tell(("t", SECOND, [0]), connection=7)
        # The first one's deletion, and its metadata, were sent before that connection broke.
        await commanded.stop("t", 0, connection=5, error=ErrorCode.STALE_BROKER_EPOCH)
        await commanded.tell(
            ("t", FIRST, [0]), leader=DURING_DELETION, connection=5, error=ErrorCode.STALE_BROKER_EPOCH
        )
        assert commanded.broker.metadata.topics["t"].topic_id == SECOND
        assert commanded.broker.partitions.find("t", 0) is not None
        assert commanded.broker.logs.get(TopicPartition("t", 0)) is not None
        # Another controller's connection may be older than all of these.
        await commanded.tell(("u", FIRST, [0]), connection=2, epoch=2)
        await commanded.tell(("v", FIRST, [0]), connection=9, error=ErrorCode.STALE_CONTROLLER_EPOCH)
        assert sorted(commanded.broker.metadata.topics) == ["t", "u"]

    commanded(story)


def test_nothing_is_kept_of_topics_that_were_let_go() -> None:
    async def story(commanded: Commanded) -> None:
        await commanded.lead("t", FIRST, 0, 1)
        await commanded.stop("t", 0)
        topics = commanded.broker.partitions.topics
        assert list(topics.by_name) == [b"t"]
        await commanded.stop("t", 1)
        assert not topics.by_name
        assert not topics.by_id
        await commanded.lead("t", FIRST, 1)
        assert commanded.broker.partitions.find("t", 1) is not None

    commanded(story)


def test_logs_of_partitions_that_are_elsewhere_by_now_are_named_and_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(commanded: Commanded) -> None:
        broker = commanded.broker
        for index in range(3):
            broker.logs.create(TopicPartition("t", index), FIRST, LogConfig(), 0)
        await commanded.lead("t", FIRST, 1)
        assert not caplog.records
        await commanded.lead("t", FIRST, 1, whole=True)
        assert len(broker.logs.logs) == 3

    commanded(story)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "directories of partitions of which this broker has no replica: 2, /d/t-0 for instance"
    )


class SlowDisk(Clock):
    """Time goes on by 6 ms with every look at it, as if each log took so long."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        self.now += 0.006
        return self.now


def test_making_many_logs_leaves_the_loop_to_others_in_between() -> None:
    async def story(commanded: Commanded) -> None:
        commanded.broker.clock = SlowDisk()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.get_running_loop().create_task(others())
        await commanded.lead("t", FIRST, *range(20))
        beside.cancel()
        assert turns >= 10

    commanded(story)
