"""When the controller looks for topics that administrators wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controller_office import Setting, epoch, in_office, lose_answer, restart

from tidemill.controller import administering
from tidemill.controller.administering import PUT_OFF_MAX, Administering
from tidemill.controller.failover import Failover
from tidemill.controller.topics import NewTopic
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import ClusterImage
from tidemill.coordination.nodes import (
    DELETE_TOPICS,
    ConfigNode,
    DeleteTopicNode,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Create, Node, NoNode, SetData, StoreUnavailable
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError


class Looked:
    """Stands for a controller, and notes when its store is asked."""

    def __init__(self) -> None:
        self.is_changing = True
        self.asked = 0
        self.store = SimpleNamespace(children=self.children)
        self.wanted: asyncio.Queue[str] = asyncio.Queue()

    async def children(self, path: str) -> list[str]:
        self.asked += 1
        raise NoNode(path)


def test_a_look_waits_while_the_controller_itself_changes_topics_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(administering, "LATER_S", 0.0)

    async def story() -> None:
        looked: Any = Looked()
        one = Administering(looked, looked.wanted.put_nowait)
        for _ in range(PUT_OFF_MAX):
            for _ in range(3):
                await one.topics_changed()
            assert looked.asked == 0
            assert await asyncio.wait_for(looked.wanted.get(), 10) == "/brokers/topics"
            assert looked.wanted.empty(), "many events are one look"
        with pytest.raises(NoNode):
            await one.topics_changed()
        await one.topics_changed()
        looked.is_changing = False
        await asyncio.wait_for(looked.wanted.get(), 10)
        with pytest.raises(NoNode):
            await one.topics_changed()
        assert looked.asked == 2

    asyncio.run(story())


def test_a_look_that_was_put_off_ends_with_the_office(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administering, "LATER_S", 0.0)

    async def story() -> None:
        looked: Any = Looked()
        one = Administering(looked, looked.wanted.put_nowait)
        await one.topics_changed()
        one.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        assert looked.wanted.empty()

    asyncio.run(story())


def test_the_controllers_own_marks_are_no_administrators(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        names = [f"t{number}" for number in range(9)]
        await controller.create_topics([NewTopic(name, 1, 1) for name in names])
        one = Administering(controller, lambda path: None)
        _, outcomes = await asyncio.gather(one.deletions_wanted(), controller.delete_topics(names))
        assert [outcome.error for outcome in outcomes] == [None] * 9
        deleting = asyncio.get_running_loop().create_task(controller.delete_topics(names))
        made = asyncio.get_running_loop().create_task(
            controller.create_topics([NewTopic(name, 1, 1) for name in names])
        )
        await one.deletions_wanted()
        await asyncio.gather(deleting, made)
        assert sorted(controller.image.topics) == names

    in_office(tmp_path, story)
    assert not [record for record in caplog.records if "is not deleted" in record.getMessage()]


def test_a_topic_made_anew_stays_where_the_one_before_was_marked_by_an_administrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``kafka-topics --zookeeper --delete``, while a client deletes the topic and makes it again."""

    async def story(setting: Setting) -> None:
        controller = setting.controller
        await controller.create_topics([NewTopic("t", 1, 1)])
        old_id = controller.image.topics["t"].topic_id
        await setting.store.transact([Create(DeleteTopicNode.path("t"))])
        children, queued = setting.store.children, []

        async def marks(path: str) -> list[str]:
            found = await children(path)
            if not queued:
                queued.append(asyncio.ensure_future(controller.delete_topics(["t"])))
                await asyncio.sleep(0.02)
                queued.append(asyncio.ensure_future(controller.create_topics([NewTopic("t", 1, 1)])))
                await asyncio.sleep(0.02)
            return list(found)

        monkeypatch.setattr(setting.store, "children", marks)
        await Administering(controller, lambda path: None).deletions_wanted()
        for (outcome,) in await asyncio.gather(*queued):
            assert outcome.error is None
        async with controller.changing():
            assert controller.image.topics["t"].topic_id != old_id
        # Nor were the records of the new one deleted.
        assert {topic.topic_id for delta in setting.deltas for topic in delta.deleted} == {old_id}
        assert await setting.store.exists(TopicNode.path("t"))

    in_office(tmp_path, story)
    assert not [record for record in caplog.records if "is not deleted" in record.getMessage()]


def test_what_is_marked_is_deleted_and_marks_of_no_topic_are_removed(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        await controller.create_topics([NewTopic(name, 1, 1) for name in ("t", "u", "v")])
        for name in ("none", "t", "v"):
            await setting.store.transact([Create(DeleteTopicNode.path(name))])
        await Administering(controller, lambda path: None).deletions_wanted()
        assert list(controller.image.topics) == ["u"]
        assert await setting.store.children(DELETE_TOPICS) == []

    in_office(tmp_path, story)


def test_a_partition_that_an_administrator_puts_on_a_dead_broker_is_led_once_that_lives(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        failover, controller = Failover(setting.controller), setting.controller
        (outcome,) = await controller.create_topics([NewTopic("a")])
        assert outcome.error is None
        assignment = TopicAssignment(controller.image.topics["a"].topic_id, {0: [0], 1: [1, 2]})
        await setting.store.transact([SetData(TopicNode.path("a"), TopicNode.encode(assignment))])
        controller.resign()
        assert await controller.activate()
        assert controller.image.topics["a"].partitions[1].leader == -1
        await restart(setting, 2, missing=True)
        await failover.brokers_changed()
        added = controller.image.topics["a"].partitions[1]
        assert (added.leader, added.isr) == (2, [2])
        await restart(setting, 1, missing=True)
        await failover.brokers_changed()
        assert controller.image.topics["a"].partitions[1].leader == 2

    in_office(tmp_path, story)


@pytest.mark.parametrize("has_id", [True, False])
def test_replicas_that_cannot_be_read_stay_so_when_an_administrator_adds_partitions(
    tmp_path: Path, has_id: bool
) -> None:
    """Else one of them could be elected, and waited for where others could recover the partition."""

    async def story(setting: Setting) -> None:
        failover, controller = Failover(setting.controller), setting.controller
        await restart(setting, 1)
        await failover.brokers_changed()
        topic = NewTopic("a", -1, -1, assignments={0: [0, 1]})
        (outcome,) = await controller.create_topics([topic])
        assert outcome.error is None
        known = controller.image.topics["a"]
        await failover.replicas_failed(1, epoch(setting, 1), [(known.topic_id, 0)])
        assert controller.image.topics["a"].partitions[0].offline == {1}
        assignment = TopicAssignment(known.topic_id if has_id else None, {0: [0, 1], 1: [0]})
        await setting.store.transact([SetData(TopicNode.path("a"), TopicNode.encode(assignment))])
        await Administering(controller, lambda path: None).topics_changed()
        grown = controller.image.topics["a"]
        assert grown.topic_id == known.topic_id
        assert [one.offline for one in grown.partitions] == [{1}, set()]
        assert [one.leader for one in grown.partitions] == [0, 0]

    in_office(tmp_path, story)


def test_a_controller_that_was_replaced_leaves_no_node_of_a_topic_that_was_deleted_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one could not be read, and would keep its name from every other topic."""

    async def story(setting: Setting) -> None:
        store, other = setting.store, Setting(setting.store.join(), 1)
        assignment = TopicNode.encode(TopicAssignment(new_id(), {0: [0]}))
        await store.transact([Create(TopicNode.path("a"), assignment)])
        get_many = store.get_many

        async def overtaken(paths: Sequence[str]) -> list[Node | None]:
            nodes = await get_many(paths)
            if paths == [PartitionStateNode.path("a", 0)]:
                monkeypatch.undo()
                await other.controller.load()
                assert await other.controller.activate(dead=0)
                (outcome,) = await other.controller.delete_topics(["a"])
                assert outcome.topic is not None
                await other.controller.replicas_deleted(0, [("a", outcome.topic.topic_id)])
                assert not await store.exists(TopicNode.path("a"))
            return nodes

        monkeypatch.setattr(store, "get_many", overtaken)
        with pytest.raises(KafkaError) as raised:
            await Administering(setting.controller, lambda path: None).topics_changed()
        assert raised.value.code == ErrorCode.NOT_CONTROLLER
        assert not setting.controller.is_active
        assert not await store.exists(TopicNode.path("a"))
        (outcome,) = await other.controller.create_topics([NewTopic("a", 1, 1)])
        assert outcome.error is None

    in_office(tmp_path, story)


def test_settings_that_somebody_wrote_for_a_topic_without_any_go_with_it(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        store, controller = setting.store, setting.controller
        await store.transact(
            [Create(TopicNode.path("a"), TopicNode.encode(TopicAssignment(new_id(), {0: [0]})))]
        )
        await Administering(controller, lambda path: None).topics_changed()
        path = ConfigNode.path("topics", "a")
        settings = {"retention.ms": "9"}
        await store.transact([Create(path, ConfigNode.encode(settings))])
        await controller.take_settings({("topics", "a"): settings})
        (outcome,) = await controller.delete_topics(["a"])
        assert outcome.error is None
        assert not await store.exists(path)

    in_office(tmp_path, story)


@pytest.mark.parametrize("found_by", ["a look", "another change", "the next controller", "the first one"])
def test_a_mark_deletes_nothing_where_topics_are_not_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, found_by: str
) -> None:
    """It goes, as with Apache Kafka, for it would be taken for a deletion that was begun."""
    monkeypatch.setattr(EmbeddedStore, "session_timeout_s", 1.0)

    async def story(setting: Setting) -> None:
        controller = setting.controller
        await controller.create_topics([NewTopic("t", 1, 1)])
        known = controller.image
        await setting.store.transact([Create(DeleteTopicNode.path("t"))])
        setting.deltas.clear()
        if found_by == "a look":
            await Administering(controller, lambda path: None).deletions_wanted()
        elif found_by == "another change":
            lose_answer(setting, monkeypatch)
            with pytest.raises(StoreUnavailable):
                await controller.write_operations([])
            await Failover(controller).brokers_changed()
        else:
            controller.resign()
            controller.view = lambda: known if found_by == "the next controller" else ClusterImage()
            assert await controller.activate()
        assert list(controller.image.topics) == ["t"]
        assert not controller.image.deleting
        assert not any(delta.deleted for delta in setting.deltas)
        assert not await setting.store.exists(DeleteTopicNode.path("t"))

    in_office(tmp_path, story, delete_topic_enable=False)
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert told.startswith("topics are not deleted")
    assert told.endswith(": t")


@pytest.mark.parametrize("is_same_controller", [False, True])
def test_a_deletion_that_has_begun_ends_although_topics_are_not_to_be_deleted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_controller: bool
) -> None:
    """Some brokers have removed their logs."""
    monkeypatch.setattr(EmbeddedStore, "session_timeout_s", 1.0)

    async def story(setting: Setting) -> None:
        controller, failover = setting.controller, Failover(setting.controller)
        await restart(setting, 1)
        await failover.brokers_changed()
        await controller.create_topics([NewTopic("t", -1, -1, assignments={0: [0, 1]})])
        await controller.delete_topics(["t"])
        known = controller.image
        assert list(known.deleting) == ["t"]
        setting.config = BrokerConfig.of(delete_topic_enable=False)
        if is_same_controller:
            lose_answer(setting, monkeypatch)
            with pytest.raises(StoreUnavailable):
                await controller.write_operations([])
            await failover.brokers_changed()
        else:
            controller.resign()
            controller.view = lambda: known
            assert await controller.activate()
        assert list(controller.image.deleting) == ["t"]
        await controller.replicas_deleted(1, [("t", known.deleting["t"].topic_id)])
        assert not await setting.store.exists(TopicNode.path("t"))

    in_office(tmp_path, story)
