"""The controller over a store whose answers are lost, and beside controllers that come meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from controller_office import Setting, epoch, in_office, lose_answer, restart

from tidemill.controller.failover import Failover
from tidemill.controller.topics import NewTopic
from tidemill.controller.watching import Watching
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import Delta
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    BrokerNode,
    BrokerRegistration,
    ControllerEpochNode,
    DeleteTopicNode,
    Endpoint,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import (
    BadVersion,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Result,
    SetData,
    StoreUnavailable,
    subtree,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition


def test_a_write_without_an_answer_asks_for_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was written waits until somebody wants another change: a partition without leader, say."""

    async def story(setting: Setting) -> None:
        asked: list[str] = []
        setting.controller.look_again = lambda: asked.append("a look")
        assert await create(setting, "a") is None
        assert asked == []
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        assert asked == ["a look"]
        await Failover(setting.controller).brokers_changed()
        assert created(setting.deltas) == ["a", "b"]

    in_office(tmp_path, story)


def created(deltas: Sequence[Delta]) -> list[str]:
    return [topic.name for delta in deltas for topic in delta.created]


async def create(setting: Setting, name: str) -> KafkaError | None:
    (outcome,) = await setting.controller.create_topics([NewTopic(name, 1, 1)])
    return outcome.error


async def another_controller(setting: Setting) -> None:
    """Takes the office as far as writes are fenced."""
    node = await setting.store.get(CONTROLLER_EPOCH)
    assert node is not None
    epoch = ControllerEpochNode.decode(node.data) + 1
    await setting.store.transact([SetData(CONTROLLER_EPOCH, ControllerEpochNode.encode(epoch))])


def test_what_a_lost_answer_left_is_told_though_the_first_to_tell_of_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        lose_answer(setting, monkeypatch)
        assert await create(setting, "a") is not None
        publish, broken = setting.publish, [True]

        async def fails_once(delta: Delta) -> None:
            if broken.pop() if broken else False:
                raise StoreUnavailable("it broke again")
            await publish(delta)

        setting.controller._announce = fails_once
        with pytest.raises(StoreUnavailable):
            await create(setting, "b")
        assert created(setting.deltas) == []
        assert await create(setting, "b") is None
        assert created(setting.deltas) == ["a", "b"]

    in_office(tmp_path, story)


def test_what_was_written_for_somebody_who_was_broken_off_is_told_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        lose_answer(setting, monkeypatch, asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await create(setting, "a")
        assert await create(setting, "b") is None
        assert created(setting.deltas) == ["a", "b"]

    in_office(tmp_path, story)


def test_a_deletion_whose_beginning_was_not_answered_goes_on_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        lose_answer(setting, monkeypatch)
        (outcome,) = await setting.controller.delete_topics(["a"])
        assert outcome.error is not None
        assert await setting.store.exists(DeleteTopicNode.path("a"))
        setting.deltas.clear()
        assert await create(setting, "b") is None
        assert [topic.name for topic in setting.deltas[0].deleted] == ["a"]
        assert not await setting.store.exists(TopicNode.path("a"))
        assert not await setting.store.exists(DeleteTopicNode.path("a"))
        assert await create(setting, "a") is None

    in_office(tmp_path, story)


def test_who_deletes_what_an_administrator_has_just_marked_is_told_that_it_is_deleted(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        await setting.store.transact([Create(DeleteTopicNode.path("a"))])
        (outcome,) = await setting.controller.delete_topics(["a"])
        assert outcome.error is None
        assert not await setting.store.exists(TopicNode.path("a"))
        assert not await setting.store.exists(DeleteTopicNode.path("a"))

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_deleted_topic_does_not_come_back_without_records_where_its_mark_was_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    """``is_late``: just as the nodes that are there are removed."""

    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        transact, exists, mark = setting.store.transact, setting.store.exists, DeleteTopicNode.path("a")

        async def unmark() -> None:
            monkeypatch.undo()
            await setting.store.transact([Delete(mark)])

        async def transact_late(operations: Sequence[Operation]) -> list[Result]:
            if any(isinstance(one, Delete) for one in operations):
                if not is_late:
                    await unmark()
                else:
                    monkeypatch.setattr(setting.store, "transact", transact)
                    raise NoNode("somebody removed a node")
            return await transact(operations)

        async def exists_late(path: str) -> bool:
            is_there = await exists(path)
            if path == mark:
                await unmark()
            return is_there

        monkeypatch.setattr(setting.store, "transact", transact_late)
        if is_late:
            monkeypatch.setattr(setting.store, "exists", exists_late)
        (outcome,) = await setting.controller.delete_topics(["a"])
        assert outcome.error is None
        assert await create(setting, "b") is None
        assert list(setting.controller.image.topics) == ["b"]
        assert not await setting.store.exists(TopicNode.path("a"))
        assert not await setting.store.exists(mark)
        assert created(setting.deltas) == ["a", "b"]

    in_office(tmp_path, story)
    assert not [record for record in caplog.records if "goes on" in record.getMessage()]


def test_records_of_a_topic_whose_nodes_somebody_removed_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        nodes = await subtree(setting.store, TopicNode.path("a"))
        await setting.store.transact([Delete(path) for path in reversed(nodes)])
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        setting.deltas.clear()
        assert await create(setting, "c") is None
        assert list(setting.controller.image.topics) == ["b", "c"]
        assert [delta.deleted for delta in setting.deltas] == [(), ()]

    in_office(tmp_path, story)
    assert any(record.getMessage().startswith("a is not in the store any more") for record in caplog.records)


def test_nodes_that_could_not_be_removed_go_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        transact, broken = setting.store.transact, [True]

        async def fails_once(operations: Sequence[Operation]) -> list[Result]:
            is_removal = any(isinstance(one, Delete) for one in operations)
            if is_removal and broken and broken.pop():
                monkeypatch.setattr(setting.store, "exists", out_of_reach)
                raise StoreUnavailable("the connection broke")
            return await transact(operations)

        async def out_of_reach(path: str) -> bool:
            monkeypatch.undo()
            raise StoreUnavailable("the connection broke")

        monkeypatch.setattr(setting.store, "transact", fails_once)
        (outcome,) = await setting.controller.delete_topics(["a"])
        assert outcome.error is None
        assert await setting.store.exists(TopicNode.path("a"))
        assert await create(setting, "b") is None
        assert not await setting.store.exists(TopicNode.path("a"))

    in_office(tmp_path, story)


def test_what_is_read_when_another_controller_has_come_is_not_told_under_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        lose_answer(setting, monkeypatch)
        assert await create(setting, "a") is not None
        await another_controller(setting)
        with pytest.raises(KafkaError) as raised:
            await create(setting, "b")
        assert raised.value.code == ErrorCode.NOT_CONTROLLER
        assert not setting.controller.is_active
        assert setting.deltas == []

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_who_asks_for_a_change_hears_why_what_failed_before_cannot_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        path = TopicNode.path("a")
        grown = TopicNode.encode(TopicAssignment(None, {0: [0], 1: [0]}))
        await setting.store.transact([SetData(path, grown)])
        transact = setting.store.transact

        async def overtaken(operations: Sequence[Operation]) -> list[Result]:
            monkeypatch.setattr(setting.store, "transact", transact)
            if not is_replaced:
                raise BadVersion(path, 1)
            await another_controller(setting)
            return await transact(operations)

        monkeypatch.setattr(setting.store, "transact", overtaken)
        with pytest.raises(KafkaError) as raised:
            await create(setting, "c")
        assert isinstance(raised.value, StoreUnavailable) is not is_replaced
        assert (raised.value.code == ErrorCode.NOT_CONTROLLER) is is_replaced
        monkeypatch.setattr(setting.store, "transact", transact)
        if not is_replaced:
            assert await create(setting, "c") is None

    in_office(tmp_path, story)


def test_a_change_that_finds_another_controller_says_so(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        await restart(setting, 1)
        await failover.brokers_changed()
        topic = NewTopic("a", -1, -1, assignments={0: [1, 0]})
        (outcome,) = await setting.controller.create_topics([topic])
        assert outcome.error is None
        await another_controller(setting)
        await setting.store.transact([Delete(BrokerNode.path(1))])
        with pytest.raises(KafkaError) as raised:
            await failover.brokers_changed()
        assert raised.value.code == ErrorCode.NOT_CONTROLLER

    in_office(tmp_path, story)


def test_an_office_that_another_takes_while_it_is_begun_is_simply_not_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        setting.controller.resign()
        transact = setting.store.transact

        async def overtaken(operations: Sequence[Operation]) -> list[Result]:
            results = await transact(operations)
            monkeypatch.setattr(setting.store, "transact", transact)
            await another_controller(setting)
            return results

        monkeypatch.setattr(setting.store, "transact", overtaken)
        assert not await setting.controller.activate()
        assert not setting.controller.is_active
        assert setting.deltas == []
        assert await setting.controller.activate()

    in_office(tmp_path, story)


def test_replicas_that_cannot_be_read_stay_so_when_the_store_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "a") is None
        controller = setting.controller
        topic_id = controller.image.topics["a"].topic_id
        await Failover(controller).replicas_failed(0, epoch(setting, 0), [(topic_id, 0)])
        assert controller.image.topics["a"].partitions[0].leader == -1
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        assert await create(setting, "c") is None
        (partition,) = controller.image.topics["a"].partitions
        assert (partition.leader, partition.offline) == (-1, {0})

    in_office(tmp_path, story)


async def led_by_0(setting: Setting, failover: Failover) -> bytes:
    """Makes a topic on brokers 0 and 1, which are in sync; then 1 loses records, which nobody has heard."""
    await restart(setting, 1)
    await failover.brokers_changed()
    topic = NewTopic("a", -1, -1, assignments={0: [0, 1]})
    (outcome,) = await setting.controller.create_topics([topic])
    assert outcome.error is None
    await restart(setting, 1, unsynced=True)
    return setting.controller.image.topics["a"].topic_id


def test_one_that_was_started_again_with_a_loss_is_not_elected_for_a_leader_whose_disk_fails(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        topic_id = await led_by_0(setting, failover)
        await failover.replicas_failed(0, epoch(setting, 0), [(topic_id, 0)])
        (partition,) = setting.controller.image.topics["a"].partitions
        assert (partition.leader, partition.isr, partition.elr) == (-1, [], [0])
        assert partition.offline == {0}

    in_office(tmp_path, story)


def test_a_leader_that_stops_is_not_followed_by_one_that_was_started_again_with_a_loss(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        await led_by_0(setting, failover)
        remaining = await setting.controller.leading.shut_down(0)
        (partition,) = setting.controller.image.topics["a"].partitions
        assert (partition.leader, partition.isr) == (0, [0])
        assert remaining == [TopicPartition("a", 0)]

    in_office(tmp_path, story)


def test_replicas_that_failed_before_a_restart_are_readable_after_it(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        topic_id = await led_by_0(setting, failover)
        await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        await failover.brokers_changed()
        (partition,) = setting.controller.image.topics["a"].partitions
        assert (partition.leader, partition.isr, partition.offline) == (0, [0], frozenset())

    in_office(tmp_path, story)


def test_what_a_former_registration_told_of_its_replicas_does_not_count_after_a_restart(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        topic_id = await led_by_0(setting, failover)
        before = epoch(setting, 1)
        await failover.brokers_changed()
        await failover.replicas_failed(1, before, [(topic_id, 0)])
        (partition,) = setting.controller.image.topics["a"].partitions
        assert partition.offline == frozenset()
        await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        (partition,) = setting.controller.image.topics["a"].partitions
        assert partition.offline == {1}

    in_office(tmp_path, story)


def test_a_replica_that_its_broker_serves_again_may_be_in_sync(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        topic_id = await led_by_0(setting, failover)
        await failover.brokers_changed()
        await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        await failover.replicas_served(1, epoch(setting, 1), [(topic_id, 0)])
        (partition,) = setting.controller.image.topics["a"].partitions
        assert partition.offline == frozenset()

    in_office(tmp_path, story)


def test_what_a_former_registration_served_is_not_online_in_the_present_one(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        topic_id = await led_by_0(setting, failover)
        before = epoch(setting, 1)
        await failover.brokers_changed()
        await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        await failover.replicas_served(1, before, [(topic_id, 0)])
        (partition,) = setting.controller.image.topics["a"].partitions
        assert partition.offline == {1}

    in_office(tmp_path, story)


def test_one_whose_disk_failed_before_it_was_started_again_with_a_loss_does_not_follow_a_leader_that_is_gone(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        for broker in (1, 2):
            await restart(setting, broker)
        await failover.brokers_changed()
        topics = [NewTopic("a", -1, -1, assignments={0: [2, 1]}), NewTopic("b", -1, -1, assignments={0: [1]})]
        assert [one.error for one in await setting.controller.create_topics(topics)] == [None, None]
        await restart(setting, 1, unsynced=True)
        await setting.store.transact([Delete(BrokerNode.path(2))])
        topic_id = setting.controller.image.topics["b"].topic_id
        await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        (partition,) = setting.controller.image.topics["a"].partitions
        assert partition.leader == -1
        await failover.brokers_changed()
        (partition,) = setting.controller.image.topics["a"].partitions
        assert (partition.leader, partition.last_known_leader) == (-1, 2)

    in_office(tmp_path, story)


def test_who_was_found_dead_in_a_former_office_counts_as_living_in_the_next(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        failover = Failover(controller)
        there = BrokerRegistration(1, (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9093),))
        await setting.store.transact([Create(BrokerNode.path(1), BrokerNode.encode(there), ephemeral=True)])
        await failover.brokers_changed()
        failover.found_dead(1, controller.image.brokers[1].epoch)
        await failover.brokers_changed()
        assert list(controller.image.brokers) == [0]
        controller.resign()
        assert await controller.activate()
        await failover.brokers_changed()
        assert list(controller.image.brokers) == [0, 1]

    in_office(tmp_path, story)


def test_a_broker_that_announced_its_stop_in_a_former_office_is_not_elected_in_the_next(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        failover = Failover(controller)
        await restart(setting, 1)
        await failover.brokers_changed()
        (outcome,) = await controller.create_topics([NewTopic("a", -1, -1, assignments={0: [1]})])
        assert outcome.error is None
        await controller.leading.shut_down(1)
        failover.found_dead(1, epoch(setting, 1))
        await failover.brokers_changed()
        controller.resign()
        assert await controller.activate()
        (partition,) = controller.image.topics["a"].partitions
        assert (partition.leader, list(partition.elr)) == (-1, [1])
        await restart(setting, 1)
        await failover.brokers_changed()
        assert controller.image.topics["a"].partitions[0].leader == 1

    in_office(tmp_path, story)


def test_who_was_found_dead_lives_once_it_has_registered_again(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        await restart(setting, 1)
        await failover.brokers_changed()
        failover.found_dead(1, epoch(setting, 1))
        await failover.brokers_changed()
        assert list(setting.controller.image.brokers) == [0]
        await restart(setting, 1)
        await failover.brokers_changed()
        assert list(setting.controller.image.brokers) == [0, 1]

    in_office(tmp_path, story)


def test_a_node_that_cannot_be_read_is_looked_at_again_only_when_it_changes(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        looks: list[str] = []
        looked = asyncio.Event()

        async def odd() -> None:
            looks.append(TOPICS)
            raise NodeFormatError(TOPICS, b"{", "it is odd")

        async def after() -> None:
            looks.append(DELETE_TOPICS)
            looked.set()

        watching = Watching(setting.store, {TOPICS: odd, DELETE_TOPICS: after})
        watching.start()
        await asyncio.wait_for(looked.wait(), 10)
        looked.clear()
        await setting.store.transact([Create(DeleteTopicNode.path("a"))])
        await asyncio.wait_for(looked.wait(), 10)
        assert looks == [TOPICS, DELETE_TOPICS, DELETE_TOPICS]
        await watching.stopped()

    in_office(tmp_path, story)


def test_an_office_that_is_lost_while_the_store_is_read_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has expired. Nothing would end what was begun, if another broker has the office since."""

    async def story(setting: Setting) -> None:
        setting.controller.resign()
        told: list[bool] = []
        setting.controller.office_listeners.append(told.append)
        get_many = setting.store.get_many

        async def expire(paths: Sequence[str]) -> list[Node | None]:
            if setting.controller.is_active:
                setting.controller.resign()
            return await get_many(paths)

        monkeypatch.setattr(setting.store, "get_many", expire)
        assert not await setting.controller.activate()
        assert not setting.deltas
        assert told == [False]

    in_office(tmp_path, story)
