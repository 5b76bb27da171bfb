"""The lifecycle of this broker in its cluster: registration, changes of the controller, shutdown.

Each broker has a controller in its process, which is active or not. This module applies its changes. The
communication with other brokers is in :mod:`tidemill.server.cluster_services`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.broker import Broker
from tidemill.broker.dynamic_broker_config import effective_config
from tidemill.broker.store_connectivity import StoreConnectivity
from tidemill.controller.controller import KafkaController
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.registration_listener import RegistrationListener
from tidemill.model.backoff import Backoff
from tidemill.model.errors import StorageError
from tidemill.model.task_set import TaskSet
from tidemill.replication.replica_manager import ReplicaManager, ReplicaManagerListener
from tidemill.server.broker_registration import BrokerRegistrationManager
from tidemill.server.cluster_services import ClusterServices
from tidemill.server.directory_starts import DirectoryStarts
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.refused_deletions import RefusedDeletions

logger = logging.getLogger("tidemill.server")

FIRST_LEADER_AND_ISR_S = 10.0
"""The maximum wait of the start for the first LeaderAndIsr request of the controller."""
RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""The first and the longest pause between attempts to write ``meta.properties`` of new data directories."""


class BrokerLifecycleManager(RegistrationListener):
    """Registers this broker, applies changes of the controller in this process, and leaves the cluster."""

    def __init__(
        self,
        broker: Broker,
        create_replica_manager: Callable[[ReplicaManagerListener], ReplicaManager],
        create_services: Callable[[TaskSet, DistrustedDirectories], ClusterServices],
        *,
        logs_removed: Callable[[], Awaitable[None]],
    ) -> None:
        """Creates the replica manager, the controller, active or not, and the services of the cluster.

        ``logs_removed`` is awaited after each deletion of logs.
        """
        self._broker = broker
        self.tasks = TaskSet(on_failure=log_failure)
        self._changes = TaskSet()
        """Tasks that apply changes."""
        self.distrusted = DistrustedDirectories(broker.store, broker.node_id, broker.log_manager.dirs)
        self.starts = DirectoryStarts(broker.store, broker.node_id, broker.log_manager.dirs)
        self.services = services = create_services(self.tasks, self.distrusted)
        broker.store_connectivity = StoreConnectivity(broker.clock)
        broker.replica_manager = create_replica_manager(services)
        self.applier = broker.leader_and_isr = LeaderAndIsrApplier(
            broker.node_id,
            lambda: broker.config,
            broker.clock,
            broker.log_manager,
            broker.replica_manager,
            broker.metadata_cache,
            removed=logs_removed,
            listener=services,
        )
        broker.controller = KafkaController(
            broker.store,
            broker.node_id,
            lambda: broker.config,
            self.announce,
            broker.clock,
            known_image=lambda: broker.metadata_cache.image,
            with_settings=lambda config, image: effective_config(config, image, broker.node_id),
            schedule_broker_refresh=services.schedule_broker_refresh,
            request_log_ends=services.request_log_ends,
        )
        self.membership = BrokerRegistrationManager(
            broker.store, broker.controller, [broker.store_connectivity, self, services]
        )
        services.connect(self.membership, RefusedDeletions(broker, self.applier, self.tasks))

    async def register(self, registration: BrokerRegistration) -> None:
        """Registers this broker. Raises KafkaError if another broker has its id, or StoreError."""
        await self.membership.join(registration)
        self.services.start()

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
        backoff = Backoff(RETRY_S, RETRY_S_MAX)
        await backoff.sleep()
        while not self._write_new_meta_properties():
            await backoff.sleep()
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

    async def stop(self) -> None:
        """Leaves the cluster. The store deletes the ephemeral nodes of this broker with its session."""
        await self.services.prepare_stop()
        await self.membership.leave()
        self._broker.controller.election.resign()
        await self.tasks.cancel()
        await asyncio.gather(*self._changes, return_exceptions=True)
        await self.services.stop()

    async def announce(self, delta: Delta) -> Announcement:
        """Applies a change of the controller in this process, and sends it to the other brokers."""
        announcement = Announcement(delta, self.services.announce(delta))
        # A task of its own: a cancelled caller (after a controller change, for example) must not leave the
        # change half applied, because no later change repeats the rest.
        published = asyncio.get_running_loop().create_future()
        task = self._changes.start(self.applier.apply_delta(announcement, published))
        task.add_done_callback(lambda ended: _log_change_failure(ended, published.done()))
        await asyncio.wait({task, published}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return announcement

    def registered(self, epoch: int) -> None:
        """Sets the broker epoch: requests for another epoch are meant for another process of this broker."""
        self.applier.broker_epoch = epoch


def log_failure(problem: BaseException) -> None:
    """Logs the failure of a task that no caller awaits."""
    logger.error("a background task of this broker failed, and is not repeated", exc_info=problem)


def _log_change_failure(task: asyncio.Task[None], was_published: bool) -> None:
    problem = None if task.cancelled() else task.exception()
    if problem is not None and was_published:  # The caller has returned, and does not see the exception.
        logger.error("a change was not applied completely on this broker", exc_info=problem)
