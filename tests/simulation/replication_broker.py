"""A broker that the simulated :class:`ReliableController` commands, for simulations of replication alone.

It has the real logs, partitions, followers and request paths, put together as in
:mod:`tidemill.server.app`; the controller tells it what it leads and follows.
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

from tidemill.broker.broker import Broker
from tidemill.broker.carrying_out import state_of
from tidemill.broker.context import Listener
from tidemill.broker.dispatch import Dispatch
from tidemill.broker.fetch import FetchPath
from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.following import Following
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata import MetadataCache
from tidemill.broker.produce import ProducePath
from tidemill.broker.requests import Requests
from tidemill.broker.slow_lane import SlowLane
from tidemill.controller.isr import ANY_EPOCH, IsrChange
from tidemill.coordination.image import ClusterImage, PartitionImage
from tidemill.log.manager import LogManager
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition
from tidemill.net.deadlines import Deadlines
from tidemill.net.link import Link, LinkError
from tidemill.net.memory import Memory
from tidemill.replication.fetcher import FetchLimits
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.server.listeners import Acceptor, Limits
from tidemill.server.lost_replicas import report_lost_replicas
from tidemill.transactions.producer_ids import ProducerIds

log = logging.getLogger("tidemill.simulated")

LINK_S = 1.0

MOVE_S_MEAN = 1.0
MOVED_BYTES_PER_SECOND = 4000
MOVED_PIECE_BYTES = 1000
"""So slow that leaders change, and processes end, while partitions move."""


class ReplicationBroker:
    """One broker, for the time of one process."""

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
        self.following: Following
        self.is_registering = False
        """Whether a registration is on its way to the controller."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def partitions(self) -> ReplicaManager:
        """What it leads and follows."""
        return self.broker.partitions

    @property
    def image(self) -> ClusterImage:
        """What it knows of the cluster."""
        return self.broker.metadata.image

    async def start(self) -> None:
        """Loads the logs, listens, and registers. Raises TidemillError."""
        broker = self.broker
        config = broker.config
        broker.logs = logs = LogManager(broker.files, self.directories)
        logs.lock()
        logs.claim(CLUSTER_ID, self.node_id)
        topics = self.controller.image.topics
        logs.load(broker.clock.wall_ms(), lambda name: log_config(config, name, topics[name].config))
        nobody: Any = None
        broker.partitions = ReplicaManager(self.node_id, logs, broker.clock, self.loop, nobody, nobody)
        broker.partitions.lag_ms_max = config.int("replica.lag.time.max.ms")
        broker.metadata = MetadataCache(self.controller.image.with_brokers({}))
        broker.producer_ids = ProducerIds(self.controller.next_producer_ids)
        acceptor = self._build_request_path()
        limits = FetchLimits(
            wait_ms=config.int("replica.fetch.wait.max.ms"), backoff_ms=config.int("replica.fetch.backoff.ms")
        )
        self.following = Following(
            self.node_id, ANY_EPOCH, limits, self._connect, broker.clock, self._storage_failed
        )
        broker.partitions.following = self.following
        broker.partitions.change_isr = self._change_isr
        broker.partitions.directory_failed = self._tell_failed
        listening: Any = Listening(self.network, self.machine, PORT)
        listener = Listener("PLAINTEXT", self.machine.name, PORT, node_id=self.node_id)
        acceptor.listen(listener, [listening])
        self._start_upkeep()
        self._register()
        logs.accept()
        if len(self.directories) > 1:
            broker.partitions.mover.full_again_s = MOVE_S_MEAN
            broker.partitions.mover.bytes_per_second = MOVED_BYTES_PER_SECOND
            broker.partitions.mover.piece_bytes = MOVED_PIECE_BYTES
            broker.partitions.mover.resume()
            self._tasks.append(self.loop.create_task(_repeat(MOVE_S_MEAN, self._move)))

    def _build_request_path(self) -> Acceptor:
        broker = self.broker
        config = broker.config
        nobody: Any = None
        deadlines = Deadlines(self.loop)
        memory = Memory(self.loop, 1 << 30)
        slow_lane = SlowLane(self.loop, nobody, memory)
        topics = broker.partitions.topics
        produces = ProducePath(topics, broker.clock, deadlines, slow_lane, memory)
        slow_lane.path = produces
        sessions = FetchSessions(broker.clock, 100)
        fetches = FetchPath(topics, self.loop, deadlines, sessions, config.int("fetch.max.bytes"))
        fetches.epoch_registered = broker.metadata.epoch_registered
        dispatch = Dispatch(broker, self.loop, nobody)
        requests = Requests(produces, fetches, dispatch)
        acceptor = Acceptor(self.loop, requests, Limits(1000, 1000, {}), 100 << 20, 0, 0, memory)
        dispatch.on_closed = acceptor.closed
        return acceptor

    def _start_upkeep(self) -> None:
        partitions = self.partitions
        lag_s = partitions.lag_ms_max / 1000
        for period_s, do in (
            (lag_s / 2, partitions.drop_lagging),
            (1.0, partitions.flushing.due),
            (2.0, partitions.checkpoints.high_watermarks),
            (3.0, partitions.checkpoints.recovery_points),
            (0.5, self._register_again),
        ):
            self._tasks.append(self.loop.create_task(_repeat(period_s, do)))

    def _register(self) -> None:
        self.is_registering = True
        lost = report_lost_replicas(self.controller.image, self.node_id, self.broker.logs)
        self.controller.register(self, PORT, lost)

    async def _register_again(self) -> None:
        if not self.is_registering and not self.controller.is_registered(self):
            self.partitions.step_down()
            self._register()

    async def _move(self) -> None:
        """Has a partition move to another data directory, or back, or go on with a move that had ended."""
        partitions = list(self.partitions.all())
        random = self.loop.random
        if partitions and random.random() < 0.5:
            key = random.choice(partitions).log.topic_partition
            with contextlib.suppress(KafkaError):
                self.partitions.mover.begin(key, random.choice(self.directories))

    async def _connect(self, leader: int) -> Link:
        known = self.broker.metadata.brokers.get(leader)
        if known is None:
            raise LinkError(f"broker {leader} is not known")
        endpoint = known.endpoints["PLAINTEXT"]
        return await Link.open(leader, endpoint.host, endpoint.port, f"broker-{self.node_id}", LINK_S)

    def _storage_failed(self, partition: Partition, problem: StorageError) -> None:
        log.warning("%s-%d: %s", partition.topic, partition.index, problem)
        self.partitions.storage_trouble(partition, problem)

    # -- what the controller says

    def take(self, image: ClusterImage) -> None:
        """The cluster has changed."""
        with contextlib.suppress(StorageError):
            self.broker.logs.loss_heeded()
        self.broker.metadata.image = image
        self.following.registered(image.brokers[self.node_id].epoch)
        for topic in image.topics.values():
            states = [state_of(one) for one in topic.partitions if one.partition_epoch >= 0]
            config = log_config(self.broker.config, topic.name, topic.config)
            try:
                self.partitions.put_topic(topic.name, topic.topic_id, False, states, config)
            except KafkaError as problem:
                log.warning("%s: %s", topic.name, problem)
        self._tell_failed()

    def _tell_failed(self) -> None:
        """Has others lead what it cannot read or write."""
        failed = [TopicPartition(one.topic, int(one.index)) for one in self.partitions.all() if one.failed]
        if failed:
            self.controller.replicas_failed(self, failed)

    def _change_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        replication = partition.replication
        epochs = [(one, ANY_EPOCH if replication is None else int(replication.epoch_of(one))) for one in isr]
        leader_epoch = int(partition.leader_epoch)
        change = IsrChange(self.node_id, leader_epoch, partition_epoch, epochs)

        def answer(state: PartitionImage | None) -> None:
            now = partition.replication
            if (
                now is None
                or partition.leader_epoch != leader_epoch
                or now.partition_epoch != partition_epoch
            ):
                return  # It asks over another state by now.
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
            log.exception("upkeep failed")
