"""The parts of a broker that depend on whether it has other brokers.

:class:`StandaloneServices` is for a broker with an embedded store. :mod:`tidemill.server.cluster_member` has
the services of a broker in a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tidemill.broker.broker import Broker
from tidemill.controller.leader_election import LogEnds
from tidemill.coordination.cluster_image import Delta
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.server.broker_registration import RegistrationListener


class ClusterServices(ABC):
    """The communication of this broker with the other brokers."""

    @property
    @abstractmethod
    def registration_listener(self) -> RegistrationListener:
        """Receives the changes of this broker's registration, after the lifecycle manager."""

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
    async def request_log_ends(
        self, wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
    ) -> LogEnds:
        """Returns the log ends of these replicas, by broker, that arrive within ``timeout_s`` seconds."""

    @abstractmethod
    def own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Reports partitions (by topic id) that this broker cannot open to the controller."""

    @abstractmethod
    def own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Reports partitions (by topic id) that this broker serves again to the controller."""

    @abstractmethod
    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Requests ``isr`` from the controller, over the state of ``partition_epoch``."""

    @abstractmethod
    def directory_failed(self) -> None:
        """Reports to the controller that a data directory of this broker has gone offline."""

    @abstractmethod
    async def controlled_shutdown(self) -> None:
        """Moves the leaderships of this broker to other brokers, where another replica can lead."""

    @abstractmethod
    async def prepare_stop(self) -> None:
        """Stops the work that needs the registration; called before this broker leaves the cluster."""

    @abstractmethod
    async def stop(self) -> None:
        """Stops the communication; called after this broker has left the cluster."""


class StandaloneServices(ClusterServices, RegistrationListener):
    """For a broker with an embedded store, which has no other brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def registration_listener(self) -> RegistrationListener:
        """These services."""
        return self

    def join_partitions(self) -> None:
        """Does nothing: the partitions have no other replicas."""

    def start(self) -> None:
        """Does nothing."""

    def announce(self, delta: Delta) -> None:
        """Does nothing."""

    def schedule_broker_refresh(self) -> None:
        """Does nothing: the controller of a standalone broker does not watch registrations."""

    async def request_log_ends(
        self, wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
    ) -> LogEnds:
        """Returns none: this broker is the only candidate of each of its partitions."""
        return {}

    def own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Does nothing: no other broker has a replica."""

    def own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Does nothing: no replica is offline in the image."""

    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Rejects the change: the ISR of a standalone broker does not change."""
        self._broker.replica_manager.isr_refused(partition)

    def directory_failed(self) -> None:
        """Does nothing: no other broker has a replica."""

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
