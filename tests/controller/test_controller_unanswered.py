"""Operations that a missing store response interrupted are completed after the next broker refresh."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from controller_stage import (
    Setting,
    create,
    delete,
    epoch,
    lose_answer,
    only_partition,
    registration,
    restart,
    started,
)

from alter_partition_items import isr_change, item_for
from tidemill.controller.alter_partition import AlterPartitionItem
from tidemill.controller.failover import Failover
from tidemill.controller.leader_election import LogEnd
from tidemill.controller.unclean_recovery import UncleanRecovery
from tidemill.coordination.coordination_store import Create, Delete, Node, SetData, StoreUnavailable
from tidemill.coordination.nodes import (
    REASSIGN_PARTITIONS,
    BrokerNode,
    ConfigNode,
    ConfigResource,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    ReassignmentNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

MOVED = TopicPartition("a", 0)


async def moving(setting: Setting, failover: Failover) -> AlterPartitionItem:
    """Moves ``a-0`` from broker 0 to broker 1. The in-sync set completes the reassignment."""
    await restart(setting, 1)
    await failover.brokers_changed()
    assert await create(setting, "a", [0]) is None
    await setting.store.transact([Create(REASSIGN_PARTITIONS, ReassignmentNode.encode({MOVED: [1]}))])
    await setting.controller.reassignments.apply_requested_reassignments()
    one = only_partition(setting, "a")
    assert one.adding == [1]
    members = [(broker, epoch(setting, broker)) for broker in (0, 1)]
    change = isr_change(0, one.leader_epoch, one.partition_epoch, members, epoch(setting, 0))
    return item_for(setting.controller.image.topics["a"].topic_id, 0, change)


async def led_by_broker_1(setting: Setting) -> Failover:
    """Topic ``a`` has one partition with its only replica on broker 1."""
    failover = setting.controller.failover
    await restart(setting, 1)
    await failover.brokers_changed()
    assert await create(setting, "a", [1]) is None
    return failover


def record_refreshes(setting: Setting) -> list[str]:
    """Returns the refreshes that the controller schedules, in order."""
    asked: list[str] = []
    setting.controller.context.schedule_broker_refresh = lambda: asked.append("refresh")
    return asked


def break_reading(setting: Setting, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next list (``children``), read (``get``) or write (``transact``) fails."""

    async def fail(asked: object) -> None:
        monkeypatch.undo()
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(setting.store, name, fail)


@pytest.mark.parametrize("lost", ["the write", "children", "get"])
async def test_a_reassignment_completes_after_a_store_outage_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Its leader has the requested set and does not repeat the request."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        wanted = await moving(setting, failover)
        asked = record_refreshes(setting)
        if lost == "the write":
            lose_answer(setting, monkeypatch)
        else:
            break_reading(setting, monkeypatch, lost)
        with pytest.raises(StoreUnavailable):
            await setting.controller.alter_partitions([wanted])
        assert asked == ["refresh"]
        await failover.brokers_changed()
        one = only_partition(setting, "a")
        assert (one.replicas, one.adding, one.removing) == ([1], [], [])
        assert not await setting.store.exists(REASSIGN_PARTITIONS)


async def test_a_cancelled_reassignment_leaves_the_administrators_node_after_a_store_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next controller, which executes the administrator's node, starts it again."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        await moving(setting, failover)
        asked = record_refreshes(setting)
        break_reading(setting, monkeypatch, "get")
        with pytest.raises(StoreUnavailable):
            await setting.controller.reassignments.alter({MOVED: None})
        assert only_partition(setting, "a").replicas == [0]
        assert asked == ["refresh"]
        await failover.brokers_changed()
        assert not await setting.store.exists(REASSIGN_PARTITIONS)


async def test_a_cancelled_reassignment_is_not_restarted_by_an_earlier_read(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        await moving(setting, setting.controller.failover)
        moves = setting.controller.reassignments
        async with setting.controller.context.change_lock():
            waiting = []
            for change in (moves.alter({MOVED: None}), moves.apply_requested_reassignments()):
                waiting.append(asyncio.create_task(change))
                await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
        one = only_partition(setting, "a")
        assert (one.replicas, one.adding) == ([0], [])
        assert not await setting.store.exists(REASSIGN_PARTITIONS)


async def test_a_deletion_continues_for_a_returning_broker_although_a_reassignment_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        wanted = await moving(setting, failover)
        await restart(setting, 2)
        await failover.brokers_changed()
        assert await create(setting, "b", [0, 2]) is None
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await failover.brokers_changed()
        assert await delete(setting, "b") is None
        break_reading(setting, monkeypatch, "children")
        with pytest.raises(StoreUnavailable):
            await setting.controller.alter_partitions([wanted])
        await restart(setting, 2)
        setting.deltas.clear()
        children, lists = setting.store.children, 0

        async def fail_second(path: str) -> list[str]:
            nonlocal lists
            lists += 1
            if lists == 2:
                raise StoreUnavailable("the connection broke")
            return await children(path)

        monkeypatch.setattr(setting.store, "children", fail_second)
        with pytest.raises(StoreUnavailable):
            await failover.brokers_changed()
        await failover.brokers_changed()
        assert [topic.name for delta in setting.deltas for topic in delta.deleted] == ["b"]
        assert only_partition(setting, "a").replicas == [1]


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_failed_replica_loses_leadership_after_a_store_outage_at_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """It is the only eligible leader, and the next change completes the interrupted write."""

    async with started(tmp_path) as setting:
        failover = await led_by_broker_1(setting)
        topic_id = setting.controller.image.topics["a"].topic_id
        if is_written:
            lose_answer(setting, monkeypatch)
        else:
            break_reading(setting, monkeypatch, "transact")
        with pytest.raises(StoreUnavailable):
            await failover.replicas_failed(1, [(topic_id, 0)], broker_epoch=epoch(setting, 1))
        reported = len(setting.deltas)
        await failover.brokers_changed()
        one = only_partition(setting, "a")
        assert (one.leader, one.leader_epoch, list(one.elr), one.offline) == (-1, 1, [1], frozenset({1}))
        (delta,) = setting.deltas[reported:]
        assert delta.image.topics["a"].partitions[0].offline == {1}
        await restart(setting, 1)
        await failover.brokers_changed()
        one = only_partition(setting, "a")
        assert (one.leader, one.leader_epoch, one.offline) == (1, 2, frozenset())


async def test_a_controller_replaced_while_it_reloads_plans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        failover = await led_by_broker_1(setting)
        topic_id = setting.controller.image.topics["a"].topic_id
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.replicas_failed(1, [(topic_id, 0)], broker_epoch=epoch(setting, 1))
        finish = setting.controller.context.parts.finish_deletions

        async def finish_and_resign() -> None:
            await finish()
            setting.controller.election.resign()

        monkeypatch.setattr(setting.controller.context.parts, "finish_deletions", finish_and_resign)
        with pytest.raises(KafkaError) as refused:
            async with setting.controller.context.change_lock():
                pytest.fail("a change was begun")
        assert refused.value.code == ErrorCode.NOT_CONTROLLER


async def test_reports_of_a_former_registration_are_ignored_when_a_reassignment_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas would not get in sync before its next start."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        wanted = await moving(setting, failover)
        await restart(setting, 2)
        await failover.brokers_changed()
        assert await create(setting, "b", [0, 1]) is None
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await setting.controller.alter_partitions([wanted])
        topic_id, before = setting.controller.image.topics["b"].topic_id, epoch(setting, 1)
        await restart(setting, 1)
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await failover.replicas_failed(1, [(topic_id, 0)], broker_epoch=before)
        assert epoch(setting, 1) > before, "all brokers were read"
        await failover.brokers_changed()
        (partition,) = setting.controller.image.topics["b"].partitions
        assert partition.offline == frozenset()
        assert only_partition(setting, "a").replicas == [1]


async def test_a_former_registration_cannot_join_the_isr_after_a_later_one_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker restarted with another disk. The leader still counts the fetches of the former process."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        assert await create(setting, "a", [0, 1]) is None
        one = only_partition(setting, "a")
        topic_id = setting.controller.image.topics["a"].topic_id

        def request(*members: int) -> AlterPartitionItem:
            isr = [(broker, epoch(setting, broker)) for broker in members]
            now = only_partition(setting, "a")
            change = isr_change(0, one.leader_epoch, now.partition_epoch, isr, epoch(setting, 0))
            return item_for(topic_id, 0, change)

        await setting.controller.alter_partitions([request(0)])
        joins = request(0, 1)
        await restart(setting, 1, unsynced=True)
        break_reading(setting, monkeypatch, "transact")
        assert await create(setting, "b", [0]) is not None
        (refused,) = await setting.controller.alter_partitions([joins])
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.INVALID_UPDATE_VERSION, "the loss is handled first"
        assert list(only_partition(setting, "a").isr) == [0]


async def test_an_unclean_election_without_store_response_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as setting:
        failover = await led_by_broker_1(setting)
        await restart(setting, 1, unsynced=True)
        await failover.brokers_changed()
        assert only_partition(setting, "a").leader == -1
        report = setting.controller.context.election_report
        assert report.unclean_elections == 0
        cleared = BrokerNode.encode(registration(1))
        await setting.store.transact([SetData(BrokerNode.path(1), cleared)])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.brokers_changed()
        await failover.brokers_changed()
        assert only_partition(setting, "a").leader == 1
        assert report.unclean_elections == 1
    warned = [
        one for one in caplog.records if "a-0: broker 1 was elected in leader epoch" in one.getMessage()
    ]
    assert len(warned) == 1


async def test_unclean_election_settings_read_after_a_lost_response_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification of these settings arrives later and changes nothing."""

    async with started(tmp_path) as setting:
        failover, controller = setting.controller.failover, setting.controller
        await restart(setting, 1)
        await failover.brokers_changed()
        assert await create(setting, "a", [0, 1]) is None
        waiting = PartitionStateNode.encode(LeaderIsrAndControllerEpoch(-1, 1, [9], 1))
        assignment = TopicNode.encode(TopicAssignment(controller.image.topics["a"].topic_id, {0: [9, 0, 1]}))
        await setting.store.transact(
            [
                SetData(TopicNode.path("a"), assignment),
                SetData(PartitionStateNode.path("a", 0), waiting),
            ]
        )
        controller.election.resign()
        assert await controller.context.activate()
        await asyncio.sleep(0.01)
        assert only_partition(setting, "a").leader == -1

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            return {MOVED: {0: LogEnd(0, 1), 1: LogEnd(0, 2)}}

        controller.recovery.request_log_ends = ask
        settings = {"unclean.leader.election.enable": "true"}
        path = ConfigNode.path("topics", "a")
        known: Node | None = await setting.store.get(path)
        data = ConfigNode.encode(settings)
        await setting.store.transact([Create(path, data) if known is None else SetData(path, data)])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await controller.context.write_operations([])
        await failover.brokers_changed()
        await controller.context.apply_stored_settings({ConfigResource("topics", "a"): settings})
        for _ in range(100):
            if only_partition(setting, "a").leader >= 0:
                break
            await asyncio.sleep(0.01)
        assert only_partition(setting, "a").leader == 1


async def test_a_restarted_broker_with_losses_is_not_elected_after_a_store_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the partition without a leader. The controller still has the former registration."""

    async with started(tmp_path) as setting:
        failover = await led_by_broker_1(setting)
        await setting.store.transact([Delete(BrokerNode.path(1))])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.brokers_changed()
        await restart(setting, 1, missing=True)
        assert await create(setting, "b", [0]) is None
        one = only_partition(setting, "a")
        assert (one.leader, one.leader_epoch, one.isr, list(one.elr)) == (-1, 1, [], [])
        assert list(one.lost_replicas) == [1]


async def test_the_longest_log_is_elected_after_its_broker_registered_in_a_store_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas may lack records. The controller knows only one of two live brokers."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        await restart(setting, 1)
        await restart(setting, 2)
        await failover.brokers_changed()
        assert await create(setting, "a", [1, 2]) is None
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await failover.brokers_changed()
        path = PartitionStateNode.path("a", 0)
        lost = LeaderIsrAndControllerEpoch(-1, 7, [], 1, last_known_leader=1, lost_replicas=(1, 2))
        await setting.store.transact([SetData(path, PartitionStateNode.encode(lost))])
        lose_answer(setting, monkeypatch)
        assert "the connection broke" in str(await create(setting, "b", [0]))
        await restart(setting, 2)
        assert await create(setting, "c", [0]) is None
        assert only_partition(setting, "a").leader == -1, "the log end offset of broker 2 is read"
        asked: list[set[int]] = []

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            asked.append(set(wanted))
            return {MOVED: {1: LogEnd(3, 10), 2: LogEnd(3, 20)}}

        recovery = UncleanRecovery(setting.controller.context, ask)
        setting.controller.context.parts.on_leaderless = recovery.begin
        await failover.brokers_changed()
        async with asyncio.timeout(10):
            while only_partition(setting, "a").leader < 0:
                setting.controller.context.parts.on_leaderless()
                await asyncio.sleep(0.01)
        assert only_partition(setting, "a").leader == 2
        assert asked == [{1, 2}]
