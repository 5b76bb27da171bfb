"""When the controller reads topics that administrators wrote to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controller_stage import Setting, create, delete, epoch, lose_answer, restart, started

from tidemill.controller import admin_node_requests
from tidemill.controller.admin_node_requests import DELAYS_MAX, AdminNodeRequests
from tidemill.controller.topics import NewTopic
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Create, Node, NoNode, SetData, StoreUnavailable
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import (
    DELETE_TOPICS,
    ConfigNode,
    ConfigResource,
    DeleteTopicNode,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.ids import new_id


class CountingController:
    """Replaces a controller and records reads of its store."""

    def __init__(self) -> None:
        self.reads = 0
        self.context = SimpleNamespace(store=SimpleNamespace(children=self.children), is_changing=True)
        self.scheduled: asyncio.Queue[str] = asyncio.Queue()

    async def children(self, path: str) -> list[str]:
        self.reads += 1
        raise NoNode(path)


async def test_topic_nodes_are_read_with_a_bounded_delay_while_the_controller_changes_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_node_requests, "DELAY_S", 0.0)

    controller: Any = CountingController()
    one = AdminNodeRequests(controller, controller.scheduled.put_nowait)
    for _ in range(DELAYS_MAX):
        for _ in range(3):
            await one.topics_changed()
        assert controller.reads == 0
        assert await asyncio.wait_for(controller.scheduled.get(), 10) == "/brokers/topics"
        assert controller.scheduled.empty(), "several events cause one read"
    with pytest.raises(NoNode):
        await one.topics_changed()
    await one.topics_changed()
    controller.context.is_changing = False
    await asyncio.wait_for(controller.scheduled.get(), 10)
    with pytest.raises(NoNode):
        await one.topics_changed()
    assert controller.reads == 2


async def test_a_delayed_read_is_cancelled_when_the_controller_resigns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_node_requests, "DELAY_S", 0.0)

    controller: Any = CountingController()
    one = AdminNodeRequests(controller, controller.scheduled.put_nowait)
    await one.topics_changed()
    one.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    assert controller.scheduled.empty()


async def test_the_controllers_own_deletion_marks_are_not_taken_for_an_administrators(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as setting:
        controller = setting.controller
        names = [f"t{number}" for number in range(9)]
        await controller.admin_manager.create_topics([NewTopic(name, 1, 1) for name in names])
        one = AdminNodeRequests(controller, lambda path: None)
        _, outcomes = await asyncio.gather(
            one.deletion_marks_changed(), controller.admin_manager.delete_topics(names)
        )
        assert [outcome.error for outcome in outcomes] == [None] * 9
        deleting = asyncio.get_running_loop().create_task(controller.admin_manager.delete_topics(names))
        made = asyncio.get_running_loop().create_task(
            controller.admin_manager.create_topics([NewTopic(name, 1, 1) for name in names])
        )
        await one.deletion_marks_changed()
        await asyncio.gather(deleting, made)
        assert sorted(controller.image.topics) == names
    assert not [record for record in caplog.records if "could not be deleted" in record.getMessage()]


async def test_a_recreated_topic_survives_the_deletion_mark_of_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``kafka-topics --zookeeper --delete`` while a client deletes and recreates the topic."""

    async with started(tmp_path) as setting:
        controller = setting.controller
        assert await create(setting, "t") is None
        old_id = controller.image.topics["t"].topic_id
        await setting.store.transact([Create(DeleteTopicNode.path("t"))])
        children, queued = setting.store.children, []

        async def marks(path: str) -> list[str]:
            found = await children(path)
            if not queued:
                queued.append(asyncio.ensure_future(controller.admin_manager.delete_topics(["t"])))
                await asyncio.sleep(0.02)
                queued.append(
                    asyncio.ensure_future(controller.admin_manager.create_topics([NewTopic("t", 1, 1)]))
                )
                await asyncio.sleep(0.02)
            return list(found)

        monkeypatch.setattr(setting.store, "children", marks)
        await AdminNodeRequests(controller, lambda path: None).deletion_marks_changed()
        for (outcome,) in await asyncio.gather(*queued):
            assert outcome.error is None
        async with controller.context.change_lock():
            assert controller.image.topics["t"].topic_id != old_id
        # The records of the new topic were not deleted either.
        assert {topic.topic_id for delta in setting.deltas for topic in delta.deleted} == {old_id}
        assert await setting.store.exists(TopicNode.path("t"))
    assert not [record for record in caplog.records if "could not be deleted" in record.getMessage()]


async def test_marked_topics_are_deleted_and_marks_without_topic_are_removed(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        controller = setting.controller
        await controller.admin_manager.create_topics([NewTopic(name, 1, 1) for name in ("t", "u", "v")])
        for name in ("none", "t", "v"):
            await setting.store.transact([Create(DeleteTopicNode.path(name))])
        await AdminNodeRequests(controller, lambda path: None).deletion_marks_changed()
        assert list(controller.image.topics) == ["u"]
        assert await setting.store.children(DELETE_TOPICS) == []


async def test_a_partition_assigned_to_a_dead_broker_gets_a_leader_when_it_registers(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        failover, controller = setting.controller.failover, setting.controller
        assert await create(setting, "a") is None
        assignment = TopicAssignment(controller.image.topics["a"].topic_id, {0: [0], 1: [1, 2]})
        await setting.store.transact([SetData(TopicNode.path("a"), TopicNode.encode(assignment))])
        controller.election.resign()
        assert await controller.context.activate()
        assert controller.image.topics["a"].partitions[1].leader == -1
        await restart(setting, 2, missing=True)
        await failover.brokers_changed()
        added = controller.image.topics["a"].partitions[1]
        assert (added.leader, added.isr) == (2, [2])
        await restart(setting, 1, missing=True)
        await failover.brokers_changed()
        assert controller.image.topics["a"].partitions[1].leader == 2


@pytest.mark.parametrize("has_id", [True, False])
async def test_offline_replicas_stay_offline_when_an_administrator_adds_partitions(
    tmp_path: Path, has_id: bool
) -> None:
    """Otherwise such a replica could be elected, or block a recovery from other replicas."""

    async with started(tmp_path) as setting:
        failover, controller = setting.controller.failover, setting.controller
        await restart(setting, 1)
        await failover.brokers_changed()
        assert await create(setting, "a", [0, 1]) is None
        known = controller.image.topics["a"]
        await failover.replicas_failed(1, [(known.topic_id, 0)], broker_epoch=epoch(setting, 1))
        assert controller.image.topics["a"].partitions[0].offline == {1}
        assignment = TopicAssignment(known.topic_id if has_id else None, {0: [0, 1], 1: [0]})
        await setting.store.transact([SetData(TopicNode.path("a"), TopicNode.encode(assignment))])
        await AdminNodeRequests(controller, lambda path: None).topics_changed()
        grown = controller.image.topics["a"]
        assert grown.topic_id == known.topic_id
        assert [one.offline for one in grown.partitions] == [{1}, set()]
        assert [one.leader for one in grown.partitions] == [0, 0]


async def test_a_replaced_controller_leaves_no_node_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty node is unreadable and would reserve its name."""

    async with started(tmp_path) as setting:
        store, other = setting.store, Setting(setting.store.join(), 1)
        assignment = TopicNode.encode(TopicAssignment(new_id(), {0: [0]}))
        await store.transact([Create(TopicNode.path("a"), assignment)])
        get_many = store.get_many

        async def overtaken(paths: Sequence[str]) -> list[Node | None]:
            nodes = await get_many(paths)
            if paths == [PartitionStateNode.path("a", 0)]:
                monkeypatch.undo()
                await other.controller.context.load()
                assert await other.controller.context.activate(dead=0)
                (outcome,) = await other.controller.admin_manager.delete_topics(["a"])
                assert outcome.topic is not None
                await other.controller.admin_manager.replicas_deleted(0, [("a", outcome.topic.topic_id)])
                assert not await store.exists(TopicNode.path("a"))
            return nodes

        monkeypatch.setattr(store, "get_many", overtaken)
        with pytest.raises(KafkaError) as raised:
            await AdminNodeRequests(setting.controller, lambda path: None).topics_changed()
        assert raised.value.code == ErrorCode.NOT_CONTROLLER
        assert not setting.controller.is_active
        assert not await store.exists(TopicNode.path("a"))
        assert await create(other, "a") is None


async def test_settings_written_by_an_administrator_are_deleted_with_the_topic(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        store, controller = setting.store, setting.controller
        await store.transact(
            [Create(TopicNode.path("a"), TopicNode.encode(TopicAssignment(new_id(), {0: [0]})))]
        )
        await AdminNodeRequests(controller, lambda path: None).topics_changed()
        path = ConfigNode.path("topics", "a")
        settings = {"retention.ms": "9"}
        await store.transact([Create(path, ConfigNode.encode(settings))])
        await controller.context.apply_stored_settings({ConfigResource("topics", "a"): settings})
        assert await delete(setting, "a") is None
        assert not await store.exists(path)


@pytest.mark.parametrize("found_by", ["refresh", "another change", "the next controller", "the first one"])
async def test_a_deletion_mark_has_no_effect_while_topic_deletion_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, found_by: str
) -> None:
    """The node is removed, as in Apache Kafka. Otherwise it would look like a deletion in progress."""
    monkeypatch.setattr(EmbeddedStore, "session_timeout_s", 1.0)

    async with started(tmp_path, delete_topic_enable=False) as setting:
        controller = setting.controller
        assert await create(setting, "t") is None
        known = controller.image
        await setting.store.transact([Create(DeleteTopicNode.path("t"))])
        setting.deltas.clear()
        if found_by == "refresh":
            await AdminNodeRequests(controller, lambda path: None).deletion_marks_changed()
        elif found_by == "another change":
            lose_answer(setting, monkeypatch)
            with pytest.raises(StoreUnavailable):
                await controller.context.write_operations([])
            await controller.failover.brokers_changed()
        else:
            controller.election.resign()
            found = known if found_by == "the next controller" else ClusterImage()
            controller.context.known_image = lambda: found
            assert await controller.context.activate()
        assert list(controller.image.topics) == ["t"]
        assert not controller.image.deleting
        assert not any(delta.deleted for delta in setting.deltas)
        assert not await setting.store.exists(DeleteTopicNode.path("t"))
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert line.startswith("topics are not deleted")
    assert line.endswith(": t")


@pytest.mark.parametrize("is_same_controller", [False, True])
async def test_a_deletion_in_progress_completes_after_topic_deletion_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_controller: bool
) -> None:
    """Some brokers have deleted their logs."""
    monkeypatch.setattr(EmbeddedStore, "session_timeout_s", 1.0)

    async with started(tmp_path) as setting:
        controller, failover = setting.controller, setting.controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        await controller.admin_manager.create_topics([NewTopic("t", -1, -1, assignments={0: [0, 1]})])
        await controller.admin_manager.delete_topics(["t"])
        known = controller.image
        assert list(known.deleting) == ["t"]
        setting.config = BrokerConfig.of(delete_topic_enable=False)
        if is_same_controller:
            lose_answer(setting, monkeypatch)
            with pytest.raises(StoreUnavailable):
                await controller.context.write_operations([])
            await failover.brokers_changed()
        else:
            controller.election.resign()
            controller.context.known_image = lambda: known
            assert await controller.context.activate()
        assert list(controller.image.deleting) == ["t"]
        await controller.admin_manager.replicas_deleted(1, [("t", known.deleting["t"].topic_id)])
        assert not await setting.store.exists(TopicNode.path("t"))
