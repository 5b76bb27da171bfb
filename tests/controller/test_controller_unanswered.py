"""What is left to do where the store did not answer half way is done after another look at the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from controller_office import Setting, epoch, in_office, lose_answer, registration, restart

from tidemill.controller.elections import LogEnd
from tidemill.controller.failover import Failover, WantedIsr
from tidemill.controller.isr import IsrChange
from tidemill.controller.topics import NewTopic
from tidemill.controller.unclean_recovery import UncleanRecovery
from tidemill.coordination.image import PartitionImage
from tidemill.coordination.nodes import (
    BrokerNode,
    ConfigNode,
    PartitionState,
    PartitionStateNode,
    ReassignmentNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Create, Delete, Node, SetData, StoreUnavailable
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

MOVED = TopicPartition("a", 0)


async def create(setting: Setting, name: str, replicas: Sequence[int]) -> None:
    topic = NewTopic(name, -1, -1, assignments={0: replicas})
    (outcome,) = await setting.controller.create_topics([topic])
    assert outcome.error is None


def only_partition(setting: Setting) -> PartitionImage:
    (partition,) = setting.controller.image.topics["a"].partitions
    return partition


async def moving(setting: Setting, failover: Failover) -> WantedIsr:
    """Moves ``a-0`` from broker 0 to broker 1; the in-sync set with which the move ends."""
    await restart(setting, 1)
    await failover.brokers_changed()
    await create(setting, "a", [0])
    await setting.store.transact([Create(ReassignmentNode.path, ReassignmentNode.encode({MOVED: [1]}))])
    await setting.controller.moves.take_wishes()
    one = only_partition(setting)
    assert one.adding == [1]
    members = [(broker, epoch(setting, broker)) for broker in (0, 1)]
    change = IsrChange(0, one.leader_epoch, one.partition_epoch, members, epoch(setting, 0))
    return WantedIsr(setting.controller.image.topics["a"].topic_id, 0, change)


async def led_by_broker_1(setting: Setting) -> Failover:
    """Topic ``a`` has one partition, whose only replica is on broker 1."""
    failover = Failover(setting.controller)
    await restart(setting, 1)
    await failover.brokers_changed()
    await create(setting, "a", [1])
    return failover


def note_looks(setting: Setting) -> list[str]:
    """The looks that the controller has asked for, as they come."""
    asked: list[str] = []
    setting.controller.look_again = lambda: asked.append("a look")
    return asked


def break_reading(setting: Setting, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next list (``children``) or node (``get``) is not read, or write (``transact``) not made."""

    async def fail(asked: object) -> None:
        monkeypatch.undo()
        raise StoreUnavailable("the connection broke")

    monkeypatch.setattr(setting.store, name, fail)


@pytest.mark.parametrize("lost", ["the write", "children", "get"])
def test_a_move_ends_although_the_store_did_not_answer_when_its_last_replica_got_in_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Its leader has the set that it asked for, and does not ask again."""

    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        wanted = await moving(setting, failover)
        asked = note_looks(setting)
        if lost == "the write":
            lose_answer(setting, monkeypatch)
        else:
            break_reading(setting, monkeypatch, lost)
        with pytest.raises(StoreUnavailable):
            await failover.alter_isr([wanted])
        assert asked == ["a look"]
        await failover.brokers_changed()
        one = only_partition(setting)
        assert (one.replicas, one.adding, one.removing) == ([1], [], [])
        assert not await setting.store.exists(ReassignmentNode.path)

    in_office(tmp_path, story)


def test_a_move_that_a_client_stops_is_not_wished_any_more_although_the_store_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next controller, which carries out what the administrator's node says, begins it again."""

    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        await moving(setting, failover)
        asked = note_looks(setting)
        break_reading(setting, monkeypatch, "get")
        with pytest.raises(StoreUnavailable):
            await setting.controller.moves.alter({MOVED: None})
        assert only_partition(setting).replicas == [0]
        assert asked == ["a look"]
        await failover.brokers_changed()
        assert not await setting.store.exists(ReassignmentNode.path)

    in_office(tmp_path, story)


def test_a_move_that_a_client_stops_is_not_begun_again_by_wishes_that_were_read_before(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        await moving(setting, Failover(setting.controller))
        moves = setting.controller.moves
        async with setting.controller.changing():
            waiting = []
            for change in (moves.alter({MOVED: None}), moves.take_wishes()):
                waiting.append(asyncio.create_task(change))
                await asyncio.sleep(0.01)
        await asyncio.gather(*waiting)
        one = only_partition(setting)
        assert (one.replicas, one.adding) == ([0], [])
        assert not await setting.store.exists(ReassignmentNode.path)

    in_office(tmp_path, story)


def test_a_deletion_that_a_broker_returns_for_goes_on_although_a_move_could_not_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        wanted = await moving(setting, failover)
        await restart(setting, 2)
        await failover.brokers_changed()
        await create(setting, "b", [0, 2])
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await failover.brokers_changed()
        (outcome,) = await setting.controller.delete_topics(["b"])
        assert outcome.error is None
        break_reading(setting, monkeypatch, "children")
        with pytest.raises(StoreUnavailable):
            await failover.alter_isr([wanted])
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
        assert only_partition(setting).replicas == [1]

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_failed_replica_leads_no_more_although_the_store_did_not_answer_when_it_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """It is the only one that could lead, and the next change finishes what was written half way."""

    async def story(setting: Setting) -> None:
        failover = await led_by_broker_1(setting)
        topic_id = setting.controller.image.topics["a"].topic_id
        if is_written:
            lose_answer(setting, monkeypatch)
        else:
            break_reading(setting, monkeypatch, "transact")
        with pytest.raises(StoreUnavailable):
            await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        told = len(setting.deltas)
        await failover.brokers_changed()
        one = only_partition(setting)
        assert (one.leader, one.leader_epoch, list(one.elr), one.offline) == (-1, 1, [1], frozenset({1}))
        (delta,) = setting.deltas[told:]
        assert delta.image.topics["a"].partitions[0].offline == {1}
        await restart(setting, 1)
        await failover.brokers_changed()
        one = only_partition(setting)
        assert (one.leader, one.leader_epoch, one.offline) == (1, 2, frozenset())

    in_office(tmp_path, story)


def test_a_controller_that_loses_the_office_while_it_catches_up_decides_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        failover = await led_by_broker_1(setting)
        topic_id = setting.controller.image.topics["a"].topic_id
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.replicas_failed(1, epoch(setting, 1), [(topic_id, 0)])
        finish = setting.controller.finish_deletions

        async def and_lose_the_office() -> None:
            await finish()
            setting.controller.resign()

        monkeypatch.setattr(setting.controller, "finish_deletions", and_lose_the_office)
        with pytest.raises(KafkaError) as refused:
            async with setting.controller.changing():
                pytest.fail("a change was begun")
        assert refused.value.code == ErrorCode.NOT_CONTROLLER

    in_office(tmp_path, story)


def test_what_a_former_registration_told_does_not_count_for_one_that_came_as_a_move_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas would not get in sync before it is started once more."""

    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        wanted = await moving(setting, failover)
        await restart(setting, 2)
        await failover.brokers_changed()
        await create(setting, "b", [0, 1])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.alter_isr([wanted])
        topic_id, before = setting.controller.image.topics["b"].topic_id, epoch(setting, 1)
        await restart(setting, 1)
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await failover.replicas_failed(1, before, [(topic_id, 0)])
        assert epoch(setting, 1) > before, "all brokers were looked at"
        await failover.brokers_changed()
        (partition,) = setting.controller.image.topics["b"].partitions
        assert partition.offline == frozenset()
        assert only_partition(setting).replicas == [1]

    in_office(tmp_path, story)


def test_a_former_registration_is_not_in_sync_once_a_later_one_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker was started with another disk: the leader counts what the former process fetched."""

    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        await restart(setting, 1)
        await failover.brokers_changed()
        await create(setting, "a", [0, 1])
        one = only_partition(setting)
        topic_id = setting.controller.image.topics["a"].topic_id

        def asked(*members: int) -> WantedIsr:
            isr = [(broker, epoch(setting, broker)) for broker in members]
            now = only_partition(setting)
            change = IsrChange(0, one.leader_epoch, now.partition_epoch, isr, epoch(setting, 0))
            return WantedIsr(topic_id, 0, change)

        await failover.alter_isr([asked(0)])
        joins = asked(0, 1)
        await restart(setting, 1, unsynced=True)
        break_reading(setting, monkeypatch, "transact")
        (outcome,) = await setting.controller.create_topics([NewTopic("b", -1, -1, assignments={0: [0]})])
        assert outcome.error is not None
        (refused,) = await failover.alter_isr([joins])
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.INVALID_UPDATE_VERSION, "the report of the loss counts first"
        assert list(only_partition(setting).isr) == [0]

    in_office(tmp_path, story)


def test_a_leader_that_may_lack_records_is_counted_although_its_election_was_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(setting: Setting) -> None:
        failover = await led_by_broker_1(setting)
        await restart(setting, 1, unsynced=True)
        await failover.brokers_changed()
        assert only_partition(setting).leader == -1
        report = setting.controller.report
        assert report.unclean_elections == 0
        cleared = BrokerNode.encode(registration(1))
        await setting.store.transact([SetData(BrokerNode.path(1), cleared)])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.brokers_changed()
        await failover.brokers_changed()
        assert only_partition(setting).leader == 1
        assert report.unclean_elections == 1

    in_office(tmp_path, story)
    warned = [one for one in caplog.records if "a-0: broker 1 leads in epoch" in one.getMessage()]
    assert len(warned) == 1


def test_settings_that_allow_to_lose_records_count_although_they_were_read_after_a_lost_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice of these settings comes later, and tells nothing new by then."""

    async def story(setting: Setting) -> None:
        failover, controller = Failover(setting.controller), setting.controller
        await restart(setting, 1)
        await failover.brokers_changed()
        await create(setting, "a", [0, 1])
        waiting = PartitionStateNode.encode(PartitionState(-1, 1, [9], 1))
        assignment = TopicNode.encode(TopicAssignment(controller.image.topics["a"].topic_id, {0: [9, 0, 1]}))
        await setting.store.transact(
            [
                SetData(TopicNode.path("a"), assignment),
                SetData(PartitionStateNode.path("a", 0), waiting),
            ]
        )
        controller.resign()
        assert await controller.activate()
        await asyncio.sleep(0.01)
        assert only_partition(setting).leader == -1

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            return {MOVED: {0: LogEnd(0, 1), 1: LogEnd(0, 2)}}

        controller.recovery.ask = ask
        settings = {"unclean.leader.election.enable": "true"}
        path = ConfigNode.path("topics", "a")
        known: Node | None = await setting.store.get(path)
        data = ConfigNode.encode(settings)
        await setting.store.transact([Create(path, data) if known is None else SetData(path, data)])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await controller.write_operations([])
        await failover.brokers_changed()
        await controller.take_settings({("topics", "a"): settings})
        for _ in range(100):
            if only_partition(setting).leader >= 0:
                break
            await asyncio.sleep(0.01)
        assert only_partition(setting).leader == 1

    in_office(tmp_path, story)


def test_who_was_started_again_with_a_loss_is_not_elected_for_the_death_that_the_store_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has the partition without a leader, and the controller still the registration before."""

    async def story(setting: Setting) -> None:
        failover = await led_by_broker_1(setting)
        await setting.store.transact([Delete(BrokerNode.path(1))])
        lose_answer(setting, monkeypatch)
        with pytest.raises(StoreUnavailable):
            await failover.brokers_changed()
        await restart(setting, 1, missing=True)
        await create(setting, "b", [0])
        one = only_partition(setting)
        assert (one.leader, one.leader_epoch, one.isr, list(one.elr)) == (-1, 1, [], [])
        assert list(one.lost_replicas) == [1]

    in_office(tmp_path, story)


def test_the_longest_log_leads_also_where_its_broker_came_while_the_store_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas may lack records. The controller knows of one living broker only, and not of the other."""

    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        await restart(setting, 1)
        await restart(setting, 2)
        await failover.brokers_changed()
        await create(setting, "a", [1, 2])
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await failover.brokers_changed()
        path = PartitionStateNode.path("a", 0)
        lost = PartitionState(-1, 7, [], 1, last_known_leader=1, lost_replicas=(1, 2))
        await setting.store.transact([SetData(path, PartitionStateNode.encode(lost))])
        lose_answer(setting, monkeypatch)
        with pytest.raises(AssertionError, match="the connection broke"):
            await create(setting, "b", [0])
        await restart(setting, 2)
        await create(setting, "c", [0])
        assert only_partition(setting).leader == -1, "broker 2 has to be asked for its log end"
        asked: list[set[int]] = []

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            asked.append(set(wanted))
            return {MOVED: {1: LogEnd(3, 10), 2: LogEnd(3, 20)}}

        recovery = UncleanRecovery(setting.controller)
        recovery.ask = ask
        setting.controller.look_at_brokers = failover.look
        await failover.brokers_changed()
        async with asyncio.timeout(10):
            while only_partition(setting).leader < 0:
                setting.controller.leaderless()
                await asyncio.sleep(0.01)
        assert only_partition(setting).leader == 2
        assert asked == [{1, 2}]

    in_office(tmp_path, story)
