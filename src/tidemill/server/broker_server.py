"""A broker in this process: creates its components, starts them in order, and stops them.

Start: bind the listeners, lock the data directories, open the coordination store, load and recover the logs,
register the broker, apply the first LeaderAndIsr request, load the groups, accept connections. A broker that
is not the controller accepts connections earlier, because the controller's requests arrive through its
listeners. Stop: move leaderships to other brokers, close connections, flush the logs and mark them as cleanly
shut down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

from tidemill.broker.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from tidemill.broker.api_registry import APIS
from tidemill.broker.broker import Broker
from tidemill.broker.broker_links import BrokerLinks, inter_broker_listener
from tidemill.broker.cleaner_process_client import CleanerProcess
from tidemill.broker.conversion_workers import IDLE_S, ConversionWorkers
from tidemill.broker.coordinator_topic import ClusterCoordinatorTopic, PartitionCoordinatorLog
from tidemill.broker.down_conversion import DownConversion
from tidemill.broker.dynamic_broker_config import DynamicBrokerConfig, effective_config, warn_overridden
from tidemill.broker.fetch_handler import FetchHandler
from tidemill.broker.fetch_reader import FetchReader
from tidemill.broker.fetch_session import FetchSessions
from tidemill.broker.finalized_features import FinalizedFeatures
from tidemill.broker.handler_dispatch import HandlerDispatch
from tidemill.broker.inter_broker_client import InterBrokerClient
from tidemill.broker.kafka_apis import KafkaApis
from tidemill.broker.large_fetches import LargeFetches
from tidemill.broker.log_cleaner import LogCleaner
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata_cache import Delta, MetadataCache
from tidemill.broker.produce_handler import ProduceHandler
from tidemill.broker.produce_validation import ProduceValidation
from tidemill.broker.transaction_markers import LeaderDestinations
from tidemill.controller.admin_manager import generate_broker_id
from tidemill.controller.producer_id_blocks import claim_block
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.coordination.topic_image import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicImage
from tidemill.coordinator_runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.groups.group_coordinator import GroupCoordinator
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.log.aborted_transactions import AbortedTransactions
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.meta_properties import VERSION, VERSION_ON_ZOOKEEPER
from tidemill.log.system_files import SystemFiles
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.configs import Listener as ConfiguredListener
from tidemill.model.configs.listeners import ANY_HOST
from tidemill.model.errors import ConfigError
from tidemill.model.system_interfaces import Files
from tidemill.model.task_set import TaskSet
from tidemill.net.deadlines import Deadlines
from tidemill.net.memory_pool import MemoryPool
from tidemill.net.peer import Listener
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager, ReplicaManagerListener
from tidemill.server.broker_lifecycle import BrokerLifecycleManager
from tidemill.server.cluster_services import ClusterServices, StandaloneServices
from tidemill.server.config_plugins import deletion_policies, replica_selector
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.health import Health, health_of
from tidemill.server.kafka_scheduler import KafkaScheduler
from tidemill.server.lost_replica_detection import detect_lost_replicas
from tidemill.server.request_memory import request_bytes_max
from tidemill.server.socket_server import ConnectionLimits, ConnectionQuotas, SocketServer, addresses_of, bind
from tidemill.server.store_selection import open_store
from tidemill.transactions.producer_id_manager import ProducerIdManager
from tidemill.transactions.transaction_coordinator import TransactionConfig, TransactionCoordinator
from tidemill.transactions.transaction_state_manager import TransactionStateManager

if TYPE_CHECKING:
    from tidemill.server.free_space import FreeSpace
    from tidemill.server.group_lags import GroupLags

logger = logging.getLogger("tidemill.server")

DEFAULT_BROKER_ID = 1
"""The id of a standalone broker without a configured id."""
FLUSH_CHECK_S = 1.0
COORDINATORS_LOAD_S = 0.2
"""The maximum wait of the start for groups and transactions to load. Afterwards clients receive
COORDINATOR_LOAD_IN_PROGRESS, which some admin clients report to their users as an error."""
PRODUCER_IDS_CHECK_S = 5.0
REMOVAL_CHECK_S = 1.0
PROMOTION_CHECK_S = 0.5


make_files: Callable[[], Files] = SystemFiles
"""Creates the file port. Tests replace it to simulate full or slow disks."""


class Stage(IntEnum):
    """The progress of the start. The stop closes the components that exist by then."""

    CREATED = 0
    HAS_LOGS = 1
    """The data directories may be locked."""
    HAS_STORE = 2
    LOGS_LOADED = 3
    HAS_REQUEST_PATH = 4
    LISTENING = 5
    STARTED = 6
    STOPPED = 7


class BrokerServer:
    """A broker. ``start`` raises a :class:`TidemillError` with one line for the operator if it fails."""

    def __init__(self, config: BrokerConfig) -> None:
        self.static_config = config
        self.listeners: list[tuple[str, str, int]] = []
        """The bound listeners: name, host, port."""
        self.broker = Broker()
        self.broker.config = config
        self.broker.clock = SystemClock()
        self.broker.files = make_files()
        self._sockets: list[tuple[ConfiguredListener, list[socket.socket]]] = []
        self._scheduler = KafkaScheduler()
        self._syncers = ThreadPoolExecutor(2, thread_name_prefix="sync")
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="write-back")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read-ahead")
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="unpack")
        self.on_all_directories_failed: Callable[[], None] | None = None
        """Called when all data directories have failed."""
        self.interruptible: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """In its block a signal handler may raise, because log recovery blocks the event loop."""
        self.lifecycle: BrokerLifecycleManager | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        self._stage = Stage.CREATED

    # Start.

    async def start(self) -> None:
        """Starts the broker. Clients can connect when it returns."""
        self.loop = asyncio.get_running_loop()
        config = self.static_config
        backlog = config.int("socket.listen.backlog.size")
        for listener in config.listeners():
            self._sockets.append((listener, bind(listener.name, listener.host, listener.port, backlog)))
        broker = self.broker
        broker.log_manager = LogManager(
            broker.files,
            config.log_dirs(),
            producer_expiration_ms=config.int("producer.id.expiration.ms"),
            policies=deletion_policies(config),
            recovery_threads=config.int("num.recovery.threads.per.data.dir"),
            cordoned=config.list("cordoned.log.dirs"),
        )
        self._stage = Stage.HAS_LOGS
        broker.log_manager.dirs.lock()
        stored_cluster_id = broker.log_manager.dirs.stored_cluster_id()
        broker.store = await open_store(config, broker.log_manager, broker.files)
        self._stage = Stage.HAS_STORE
        broker.metadata_cache = MetadataCache()
        broker.node_id = await self._choose_node_id(config)
        self.lifecycle = BrokerLifecycleManager(
            broker, self._create_replica_manager, self._create_services, logs_removed=self._logs_removed
        )
        image = await broker.controller.context.load(stored_cluster_id or None)
        broker.cluster_id = image.cluster_id
        broker.metadata_cache.image = image
        is_shared = config.store() == "zookeeper"
        version = VERSION_ON_ZOOKEEPER if is_shared else VERSION
        broker.log_manager.dirs.claim(image.cluster_id, broker.node_id, version)
        broker.config = effective_config(config, image, broker.node_id)
        warn_overridden(config, image, broker.node_id)
        await self.lifecycle.distrusted.load()
        await self.lifecycle.starts.load()
        with self.interruptible():
            self._load_logs(image.topics)
        self._build_request_path()
        await broker.features.start()
        dynamic_config = DynamicBrokerConfig(
            config,
            broker.metadata_cache,
            broker.replica_manager,
            self.log_cleaner,
            lambda: broker.config,
            self._set_config,
        )
        broker.metadata_cache.on_change(dynamic_config.image_changed)
        broker.metadata_cache.on_change(self._topics_deleted)
        broker.cluster = self.lifecycle.services.join_partitions()
        if broker.cluster is not None:
            self.fetch_handler.reader.quota = broker.cluster.replication_quotas.leader
        await self.lifecycle.starts.save()
        await self.lifecycle.register(self._registration())
        self._start_periodic_tasks()
        broker.replica_manager.replica_alter_log_dirs.resume()
        if not broker.controller.is_active:
            # The requests of the controller arrive through the listeners.
            self._listen()
        await self.lifecycle.wait_for_leader_and_isr()
        await asyncio.gather(
            broker.group_coordinator.runtime.wait_loaded(COORDINATORS_LOAD_S),
            broker.transaction_coordinator.runtime.wait_loaded(COORDINATORS_LOAD_S),
        )
        if self._stage < Stage.LISTENING:
            self._listen()
        self._stage = Stage.STARTED

    def _create_replica_manager(self, listener: ReplicaManagerListener) -> ReplicaManager:
        broker = self.broker
        return ReplicaManager(
            broker.node_id,
            broker.log_manager,
            broker.clock,
            self.loop,
            self._syncers,
            self._writers,
            listener,
        )

    def _create_services(self, tasks: TaskSet, distrusted: DistrustedDirectories) -> ClusterServices:
        if self.static_config.store() == "embedded":
            return StandaloneServices(self.broker, tasks, distrusted)
        # Imported here because a broker with an embedded store does not need it.
        from tidemill.server.cluster_member import ClusterMember

        return ClusterMember(self.broker, tasks, distrusted)

    async def _choose_node_id(self, config: BrokerConfig) -> int:
        configured = config.node_id()
        if configured is not None:
            return configured
        stored = self.broker.log_manager.dirs.stored_node_id()
        if stored >= 0:
            return stored
        if config.store() == "embedded":
            return DEFAULT_BROKER_ID
        if not config.bool("broker.id.generation.enable"):
            raise ConfigError(
                "this broker has no broker.id, and broker.id.generation.enable is false: set broker.id"
            )
        return await generate_broker_id(self.broker.store, config.int("reserved.broker.max.id"))

    def _load_logs(self, topics: Mapping[str, TopicImage]) -> None:
        broker = self.broker

        @cache  # a topic has many partitions, and its configuration errors are logged once
        def config_of(topic: str) -> LogConfig:
            image = topics.get(topic)
            return log_config(broker.config, topic, image.config if image is not None else {})

        began = broker.clock.monotonic()
        broker.log_manager.load(broker.clock.wall_ms(), config_of)
        if broker.log_manager.recovered_bytes:
            logger.info(
                "recovered %.1f MB of logs in %.1f s after an unclean shutdown",
                broker.log_manager.recovered_bytes / 1e6,
                broker.clock.monotonic() - began,
            )
        broker.replica_manager.unsynced_logs = {
            key: int(found.recovery_point)
            for one in broker.log_manager.dirs.online
            if one.may_have_lost
            for key, found in one.logs.items()
        }
        moves_at_once = broker.config.get("num.replica.alter.log.dirs.threads")
        broker.replica_manager.replica_alter_log_dirs.set_limits(
            moves_at_once if isinstance(moves_at_once, int) else None,
            broker.config.int("replica.alter.log.dirs.io.max.bytes.per.second"),
        )
        self.log_cleaner = LogCleaner(
            broker.log_manager,
            broker.replica_manager,
            broker.clock,
            self._syncers,
            CleanerProcess(),
            lambda: broker.config,
            broker.replica_manager.checkpoints.write_recovery_points,
        )
        self.log_cleaner.load_checkpoints()
        self._stage = Stage.LOGS_LOADED
        broker.replica_manager.full_disks.report_warnings()

    def _create_coordinators(self) -> None:
        broker = self.broker
        config = broker.config
        used = broker.log_manager.producer_id_max()
        broker.producer_id_manager = ProducerIdManager(
            lambda: claim_block(broker.store, broker.node_id, used)
        )
        broker.group_coordinator = GroupCoordinator.from_broker(
            config,
            PartitionCoordinatorLog(broker, OFFSETS_TOPIC),
            ClusterCoordinatorTopic(broker, OFFSETS_TOPIC, "offsets.topic.num.partitions"),
            broker.clock,
        )
        # A broker handles the requests of a connection in order, and responds to markers once they are
        # committed. Verifications, and the Produce requests that need them, must not wait for that.
        self.marker_client = self._inter_broker_client()
        self.verification_client = self._inter_broker_client()
        broker.features = FinalizedFeatures(broker.store)
        broker.transaction_coordinator = TransactionCoordinator(
            log=PartitionCoordinatorLog(broker, TRANSACTION_TOPIC),
            topic=ClusterCoordinatorTopic(broker, TRANSACTION_TOPIC, "transaction.state.log.num.partitions"),
            config=TransactionConfig.from_broker(config),
            producer_ids=broker.producer_id_manager,
            destinations=LeaderDestinations(broker, self.marker_client),
            transaction_version=lambda: broker.features.transaction_version,
            clock=broker.clock,
        )
        broker.replica_manager.leadership_listeners.append(self._leadership_changed)

    def _inter_broker_client(self) -> InterBrokerClient:
        broker = self.broker
        links = BrokerLinks(broker.node_id, lambda: broker.config, broker.store, broker.metadata_cache)
        return InterBrokerClient(links, lambda: broker.config.seconds("request.timeout.ms"))

    def _build_request_path(self) -> None:
        broker = self.broker
        config = broker.config
        self._create_coordinators()
        self.deadlines = Deadlines(self.loop)
        self.memory = MemoryPool(self.loop, request_bytes_max(config))
        self.conversions = ConversionWorkers(config.int("tidemill.conversion.processes"))
        broker.add_partitions_to_txn = AddPartitionsToTxnManager(broker, self.verification_client)
        self.produce_validation = ProduceValidation(
            self.loop, self._workers, self.memory, self.conversions, broker.add_partitions_to_txn.verify
        )
        topics, clock = broker.replica_manager.topics, broker.clock
        self.produce_handler = ProduceHandler(
            topics,
            clock,
            self.deadlines,
            self.produce_validation,
            self.memory,
            inter_broker_listener(config),
        )
        broker.replica_manager.write_back.listeners.append(self.produce_handler.set_congested)
        broker.apis = APIS
        self.dispatch = HandlerDispatch(broker, self.loop, self._readers, self.memory)
        large_fetches = LargeFetches(self.dispatch.queue, self.dispatch.tasks)
        self.sessions = FetchSessions(
            broker.clock, config.int("max.incremental.fetch.session.cache.slots"), large_fetches.end_session
        )
        reader = FetchReader(
            topics,
            broker.clock,
            self.loop,
            config.int("fetch.max.bytes"),
            aborted=AbortedTransactions(broker.files),
            selector=replica_selector(broker),
            broker_epoch=broker.metadata_cache.broker_epoch,
        )
        self.down_conversion = DownConversion(self.loop, self.conversions)
        self.fetch_handler = FetchHandler(
            reader, self.loop, self.deadlines, self.sessions, self.down_conversion, large_fetches
        )
        self.kafka_apis = KafkaApis(self.produce_handler, self.fetch_handler, self.dispatch)
        self.socket_server = SocketServer(
            self.loop,
            self.kafka_apis,
            limits_of(config),
            ConnectionLimits(
                frame_bytes_max=config.int("socket.request.max.bytes"),
                send_buffer_bytes=config.int("socket.send.buffer.bytes"),
                receive_buffer_bytes=config.int("socket.receive.buffer.bytes"),
            ),
            self.memory,
        )
        self.dispatch.on_closed = self.socket_server.closed
        self.group_lags: GroupLags | None = None
        """None if the broker serves no metrics."""
        self.free_space: FreeSpace | None = None
        """None if the broker serves no metrics."""
        self._stage = Stage.HAS_REQUEST_PATH

    def _registration(self) -> BrokerRegistration:
        broker = self.broker
        advertised = {one.name: one for one in broker.config.advertised_listeners()}
        endpoints = []
        for listener, sockets in self._sockets:
            port = sockets[0].getsockname()[1]
            self.listeners.append((listener.name, listener.host, port))
            address = advertised.get(listener.name, listener)
            endpoints.append(Endpoint(listener.name, listener.protocol, address.host, address.port or port))
        self._endpoints = tuple(endpoints)
        lost = detect_lost_replicas(broker.metadata_cache.image, broker.node_id, broker.log_manager)
        return BrokerRegistration(
            broker.node_id,
            self._endpoints,
            rack=broker.config.str("broker.rack") or None,
            timestamp_ms=broker.clock.wall_ms(),
            lost=lost,
        )

    def _listen(self) -> None:
        endpoints = {one.listener: one for one in self._endpoints}
        node_id = self.broker.node_id
        for listener, sockets in self._sockets:
            name, _, host, port = endpoints[listener.name]
            follows = listener.host in ANY_HOST and not self.static_config.advertises()
            self.socket_server.listen(Listener(name, host, port, node_id, follows), sockets)
        self._stage = Stage.LISTENING

    # Changes of the cluster image.

    async def _set_config(self, config: BrokerConfig) -> None:
        """Replaces the configuration of the broker, and applies its changes to the request path."""
        self.broker.config = config
        self.fetch_handler.reader.bytes_max = config.int("fetch.max.bytes")
        self.socket_server.limits = await self.loop.run_in_executor(None, limits_of, config)

    async def _topics_deleted(self, delta: Delta) -> None:
        """Deletes the committed offsets of deleted topics."""
        if delta.deleted:
            await self.broker.group_coordinator.topics_deleted(
                {image.name: image.topic_id for image in delta.deleted}
            )

    async def _logs_removed(self) -> None:
        """Removes deleted logs from the checkpoints before their deletion is confirmed."""
        await self.broker.replica_manager.checkpoints.write_removals()
        await self.log_cleaner.checkpoint()

    def _leadership_changed(self, partition: Partition, leads: bool) -> None:
        runtime: CoordinatorRuntime[GroupMetadataManager] | CoordinatorRuntime[TransactionStateManager]
        if partition.topic == OFFSETS_TOPIC:
            runtime = self.broker.group_coordinator.runtime
        elif partition.topic == TRANSACTION_TOPIC:
            runtime = self.broker.transaction_coordinator.runtime
        else:
            return
        if leads:
            runtime.become_leader(int(partition.index), int(partition.leader_epoch))
        else:
            runtime.resign(int(partition.index))

    # Periodic tasks.

    def _start_periodic_tasks(self) -> None:
        config = self.broker.config
        partitions = self.broker.replica_manager
        self.broker.group_coordinator.start()
        self.broker.transaction_coordinator.start()
        retention_s = config.seconds("log.retention.check.interval.ms")
        self._scheduler.schedule(
            retention_s,
            partitions.cleanup_logs,
            first_s=min(config.seconds("log.initial.task.delay.ms"), retention_s),
        )
        self._scheduler.schedule(FLUSH_CHECK_S, partitions.log_flusher.flush_due)
        self._scheduler.schedule(FLUSH_CHECK_S, self._check_directories)
        self._scheduler.schedule(REMOVAL_CHECK_S, partitions.remove_due)
        self._scheduler.schedule(config.seconds("replica.lag.time.max.ms") / 2, partitions.maybe_shrink_isr)
        self._scheduler.schedule(PROMOTION_CHECK_S, partitions.promotions.run)
        self._scheduler.schedule(
            config.seconds("replica.high.watermark.checkpoint.interval.ms"),
            partitions.checkpoints.write_high_watermarks,
        )
        self._scheduler.schedule(
            config.seconds("log.flush.offset.checkpoint.interval.ms"),
            partitions.checkpoints.write_recovery_points,
        )
        if config.store() == "zookeeper":
            self._scheduler.schedule(PRODUCER_IDS_CHECK_S, self.broker.producer_id_manager.prepare, first_s=0)
        if config.bool("log.cleaner.enable"):
            self._scheduler.run(self.log_cleaner.run())
        self._scheduler.schedule(
            config.seconds("log.flush.start.offset.checkpoint.interval.ms"),
            partitions.checkpoints.write_log_starts,
        )
        self._scheduler.schedule(IDLE_S, self._reap_conversions)
        if config.int("tidemill.metrics.port") >= 0:
            from tidemill.server import free_space
            from tidemill.server.group_lags import UPDATE_INTERVAL_S, GroupLags

            broker = self.broker
            links = BrokerLinks(broker.node_id, lambda: broker.config, broker.store, broker.metadata_cache)
            self.group_lags = GroupLags(broker, links)
            self._scheduler.schedule(UPDATE_INTERVAL_S, self.group_lags.update)
            self.free_space = free_space.FreeSpace(self.broker.log_manager, self._syncers)
            self._scheduler.schedule(free_space.UPDATE_INTERVAL_S, self.free_space.update, first_s=0)
        idle_ms = config.int("connections.max.idle.ms")
        if idle_ms > 0:
            self._scheduler.schedule(idle_ms / 1000, self._close_idle_connections)

    async def _reap_conversions(self) -> None:
        self.conversions.reap()

    async def _close_idle_connections(self) -> None:
        self.socket_server.close_idle()

    async def _check_directories(self) -> None:
        await self.broker.replica_manager.check_directories()
        if not self.broker.log_manager.dirs.online and self.on_all_directories_failed is not None:
            self.on_all_directories_failed()

    # Stop.

    async def stop(self) -> None:
        """Stops all components in order. May be called after a failed start, and more than once."""
        reached, self._stage = self._stage, Stage.STOPPED
        if reached == Stage.STOPPED:
            return
        if reached == Stage.STARTED and self.lifecycle is not None:
            self.broker.group_coordinator.begin_stop()
            await self.lifecycle.services.controlled_shutdown()
        if reached >= Stage.LISTENING:
            self.socket_server.close()
        for listener_sockets in self._sockets:
            for one in listener_sockets[1]:
                one.close()
        await self._scheduler.stop()
        try:
            await self._stop_requests(reached)
        finally:
            await self._close_stores(reached)

    async def _stop_requests(self, reached: Stage) -> None:
        """Stops the handling of requests. Nothing is appended afterwards."""
        broker = self.broker
        if self.lifecycle is not None:
            await self.lifecycle.stop()
        if reached >= Stage.HAS_REQUEST_PATH:
            await broker.group_coordinator.stop()
            await broker.transaction_coordinator.runtime.stop()
            await broker.features.stop()
            self.marker_client.stop()
            self.verification_client.stop()
            await self.produce_validation.stop()
            await self.down_conversion.stop()
            self.conversions.close()
            await self.dispatch.stop()
            self.deadlines.close()
            self.memory.close()
        if reached >= Stage.LOGS_LOADED:
            await broker.replica_manager.stop()

    async def _close_stores(self, reached: Stage) -> None:
        broker = self.broker
        try:
            if reached >= Stage.LOGS_LOADED:
                await self.log_cleaner.checkpoint()
                for problem in broker.log_manager.close(
                    broker.clock.wall_ms(), broker.replica_manager.high_watermarks()
                ):
                    logger.error("%s", problem)
                if self.lifecycle is not None:
                    await self.lifecycle.distrusted.save_at_shutdown()
            elif reached >= Stage.HAS_LOGS:
                broker.log_manager.dirs.unlock()
        finally:
            if reached >= Stage.HAS_STORE:
                await broker.store.close()
            for pool in (self._syncers, self._writers, self._readers, self._workers):
                pool.shutdown(wait=False)

    # Health and metrics.

    def health(self) -> Health:
        """Returns the health for ``/healthz``."""
        if self._stage < Stage.STARTED:
            return Health("starting")
        return health_of(self.broker)


def limits_of(config: BrokerConfig) -> ConnectionQuotas:
    """The configured connection limits. Blocks on DNS if they name hosts."""
    return ConnectionQuotas(
        config.int("max.connections"),
        config.int("max.connections.per.ip"),
        addresses_of(config.connections_per_address()),
        config.connections_per_listener(),
        inter_broker_listener(config) if len(config.listeners()) > 1 else "",
    )


@contextlib.asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[BrokerServer]:
    """A context manager that runs a broker, for tests and embedding."""
    server = BrokerServer(config)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
