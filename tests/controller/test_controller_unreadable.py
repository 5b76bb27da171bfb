"""A controller over real ZooKeeper with unreadable nodes: which ones it ignores and which it handles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
from controller_stage import registration

from tidemill.controller.admin_node_requests import AdminNodeRequests
from tidemill.controller.broker_modifications_handler import BrokerModificationsHandler
from tidemill.controller.node_change_handlers import NodeChangeHandlers
from tidemill.controller.topics import NewTopic
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.coordination_store import Create, Delete, SetData
from tidemill.coordination.nodes import (
    BROKER_IDS,
    DELETE_TOPICS,
    TOPICS,
    BrokerNode,
    ConfigNode,
    DeleteTopicNode,
    Endpoint,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode
from unwatched_controller import new_controller

Settings = Callable[..., ZooKeeperSettings]
WAIT_S = 30.0
STATE = PartitionStateNode.path("bad", 0)


class Setting:
    """A controller that watches the store as a broker does, and its published images."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.store = store
        self.deltas: list[Delta] = []
        self.announced = asyncio.Event()
        self.controller = new_controller(store, 1, BrokerConfig.of, self.publish, SystemClock(), Random(1))
        self.administering = AdminNodeRequests(self.controller, lambda path: self.watching.schedule([path]))
        self.registrations = BrokerModificationsHandler(
            store,
            lambda path: self.watching.schedule([path]),
            self.controller.failover.brokers_changed,
        )
        self.watching = NodeChangeHandlers(
            store,
            {
                BROKER_IDS: self.registrations.brokers_changed,
                TOPICS: self.administering.topics_changed,
                DELETE_TOPICS: self.administering.deletion_marks_changed,
            },
        )

    async def publish(self, delta: Delta) -> Announcement:
        self.deltas.append(delta)
        self.announced.set()
        return Announcement(delta)

    async def until(self, holds: Callable[[ClusterImage], bool]) -> None:
        """Returns once a published image satisfies the condition."""
        async with asyncio.timeout(WAIT_S):
            while not holds(self.controller.image):
                self.announced.clear()
                await self.announced.wait()

    async def write(self, path: str, data: bytes) -> None:
        await self.store.transact([SetData(path, data)])

    async def data(self, path: str) -> bytes:
        node = await self.store.get(path)
        assert node is not None
        return node.data


@asynccontextmanager
async def setting(settings: ZooKeeperSettings, *, watches: bool = True) -> AsyncIterator[Setting]:
    """Brokers 1 (this one) and 2, the topics "bad" and "good", and an elected controller."""
    store = await ZooKeeperStore.open(settings)
    one = Setting(store)
    try:
        await one.controller.context.load()
        await one.controller.election.register(registration(1))
        await one.controller.election.register(registration(2))
        await one.controller.context.activate()
        await one.controller.admin_manager.create_topics([NewTopic(name, 2, 2) for name in ("bad", "good")])
        if watches:
            one.watching.start()
        yield one
    finally:
        await one.watching.stopped()
        one.administering.stop()
        one.registrations.stop()
        await store.close()


async def reelect(one: Setting) -> None:
    """The same broker becomes controller again with only the store's state."""
    await one.watching.stopped()
    one.administering.stop()
    one.registrations.stop()
    one.controller.election.resign()
    assert await one.controller.context.activate()


@pytest.mark.parametrize(
    "path", [TopicNode.path("bad"), PartitionStateNode.path("bad", 1), ConfigNode.path("topics", "bad")]
)
async def test_a_controller_starts_without_an_unreadable_topic_and_adds_it_once_readable(
    zookeeper: Settings, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with setting(zookeeper()) as one:
        before = one.controller.image.topics["bad"]
        good = await one.data(path)
        await one.write(path, b'{"version":99}')
        await reelect(one)
        assert list(one.controller.image.topics) == ["good"]
        (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert line.getMessage().startswith(f"{path} holds '{{\"version\":99}}', which cannot be read: ")
        assert "topic bad is set aside" in line.getMessage()

        (outcome,) = await one.controller.admin_manager.create_topics([NewTopic("bad", 1, 1)])
        assert outcome.error is not None
        assert (outcome.error.code, path in str(outcome.error)) == (ErrorCode.TOPIC_ALREADY_EXISTS, True)
        (outcome,) = await one.controller.admin_manager.delete_topics(["bad"])
        assert outcome.error is not None
        assert "is set aside" in str(outcome.error)
        (outcome,) = await one.controller.admin_manager.create_topics([NewTopic("other", 1, 2)])
        assert outcome.error is None
        assert await one.data(path) == b'{"version":99}'

        one.watching.start()
        await one.administering.topics_changed()
        assert list(one.controller.image.topics) == ["good", "other"]
        deltas = len(one.deltas)
        await one.write(path, good)
        await one.until(lambda image: "bad" in image.topics)
        after = one.controller.image.topics["bad"]
        assert (after.topic_id, after.config) == (before.topic_id, before.config)
        assert [(p.leader, p.isr) for p in after.partitions] == [(p.leader, p.isr) for p in before.partitions]
        assert not one.controller.image.unreadable
        assert [topic.name for delta in one.deltas[deltas:] for topic in delta.created] == ["bad"]
        assert not any(delta.deleted for delta in one.deltas)


async def test_a_damaged_partition_state_does_not_block_other_changes(zookeeper: Settings) -> None:
    async with setting(zookeeper()) as one:
        await one.write(STATE, b"{")
        # The leaders of both topics change. The write in one transaction with the invalid node succeeds.
        await one.store.transact([Delete(BrokerNode.path(2))])
        await one.until(lambda image: list(image.topics) == ["good"] and list(image.brokers) == [1])
        await one.until(lambda image: [p.leader for p in image.topics["good"].partitions] == [1, 1])
        assert await one.data(STATE) == b"{"
        assert not any(topic.name == "bad" for delta in one.deltas for topic in delta.deleted)


async def test_a_mark_for_deletion_waits_until_the_topic_can_be_read(zookeeper: Settings) -> None:
    async with setting(zookeeper()) as one:
        good = await one.data(STATE)
        await one.write(STATE, b"{")
        await reelect(one)
        await one.store.transact([Create(DeleteTopicNode.path("bad"))])
        one.watching.start()
        await one.administering.deletion_marks_changed()
        await one.administering.topics_changed()
        assert await one.store.exists(DeleteTopicNode.path("bad"))
        assert await one.store.exists(TopicNode.path("bad"))
        assert not one.controller.image.deleting
        await one.write(STATE, good)
        await one.until(lambda image: "bad" in image.deleting)
        assert [topic.name for delta in one.deltas for topic in delta.deleted] == ["bad"]


async def test_a_topic_written_without_its_id_keeps_it(zookeeper: Settings) -> None:
    async with setting(zookeeper()) as one:
        known = one.controller.image.topics["bad"]
        replicas = {p.partition: p.replicas for p in known.partitions} | {2: [1, 2]}
        await one.write(TopicNode.path("bad"), TopicNode.encode(TopicAssignment(None, replicas)))
        await one.until(lambda image: len(image.topics["bad"].partitions) == 3)
        assert one.controller.image.topics["bad"].topic_id == known.topic_id
        stored = TopicNode.decode("bad", await one.data(TopicNode.path("bad")))
        assert stored.topic_id == known.topic_id
        assert not any(delta.deleted for delta in one.deltas)


async def test_a_topic_written_without_its_id_before_a_failover_keeps_it(
    zookeeper: Settings,
) -> None:
    async with setting(zookeeper(), watches=False) as one:
        known = one.controller.image.topics["bad"]
        replicas = {p.partition: p.replicas for p in known.partitions}
        await one.write(TopicNode.path("bad"), TopicNode.encode(TopicAssignment(None, replicas)))
        await reelect(one)
        assert one.controller.image.topics["bad"].topic_id == known.topic_id
        stored = TopicNode.decode("bad", await one.data(TopicNode.path("bad")))
        assert stored.topic_id == known.topic_id


async def test_a_topic_keeps_its_id_after_it_was_unreadable(zookeeper: Settings) -> None:
    async with setting(zookeeper()) as one:
        known = one.controller.image.topics["bad"]
        await one.write(STATE, b"{")
        await one.store.transact([Delete(BrokerNode.path(2))])
        await one.until(lambda image: list(image.topics) == ["good"])
        replicas = {p.partition: p.replicas for p in known.partitions}
        await one.write(TopicNode.path("bad"), TopicNode.encode(TopicAssignment(None, replicas)))
        await one.write(STATE, PartitionStateNode.encode(LeaderIsrAndControllerEpoch(1, 5, [1], 1)))
        await one.until(lambda image: "bad" in image.topics)
        assert one.controller.image.topics["bad"].topic_id == known.topic_id


async def test_a_deletion_is_confirmed_by_topic_id(zookeeper: Settings) -> None:
    async with setting(zookeeper(), watches=False) as one:
        first = one.controller.image.topics["bad"].topic_id
        await one.controller.admin_manager.delete_topics(["bad"])
        await one.controller.admin_manager.replicas_deleted(2, [("bad", first)])
        assert not one.controller.image.deleting
        await one.controller.admin_manager.create_topics([NewTopic("bad", 2, 2)])
        second = one.controller.image.topics["bad"].topic_id
        await one.controller.admin_manager.delete_topics(["bad"])
        # A repeated or late notification: broker 2 still has the files of the second topic.
        await one.controller.admin_manager.replicas_deleted(2, [("bad", first)])
        assert list(one.controller.image.deleting) == ["bad"]
        assert await one.store.exists(TopicNode.path("bad"))
        await one.controller.admin_manager.replicas_deleted(2, [("bad", second)])
        assert not one.controller.image.deleting
        assert not await one.store.exists(TopicNode.path("bad"))


async def test_a_broker_with_an_unreadable_registration_is_omitted_until_it_is_readable(
    zookeeper: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with setting(zookeeper()) as one:
        await one.store.transact([Create(BrokerNode.path(3), b'{"version":5}', ephemeral=True)])
        await one.store.transact([Create(BrokerNode.path(4), BrokerNode.encode(registration(4)))])
        await one.until(lambda image: 4 in image.brokers)
        assert list(one.controller.image.brokers) == [1, 2, 4]
        assert any(
            record.levelname == "ERROR" and record.getMessage().startswith("/brokers/ids/3 holds ")
            for record in caplog.records
        )
        await one.write(BrokerNode.path(3), BrokerNode.encode(registration(3)))
        await one.until(lambda image: 3 in image.brokers)
        assert not one.controller.image.unreadable


async def test_a_known_broker_stays_and_changed_endpoints_are_applied(
    zookeeper: Settings,
) -> None:
    async with setting(zookeeper()) as one:
        await one.registrations.brokers_changed()
        await one.write(BrokerNode.path(2), b"{")
        await one.store.transact([Create(BrokerNode.path(4), BrokerNode.encode(registration(4)))])
        await one.until(lambda image: 4 in image.brokers)
        assert list(one.controller.image.brokers) == [1, 2, 4]
        moved = Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9999)
        await one.write(BrokerNode.path(2), BrokerNode.encode(registration(2)._replace(endpoints=(moved,))))
        await one.until(lambda image: image.brokers[2].endpoints["PLAINTEXT"].port == 9999)
