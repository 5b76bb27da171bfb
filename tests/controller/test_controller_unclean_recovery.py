"""Recovery of partitions of which no replica is known to have every committed record, over a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from controller_office import REGISTRATION, Setting, in_office

from tidemill.controller.elections import LogEnd
from tidemill.controller.failover import Failover
from tidemill.controller.preferred import ElectionType
from tidemill.controller.topics import NewTopic
from tidemill.coordination.image import PartitionImage
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.nodes import BrokerNode
from tidemill.coordination.port import Create, Delete, SetData
from tidemill.model.types import TopicPartition

KEY = TopicPartition("t", 0)
BROKERS = (1, 2, 3)
UNSYNCED = LostReplicas(unsynced=True)
MISSING = LostReplicas(missing=True)


class Brokers:
    """Brokers 1, 2 and 3, as the store has them, with a topic of one partition on all of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.controller = setting.controller
        self.failover = Failover(setting.controller)

    async def start(self, broker: int, lost: LostReplicas = NOTHING_LOST) -> None:
        """Registers it anew."""
        path = BrokerNode.path(broker)
        if await self.setting.store.exists(path):
            await self.stop(broker)
        data = BrokerNode.encode(REGISTRATION._replace(broker_id=broker, lost=lost))
        await self.setting.store.transact([Create(path, data, ephemeral=True)])
        await self.failover.brokers_changed()

    async def stop(self, broker: int) -> None:
        """Removes its registration."""
        await self.setting.store.transact([Delete(BrokerNode.path(broker))])
        await self.failover.brokers_changed()

    async def clear_loss(self, broker: int) -> None:
        """Removes the loss from its registration, as a broker does once the controller has sent a command."""
        data = BrokerNode.encode(REGISTRATION._replace(broker_id=broker))
        await self.setting.store.transact([SetData(BrokerNode.path(broker), data)])
        await self.failover.brokers_changed()

    async def make_topic(self) -> None:
        """Makes the topic, which broker 1 leads."""
        for broker in BROKERS:
            await self.start(broker)
        await self.controller.create_topics([NewTopic("t", assignments={0: list(BROKERS)})])
        assert self.state.leader == 1

    def answer_log_ends(self, ends: Mapping[int, LogEnd], *, started_meanwhile: int | None) -> None:
        """Answers the controller with the log ends of the brokers that it asks.

        The broker ``started_meanwhile`` registers before the first answer.
        """
        to_start = [] if started_meanwhile is None else [started_meanwhile]

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            if to_start:
                await self.start(to_start.pop())
            return {KEY: {broker: ends[broker] for broker in wanted}}

        self.controller.recovery.ask = ask

    async def led(self) -> int:
        """The leader, once there is one."""
        for _ in range(500):
            if self.state.leader >= 0:
                break
            await asyncio.sleep(0.01)
        return self.state.leader

    @property
    def state(self) -> PartitionImage:
        """The partition as the controller knows it."""
        return self.controller.image.topics["t"].partitions[0]


def test_a_log_end_told_before_a_restart_does_not_elect_a_broker_that_came_back_empty(tmp_path: Path) -> None:
    async def story(setting: Setting) -> int:
        brokers = Brokers(setting)
        await brokers.make_topic()
        asked: list[Sequence[int]] = []

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            """Brokers 1 and 2 answer at once, broker 3 does not; meanwhile broker 1 comes back empty."""
            asked.append(sorted(wanted))
            if len(asked) == 1:
                await brokers.start(1, MISSING)
                await brokers.clear_loss(1)
            return {KEY: {1: LogEnd(4, 100 if len(asked) == 1 else 0), 2: LogEnd(4, 50)}}

        setting.controller.recovery.ask = ask
        for broker in BROKERS:
            await brokers.start(broker, UNSYNCED)
        for broker in BROKERS:
            await brokers.clear_loss(broker)
        return await brokers.led()

    assert in_office(tmp_path, story) == 2


def test_a_loss_does_not_count_again_against_the_leader_that_was_elected_after_it(tmp_path: Path) -> None:
    ends = {KEY: {1: LogEnd(3, 100), 2: LogEnd(3, 90), 3: LogEnd(3, 80)}}

    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_topic()

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            return ends

        setting.controller.recovery.ask = ask
        for broker in BROKERS:
            await brokers.start(broker, UNSYNCED)
        await setting.controller.recovery._recover({KEY: list(BROKERS)})
        assert brokers.state.leader == -1, "the next controller would count the losses once more"
        for broker in BROKERS:
            await brokers.clear_loss(broker)
        assert await brokers.led() == 1
        before = brokers.state
        setting.controller.resign()
        await setting.controller.activate()
        after = brokers.state
        assert (after.leader, after.leader_epoch, after.isr) == (1, before.leader_epoch, before.isr)

    in_office(tmp_path, story)


def test_a_report_of_losses_says_nothing_of_topics_that_were_made_since(tmp_path: Path) -> None:
    """Else the next controller would take away from its only replica in sync what nobody else holds."""

    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        for broker in BROKERS:
            await brokers.start(broker, MISSING if broker == 1 else NOTHING_LOST)
        await setting.controller.create_topics([NewTopic("t", assignments={0: list(BROKERS)})])
        assert brokers.state.leader == 1
        for broker in (2, 3):
            await setting.store.transact([Delete(BrokerNode.path(broker))])
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        setting.controller.resign()
        await setting.controller.activate()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])

    in_office(tmp_path, story)


def test_a_report_of_losses_that_was_heeded_does_not_count_again_for_who_was_taken_for_dead(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.start(1, MISSING)
        await setting.controller.create_topics([NewTopic("t", assignments={0: [1]})])
        brokers.failover.found_dead(1, setting.controller.image.brokers[1].epoch)
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.elr) == (-1, [1])
        assert brokers.failover.found_alive(1)
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        await brokers.start(1, MISSING)
        assert (brokers.state.leader, brokers.state.isr) == (-1, []), "it has lost that one as well"

    in_office(tmp_path, story)


def test_a_report_of_losses_that_is_repeated_says_nothing_of_topics_made_since_the_first(
    tmp_path: Path,
) -> None:
    """The session has ended before the disk let the broker clear the report."""

    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.start(1, MISSING)
        first = setting.controller.image.brokers[1].epoch
        await setting.controller.create_topics([NewTopic("t", assignments={0: [1]})])
        await brokers.start(1, MISSING._replace(first_epoch=first))
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        setting.controller.resign()
        await setting.controller.activate()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])
        await brokers.start(1, MISSING)
        assert (brokers.state.leader, brokers.state.isr) == (-1, []), "it has lost that one as well"

    in_office(tmp_path, story)


def test_a_topic_that_was_made_before_anybody_read_of_a_restart_lacks_nothing_there(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        for broker in (1, 2):
            await brokers.start(broker)
        data = BrokerNode.encode(REGISTRATION._replace(broker_id=1, lost=MISSING))
        again = Create(BrokerNode.path(1), data, ephemeral=True)
        await setting.store.transact([Delete(BrokerNode.path(1)), again])
        await setting.controller.create_topics([NewTopic("t", assignments={0: [1, 2]})])
        await setting.store.transact([Delete(BrokerNode.path(2))])
        await brokers.failover.brokers_changed()
        assert (brokers.state.leader, brokers.state.isr) == (1, [1])

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_known", [True, False])
def test_who_is_started_while_others_tell_how_far_their_logs_reach_is_asked_too(
    tmp_path: Path, is_known: bool
) -> None:
    """It may have more than the others: it was killed, and has lost nothing by that."""

    async def story(setting: Setting) -> int:
        brokers = Brokers(setting)
        await brokers.make_topic()
        brokers.answer_log_ends({1: LogEnd(4, 100), 2: LogEnd(4, 50), 3: LogEnd(4, 60)}, started_meanwhile=1)
        for broker in BROKERS:
            await brokers.start(broker, UNSYNCED)
        await brokers.clear_loss(1)
        if not is_known:
            await brokers.stop(1)
        for broker in (2, 3):
            await brokers.clear_loss(broker)
        return await brokers.led()

    assert in_office(tmp_path, story) == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_an_operators_election_asks_who_is_started_while_others_tell_how_far_their_logs_reach(
    tmp_path: Path, is_known: bool
) -> None:
    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
        await brokers.make_topic()
        for broker in (2, 3, 1):
            await brokers.stop(broker)
        assert (brokers.state.leader, brokers.state.elr) == (-1, [1])
        ends = {0: LogEnd(3, 40), 2: LogEnd(4, 50), 3: LogEnd(4, 60)}
        brokers.answer_log_ends(ends, started_meanwhile=3 if is_known else None)
        for broker in (2, 3) if is_known else (2,):
            await brokers.start(broker)
        if not is_known:  # One candidate is not asked: another comes with the look before the election.
            data = BrokerNode.encode(REGISTRATION._replace(broker_id=3))
            await setting.store.transact([Create(BrokerNode.path(3), data, ephemeral=True)])
        results = await setting.controller.leading.elect([KEY], ElectionType.UNCLEAN)
        assert (results, brokers.state.leader) == ({KEY: None}, 3)

    in_office(tmp_path, story)


def test_an_operators_election_counts_no_log_end_that_was_told_before_a_restart(tmp_path: Path) -> None:
    """Broker 3 is started again after each answer, until the controller does not ask once more."""

    async def story(setting: Setting) -> None:
        brokers = Brokers(setting)
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

        setting.controller.recovery.ask = ask
        results = await setting.controller.leading.elect([KEY], ElectionType.UNCLEAN)
        assert (results, brokers.state.leader) == ({KEY: None}, 2)

    in_office(tmp_path, story)


def test_replicas_are_asked_for_five_seconds_how_far_they_reach(tmp_path: Path) -> None:
    """Of those that do not answer nobody is elected, and of those that do the best."""

    async def story(setting: Setting) -> tuple[int, list[float]]:
        brokers = Brokers(setting)
        await brokers.make_topic()
        patience: list[float] = []

        async def ask(
            wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
        ) -> dict[TopicPartition, dict[int, LogEnd]]:
            patience.append(patience_s)
            return {KEY: {2: LogEnd(4, 50), 3: LogEnd(4, 60)}}

        setting.controller.recovery.ask = ask
        for broker in BROKERS:
            await brokers.start(broker, UNSYNCED)
        for broker in BROKERS:
            await brokers.clear_loss(broker)
        return await brokers.led(), patience

    leader, patience = in_office(tmp_path, story)
    assert (leader, set(patience)) == (3, {5.0})
