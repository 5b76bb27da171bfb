"""Elects leaders when brokers register or fail.

A broker is live while the store has its registration, unless the controller has found it dead before its
session expired: a broker that refuses connections leads no partition.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from tidemill.controller.broker_change_log import log_broker_changes
from tidemill.controller.controller_context import ControllerContext
from tidemill.controller.leader_election import (
    plan_broker_change_in_slices,
    plan_reported_replicas_in_slices,
)
from tidemill.controller.lost_replica_reports import reported_losses
from tidemill.controller.topics import Plan
from tidemill.coordination.cluster_image import REGISTRATION, BrokerImage, registered_epoch
from tidemill.coordination.cluster_image_loader import load_brokers
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import Endpoint
from tidemill.model.event_loop_slices import run_in_slices

logger = logging.getLogger(__name__)


class Failover:
    """Elects leaders when brokers register or fail."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.registered_listeners: list[Callable[[Mapping[int, BrokerImage]], None]] = []
        """Called with all registered brokers after each read."""
        self._dead: dict[int, int] = {}
        """Brokers that were found dead, with the epochs of their registrations, which may still exist."""
        self._handled_reports: dict[int, int] = {}
        """The registration epochs of brokers whose loss reports this controller has handled."""
        context.election.controller_change_listeners.append(self._controller_changed)

    def _controller_changed(self, is_ours: bool) -> None:
        # Only the active controller is notified when a broker accepts connections again.
        self._dead.clear()
        self._handled_reports.clear()

    def mark_dead(self, broker_id: int, *, broker_epoch: int) -> None:
        """Marks a broker that refuses connections as dead; :meth:`brokers_changed` elects new leaders."""
        self._dead[broker_id] = broker_epoch

    def mark_alive(self, broker_id: int) -> bool:
        """Removes the mark of a broker that accepts connections again. Returns True if it was marked dead."""
        return self._dead.pop(broker_id, None) is not None

    async def brokers_changed(self) -> None:
        """Calls :meth:`refresh_brokers`, then completes reassignments.

        The store may have been unavailable when the last replica joined the ISR. Raises StoreError,
        NOT_CONTROLLER.
        """
        async with self._context.change_lock():
            await self.refresh_brokers()
            await self._context.parts.complete_reassignments()

    async def refresh_brokers(self) -> None:
        """Reads the registrations, and elects leaders for brokers that came, went or changed.

        To be called within :meth:`ControllerContext.change_lock`.

        Every other election calls it first: a broker that was restarted since the last read may have lost
        records.
        """
        context = self._context
        unreadable: dict[str, NodeFormatError] = {}
        while True:
            registered = await load_brokers(context.store, unreadable, context.image.brokers)
            # After the registrations: a leader may apply other settings, commit by them, and fail in between.
            if not await context.apply_stored_min_insync(context.image.topic_index.eligible):
                break
        context.note_unreadable(REGISTRATION, unreadable)
        for listener in self.registered_listeners:
            listener(registered)
        self._dead = {
            broker: epoch
            for broker, epoch in self._dead.items()
            if broker in registered and registered[broker].epoch == epoch
        }
        known = context.image.brokers
        living = {
            broker: registration for broker, registration in registered.items() if broker not in self._dead
        }
        came = [
            broker
            for broker, registration in living.items()
            if registered_epoch(known, broker) != registration.epoch
        ]
        gone = [broker for broker in known if broker not in living]
        changed = [
            broker
            for broker, registration in living.items()
            if broker in known and _mutable_part(known[broker]) != _mutable_part(registration)
        ]
        if not came and not gone and not changed:
            return
        log_broker_changes(known, living, came)
        image = context.image.with_brokers(living)
        handled = self._handled_reports | {
            broker: registration.epoch for broker, registration in known.items()
        }
        self._handled_reports = {broker: epoch for broker, epoch in handled.items() if broker in registered}
        # A broker that was wrongly marked dead may lead partitions that were created after its report.
        unhandled = [broker for broker in came if handled.get(broker) != living[broker].epoch]
        losses = await reported_losses(context.store, image, unhandled)
        context.election.check_active()
        cleared = [broker for broker in changed if living[broker].lost.is_none and broker not in came]
        plans = await run_in_slices(
            plan_broker_change_in_slices(
                image, gone, came, losses, context.policies.of, context.stopping(image), cleared
            )
        )
        context.election.check_active()  # This broker may have been replaced during a pause.
        await context.write_and_announce(plans, image, losses=losses)
        if came:  # Before the reassignments, which may fail: the next read finds no new registration.
            await context.parts.finish_deletions()
        await context.parts.complete_reassignments()

    async def replicas_failed(
        self, broker_id: int, failed: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        """Elects other leaders for partitions (by topic id) that a broker cannot read or write any more.

        These replicas are offline until the broker serves them or registers again. ``broker_epoch`` is that
        of the registration in which the broker reported them. The report does not apply to a later
        registration: after a restart the broker may be able to use them, and it receives its partitions
        again. Raises StoreError, NOT_CONTROLLER.
        """
        async with self._changing_reported(
            broker_id, failed, broker_epoch=broker_epoch, is_offline=True
        ) as plans:
            if plans:
                logger.warning("replicas of %d topics on broker %d are offline", len(plans), broker_id)
                await self._context.write_failed_replicas(plans)

    async def replicas_served(
        self, broker_id: int, served: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        """Marks replicas (by topic id) as online: they were offline, and the broker serves them again.

        For instance, a replica that could not be created because of the directory of a former topic is
        created by a later request. ``broker_epoch`` is that of the registration in which the broker reported
        them. Apache Kafka's controller does the same with LeaderAndIsr responses. Raises StoreError,
        NOT_CONTROLLER.
        """
        async with self._changing_reported(
            broker_id, served, broker_epoch=broker_epoch, is_offline=False
        ) as plans:
            if plans:
                logger.info("replicas of %d topics on broker %d are online again", len(plans), broker_id)
                await self._context.write_and_announce(plans)

    @contextlib.asynccontextmanager
    async def _changing_reported(
        self,
        broker_id: int,
        partitions: Sequence[tuple[bytes, int]],
        *,
        broker_epoch: int,
        is_offline: bool,
    ) -> AsyncIterator[list[Plan]]:
        """Begins a change with the plans for partitions that a broker reported under ``broker_epoch``.

        There are no plans if the broker has registered again: its replicas are online until it reports them.
        """
        context = self._context
        async with context.change_lock():
            plans: list[Plan] = []
            if await self._is_current_registration(broker_id, broker_epoch=broker_epoch):
                by_topic: dict[bytes, list[int]] = {}
                for topic_id, number in partitions:
                    by_topic.setdefault(topic_id, []).append(number)
                plans = await run_in_slices(
                    plan_reported_replicas_in_slices(
                        context.image,
                        broker_id,
                        by_topic,
                        context.policies.of,
                        context.stopping(),
                        is_offline=is_offline,
                    )
                )
                context.election.check_active()
            yield plans

    async def _is_current_registration(self, broker_id: int, *, broker_epoch: int) -> bool:
        """Whether a report under ``broker_epoch`` applies to the current registration of the broker."""
        known = registered_epoch(self._context.image.brokers, broker_id)
        if known is None or broker_epoch < known:
            return False
        await self.refresh_brokers()
        # If it has registered again, its replicas are online until it reports them.
        return registered_epoch(self._context.image.brokers, broker_id) == known


def _mutable_part(broker: BrokerImage) -> tuple[Mapping[str, Endpoint], LostReplicas]:
    """The parts of a registration that a broker may change while it is registered."""
    return broker.endpoints, broker.lost
