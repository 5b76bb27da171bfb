"""Recovery of partitions without a replica that is known to have all committed records, over a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from controller_stage import (
    Brokers,
    Setting,
    create,
    registration,
    restart,
    started,
    with_controller,
)

from tidemill.controller.leader_election import LogEnd
from tidemill.controller.preferred_leader_election import ElectionType
from tidemill.coordination.coordination_store import Delete, SetData
from tidemill.coordination.nodes import BrokerNode
from tidemill.model.types import TopicPartition

KEY = TopicPartition("t", 0)
BROKERS = (1, 2, 3)


class Replicas(Brokers):
    """Brokers 1, 2 and 3 in the store, and a topic with one partition on all of them."""

    async def clear_loss(self, broker: int) -> None:
        """Removes the loss from its registration, as a broker does after a command from the controller."""
        data = BrokerNode.encode(registration(broker))
        await self.setting.store.transact([SetData(BrokerNode.path(broker), data)])
        await self.failover.brokers_changed()

    async def make_topic(self) -> None:
        """Creates the topic with broker 1 as leader."""
        for broker in BROKERS:
            await self.start(broker)
        assert await create(self.setting, "t", BROKERS) is None
        assert self.state.leader == 1

    def answer_log_ends(self, ends: Mapping[int, LogEnd], *, started_meanwhile: int | None) -> None:
        """Returns the log end offsets of the requested brokers to the controller.

        The broker ``started_meanwhile`` registers before the first response.
        """
        to_start = [] if started_meanwhile is None else [started_meanwhile]

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            if to_start:
                await self.start(to_start.pop())
            return {KEY: {broker: ends[broker] for broker in wanted}}

        self.controller.recovery.request_log_ends = ask

    async def led(self) -> int:
        """Returns the leader once there is one."""
        for _ in range(500):
            if self.state.leader >= 0:
                break
            await asyncio.sleep(0.01)
        return self.state.leader


def test_a_log_end_from_before_a_restart_does_not_elect_an_empty_replica(tmp_path: Path) -> None:
    async def story(setting: Setting) -> int:
        brokers = Replicas(setting)
        await brokers.make_topic()
        requested: list[Sequence[int]] = []

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            """Brokers 1 and 2 respond at once, broker 3 does not.

            Meanwhile broker 1 restarts with an empty disk.
            """
            requested.append(sorted(wanted))
            if len(requested) == 1:
                await brokers.start(1, missing=True)
                await brokers.clear_loss(1)
            return {KEY: {1: LogEnd(4, 100 if len(requested) == 1 else 0), 2: LogEnd(4, 50)}}

        setting.controller.recovery.request_log_ends = ask
        for broker in BROKERS:
            await brokers.start(broker, unsynced=True)
        for broker in BROKERS:
            await brokers.clear_loss(broker)
        return await brokers.led()

    assert with_controller(tmp_path, story) == 2


async def test_a_handled_loss_does_not_affect_the_leader_elected_after_it(tmp_path: Path) -> None:
    ends = {KEY: {1: LogEnd(3, 100), 2: LogEnd(3, 90), 3: LogEnd(3, 80)}}

    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_topic()

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            return ends

        setting.controller.recovery.request_log_ends = ask
        for broker in BROKERS:
            await brokers.start(broker, unsynced=True)
        await setting.controller.recovery._recover({KEY: list(BROKERS)})
        assert brokers.state.leader == -1, "the next controller would handle the losses again"
        for broker in BROKERS:
            await brokers.clear_loss(broker)
        assert await brokers.led() == 1
        before = brokers.state
        setting.controller.election.resign()
        await setting.controller.context.activate()
        after = brokers.state
        assert (after.leader, after.leader_epoch, after.isr) == (1, before.leader_epoch, before.isr)


async def test_a_loss_report_does_not_apply_to_topics_created_later(tmp_path: Path) -> None:
    """Otherwise the next controller would remove the only copy of records from the in-sync set."""

    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        for broker in BROKERS:
            await brokers.start(broker, missing=broker == 1)
        assert await create(setting, "t", BROKERS) is None
        assert brokers.state.leader == 1
        for broker in (2, 3):
            await setting.store.transact([Delete(BrokerNode.path(broker))])
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        setting.controller.election.resign()
        await setting.controller.context.activate()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])


async def test_a_handled_loss_report_is_not_applied_again_to_a_broker_marked_dead(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.start(1, missing=True)
        assert await create(setting, "t", [1]) is None
        brokers.failover.mark_dead(1, broker_epoch=setting.controller.image.brokers[1].epoch)
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.elr) == (-1, [1])
        assert brokers.failover.mark_alive(1)
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        await brokers.start(1, missing=True)
        assert (brokers.state.leader, brokers.state.isr) == (-1, []), "it has lost that record as well"


async def test_a_repeated_loss_report_does_not_apply_to_topics_created_after_the_first(
    tmp_path: Path,
) -> None:
    """The session expired before the broker could clear the report on its disk."""

    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.start(1, missing=True)
        first = setting.controller.image.brokers[1].epoch
        assert await create(setting, "t", [1]) is None
        await brokers.start(1, missing=True, first_epoch=first)
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        setting.controller.election.resign()
        await setting.controller.context.activate()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        await brokers.start(1, missing=True)
        assert (brokers.state.leader, brokers.state.isr) == (-1, []), "it has lost that record as well"


async def test_a_topic_created_before_a_restart_was_noticed_has_lost_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        for broker in (1, 2):
            await brokers.start(broker)
        await restart(setting, 1, missing=True)
        assert await create(setting, "t", [1, 2]) is None
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])


@pytest.mark.parametrize("is_known", [True, False])
def test_a_broker_started_while_log_ends_are_requested_is_asked_too(tmp_path: Path, is_known: bool) -> None:
    """It may have more records than the others: a kill loses none."""

    async def story(setting: Setting) -> int:
        brokers = Replicas(setting)
        await brokers.make_topic()
        brokers.answer_log_ends({1: LogEnd(4, 100), 2: LogEnd(4, 50), 3: LogEnd(4, 60)}, started_meanwhile=1)
        for broker in BROKERS:
            await brokers.start(broker, unsynced=True)
        await brokers.clear_loss(1)
        if not is_known:
            await brokers.stop(1)
        for broker in (2, 3):
            await brokers.clear_loss(broker)
        return await brokers.led()

    assert with_controller(tmp_path, story) == 1


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_requested_unclean_election_asks_brokers_started_meanwhile(
    tmp_path: Path, is_known: bool
) -> None:
    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_topic()
        for broker in (2, 3, 1):
            await brokers.stop(broker)
        assert (brokers.state.leader, brokers.state.elr) == (-1, [1])
        ends = {0: LogEnd(3, 40), 2: LogEnd(4, 50), 3: LogEnd(4, 60)}
        brokers.answer_log_ends(ends, started_meanwhile=3 if is_known else None)
        for broker in (2, 3) if is_known else (2,):
            await brokers.start(broker)
        if (
            not is_known
        ):  # One candidate is not asked, and another appears in the refresh before the election.
            await restart(setting, 3)
        results = await setting.controller.leader_elections.elect([KEY], ElectionType.UNCLEAN)
        assert (results, brokers.state.leader) == ({KEY: None}, 3)


async def test_a_requested_unclean_election_ignores_log_ends_from_before_a_restart(tmp_path: Path) -> None:
    """Broker 3 restarts after each response until the controller stops asking."""

    async with started(tmp_path) as setting:
        brokers = Replicas(setting)
        await brokers.make_topic()
        for broker in (2, 3, 1):
            await brokers.stop(broker)
        for broker in (2, 3):
            await brokers.start(broker)

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            await brokers.start(3)
            return {KEY: {2: LogEnd(4, 50), 3: LogEnd(4, 60)}}

        setting.controller.recovery.request_log_ends = ask
        results = await setting.controller.leader_elections.elect([KEY], ElectionType.UNCLEAN)
        assert (results, brokers.state.leader) == ({KEY: None}, 2)


def test_log_ends_are_requested_for_five_seconds(tmp_path: Path) -> None:
    """Brokers without response are not elected; among the others the longest log is."""

    async def story(setting: Setting) -> tuple[int, list[float]]:
        brokers = Replicas(setting)
        await brokers.make_topic()
        patience: list[float] = []

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            patience.append(patience_s)
            return {KEY: {2: LogEnd(4, 50), 3: LogEnd(4, 60)}}

        setting.controller.recovery.request_log_ends = ask
        for broker in BROKERS:
            await brokers.start(broker, unsynced=True)
        for broker in BROKERS:
            await brokers.clear_loss(broker)
        return await brokers.led(), patience

    leader, patience = with_controller(tmp_path, story)
    assert (leader, set(patience)) == (3, {5.0})
