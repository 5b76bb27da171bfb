"""The lifecycle of this broker in its cluster: registration, changes of the controller, shutdown.

Each broker has a controller in its process, which is active or not. This module applies its changes. The
communication with other brokers is in :mod:`tidemill.server.cluster_services`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier, LeaderAndIsrListener
from tidemill.broker.broker import Broker
from tidemill.broker.metadata_cache import effective_config
from tidemill.broker.store_connectivity import StoreConnectivity
from tidemill.controller.controller import KafkaController
from tidemill.controller.leader_election import LogEnds
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.backoff import Backoff
from tidemill.model.errors import StorageError
from tidemill.model.task_set import TaskSet
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager, ReplicaManagerListener
from tidemill.server.broker_registration import BrokerRegistrationManager, RegistrationListener
from tidemill.server.cluster_services import ClusterServices
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.refused_deletions import RefusedDeletions
from tidemill.server.stale_directories import DirectoryStarts

logger = logging.getLogger("tidemill.server")

FIRST_LEADER_AND_ISR_S = 10.0
"""The maximum wait of the start for the first LeaderAndIsr request of the controller."""
RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""The first and the longest pause between attempts to write ``meta.properties`` of new data directories."""


class BrokerLifecycleManager(RegistrationListener, LeaderAndIsrListener, ReplicaManagerListener):
    """Registers this broker, applies changes of the controller in this process, and leaves the cluster."""

    def __init__(
        self,
        broker: Broker,
        create_replica_manager: Callable[[ReplicaManagerListener], ReplicaManager],
        create_services: Callable[[BrokerLifecycleManager], ClusterServices],
        *,
        logs_removed: Callable[[], Awaitable[None]],
    ) -> None:
        """Creates the replica manager, the controller, active or not, and the services of the cluster.

        ``create_services`` is called last. ``logs_removed`` is awaited after each deletion of logs.
        """
        self._broker = broker
        self.tasks = TaskSet(on_failure=log_failure)
        self._changes = TaskSet()
        """Tasks that apply changes."""
        broker.store_connectivity = StoreConnectivity(broker.clock)
        broker.replica_manager = create_replica_manager(self)
        self.applier = broker.leader_and_isr = LeaderAndIsrApplier(
            broker.node_id,
            lambda: broker.config,
            broker.clock,
            broker.log_manager,
            broker.replica_manager,
            broker.metadata_cache,
            removed=logs_removed,
            listener=self,
        )
        broker.controller = KafkaController(
            broker.store,
            broker.node_id,
            lambda: broker.config,
            self.announce,
            broker.clock,
            known_image=lambda: broker.metadata_cache.image,
            with_settings=lambda config, image: effective_config(config, image, broker.node_id),
            schedule_broker_refresh=self.schedule_broker_refresh,
            request_log_ends=self.request_log_ends,
        )
        broker.failover = broker.controller.failover
        self.deletions = RefusedDeletions(broker, self.applier, self.tasks)
        self.distrusted = DistrustedDirectories(broker.store, broker.node_id, broker.log_manager.dirs)
        self.starts = DirectoryStarts(broker.store, broker.node_id, broker.log_manager.dirs)
        self.membership = BrokerRegistrationManager(broker.store, broker.controller, self)
        self._services = create_services(self)

    def schedule_broker_refresh(self) -> None:
        """Schedules a read of the registrations by the controller in this process."""
        self._services.schedule_broker_refresh()

    async def request_log_ends(
        self, wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
    ) -> LogEnds:
        """Requests the log ends of replicas, by broker, for elections without an eligible replica."""
        return await self._services.request_log_ends(wanted, timeout_s)

    def join_partitions(self) -> None:
        """Connects the partitions with the other brokers; called after they are loaded."""
        self._services.join_partitions()

    async def register(self, registration: BrokerRegistration) -> None:
        """Registers this broker. Raises KafkaError if another broker has its id, or StoreError."""
        await self.membership.join(registration)
        self._services.start()

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

    async def controlled_shutdown(self) -> None:
        """Moves the leaderships of this broker to other brokers, where another replica can lead."""
        await self._services.controlled_shutdown()

    async def stop(self) -> None:
        """Leaves the cluster. The store deletes the ephemeral nodes of this broker with its session."""
        await self._services.prepare_stop()
        await self.membership.leave()
        self._broker.controller.election.resign()
        await self.tasks.cancel()
        await asyncio.gather(*self._changes, return_exceptions=True)
        await self._services.stop()

    async def announce(self, delta: Delta) -> None:
        """Applies a change of the controller in this process, and sends it to the other brokers."""
        self._services.announce(delta)
        # A task of its own: a cancelled caller (after a controller change, for example) must not leave the
        # change half applied, because no later change repeats the rest.
        notified = asyncio.get_running_loop().create_future()
        task = self._changes.start(self.applier.apply_delta(delta, notified))
        task.add_done_callback(lambda ended: _log_change_failure(ended, notified.done()))
        await asyncio.wait({task, notified}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    # Registration of this broker

    def registered(self, epoch: int) -> None:
        """Sets the broker epoch: requests for another epoch are meant for another process of this broker."""
        self.applier.broker_epoch = epoch
        self._services.registration_listener.registered(epoch)

    def controller_changed(self, broker_id: int) -> None:
        """Passes the new controller to the services of the cluster."""
        self._services.registration_listener.controller_changed(broker_id)

    async def lost_replicas_cleared(self) -> None:
        """Passes the change of the registration to the services of the cluster."""
        await self._services.registration_listener.lost_replicas_cleared()

    def session_expired(self) -> None:
        """Counts the expired session."""
        self._broker.store_connectivity.on_session_expired()
        self._services.registration_listener.session_expired()

    def store_disconnected(self) -> None:
        """Records the time since which the store does not respond."""
        self._broker.store_connectivity.on_disconnected()
        self._services.registration_listener.store_disconnected()

    def store_reconnected(self) -> None:
        """Records that the store responds again."""
        self._broker.store_connectivity.on_reconnected()
        self._services.registration_listener.store_reconnected()

    # Changes that this broker could not apply

    def replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Reports partitions that cannot be opened."""
        self._services.own_replicas_failed(partitions)

    def replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Reports partitions that are served again."""
        self._services.own_replicas_served(partitions)

    def topic_deletion_refused(self, topic: TopicImage) -> None:
        """Repeats the deletion of a topic's logs."""
        self.deletions.retry_topic(topic)

    def replica_deletion_refused(self, topic: TopicImage, index: int) -> None:
        """Repeats the deletion of a reassigned replica."""
        self.deletions.retry_replica(topic, index)

    def controller_moved(self) -> None:
        """Resigns, because a later controller has sent requests."""
        self.membership.controller_moved()

    # Replicas of this broker

    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Requests another ISR from the controller."""
        self._services.alter_isr(partition, isr, partition_epoch)

    def is_registered(self, broker_id: int) -> bool:
        """Whether a broker is live in the metadata of this broker."""
        return broker_id in self._broker.metadata_cache.brokers

    def directory_failed(self) -> None:
        """Reports that a data directory has gone offline."""
        self._services.directory_failed()

    def directory_distrusted(self) -> None:
        """Writes the distrusted directories to the store."""
        self.tasks.start(self.distrusted.save_with_retries())


def log_failure(problem: BaseException) -> None:
    """Logs the failure of a task that no caller awaits."""
    logger.error("a background task of this broker failed, and is not repeated", exc_info=problem)


def _log_change_failure(task: asyncio.Task[None], was_notified: bool) -> None:
    problem = None if task.cancelled() else task.exception()
    if problem is not None and was_notified:  # The caller has returned, and does not see the exception.
        logger.error("a change was not applied completely on this broker", exc_info=problem)
