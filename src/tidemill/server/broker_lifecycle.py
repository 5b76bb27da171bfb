"""The lifecycle of this broker in its cluster: registration, changes of the controller, shutdown.

Each broker has a controller in its process, which is active or not. This module applies its changes. In a
cluster, :mod:`tidemill.server.cluster_member` adds the communication with the other brokers.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.broker import Broker
from tidemill.broker.metadata_cache import effective_config
from tidemill.broker.store_connectivity import StoreConnectivity
from tidemill.controller.controller import KafkaController
from tidemill.controller.controller_context import Announce
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.model.errors import StorageError
from tidemill.server.background_tasks import BackgroundTasks
from tidemill.server.broker_registration import BrokerRegistrationManager, MembershipListener
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.refused_deletions import RefusedDeletions
from tidemill.server.stale_directories import DirectoryStarts

logger = logging.getLogger("tidemill.server")

FIRST_LEADER_AND_ISR_S = 10.0
"""The maximum wait of the start for the first LeaderAndIsr request of the controller."""
RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""The first and the longest pause between attempts to write ``meta.properties`` of new data directories."""


def create_controller(
    broker: Broker,
    announce: Announce,
    removed: Callable[[], Awaitable[None]],
    schedule_broker_refresh: Callable[[], None],
) -> None:
    """Creates the controller of ``broker``, active or not, and the services that apply its changes.

    ``announce`` is called with each change, and ``removed`` is awaited after each deletion of logs.
    ``schedule_broker_refresh`` schedules a read of the registrations.
    """
    broker.store_connectivity = StoreConnectivity(broker.clock)
    broker.leader_and_isr = LeaderAndIsrApplier(broker, removed)
    broker.controller = KafkaController(
        broker.store,
        broker.node_id,
        lambda: broker.config,
        announce,
        broker.clock,
        known_image=lambda: broker.metadata_cache.image,
        with_settings=lambda config, image: effective_config(config, image, broker.node_id),
        schedule_broker_refresh=schedule_broker_refresh,
    )
    broker.failover = broker.controller.failover


class ClusterCommunication(MembershipListener):
    """The communication with the other brokers of the cluster."""

    @abstractmethod
    def join_partitions(self) -> None:
        """Connects the partitions with the other brokers; called after the partitions are loaded."""

    @abstractmethod
    def start(self) -> None:
        """Starts the communication; called after this broker is registered."""

    @abstractmethod
    def announce(self, delta: Delta) -> None:
        """Sends a change of the controller in this process to the other brokers."""

    @abstractmethod
    def schedule_broker_refresh(self) -> None:
        """Schedules a read of the registrations by the controller in this process."""

    @abstractmethod
    async def controlled_shutdown(self) -> None:
        """Moves the leaderships of this broker to other brokers, where another replica can lead."""

    @abstractmethod
    async def prepare_stop(self) -> None:
        """Stops the work that needs the registration; called before this broker leaves the cluster."""

    @abstractmethod
    async def stop(self) -> None:
        """Stops the communication; called after this broker has left the cluster."""


class NoOtherBrokers(ClusterCommunication):
    """For a broker with an embedded store, which has no other brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def join_partitions(self) -> None:
        """Does nothing: the partitions have no other replicas."""

    def start(self) -> None:
        """Does nothing."""

    def announce(self, delta: Delta) -> None:
        """Does nothing."""

    def schedule_broker_refresh(self) -> None:
        """Does nothing: the controller of a standalone broker does not watch registrations."""

    async def controlled_shutdown(self) -> None:
        """Does nothing: no other broker can lead."""

    async def prepare_stop(self) -> None:
        """Does nothing."""

    async def stop(self) -> None:
        """Does nothing."""

    def registered(self, epoch: int) -> None:
        """Does nothing."""

    def controller_changed(self, broker_id: int) -> None:
        """Does nothing: this broker is the controller."""

    async def lost_replicas_cleared(self) -> None:
        """Elects leaders: the controller of a standalone broker does not watch registrations."""
        if self._broker.controller.is_active:
            await self._broker.failover.brokers_changed()

    def session_expired(self) -> None:
        """Does nothing: the embedded store is in this process."""

    def store_disconnected(self) -> None:
        """Does nothing."""

    def store_reconnected(self) -> None:
        """Does nothing."""


class BrokerLifecycleManager(MembershipListener):
    """Registers this broker, applies changes of the controller in this process, and leaves the cluster."""

    def __init__(
        self, broker: Broker, communication: Callable[[BrokerLifecycleManager], ClusterCommunication]
    ) -> None:
        """``communication`` creates the communication with the other brokers for this manager."""
        self._broker = broker
        self.tasks = BackgroundTasks()
        self._changes: set[asyncio.Task[None]] = set()
        """Tasks that apply changes."""
        self.applier = broker.leader_and_isr
        self.deletions = RefusedDeletions(broker, self.applier, self.tasks)
        self.distrusted = DistrustedDirectories(broker.store, broker.node_id, broker.log_manager.dirs)
        self.starts = DirectoryStarts(broker.store, broker.node_id, broker.log_manager.dirs)
        self.membership = BrokerRegistrationManager(broker.store, broker.controller, self)
        self._cluster = communication(self)

    def schedule_broker_refresh(self) -> None:
        """Schedules a read of the registrations by the controller in this process."""
        self._cluster.schedule_broker_refresh()

    def join_partitions(self) -> None:
        """Connects the partitions with the store and the other brokers; called after they are loaded."""
        self._broker.replica_manager.directory_distrusted = lambda: self.tasks.start(
            self.distrusted.save_with_retries()
        )
        self._cluster.join_partitions()

    async def register(self, registration: BrokerRegistration) -> None:
        """Registers this broker. Raises KafkaError if another broker has its id, or StoreError."""
        await self.membership.join(registration)
        self._cluster.start()

    async def wait_for_leader_and_isr(self) -> None:
        """Waits for the first LeaderAndIsr request, for at most ``FIRST_LEADER_AND_ISR_S``."""
        try:
            async with asyncio.timeout(FIRST_LEADER_AND_ISR_S):
                await self.applier.first_change_applied.wait()
        except TimeoutError:
            logger.warning(
                "no controller has sent a LeaderAndIsr request within %g s", FIRST_LEADER_AND_ISR_S
            )
            self.tasks.start(self._clear_lost_replicas_after_leader_and_isr())
            return
        await self._write_meta_and_clear_lost_replicas()

    async def _clear_lost_replicas_after_leader_and_isr(self) -> None:
        await self.applier.first_change_applied.wait()
        await self._write_meta_and_clear_lost_replicas()

    async def _write_meta_and_clear_lost_replicas(self) -> None:
        """Writes ``meta.properties`` of new data directories, and clears the report of lost replicas."""
        if self._write_new_meta_properties():
            await self._clear_lost_replicas()
        else:
            self.tasks.start(self._write_new_meta_properties_later())

    async def _write_new_meta_properties_later(self) -> None:
        pause_s = RETRY_S
        while True:
            await asyncio.sleep(pause_s)
            if self._write_new_meta_properties():
                break
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        await self._clear_lost_replicas()

    def _write_new_meta_properties(self) -> bool:
        try:
            if not self._broker.log_manager.missed:
                self._broker.log_manager.dirs.write_new_meta_properties()
        except StorageError as problem:
            logger.warning(
                "meta.properties of new data directories cannot be written; replicas reported as lost stay "
                "out of sync until a retry succeeds: %s",
                problem,
            )
            return False
        return True

    async def _clear_lost_replicas(self) -> None:
        broker = self._broker
        try:
            broker.log_manager.dirs.mark_losses_handled()
        except StorageError as problem:
            logger.warning("the next start will report the lost replicas again: %s", problem)
        self.tasks.start(self.distrusted.save_with_retries())
        self.tasks.start(self.starts.save_with_retries())
        try:
            await self.membership.clear_lost_replicas()
        except StoreError as problem:
            logger.warning("the registration could not be updated, and is retried: %s", problem)
            self.tasks.start(self.membership.clear_lost_replicas_with_retries())

    async def controlled_shutdown(self) -> None:
        """Moves the leaderships of this broker to other brokers, where another replica can lead."""
        await self._cluster.controlled_shutdown()

    async def stop(self) -> None:
        """Leaves the cluster. The store deletes the ephemeral nodes of this broker with its session."""
        await self._cluster.prepare_stop()
        await self.membership.leave()
        self._broker.controller.election.resign()
        await self.tasks.stop()
        await asyncio.gather(*self._changes, return_exceptions=True)
        await self._cluster.stop()

    async def announce(self, delta: Delta) -> None:
        """Applies a change of the controller in this process, and sends it to the other brokers."""
        self._cluster.announce(delta)
        # A task of its own: a cancelled caller (after a controller change, for example) must not leave the
        # change half applied, because no later change repeats the rest.
        loop = asyncio.get_running_loop()
        notified = loop.create_future()
        task = loop.create_task(self.applier.apply_delta(delta, notified))
        self._changes.add(task)
        task.add_done_callback(lambda ended: self._change_ended(ended, notified.done()))
        await asyncio.wait({task, notified}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    def _change_ended(self, task: asyncio.Task[None], was_notified: bool) -> None:
        self._changes.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and was_notified:  # The caller has returned, and does not see the exception.
            logger.error("a change was not applied completely on this broker", exc_info=problem)

    def registered(self, epoch: int) -> None:
        """Sets the broker epoch: requests for another epoch are meant for another process of this broker."""
        self.applier.broker_epoch = epoch
        self._cluster.registered(epoch)

    def controller_changed(self, broker_id: int) -> None:
        """Passes the new controller to the communication with the other brokers."""
        self._cluster.controller_changed(broker_id)

    async def lost_replicas_cleared(self) -> None:
        """Passes the change of the registration to the communication with the other brokers."""
        await self._cluster.lost_replicas_cleared()

    def session_expired(self) -> None:
        """Counts the expired session."""
        self._broker.store_connectivity.on_session_expired()
        self._cluster.session_expired()

    def store_disconnected(self) -> None:
        """Records the time since which the store does not respond."""
        self._broker.store_connectivity.on_disconnected()
        self._cluster.store_disconnected()

    def store_reconnected(self) -> None:
        """Records that the store responds again."""
        self._broker.store_connectivity.on_reconnected()
        self._cluster.store_reconnected()
