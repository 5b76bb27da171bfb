"""The controller over a store that loses responses, and beside concurrent controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from controller_stage import (
    Setting,
    create,
    delete,
    epoch,
    lose_answer,
    only_partition,
    restart,
    started,
)

from tidemill.controller.failover import Failover
from tidemill.controller.node_change_handlers import NodeChangeHandlers
from tidemill.controller.topics import NewTopic
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import (
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
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    BrokerNode,
    ControllerEpochNode,
    DeleteTopicNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition


async def test_a_write_without_response_schedules_a_read_of_the_registrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the written state, such as a partition without leader, stays until another change."""

    async with started(tmp_path) as setting:
        requested: list[str] = []
        setting.controller.context.schedule_broker_refresh = lambda: requested.append("refresh")
        assert await create(setting, "a") is None
        assert requested == []
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        assert requested == ["refresh"]
        await setting.controller.failover.brokers_changed()
        assert created(setting.deltas) == ["a", "b"]


def created(deltas: Sequence[Delta]) -> list[str]:
    return [topic.name for delta in deltas for topic in delta.created]


async def another_controller(setting: Setting) -> None:
    """Takes the controller role up to the point where writes are fenced."""
    node = await setting.store.get(CONTROLLER_EPOCH)
    assert node is not None
    epoch = ControllerEpochNode.decode(node.data) + 1
    await setting.store.transact([SetData(CONTROLLER_EPOCH, ControllerEpochNode.encode(epoch))])


async def test_a_change_with_a_lost_response_is_announced_after_a_failed_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        lose_answer(setting, monkeypatch)
        assert await create(setting, "a") is not None
        publish, broken = setting.publish, [True]

        async def fails_once(delta: Delta) -> Announcement:
            if broken.pop() if broken else False:
                raise StoreUnavailable("it broke again")
            return await publish(delta)

        setting.controller.context._announce = fails_once
        with pytest.raises(StoreUnavailable):
            await create(setting, "b")
        assert created(setting.deltas) == []
        assert await create(setting, "b") is None
        assert created(setting.deltas) == ["a", "b"]


async def test_a_change_of_a_cancelled_request_is_announced_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        lose_answer(setting, monkeypatch, asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            await create(setting, "a")
        assert await create(setting, "b") is None
        assert created(setting.deltas) == ["a", "b"]


async def test_a_deletion_whose_start_had_no_response_continues_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "a") is None
        lose_answer(setting, monkeypatch)
        assert await delete(setting, "a") is not None
        assert await setting.store.exists(DeleteTopicNode.path("a"))
        setting.deltas.clear()
        assert await create(setting, "b") is None
        assert [topic.name for topic in setting.deltas[0].deleted] == ["a"]
        assert not await setting.store.exists(TopicNode.path("a"))
        assert not await setting.store.exists(DeleteTopicNode.path("a"))
        assert await create(setting, "a") is None


async def test_deleting_a_topic_that_an_administrator_has_just_marked_succeeds(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "a") is None
        await setting.store.transact([Create(DeleteTopicNode.path("a"))])
        assert await delete(setting, "a") is None
        assert not await setting.store.exists(TopicNode.path("a"))
        assert not await setting.store.exists(DeleteTopicNode.path("a"))


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_deleted_topic_does_not_return_when_its_mark_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    """With ``is_late`` the change comes during the removal of the listed nodes."""

    async with started(tmp_path) as setting:
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
        assert await delete(setting, "a") is None
        assert await create(setting, "b") is None
        assert list(setting.controller.image.topics) == ["b"]
        assert not await setting.store.exists(TopicNode.path("a"))
        assert not await setting.store.exists(mark)
        assert created(setting.deltas) == ["a", "b"]
    assert not [record for record in caplog.records if "goes on" in record.getMessage()]


async def test_records_of_a_topic_whose_nodes_were_removed_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "a") is None
        nodes = await subtree(setting.store, TopicNode.path("a"))
        await setting.store.transact([Delete(path) for path in reversed(nodes)])
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        setting.deltas.clear()
        assert await create(setting, "c") is None
        assert list(setting.controller.image.topics) == ["b", "c"]
        assert [delta.deleted for delta in setting.deltas] == [(), ()]
    assert any(
        record.getMessage().startswith("the nodes of topic a were removed") for record in caplog.records
    )


async def test_nodes_that_could_not_be_removed_are_removed_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
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
        assert await delete(setting, "a") is None
        assert await setting.store.exists(TopicNode.path("a"))
        assert await create(setting, "b") is None
        assert not await setting.store.exists(TopicNode.path("a"))


async def test_a_replaced_controller_announces_nothing_under_the_epoch_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        lose_answer(setting, monkeypatch)
        assert await create(setting, "a") is not None
        await another_controller(setting)
        with pytest.raises(KafkaError) as raised:
            await create(setting, "b")
        assert raised.value.code == ErrorCode.NOT_CONTROLLER
        assert not setting.controller.is_active
        assert setting.deltas == []


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_change_fails_with_the_error_of_the_earlier_incomplete_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    async with started(tmp_path) as setting:
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


async def test_a_change_fails_with_not_controller_after_a_new_election(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        assert await create(setting, "a", [1, 0]) is None
        await another_controller(setting)
        await setting.store.transact([Delete(BrokerNode.path(1))])
        with pytest.raises(KafkaError) as raised:
            await failover.brokers_changed()
        assert raised.value.code == ErrorCode.NOT_CONTROLLER


async def test_a_failover_that_loses_against_another_controller_returns_false(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        setting.controller.election.resign()
        transact = setting.store.transact

        async def overtaken(operations: Sequence[Operation]) -> list[Result]:
            results = await transact(operations)
            monkeypatch.setattr(setting.store, "transact", transact)
            await another_controller(setting)
            return results

        monkeypatch.setattr(setting.store, "transact", overtaken)
        assert not await setting.controller.context.activate()
        assert not setting.controller.is_active
        assert setting.deltas == []
        assert await setting.controller.context.activate()


async def test_offline_replicas_stay_offline_when_the_store_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "a") is None
        controller = setting.controller
        topic_id = controller.image.topics["a"].topic_id
        await controller.failover.replicas_failed(0, [(topic_id, 0)], broker_epoch=epoch(setting, 0))
        assert controller.image.topics["a"].partitions[0].leader == -1
        lose_answer(setting, monkeypatch)
        assert await create(setting, "b") is not None
        assert await create(setting, "c") is None
        partition = only_partition(setting, "a")
        assert (partition.leader, partition.offline) == (-1, {0})


async def led_by_0(setting: Setting, failover: Failover) -> bytes:
    """Creates a topic on brokers 0 and 1, both in sync.

    Then broker 1 loses records without a notification.
    """
    await restart(setting, 1)
    await failover.brokers_changed()
    assert await create(setting, "a", [0, 1]) is None
    await restart(setting, 1, unsynced=True)
    return setting.controller.image.topics["a"].topic_id


async def test_a_restarted_broker_with_losses_is_not_elected_after_a_disk_failure_of_the_leader(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        topic_id = await led_by_0(setting, failover)
        await failover.replicas_failed(0, [(topic_id, 0)], broker_epoch=epoch(setting, 0))
        partition = only_partition(setting, "a")
        assert (partition.leader, partition.isr, partition.elr) == (-1, [], [0])
        assert partition.offline == {0}


async def test_a_restarted_broker_with_losses_is_not_elected_in_a_controlled_shutdown(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        await led_by_0(setting, failover)
        remaining = await setting.controller.leader_elections.handle_controlled_shutdown(0)
        partition = only_partition(setting, "a")
        assert (partition.leader, partition.isr) == (0, [0])
        assert remaining == [TopicPartition("a", 0)]


@pytest.mark.parametrize(
    ("steps", "offline"),
    [
        pytest.param(
            ["failed", "refresh"], set(), id="replicas that failed before a restart are online after it"
        ),
        pytest.param(
            ["refresh", "failed before"], set(), id="offline reports of a former registration are ignored"
        ),
        pytest.param(["refresh", "failed before", "failed"], {1}, id="a later offline report counts"),
        pytest.param(
            ["refresh", "failed", "served"], set(), id="a replica that is online again may join the ISR"
        ),
        pytest.param(
            ["refresh", "failed", "served before"],
            {1},
            id="online reports of a former registration are ignored",
        ),
    ],
)
async def test_replica_reports_count_for_the_registration_of_their_broker(
    tmp_path: Path, steps: list[str], offline: set[int]
) -> None:
    """Broker 1 has registered again. The controller reads that at the step "refresh"."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        topic_id = await led_by_0(setting, failover)
        before = epoch(setting, 1)
        reports = {"failed": failover.replicas_failed, "served": failover.replicas_served}
        for step in steps:
            name, _, is_former = step.partition(" ")
            if name == "refresh":
                await failover.brokers_changed()
            else:
                await reports[name](
                    1, [(topic_id, 0)], broker_epoch=before if is_former else epoch(setting, 1)
                )
        partition = only_partition(setting, "a")
        assert (partition.leader, partition.isr, partition.offline) == (0, [0], offline)


async def test_a_restarted_broker_with_losses_and_a_failed_disk_is_not_elected(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        for broker in (1, 2):
            await restart(setting, broker)
        await failover.brokers_changed()
        topics = [NewTopic("a", -1, -1, assignments={0: [2, 1]}), NewTopic("b", -1, -1, assignments={0: [1]})]
        assert [one.error for one in await setting.controller.admin_manager.create_topics(topics)] == [
            None,
            None,
        ]
        await restart(setting, 1, unsynced=True)
        await setting.store.transact([Delete(BrokerNode.path(2))])
        topic_id = setting.controller.image.topics["b"].topic_id
        await failover.replicas_failed(1, [(topic_id, 0)], broker_epoch=epoch(setting, 1))
        partition = only_partition(setting, "a")
        assert partition.leader == -1
        await failover.brokers_changed()
        partition = only_partition(setting, "a")
        assert (partition.leader, partition.last_known_leader) == (-1, 2)


@pytest.mark.parametrize(
    "is_registered_again",
    [
        pytest.param(False, id="in the next controller epoch"),
        pytest.param(True, id="after it registers again"),
    ],
)
async def test_a_broker_found_dead_counts_as_live_again(tmp_path: Path, is_registered_again: bool) -> None:
    async with started(tmp_path) as setting:
        controller = setting.controller
        failover = controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        failover.mark_dead(1, broker_epoch=epoch(setting, 1))
        await failover.brokers_changed()
        assert list(controller.image.brokers) == [0]
        if is_registered_again:
            await restart(setting, 1)
        else:
            controller.election.resign()
            assert await controller.context.activate()
        await failover.brokers_changed()
        assert list(controller.image.brokers) == [0, 1]


async def test_a_broker_in_controlled_shutdown_is_not_elected_under_the_next_controller_epoch(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        controller = setting.controller
        failover = controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        assert await create(setting, "a", [1]) is None
        await controller.leader_elections.handle_controlled_shutdown(1)
        failover.mark_dead(1, broker_epoch=epoch(setting, 1))
        await failover.brokers_changed()
        controller.election.resign()
        assert await controller.context.activate()
        partition = only_partition(setting, "a")
        assert (partition.leader, list(partition.elr)) == (-1, [1])
        await restart(setting, 1)
        await failover.brokers_changed()
        assert controller.image.topics["a"].partitions[0].leader == 1


async def test_an_unreadable_node_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        reads: list[str] = []
        looked = asyncio.Event()

        async def odd() -> None:
            reads.append(TOPICS)
            raise NodeFormatError(TOPICS, b"{", "it is odd")

        async def after() -> None:
            reads.append(DELETE_TOPICS)
            looked.set()

        watching = NodeChangeHandlers(setting.store, {TOPICS: odd, DELETE_TOPICS: after})
        watching.start()
        await asyncio.wait_for(looked.wait(), 10)
        looked.clear()
        await setting.store.transact([Create(DeleteTopicNode.path("a"))])
        await asyncio.wait_for(looked.wait(), 10)
        assert reads == [TOPICS, DELETE_TOPICS, DELETE_TOPICS]
        await watching.stopped()


async def test_a_controller_replaced_while_it_reads_the_store_announces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has expired.

    If another broker is controller, no other controller completes the operation.
    """

    async with started(tmp_path) as setting:
        setting.controller.election.resign()
        changes: list[bool] = []
        setting.controller.election.controller_change_listeners.append(changes.append)
        get_many = setting.store.get_many

        async def expire(paths: Sequence[str]) -> list[Node | None]:
            if setting.controller.is_active:
                setting.controller.election.resign()
            return await get_many(paths)

        monkeypatch.setattr(setting.store, "get_many", expire)
        assert not await setting.controller.context.activate()
        assert not setting.deltas
        assert changes == [False]
