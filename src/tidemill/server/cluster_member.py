"""The communication of this broker with the other brokers of its cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tidemill.broker.alter_partition_manager import AlterPartitionManager
from tidemill.broker.broker import Broker, ClusterParts
from tidemill.broker.broker_links import BrokerLinks
from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel
from tidemill.broker.controlled_shutdown_requests import request_controlled_shutdown
from tidemill.broker.controller_channel_manager import BrokerStateListener, ControllerChannelManager
from tidemill.broker.controller_request_handler import ControllerRequestHandler
from tidemill.broker.delayed_metadata import DelayedMetadata
from tidemill.broker.dynamic_config_manager import DynamicConfigManager
from tidemill.broker.replica_fetcher_manager import ReplicaFetcherManager
from tidemill.broker.replica_log_end_requests import ReplicaLogEndRequests
from tidemill.broker.replication_quotas import ReplicationQuotas
from tidemill.controller.admin_node_requests import AdminNodeRequests
from tidemill.controller.broker_modifications_handler import BrokerModificationsHandler
from tidemill.controller.leader_election import LogEnds
from tidemill.controller.log_dir_events import process_log_dir_events
from tidemill.controller.node_change_handlers import NodeChangeHandlers
from tidemill.coordination.cluster_image import BrokerImage, Delta
from tidemill.coordination.coordination_store import Create, StoreError
from tidemill.coordination.nodes import (
    BROKER_IDS,
    DELETE_TOPICS,
    LOG_DIR_EVENTS,
    PREFERRED_REPLICA_ELECTION,
    REASSIGN_PARTITIONS,
    TOPICS,
    BrokerNode,
    LogDirEventNode,
)
from tidemill.coordination.topic_image import TopicKey
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.task_set import TaskSet
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits
from tidemill.server.broker_registration import BrokerRegistrationManager
from tidemill.server.cluster_services import ClusterServices
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.refused_deletions import RefusedDeletions
from tidemill.server.store_outage import StoreOutage
from tidemill.server.store_retries import retry_until_written

logger = logging.getLogger("tidemill.server")

DEPARTED_BROKER_LISTED_S = 3.0
"""A broker whose process has ended stays in Metadata responses for this time, and while its registration
exists."""
NODE_POLL_S = 1.0


class ClusterMember(ClusterServices, BrokerStateListener):
    """Connects the controller, its channels, the requests of other controllers, and the replica fetchers."""

    def __init__(self, broker: Broker, tasks: TaskSet, distrusted: DistrustedDirectories) -> None:
        super().__init__(broker, tasks, distrusted)
        self._delayed_metadata = DelayedMetadata()
        # The first listener: clients wait for the delayed responses.
        broker.metadata_cache.on_change(self._delayed_metadata.image_changed)
        self._links = BrokerLinks(
            broker.node_id,
            lambda: broker.config,
            broker.store,
            broker.metadata_cache,
            self._delayed_metadata,
        )
        self._channels = ControllerChannelManager(
            broker.node_id,
            self._links.listener,
            self._links.open_to,
            self,
            broker.config.seconds("controller.socket.timeout.ms"),
        )
        self._controller_channel = BrokerToControllerChannel(
            broker.node_id,
            self._links.open,
            self._controller_failed,
            broker.config.seconds("request.timeout.ms"),
        )
        self._departures: dict[int, BrokerImage] = {}
        """Departed brokers in Metadata responses, each with a task that removes it."""
        self._fetchers: ReplicaFetcherManager | None = None

    def connect(self, membership: BrokerRegistrationManager, deletions: RefusedDeletions) -> None:
        """Creates the parts that need the replica manager and the controller."""
        super().connect(membership, deletions)
        broker = self._broker
        self._controller_requests = self._create_controller_requests()
        broker.controller.failover.registered_listeners.append(self._channels.remove_unregistered)
        self._admin_requests = AdminNodeRequests(
            broker.controller, lambda path: self._node_changes.schedule([path])
        )
        self._registrations = BrokerModificationsHandler(
            broker.store,
            lambda path: self._node_changes.schedule([path]),
            broker.controller.failover.brokers_changed,
        )
        self._node_changes = self._create_node_change_handlers()
        broker.controller.election.controller_change_listeners.append(self._controller_changed)
        self._isr_changes = AlterPartitionManager(
            broker.node_id,
            broker.replica_manager,
            broker.controller,
            self._controller_channel,
            broker_epoch=self._broker_epoch,
        )
        self._dynamic_config = DynamicConfigManager(
            broker.node_id,
            broker.store,
            broker.metadata_cache,
            broker.controller,
            broker.leader_and_isr,
            self._controller_requests,
        )
        self._log_ends = ReplicaLogEndRequests(
            broker.node_id, lambda: broker.config, broker.replica_manager, self._links
        )
        self._store_outage = StoreOutage(broker.replica_manager, broker.store, broker.clock)

    def _broker_epoch(self) -> int:
        return self._broker.leader_and_isr.broker_epoch

    def _create_controller_requests(self) -> ControllerRequestHandler:
        broker = self._broker
        return ControllerRequestHandler(
            broker.node_id,
            lambda: broker.config,
            broker.clock,
            broker.store,
            broker.replica_manager,
            broker.metadata_cache,
            broker.leader_and_isr,
            settings_unreadable=lambda resource: self._dynamic_config.watch_unreadable(resource),
        )

    def _create_node_change_handlers(self) -> NodeChangeHandlers:
        controller = self._broker.controller
        return NodeChangeHandlers(
            self._broker.store,
            {
                BROKER_IDS: self._registrations.brokers_changed,
                TOPICS: self._admin_requests.topics_changed,
                DELETE_TOPICS: self._admin_requests.deletion_marks_changed,
                REASSIGN_PARTITIONS: controller.reassignments.apply_requested_reassignments,
                PREFERRED_REPLICA_ELECTION: controller.leader_elections.run_requested_elections,
                LOG_DIR_EVENTS: lambda: process_log_dir_events(
                    controller.context,
                    self._own_directory_failed,
                    lambda broker_id: self._channels.resend_full_state(controller.image, broker_id),
                ),
            },
        )

    def join_partitions(self) -> ClusterParts:
        """Connects the partitions with the replica fetchers and the AlterPartition requests."""
        broker = self._broker
        config = broker.config
        quotas = ReplicationQuotas(broker.node_id, lambda: broker.config, broker.metadata_cache)
        self._fetchers = ReplicaFetcherManager(
            broker.node_id,
            fetch_limits(config),
            self._links.open,
            broker.clock,
            quotas.follower,
            node_epoch=self._broker_epoch(),
        )
        broker.replica_manager.replica_fetcher_manager = self._fetchers
        broker.replica_manager.lag_ms_max = config.int("replica.lag.time.max.ms")
        broker.metadata_cache.on_change(self._brokers_gone)
        broker.metadata_cache.on_change(self._remove_departed)
        return ClusterParts(
            self._links.listener,
            self._controller_channel,
            self._controller_requests,
            self._delayed_metadata,
            quotas,
        )

    async def _remove_departed(self, delta: Delta) -> None:
        """Schedules the removal of departed brokers from Metadata responses."""
        for broker_id, known in self._broker.metadata_cache.departed.items():
            if self._departures.get(broker_id) is not known:
                self._departures[broker_id] = known
                self._tasks.start(self._remove_departed_broker(broker_id, known))

    async def _remove_departed_broker(self, broker_id: int, known: BrokerImage) -> None:
        departed = self._broker.metadata_cache.departed
        await asyncio.sleep(DEPARTED_BROKER_LISTED_S)
        while departed.get(broker_id) is known:
            with contextlib.suppress(StoreError):
                if not await self._broker.store.exists(BrokerNode.path(broker_id)):
                    break
            await asyncio.sleep(NODE_POLL_S)
        if departed.get(broker_id) is known:
            del departed[broker_id]
        if self._departures.get(broker_id) is known:
            del self._departures[broker_id]

    async def _brokers_gone(self, delta: Delta) -> None:
        """Notifies the leaders on this broker of followers whose brokers have gone."""
        gone = {one for one in delta.before.brokers if one not in delta.image.brokers}
        now_ms = self._broker.clock.monotonic_ms()
        for topic in delta.image.topic_index.with_replicas_on(sorted(gone)):
            for image in topic.partitions:
                replicas = gone.intersection(image.replicas)
                partition = (
                    self._broker.replica_manager.find(topic.name, image.partition) if replicas else None
                )
                if partition is not None and partition.is_leader:
                    for one in replicas:
                        partition.follower_gone(one, now_ms)

    def start(self) -> None:
        """Starts to read the configuration of the cluster; called after this broker is registered."""
        self._dynamic_config.start()

    def schedule_broker_refresh(self) -> None:
        """Schedules a read of the registrations by the controller in this process."""
        # The store may have applied a failed write. Reading the brokers again updates the image.
        self._node_changes.schedule([BROKER_IDS])

    async def controlled_shutdown(self) -> None:
        """Moves the leaderships of this broker to other brokers, where another replica can lead."""
        await request_controlled_shutdown(self._broker, self._broker_epoch, self._stop_fetchers)

    async def _stop_fetchers(self) -> None:
        self._broker.replica_manager.replica_fetcher_manager = None
        if self._fetchers is not None:
            await self._fetchers.stop()

    async def prepare_stop(self) -> None:
        """Stops reading the configuration; called before this broker leaves the cluster."""
        await self._dynamic_config.stop()

    async def stop(self) -> None:
        """Stops the communication; called after this broker has left the cluster."""
        self._isr_changes.stop()
        self._store_outage.stop()
        self._controller_channel.stop()
        self._delayed_metadata.close()
        # Requests that are still being applied must not start fetchers: the logs are closed next.
        await self._stop_fetchers()

    # Controller

    def announce(self, delta: Delta) -> list[asyncio.Future[None]]:
        """Sends a change of the controller in this process to the other brokers."""
        return self._channels.send_changes(delta)

    def _controller_changed(self, is_ours: bool) -> None:
        if is_ours:
            self._channels.start()
            self._node_changes.start()
        else:
            self._node_changes.stop()
            self._admin_requests.stop()
            self._registrations.stop()
            self._channels.stop()

    def controller_changed(self, broker_id: int) -> None:
        """Connects to the new controller. If it is this broker, handles its own failed replicas."""
        self._controller_channel.set_controller(broker_id)
        failed = self._own_failed_replicas() if broker_id == self._broker.node_id else []
        if failed:
            self.own_replicas_failed(failed)

    def _controller_failed(self, broker_id: int) -> None:
        """Notes that the broker of the controller refuses connections, and starts an election."""
        self._channels.connection_refused(broker_id)
        self._membership.controller_failed(broker_id)

    # Registration of this broker

    def registered(self, epoch: int) -> None:
        """Sets the broker epoch of the fetchers, and reads the configuration."""
        if self._fetchers is not None:
            self._fetchers.registered(epoch)
        self._dynamic_config.read_all()

    def session_expired(self) -> None:
        """Resigns the leaderships that other brokers may have by now."""
        self._store_outage.store_reconnected(session_expired=True)
        self._controller_channel.stop()
        self._broker.replica_manager.step_down()

    def store_disconnected(self) -> None:
        """Starts to check whether the followers are unreachable as well."""
        self._store_outage.store_disconnected()

    def store_reconnected(self) -> None:
        """Resumes the leaderships that the isolation suspended."""
        self._store_outage.store_reconnected(session_expired=False)

    async def request_log_ends(
        self, wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float
    ) -> LogEnds:
        """Returns the log ends of these replicas, by broker, that arrive within ``timeout_s`` seconds."""
        return await self._log_ends.request(wanted, timeout_s)

    # Replicas of this broker

    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Requests another ISR from the controller."""
        self._isr_changes.submit(partition, isr, partition_epoch)

    def own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Elects other leaders for replicas that this broker cannot open."""
        self.replicas_failed(self._broker.node_id, partitions, broker_epoch=self._broker_epoch())

    def own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Lets replicas that work again join the ISR and lead."""
        self.replicas_served(self._broker.node_id, partitions, broker_epoch=self._broker_epoch())

    def directory_failed(self) -> None:
        """Notifies the controller of a failed data directory, with a node in the store."""
        note = Create(LogDirEventNode.prefix, LogDirEventNode.encode(self._broker.node_id), sequential=True)
        self._tasks.start(
            retry_until_written(
                lambda: self._broker.store.transact([note]), "the notification of a failed data directory"
            )
        )

    async def _own_directory_failed(self) -> None:
        await self._broker.controller.failover.replicas_failed(
            self._broker.node_id, self._own_failed_replicas(), broker_epoch=self._broker_epoch()
        )

    def _own_failed_replicas(self) -> list[tuple[bytes, int]]:
        return [
            (partition.log.topic_id, int(partition.index))
            for partition in self._broker.replica_manager.all()
            if partition.is_offline
        ]

    # Channels of the controller

    def is_stopping(self, broker_id: int, *, broker_epoch: int) -> bool:
        """Whether the controller has moved the leaderships of a broker in a controlled shutdown."""
        return self._broker.controller.context.is_stopping(broker_id, broker_epoch=broker_epoch)

    def broker_dead(self, broker_id: int, *, broker_epoch: int) -> None:
        """Elects other leaders for the partitions of a broker whose process has ended."""
        if self.is_stopping(broker_id, broker_epoch=broker_epoch):
            logger.info("broker %d refuses connections: it has shut down", broker_id)
        else:
            logger.warning("broker %d refuses connections: its process has ended", broker_id)
        self._broker.controller.failover.mark_dead(broker_id, broker_epoch=broker_epoch)
        self._node_changes.schedule([BROKER_IDS])

    def broker_connected(self, broker_id: int) -> None:
        """Restores a broker that was considered failed."""
        if self._broker.controller.failover.mark_alive(broker_id):
            logger.info("broker %d accepts connections again", broker_id)
            self._node_changes.schedule([BROKER_IDS])

    def replicas_deleted(self, broker_id: int, topics: Sequence[TopicKey]) -> None:
        """Confirms the deletion of topics on a broker."""
        self._tasks.start(self._deletions.confirm(broker_id, topics))

    def replicas_failed(
        self, broker_id: int, partitions: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        """Elects other leaders for failed replicas."""
        logger.error("broker %d cannot read or write %d of its partitions", broker_id, len(partitions))
        self._tasks.start(
            _report_replicas(
                lambda: self._broker.controller.failover.replicas_failed(
                    broker_id, partitions, broker_epoch=broker_epoch
                ),
                f"partitions that broker {broker_id} cannot serve",
            )
        )

    def replicas_served(
        self, broker_id: int, partitions: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        """Lets replicas that work again join the ISR and lead."""
        self._tasks.start(
            _report_replicas(
                lambda: self._broker.controller.failover.replicas_served(
                    broker_id, partitions, broker_epoch=broker_epoch
                ),
                f"partitions that broker {broker_id} serves again",
            )
        )


def fetch_limits(config: BrokerConfig) -> FetchLimits:
    """The fetch limits from the ``replica.*`` keys."""
    return FetchLimits(
        wait_ms=config.int("replica.fetch.wait.max.ms"),
        bytes_min=config.int("replica.fetch.min.bytes"),
        bytes_max=config.int("replica.fetch.response.max.bytes"),
        partition_bytes_max=config.int("replica.fetch.max.bytes"),
        backoff_ms=config.int("replica.fetch.backoff.ms"),
        socket_timeout_ms=config.int("replica.socket.timeout.ms"),
    )


async def _report_replicas(change: Callable[[], Awaitable[None]], description: str) -> None:
    """Repeats ``change`` until the store accepts it. ``description`` names the replicas in log lines."""
    try:
        await retry_until_written(change, f"the change for {description}")
    except KafkaError as problem:
        # Another controller requests them from the brokers when it starts.
        logger.info("another controller handles %s: %s", description, problem)
