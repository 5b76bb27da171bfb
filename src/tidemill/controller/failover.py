"""Handles broker registration, broker failure and AlterPartition.

A broker is live while the store has its registration, unless the controller has found it dead before its
session ended: a broker whose process is gone (it refuses connections) leads nothing any more.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from tidemill.controller.broker_changes import log_broker_changes
from tidemill.controller.elections import (
    CHANGES_A_PAUSE,
    PolicyOf,
    planning_broker_change,
    planning_failed_replicas,
    planning_served_replicas,
    write_state,
)
from tidemill.controller.isr import IsrChange, plan_isr_change
from tidemill.controller.lost_replica_reports import reported_losses
from tidemill.controller.office import Office
from tidemill.controller.topics import Plan, unknown_topic
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import REGISTRATION, BrokerImage, ClusterImage, PartitionImage
from tidemill.coordination.loading import load_brokers
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import Endpoint
from tidemill.coordination.port import BadVersion, Operation
from tidemill.coordination.topic_index import noting_traits
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.slices import with_pauses

logger = logging.getLogger(__name__)


class WantedIsr(NamedTuple):
    """One partition's in-sync set that its leader asks for."""

    topic_id: bytes
    partition: int
    change: IsrChange


class Failover:
    """Keeps partitions led while brokers come and go."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self.registered_listeners: list[Callable[[Mapping[int, BrokerImage]], None]] = []
        """Called with all registered brokers when they were read."""
        self._dead: dict[int, int] = {}
        """Brokers that were found dead, and the epochs of their registrations, which may live on."""
        self._heeded: dict[int, int] = {}
        """The registration epochs of brokers whose reports of losses this controller has handled."""
        office.look_at_brokers = self.look
        office.office_listeners.append(self._office_changed)

    def _office_changed(self, is_ours: bool) -> None:
        # Only the active controller gets reports that a broker answers again.
        self._dead.clear()
        self._heeded.clear()

    def found_dead(self, broker_id: int, epoch: int) -> None:
        """Marks a broker that refuses connections as dead; :meth:`brokers_changed` elects new leaders."""
        self._dead[broker_id] = epoch

    def found_alive(self, broker_id: int) -> bool:
        """Removes the mark of a broker that answers again. Returns True if it was marked dead."""
        return self._dead.pop(broker_id, None) is not None

    async def brokers_changed(self) -> None:
        """Compares the brokers that live with those that are known, and moves leaderships.

        Also ends the moves that can end: the store may not have answered when the last replica got in sync.
        Raises StoreError, NOT_CONTROLLER.
        """
        async with self._office.changing():
            await self.look()
            await self._office.finish_moves()

    async def look(self) -> None:
        """Compares the brokers as :meth:`brokers_changed` does. To be called within :meth:`Office.changing`.

        Every other election calls it first: a broker that was restarted since the last look may have lost
        records.
        """
        office = self._office
        unreadable: dict[str, NodeFormatError] = {}
        while True:
            registered = await load_brokers(office.store, unreadable, office.image.brokers)
            # After the brokers: a leader may read other settings, commit by them, and die in between.
            if not await office.take_other_min_insync(office.image.topic_index.eligible):
                break
        office.note_unreadable(REGISTRATION, unreadable)
        for listener in self.registered_listeners:
            listener(registered)
        self._dead = {
            broker: epoch
            for broker, epoch in self._dead.items()
            if broker in registered and registered[broker].epoch == epoch
        }
        known = office.image.brokers
        living = {broker: one for broker, one in registered.items() if broker not in self._dead}
        came = [broker for broker, one in living.items() if _epoch(known, broker) != one.epoch]
        gone = [broker for broker in known if broker not in living]
        changed = [
            broker
            for broker, one in living.items()
            if broker in known and _mutable_part(known[broker]) != _mutable_part(one)
        ]
        if not came and not gone and not changed:
            return
        log_broker_changes(known, living, came)
        image = office.image.with_brokers(living)
        heeded = self._heeded | {broker: one.epoch for broker, one in known.items()}
        self._heeded = {broker: epoch for broker, epoch in heeded.items() if broker in registered}
        # A broker that only seemed dead may lead partitions that were created after its report.
        unheeded = [broker for broker in came if heeded.get(broker) != living[broker].epoch]
        losses = await reported_losses(office.store, image, unheeded)
        office.check_active()
        cleared = [broker for broker in changed if living[broker].lost.is_none and broker not in came]
        plans = await with_pauses(
            planning_broker_change(
                image, gone, came, losses, office.policies.of, office.stopping(image), cleared
            )
        )
        office.check_active()  # The office may be lost in a pause.
        await office.change(plans, image, losses=losses)
        if came:  # Before the moves, which may fail: the next look finds no new registration.
            await office.finish_deletions()
        await office.finish_moves()

    async def replicas_failed(self, broker_id: int, epoch: int, failed: Sequence[tuple[bytes, int]]) -> None:
        """Has others lead the partitions (by topic id) that a broker cannot read or write any more.

        They are offline there until the broker serves them, or registers again. ``epoch`` is that of the
        registration in which it reported them. The report says nothing of a later registration: after a
        restart the broker may be able to use them, and it gets its partitions anew.
        Raises StoreError, NOT_CONTROLLER.
        """
        async with self._reported(planning_failed_replicas, broker_id, epoch, failed) as plans:
            if plans:
                logger.warning("replicas of %d topics on broker %d are offline", len(plans), broker_id)
                await self._office.change_offline(plans)

    async def replicas_served(self, broker_id: int, epoch: int, served: Sequence[tuple[bytes, int]]) -> None:
        """Takes partitions (by topic id) of a broker as online: they were offline, and it serves them again.

        A replica that could not be made, as the directory of a former topic was in its way, is made with a
        later command, for instance. ``epoch`` is that of the registration in which the broker reported them.
        Apache Kafka's controller does the same with the answers to LeaderAndIsr.
        Raises StoreError, NOT_CONTROLLER.
        """
        async with self._reported(planning_served_replicas, broker_id, epoch, served) as plans:
            if plans:
                logger.info("replicas of %d topics on broker %d are online again", len(plans), broker_id)
                await self._office.change(plans)

    @contextlib.asynccontextmanager
    async def _reported(
        self,
        planning: Callable[..., Generator[None, None, list[Plan]]],
        broker_id: int,
        epoch: int,
        partitions: Sequence[tuple[bytes, int]],
    ) -> AsyncIterator[list[Plan]]:
        """A change with the plans for partitions that a broker reported in the registration with ``epoch``.

        There are none if it has registered again: its replicas are online until it reports them.
        """
        office = self._office
        async with office.changing():
            plans: list[Plan] = []
            if await self._is_present(broker_id, epoch):
                by_topic: dict[bytes, list[int]] = {}
                for topic_id, number in partitions:
                    by_topic.setdefault(topic_id, []).append(number)
                plans = await with_pauses(
                    planning(office.image, broker_id, by_topic, office.policies.of, office.stopping())
                )
                office.check_active()
            yield plans

    async def _is_present(self, broker_id: int, epoch: int) -> bool:
        """Whether a report of the registration with ``epoch`` says something of the broker's present one."""
        brokers = self._office.image.brokers
        known = _epoch(brokers, broker_id)
        if known is None or epoch < known:
            return False
        await self.look()
        # If it has registered again, its replicas are online until it reports them.
        return _epoch(self._office.image.brokers, broker_id) == known

    async def alter_isr(self, wanted: Sequence[WantedIsr]) -> list[PartitionImage | KafkaError]:
        """Writes in-sync sets that leaders ask for; each partition's state afterwards, or why not.

        Raises NOT_CONTROLLER.
        """
        office = self._office
        lost = {broker for broker, one in office.image.brokers.items() if not one.lost.is_none}
        if any(broker in lost for one in wanted for broker, _ in one.change.isr):
            # These brokers remove the report from their registrations once the controller has handled it.
            await self.brokers_changed()
        async with office.changing():
            topics = dict.fromkeys(office.image.topics_by_id.get(one.topic_id) for one in wanted)
            await office.take_other_min_insync(one.name for one in topics if one is not None)
            changes = _Changes(office.image, office.stopping(), office.policies.of)
            results = await with_pauses(changes.planning(wanted))
            office.check_active()  # The office may be lost in a pause.
            try:
                await office.change(await with_pauses(changes.plans()))
                await office.finish_moves()
            except BadVersion as problem:
                office.check_active()
                # Somebody else has written a state, an administrator for instance.
                logger.warning("in-sync sets could not be written: %s", problem)
                return [KafkaError(f"{problem}. Try again.", ErrorCode.INVALID_UPDATE_VERSION)] * len(wanted)
        return results


def _mutable_part(broker: BrokerImage) -> tuple[Mapping[str, Endpoint], LostReplicas]:
    """The parts of a registration that a broker may change while it is registered."""
    return broker.endpoints, broker.lost


def _epoch(brokers: Mapping[int, BrokerImage], broker: int) -> int | None:
    known = brokers.get(broker)
    return known.epoch if known is not None else None


class _Changes:
    """In-sync sets of several partitions, planned one by one, written together."""

    def __init__(self, image: ClusterImage, stopping: frozenset[int], policy_of: PolicyOf) -> None:
        self._image = image
        self._policy_of = policy_of
        self._stopping = stopping
        self._partitions: dict[bytes, list[PartitionImage]] = {}
        self._operations: dict[bytes, list[Operation]] = {}

    def planning(
        self, wanted: Sequence[WantedIsr]
    ) -> Generator[None, None, list[PartitionImage | KafkaError]]:
        """The states that the partitions get, or why not; with a pause after some each."""
        results: list[PartitionImage | KafkaError] = []
        for number, one in enumerate(wanted, 1):
            try:
                results.append(self._plan(one))
            except KafkaError as error:
                results.append(error.as_result())
            if number % CHANGES_A_PAUSE == 0:
                yield
        return results

    def _plan(self, wanted: WantedIsr) -> PartitionImage:
        """The state that the partition gets. Raises KafkaError as :func:`plan_isr_change` does."""
        topic = self._image.topics_by_id.get(wanted.topic_id)
        if topic is None or topic.partition(wanted.partition) is None:
            raise unknown_topic(wanted.topic_id.hex() if topic is None else topic.name)
        partitions = self._partitions.get(wanted.topic_id)
        if partitions is None:
            partitions = self._partitions[wanted.topic_id] = list(topic.partitions)
        old = partitions[wanted.partition]
        policy = self._policy_of(topic)
        new = plan_isr_change(self._image, topic.name, old, wanted.change, policy, self._stopping)
        if new is not old:
            partitions[wanted.partition] = new
            operations = self._operations.setdefault(wanted.topic_id, [])
            operations += write_state(topic.name, old, new, self._image.controller_epoch)
        return new

    def plans(self) -> Generator[None, None, list[Plan]]:
        """What is to be written; it pauses for topics of many partitions."""
        plans = []
        for topic_id, operations in self._operations.items():
            topic = self._image.topics_by_id[topic_id]
            renewed = topic.with_partitions(self._partitions[topic_id])
            yield from noting_traits(renewed)
            plans.append(Plan(renewed, operations))
        return plans
