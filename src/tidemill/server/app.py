"""A broker in this process: its parts put together, started in order, and stopped in the other.

Start: listeners are bound, data directories locked and checked, the coordination store opened, logs loaded
(recovered after an unclean stop), partitions taken over, groups loaded; last of all connections are let in.
Stop: nobody is let in any more, logs are flushed and marked as cleanly shut down, the store is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.carrying_out import Turn
from tidemill.broker.cleaner_worker import CleanerProcess
from tidemill.broker.compaction import Compaction
from tidemill.broker.context import Listener
from tidemill.broker.conversion import IDLE_S, Conversions
from tidemill.broker.dispatch import Dispatch
from tidemill.broker.down_conversion import DownConversion
from tidemill.broker.fetch import FetchPath
from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.large_fetches import LargeFetches
from tidemill.broker.links import inter_broker_listener
from tidemill.broker.log_configs import changed_defaults, depends_on, log_config
from tidemill.broker.metadata import Delta, MetadataCache, effective_config, warn_overridden
from tidemill.broker.offsets_topic import ClusterOffsetsTopic, PartitionOffsetsLog
from tidemill.broker.produce import ProducePath
from tidemill.broker.requests import Requests
from tidemill.broker.slow_lane import SlowLane
from tidemill.controller.producer_ids import claim_block
from tidemill.controller.shell import generate_broker_id
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.groups.ports import OFFSETS_TOPIC
from tidemill.groups.service import GroupService
from tidemill.log.aborted import AbortedTransactions
from tidemill.log.files import SystemFiles
from tidemill.log.manager import LogManager
from tidemill.log.meta import VERSION, VERSION_ON_ZOOKEEPER
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.configs import Listener as ConfiguredListener
from tidemill.model.configs.listeners import ANY_HOST
from tidemill.model.errors import ConfigError
from tidemill.model.ports import Files
from tidemill.net.deadlines import Deadlines
from tidemill.net.memory import Memory
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.server.health import health_of
from tidemill.server.listeners import Acceptor, Limits, addresses_of, bind
from tidemill.server.lost_replicas import report_lost_replicas
from tidemill.server.policies import policies_of, selection_of
from tidemill.server.seat import Seat, take_seat
from tidemill.server.store import open_store
from tidemill.transactions.producer_ids import ProducerIds

log = logging.getLogger("tidemill.server")

ALONE = 1
"""The id of a broker on its own store that was given none."""
FLUSH_CHECK_S = 1.0
GROUPS_LOAD_S = 0.2
"""How long the first clients wait for groups to be read. Then they are told COORDINATOR_LOAD_IN_PROGRESS,
which some administration clients give to their users as an error."""
PRODUCER_IDS_CHECK_S = 5.0
REMOVAL_CHECK_S = 1.0
REQUEST_BYTES_LEAST = 64 * 1024 * 1024
REQUEST_MEMORY_SHARE = 4
"""Requests that come in hold a quarter of the memory at most, unless they are given another bound."""
SHORTEST_PERIOD_S = 0.1
"""Kafka's keys allow an interval of 0; the loop has other things to do."""


make_files: Callable[[], Files] = SystemFiles
"""What makes the file port; tests put one in its place whose disk is full or slow."""


class BrokerServer:
    """One broker: ``await start()``, and ``await stop()`` when it is to end.

    ``start`` raises a :class:`TidemillError` with one line for the operator when it cannot.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.static_config = config
        self.listeners: list[tuple[str, str, int]] = []
        """Bound: name, host, port."""
        self.broker = Broker()
        self.broker.config = config
        self.broker.clock = SystemClock()
        self.broker.files = make_files()
        self._sockets: list[tuple[ConfiguredListener, list[socket.socket]]] = []
        self._upkeep: list[asyncio.Task[None]] = []
        self._syncers = ThreadPoolExecutor(2, thread_name_prefix="sync")
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="write-back")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read-ahead")
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="unpack")
        self.without_disk: Callable[[], None] | None = None
        """Called when no data directory works any more: what serves nothing may as well end."""
        self.may_be_interrupted: Callable[[], contextlib.AbstractContextManager[None]] = (
            contextlib.nullcontext
        )
        """In its block a signal may raise: the start waits there for nothing but the disk, maybe for long."""
        self.seat: Seat | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        self._listening = False
        self._started = False
        self._loaded = False
        self._stopped = False

    # Start.

    async def start(self) -> None:
        """Brings the broker up; clients may connect when it returns."""
        self.loop = asyncio.get_running_loop()
        config = self.static_config
        backlog = config.int("socket.listen.backlog.size")
        for listener in config.listeners():
            self._sockets.append((listener, bind(listener.name, listener.host, listener.port, backlog)))
        broker = self.broker
        broker.logs = LogManager(
            broker.files,
            config.log_dirs(),
            producer_expiration_ms=config.int("producer.id.expiration.ms"),
            policies=policies_of(config),
            recovery_threads=config.int("num.recovery.threads.per.data.dir"),
            cordoned=config.list("cordoned.log.dirs"),
        )
        broker.logs.lock()
        stored_cluster_id = broker.logs.stored_cluster_id()
        broker.store = await open_store(config, broker.logs, broker.files)
        broker.metadata = MetadataCache()
        broker.node_id = await self._choose_node_id(config)
        self.seat = take_seat(broker, self._logs_removed)
        image = await broker.controller.load(stored_cluster_id or None)
        broker.cluster_id = image.cluster_id
        broker.metadata.image = image
        is_shared = config.store() == "zookeeper"
        version = VERSION_ON_ZOOKEEPER if is_shared else VERSION
        broker.logs.claim(image.cluster_id, broker.node_id, version)
        broker.config = effective_config(config, image, broker.node_id)
        warn_overridden(config, image, broker.node_id)
        await self.seat.distrusted.load()
        await self.seat.starts.load()
        with self.may_be_interrupted():
            self._load_logs(image.topics)
        self._build_request_path()
        broker.metadata.on_change(self._apply)
        self.seat.join_partitions()
        if broker.throttling is not None:
            self.fetches.throttle = broker.throttling.leader
        await self.seat.starts.save()
        await self.seat.register(self._registration())
        self._start_upkeep()
        broker.partitions.mover.resume()
        if not broker.controller.is_active:
            # Its commands come in through the listeners.
            self._listen()
        await self.seat.wait_told()
        await broker.groups.wait_loaded(GROUPS_LOAD_S)
        if not self._listening:
            self._listen()
        self._started = True

    async def _choose_node_id(self, config: BrokerConfig) -> int:
        configured = config.node_id()
        if configured is not None:
            return configured
        stored = self.broker.logs.stored_node_id()
        if stored >= 0:
            return stored
        if config.store() == "embedded":
            return ALONE
        if not config.bool("broker.id.generation.enable"):
            raise ConfigError(
                "this broker has no broker.id, and broker.id.generation.enable is false: give it one"
            )
        return await generate_broker_id(self.broker.store, config.int("reserved.broker.max.id"))

    def _load_logs(self, topics: Any) -> None:
        broker = self.broker

        @cache  # a topic has many partitions, and what is wrong with its settings is told once
        def config_of(topic: str) -> Any:
            image = topics.get(topic)
            return log_config(broker.config, topic, image.config if image is not None else {})

        began = broker.clock.monotonic()
        broker.logs.load(broker.clock.wall_ms(), config_of)
        if broker.logs.recovered_bytes:
            log.info(
                "after an unclean stop %.1f MB of logs were checked in %.1f s",
                broker.logs.recovered_bytes / 1e6,
                broker.clock.monotonic() - began,
            )
        broker.partitions = ReplicaManager(
            broker.node_id, broker.logs, broker.clock, self.loop, self._syncers, self._writers
        )
        broker.partitions.doubtful = {
            key: int(found.recovery_point)
            for one in broker.logs.working
            if one.may_have_lost
            for key, found in one.logs.items()
        }
        moves_at_once = broker.config.get("num.replica.alter.log.dirs.threads")
        broker.partitions.mover.set_limits(
            moves_at_once if isinstance(moves_at_once, int) else None,
            broker.config.int("replica.alter.log.dirs.io.max.bytes.per.second"),
        )
        self.compaction = Compaction(
            broker.logs,
            broker.partitions,
            broker.clock,
            self._syncers,
            CleanerProcess(),
            lambda: broker.config,
            broker.partitions.checkpoints.recovery_points,
        )
        self.compaction.load()
        self._loaded = True
        broker.partitions.report_warnings()

    def _build_request_path(self) -> None:
        broker = self.broker
        config = broker.config
        used = broker.logs.producer_id_max()
        broker.producer_ids = ProducerIds(lambda: claim_block(broker.store, broker.node_id, used))
        broker.groups = GroupService.from_broker(
            config, PartitionOffsetsLog(broker), ClusterOffsetsTopic(broker), broker.clock
        )
        broker.partitions.leadership_listeners.append(self._leadership_changed)
        self.deadlines = Deadlines(self.loop)
        self.memory = Memory(self.loop, request_bytes_max(config))
        self.conversions = Conversions(config.int("tidemill.conversion.processes"))
        self.slow_lane = SlowLane(self.loop, self._workers, self.memory, self.conversions)
        topics = broker.partitions.topics
        self.produces = ProducePath(topics, broker.clock, self.deadlines, self.slow_lane, self.memory)
        self.slow_lane.path = self.produces
        broker.partitions.write_back.listeners.append(self.produces.set_congested)
        self.sessions = FetchSessions(broker.clock, config.int("max.incremental.fetch.session.cache.slots"))
        self.fetches = FetchPath(
            topics, self.loop, self.deadlines, self.sessions, config.int("fetch.max.bytes")
        )
        self.fetches.aborted = AbortedTransactions(broker.files)
        self.fetches.selector = selection_of(broker)
        self.fetches.epoch_registered = broker.metadata.epoch_registered
        self.down_conversion = DownConversion(self.loop, self.conversions)
        self.fetches.down = self.down_conversion
        self.dispatch = Dispatch(broker, self.loop, self._readers, self.memory)
        self.fetches.large = LargeFetches(self.fetches, self.loop, self.dispatch.lane, self.dispatch.tasks)
        self.sessions.end_in_slices = self.fetches.large.end
        self.requests = Requests(self.produces, self.fetches, self.dispatch)
        self.acceptor = Acceptor(
            self.loop,
            self.requests,
            limits_of(config),
            config.int("socket.request.max.bytes"),
            config.int("socket.send.buffer.bytes"),
            config.int("socket.receive.buffer.bytes"),
            self.memory,
        )
        self.dispatch.on_closed = self.acceptor.closed
        self.group_lags: Any = None
        """Where there is somebody to tell them."""
        self.free_space: Any = None
        """The same."""

    def _registration(self) -> BrokerRegistration:
        broker = self.broker
        advertised = {one.name: one for one in broker.config.advertised_listeners()}
        endpoints = []
        for listener, sockets in self._sockets:
            port = sockets[0].getsockname()[1]
            self.listeners.append((listener.name, listener.host, port))
            told = advertised.get(listener.name, listener)
            endpoints.append(Endpoint(listener.name, listener.protocol, told.host, told.port or port))
        self._endpoints = tuple(endpoints)
        lost = report_lost_replicas(broker.metadata.image, broker.node_id, broker.logs)
        return BrokerRegistration(
            broker.node_id,
            self._endpoints,
            rack=broker.config.str("broker.rack") or None,
            timestamp_ms=broker.clock.wall_ms(),
            lost=lost,
        )

    def _listen(self) -> None:
        endpoints = {one.listener: one for one in self._endpoints}
        for listener, sockets in self._sockets:
            told = endpoints[listener.name]
            follows = listener.host in ANY_HOST and not self.static_config.advertises()
            self.acceptor.listen(
                Listener(
                    listener.name, told.host, told.port, listener.protocol, self.broker.node_id, follows
                ),
                sockets,
            )
        self._listening = True

    # Changes of the cluster.

    async def _apply(self, delta: Delta) -> None:
        """Puts other settings into effect, and forgets what groups had of topics that are gone."""
        broker = self.broker
        if delta.broker_configs_changed:
            before = broker.config
            broker.config = effective_config(self.static_config, delta.image, broker.node_id)
            if delta.before.broker_configs != delta.image.broker_configs:
                warn_overridden(self.static_config, delta.image, broker.node_id)
            self.fetches.bytes_max = broker.config.int("fetch.max.bytes")
            self.acceptor.limits = await self.loop.run_in_executor(None, limits_of, broker.config)
            broker.logs.producer_expiration_ms = broker.config.int("producer.id.expiration.ms")
            broker.partitions.mover.bytes_per_second = broker.config.int(
                "replica.alter.log.dirs.io.max.bytes.per.second"
            )
            self.compaction.reconfigured()
            await self._reconfigure_topics(before)
        if delta.deleted:
            broker.groups.topics_deleted({image.name: image.topic_id for image in delta.deleted})
        for _, image in delta.reconfigured:
            broker.partitions.reconfigure(image.name, log_config(broker.config, image.name, image.config))

    async def _reconfigure_topics(self, before: BrokerConfig) -> None:
        """Puts other settings of the broker into effect for the topics here which have none of their own.

        It goes in slices; each topic gets the settings that are valid when its turn comes.
        """
        broker = self.broker
        changed = changed_defaults(before, broker.config)
        if not changed:
            return
        turn = Turn(broker.clock)
        for entry in list(broker.partitions.topics.by_name.values()):
            await turn.next()
            image = broker.metadata.image.topics.get(entry.name)
            if image is not None and depends_on(changed, image.config):
                broker.partitions.reconfigure(image.name, log_config(broker.config, image.name, image.config))

    async def _logs_removed(self) -> None:
        """Takes deleted logs out of the checkpoints before their deletion is confirmed."""
        await self.broker.partitions.checkpoints.removals()
        await self.compaction.checkpoint()

    def _leadership_changed(self, partition: Partition, leads: bool) -> None:
        if partition.topic != OFFSETS_TOPIC:
            return
        if leads:
            self.broker.groups.become_leader(int(partition.index), int(partition.leader_epoch))
        else:
            self.broker.groups.resign(int(partition.index))

    # Upkeep.

    def _start_upkeep(self) -> None:
        config = self.broker.config
        partitions = self.broker.partitions
        self.broker.groups.start()
        retention_s = config.int("log.retention.check.interval.ms") / 1000
        first_s = config.int("log.initial.task.delay.ms") / 1000
        self._every(min(first_s, retention_s), retention_s, partitions.retain)
        self._every(FLUSH_CHECK_S, FLUSH_CHECK_S, partitions.flushing.due)
        self._every(FLUSH_CHECK_S, FLUSH_CHECK_S, self._look_after_directories)
        self._every(REMOVAL_CHECK_S, REMOVAL_CHECK_S, partitions.remove_due)
        lag_s = config.int("replica.lag.time.max.ms") / 2000
        self._every(lag_s, lag_s, partitions.drop_lagging)
        watermark_s = config.int("replica.high.watermark.checkpoint.interval.ms") / 1000
        self._every(watermark_s, watermark_s, partitions.checkpoints.high_watermarks)
        recovery_s = config.int("log.flush.offset.checkpoint.interval.ms") / 1000
        self._every(recovery_s, recovery_s, partitions.checkpoints.recovery_points)
        if config.store() == "zookeeper":
            self._every(0, PRODUCER_IDS_CHECK_S, self.broker.producer_ids.prepare)
        if config.bool("log.cleaner.enable"):
            self._upkeep.append(self.loop.create_task(self.compaction.run()))
        starts_s = config.int("log.flush.start.offset.checkpoint.interval.ms") / 1000
        self._every(starts_s, starts_s, partitions.checkpoints.log_starts)
        self._every(IDLE_S, IDLE_S, self._reap)
        if config.int("tidemill.metrics.port") >= 0:
            from tidemill.server import free_space
            from tidemill.server.group_lags import LOOK_S, GroupLags

            self.group_lags = GroupLags(self.broker)
            self._every(LOOK_S, LOOK_S, self.group_lags.look)
            self.free_space = free_space.FreeSpace(self.broker.logs, self._syncers)
            self._every(0, free_space.LOOK_S, self.free_space.look)
        idle_ms = config.int("connections.max.idle.ms")
        if idle_ms > 0:
            self._every(idle_ms / 1000, idle_ms / 1000, self._sweep)

    async def _reap(self) -> None:
        self.conversions.reap()

    async def _sweep(self) -> None:
        self.acceptor.sweep()

    def _every(self, first_s: float, period_s: float, do: Callable[[], Awaitable[None]]) -> None:
        period_s = max(period_s, SHORTEST_PERIOD_S)
        self._upkeep.append(self.loop.create_task(_repeat(first_s, period_s, do)))

    async def _look_after_directories(self) -> None:
        await self.broker.partitions.look_after_directories()
        if not self.broker.logs.working and self.without_disk is not None:
            self.without_disk()

    # Stop.

    async def stop(self) -> None:
        """Ends everything, in order. Works also after a start that failed half way, and twice."""
        if self._stopped:
            return
        self._stopped = True
        if self._started and self.seat is not None:
            self.broker.groups.begin_stop()
            await self.seat.hand_over()
        if self._listening:
            self.acceptor.close()
        for listener_sockets in self._sockets:
            for one in listener_sockets[1]:
                one.close()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        try:
            await self._stop_requests()
        finally:
            await self._close_stores()

    async def _stop_requests(self) -> None:
        """Ends what clients asked for: after this nothing is appended any more."""
        broker = self.broker
        if self.seat is not None:
            await self.seat.stop()
        if hasattr(broker, "groups"):
            await broker.groups.stop()
        if self._listening:
            await self.slow_lane.stop()
            await self.down_conversion.stop()
            self.conversions.close()
            await self.dispatch.stop()
            self.deadlines.close()
            self.memory.close()
        if self._loaded:
            await broker.partitions.stop()

    async def _close_stores(self) -> None:
        broker = self.broker
        try:
            if self._loaded:
                await self.compaction.checkpoint()
                for problem in broker.logs.close(broker.clock.wall_ms(), broker.partitions.high_watermarks()):
                    log.error("%s", problem)
                if self.seat is not None:
                    await self.seat.distrusted.save_last()
            elif hasattr(broker, "logs"):
                broker.logs.unlock()
        finally:
            if hasattr(broker, "store"):
                await broker.store.close()
            for pool in (self._syncers, self._writers, self._readers, self._workers):
                pool.shutdown(wait=False)

    # What is told.

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the broker serves, and what it says of itself."""
        if not self._started:
            return False, {"reason": "starting"}
        return health_of(self.broker)

    def metrics(self) -> Iterable[Any]:
        """The broker's metric families, read when they are asked for."""
        from tidemill.server.broker_metrics import families

        return families(self)


def limits_of(config: BrokerConfig) -> Limits:
    """How many connections the configuration lets in; waits for the name service where it names hosts."""
    return Limits(
        config.int("max.connections"),
        config.int("max.connections.per.ip"),
        addresses_of(config.connections_per_address()),
        config.connections_per_listener(),
        inter_broker_listener(config) if len(config.listeners()) > 1 else "",
    )


def request_bytes_max(config: BrokerConfig) -> int:
    """What all connections may hold together: ``queued.max.request.bytes``, or a share of the memory."""
    configured = config.int("queued.max.request.bytes")
    if configured > 0:
        return configured
    return max(REQUEST_BYTES_LEAST, usable_memory() // REQUEST_MEMORY_SHARE)


def usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's when that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            found.append(int(file.read()))
    return min(found)


async def _repeat(first_s: float, period_s: float, do: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(first_s)
    while True:
        try:
            await do()
        except Exception:
            log.exception("upkeep failed; it is tried again in %g s", period_s)
        await asyncio.sleep(period_s)


@contextlib.asynccontextmanager
async def running(config: BrokerConfig) -> Any:
    """A broker for the time of a ``with``: for tests and embedding."""
    server = BrokerServer(config)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
