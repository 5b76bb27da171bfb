"""The parts of a broker that depend on whether it has other brokers.

:class:`StandaloneServices` is for a broker with an embedded store. :mod:`tidemill.server.cluster_member` has
the services of a broker in a cluster.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrListener
from tidemill.broker.broker import Broker, ClusterParts
from tidemill.controller.leader_election import LogEnds
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.registration_listener import RegistrationListener
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.task_set import TaskSet
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManagerListener
from tidemill.server.broker_registration import BrokerRegistrationManager
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.refused_deletions import RefusedDeletions


class ClusterServices(RegistrationListener, ReplicaManagerListener, LeaderAndIsrListener):
    """The communication of this broker with the controller and with the other brokers.

    The methods that concern other brokers do nothing unless a subclass overrides them.
    """

    def __init__(self, broker: Broker, tasks: TaskSet, distrusted: DistrustedDirectories) -> None:
        self._broker = broker
        self._tasks = tasks
        self._distrusted = distrusted

    def connect(self, membership: BrokerRegistrationManager, deletions: RefusedDeletions) -> None:
        """Receives the parts that exist only after the replica manager and the controller.

        Called once, before all other methods.
        """
        self._membership = membership
        self._deletions = deletions

    def join_partitions(self) -> ClusterParts | None:
        """Connects the partitions with the other brokers; called after the partitions are loaded.

        Returns the parts for the handlers of requests; None without other brokers.
        """
        return None

    def start(self) -> None:
        """Starts the communication; called after this broker is registered."""

    def announce(self, delta: Delta) -> list[asyncio.Future[None]]:
        """Sends a change of the controller in this process to the other brokers.

        Returns futures that are done after they have applied it.
        """
        return []

    def schedule_broker_refresh(self) -> None:
        """Schedules a read of the registrations by the controller in this process."""

    async def request_log_ends(
        self, wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
    ) -> LogEnds:
        """Returns the log ends of these replicas, by broker, that arrive within ``timeout_s`` seconds."""
        return {}

    async def controlled_shutdown(self) -> None:
        """Moves the leaderships of this broker to other brokers, where another replica can lead."""

    async def prepare_stop(self) -> None:
        """Stops the work that needs the registration; called before this broker leaves the cluster."""

    async def stop(self) -> None:
        """Stops the communication; called after this broker has left the cluster."""

    # Replicas of this broker

    @abstractmethod
    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Requests ``isr`` from the controller, over the state of ``partition_epoch``."""

    def is_registered(self, broker_id: int) -> bool:
        """Whether a broker is live in the metadata of this broker."""
        return broker_id in self._broker.metadata_cache.brokers

    def directory_failed(self) -> None:
        """Reports to the controller that a data directory of this broker has gone offline."""

    def directory_distrusted(self) -> None:
        """Writes the distrusted directories to the store."""
        self._tasks.start(self._distrusted.save_with_retries())

    def own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Reports partitions (by topic id) that this broker cannot open to the controller."""

    def own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Reports partitions (by topic id) that this broker serves again to the controller."""

    def topic_deletion_refused(self, topic: TopicImage) -> None:
        """Repeats the deletion of a topic's logs."""
        self._deletions.retry_topic(topic)

    def replica_deletion_refused(self, topic: TopicImage, index: int) -> None:
        """Repeats the deletion of a reassigned replica."""
        self._deletions.retry_replica(topic, index)

    def controller_moved(self) -> None:
        """Resigns, because a broker knows a higher controller epoch."""
        self._membership.controller_moved()


class StandaloneServices(ClusterServices):
    """For a broker with an embedded store, which has no other brokers."""

    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Rejects the change: the ISR of a standalone broker does not change."""
        self._broker.replica_manager.isr_refused(partition)

    async def lost_replicas_cleared(self) -> None:
        """Elects leaders: the controller of a standalone broker does not watch registrations."""
        if self._broker.controller.is_active:
            await self._broker.controller.failover.brokers_changed()
