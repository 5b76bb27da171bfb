"""A broker that the simulated :class:`ReliableController` controls, for simulations of replication alone.

It has the real logs, partitions, followers and request paths, composed as in
:mod:`tidemill.server.broker_server`; the controller sends it the partitions to lead and to follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from reliable_controller import CLUSTER_ID, ReliableController
from simulated_clients import PORT
from simulated_loop import SimulatedClock, SimulatedLoop
from simulated_network import Listening, Machine, Network

from tidemill.broker.api_registry import APIS
from tidemill.broker.apply_leader_and_isr import state_of
from tidemill.broker.broker import Broker
from tidemill.broker.fetch_handler import FetchHandler
from tidemill.broker.fetch_reader import FetchReader
from tidemill.broker.fetch_session import FetchSessions
from tidemill.broker.finalized_features import FinalizedFeatures
from tidemill.broker.handler_dispatch import HandlerDispatch
from tidemill.broker.kafka_apis import KafkaApis
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.broker.produce_handler import ProduceHandler
from tidemill.broker.produce_validation import ProduceValidation
from tidemill.broker.replica_fetcher_manager import ReplicaFetcherManager
from tidemill.controller.alter_partition import ANY_EPOCH, AlterPartitionItem, IsrMember
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Store
from tidemill.coordination.topic_image import PartitionImage
from tidemill.log.log_manager import LogManager
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition
from tidemill.net.deadlines import Deadlines
from tidemill.net.link import Link, LinkError
from tidemill.net.memory_pool import MemoryPool
from tidemill.net.peer import Listener
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits
from tidemill.replication.replica_manager import ReplicaManager, ReplicaManagerListener
from tidemill.server.lost_replica_detection import detect_lost_replicas
from tidemill.server.socket_server import ConnectionLimits, ConnectionQuotas, SocketServer
from tidemill.transactions.producer_id_manager import ProducerIdManager

logger = logging.getLogger("tidemill.simulated")

LINK_S = 1.0

MOVE_S_MEAN = 1.0
MOVED_BYTES_PER_SECOND = 4000
MOVED_PIECE_BYTES = 1000
"""So slow that leaders change, and processes end, while partitions move."""


class ReplicationBroker(ReplicaManagerListener):
    """A broker, for the lifetime of one process."""

    def __init__(
        self,
        node_id: int,
        network: Network,
        machine: Machine,
        files: Files,
        clock: SimulatedClock,
        config: BrokerConfig,
        controller: ReliableController,
        directories: tuple[str, ...] = ("/data",),
    ) -> None:
        self.node_id = node_id
        self.network = network
        self.machine = machine
        self.loop: SimulatedLoop = network.loop
        self.controller = controller
        self.directories = directories
        self.broker = Broker()
        self.broker.config = config
        self.broker.clock = clock
        self.broker.files = files
        self.broker.node_id = node_id
        self.following: ReplicaFetcherManager
        self.is_registering = False
        """Whether a registration is on its way to the controller."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def partitions(self) -> ReplicaManager:
        """The partitions that it leads and follows."""
        return self.broker.replica_manager

    @property
    def image(self) -> ClusterImage:
        """Its image of the cluster."""
        return self.broker.metadata_cache.image

    async def start(self) -> None:
        """Loads the logs, listens, and registers. Raises TidemillError."""
        broker = self.broker
        config = broker.config
        broker.log_manager = logs = LogManager(broker.files, self.directories)
        logs.dirs.lock()
        logs.dirs.claim(CLUSTER_ID, self.node_id)
        topics = self.controller.image.topics
        logs.load(broker.clock.wall_ms(), lambda name: log_config(config, name, topics[name].config))
        nobody: Any = None
        broker.replica_manager = ReplicaManager(
            self.node_id, logs, broker.clock, self.loop, nobody, nobody, self
        )
        broker.replica_manager.lag_ms_max = config.int("replica.lag.time.max.ms")
        broker.metadata_cache = MetadataCache(self.controller.image.with_brokers({}))
        broker.producer_id_manager = ProducerIdManager(self.controller.next_producer_ids)
        # Without the node in a store, each feature has its highest level.
        broker.features = FinalizedFeatures(Store())
        acceptor = self._build_request_path()
        limits = FetchLimits(
            wait_ms=config.int("replica.fetch.wait.max.ms"), backoff_ms=config.int("replica.fetch.backoff.ms")
        )
        self.following = ReplicaFetcherManager(
            self.node_id, limits, self._connect, broker.clock, node_epoch=ANY_EPOCH
        )
        broker.replica_manager.replica_fetcher_manager = self.following
        listening: Any = Listening(self.network, self.machine, PORT)
        listener = Listener("PLAINTEXT", self.machine.name, PORT, node_id=self.node_id)
        acceptor.listen(listener, [listening])
        self._start_periodic_tasks()
        self._register()
        logs.dirs.write_new_meta_properties()
        if len(self.directories) > 1:
            broker.replica_manager.replica_alter_log_dirs.full_retry_s = MOVE_S_MEAN
            broker.replica_manager.replica_alter_log_dirs.set_bytes_per_second(MOVED_BYTES_PER_SECOND)
            broker.replica_manager.replica_alter_log_dirs.piece_bytes = MOVED_PIECE_BYTES
            broker.replica_manager.replica_alter_log_dirs.resume()
            self._tasks.append(self.loop.create_task(_repeat(MOVE_S_MEAN, self._move)))

    def _build_request_path(self) -> SocketServer:
        broker = self.broker
        config = broker.config
        nobody: Any = None
        deadlines = Deadlines(self.loop)
        memory = MemoryPool(self.loop, 1 << 30)
        preparation = ProduceValidation(self.loop, nobody, memory)
        topics = broker.replica_manager.topics
        produces = ProduceHandler(topics, broker.clock, deadlines, preparation, memory)
        sessions = FetchSessions(broker.clock, 100)
        reader = FetchReader(
            topics,
            broker.clock,
            self.loop,
            config.int("fetch.max.bytes"),
            broker_epoch=broker.metadata_cache.broker_epoch,
        )
        fetches = FetchHandler(reader, self.loop, deadlines, sessions)
        broker.apis = APIS
        dispatch = HandlerDispatch(broker, self.loop, nobody, memory)
        requests = KafkaApis(produces, fetches, dispatch)
        each = ConnectionLimits(frame_bytes_max=100 << 20)
        acceptor = SocketServer(self.loop, requests, ConnectionQuotas(1000, 1000, {}), each, memory)
        dispatch.on_closed = acceptor.closed
        return acceptor

    def _start_periodic_tasks(self) -> None:
        partitions = self.partitions
        lag_s = partitions.lag_ms_max / 1000
        for period_s, do in (
            (lag_s / 2, partitions.maybe_shrink_isr),
            (1.0, partitions.log_flusher.flush_due),
            (2.0, partitions.checkpoints.write_high_watermarks),
            (3.0, partitions.checkpoints.write_recovery_points),
            (0.5, self._register_again),
        ):
            self._tasks.append(self.loop.create_task(_repeat(period_s, do)))

    def _register(self) -> None:
        self.is_registering = True
        lost = detect_lost_replicas(self.controller.image, self.node_id, self.broker.log_manager)
        self.controller.register(self, PORT, lost)

    async def _register_again(self) -> None:
        if not self.is_registering and not self.controller.is_registered(self):
            self.partitions.step_down()
            self._register()

    async def _move(self) -> None:
        """Moves a partition to another data directory, or back, or continues an interrupted move."""
        partitions = list(self.partitions.all())
        random = self.loop.random
        if partitions and random.random() < 0.5:
            key = random.choice(partitions).log.topic_partition
            with contextlib.suppress(KafkaError):
                self.partitions.replica_alter_log_dirs.begin(key, random.choice(self.directories))

    async def _connect(self, leader: int) -> Link:
        known = self.broker.metadata_cache.brokers.get(leader)
        if known is None:
            raise LinkError(f"broker {leader} is not known")
        endpoint = known.endpoints["PLAINTEXT"]
        return await Link.open(leader, endpoint.host, endpoint.port, f"broker-{self.node_id}", LINK_S)

    # -- what the controller says

    def take(self, image: ClusterImage) -> None:
        """Applies a change of the cluster."""
        with contextlib.suppress(StorageError):
            self.broker.log_manager.dirs.mark_losses_handled()
        self.broker.metadata_cache.image = image
        self.following.registered(image.brokers[self.node_id].epoch)
        for topic in image.topics.values():
            states = [state_of(one) for one in topic.partitions if one.partition_epoch >= 0]
            config = log_config(self.broker.config, topic.name, topic.config)
            try:
                run_at_once(
                    self.partitions.put_topic_in_slices(topic.name, topic.topic_id, False, states, config)
                )
            except KafkaError as problem:
                logger.warning("%s: %s", topic.name, problem)
        self.directory_failed()

    def directory_failed(self) -> None:
        """Reports replicas that it cannot read or write."""
        failed = [
            TopicPartition(one.topic, int(one.index)) for one in self.partitions.all() if one.is_offline
        ]
        if failed:
            self.controller.replicas_failed(self, failed)

    def is_registered(self, broker_id: int) -> bool:
        """Considers every broker registered."""
        return True

    def directory_distrusted(self) -> None:
        """Has no store for the directories."""

    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Requests another ISR from the controller."""
        replication = partition.replication
        leader_epoch = int(partition.leader_epoch)
        change = AlterPartitionItem(
            topic_id=partition.log.topic_id,
            partition=int(partition.index),
            leader=self.node_id,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            isr=[
                IsrMember(one, ANY_EPOCH if replication is None else int(replication.epoch_of(one)))
                for one in isr
            ],
            broker_epoch=ANY_EPOCH,
        )

        def answer(state: PartitionImage | None) -> None:
            if (
                partition.replication is None
                or partition.leader_epoch != leader_epoch
                or partition.partition_epoch != partition_epoch
            ):
                return  # The broker has sent a request for another state meanwhile.
            if state is None:
                self.partitions.isr_refused(partition)
            else:
                self.partitions.isr_changed(partition, state_of(state))

        self.controller.alter_isr(partition.topic, int(partition.index), change, answer)


async def _repeat(period_s: float, do: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await do()
        except Exception:
            logger.exception("upkeep failed")
