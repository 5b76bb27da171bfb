"""Simulations of whole brokers: :class:`~tidemill.server.app.BrokerServer` as ``tidemill serve`` runs it.

Replaced are only its sockets, its files, its clock, and the coordination store.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast
from unittest import mock

from promises import Place
from simulated_admins import Admin, Restless
from simulated_clients import PORT, Client
from simulated_groups import OFFSETS, Committer
from simulated_loop import PROCESS, Process
from simulated_network import WORLD, Listening
from simulated_store import SimulatedStore, StoreServer

from simulation import TOPIC, Node, Simulation
from tidemill.broker.handlers import common
from tidemill.controller import office
from tidemill.coordination.nodes import PartitionStateNode
from tidemill.model.configs import BrokerConfig
from tidemill.replication.manager import ReplicaManager
from tidemill.server import app
from tidemill.server.app import BrokerServer
from tidemill.server.listeners import Acceptor

SETTINGS = {
    "zookeeper.connect": "store:2181",
    "log.dirs": "/data",
    "log.cleaner.enable": "false",
    "num.recovery.threads.per.data.dir": "1",
    "queued.max.request.bytes": str(1 << 30),
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "150",
    "replica.fetch.backoff.ms": "50",
    "replica.high.watermark.checkpoint.interval.ms": "2000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "offsets.commit.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
}
STOP_S_MAX = 8.0
"""Whoever stops in order for longer is killed."""


class InOrder(dict[Any, None]):
    """A set that is walked in the order in which things came."""

    def add(self, one: Any) -> None:
        """Puts one in."""
        self[one] = None

    def discard(self, one: Any) -> None:
        """Takes one out, if it is there."""
        self.pop(one, None)


class OrderedAcceptor(Acceptor):
    """An acceptor that closes its connections in order: sets of objects have none."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        connections: Any = InOrder()
        self.connections = connections


class Whole:
    """A whole broker, for the time of one process."""

    def __init__(self, node: Node, config: BrokerConfig) -> None:
        self.server = BrokerServer(config)
        self.server.broker.clock = node.clock
        self.server.broker.files = node.files

    @property
    def partitions(self) -> ReplicaManager:
        """What it leads and follows."""
        return self.server.broker.partitions

    @property
    def store(self) -> SimulatedStore:
        """Its session."""
        return cast(SimulatedStore, self.server.broker.store)

    async def start(self) -> None:
        """Returns when it serves."""
        await self.server.start()


class FullCluster(Simulation):
    """Three whole brokers, a store, and a group that commits its positions."""

    def __init__(self, seed: int, steps: int = 2000) -> None:
        super().__init__(seed, steps)
        self.session_s = self.random.choice((0.8, 2.0))
        self.store = StoreServer(self.network)
        self.store.told = lambda text: self.events.add(text, "the store")
        self.store.written = self._written
        self._configs: dict[str, BrokerConfig] = {}
        self.committers = [
            Committer(
                f"group-{number}",
                [node.name for node in self.nodes],
                TOPIC,
                self.promises,
                self.random,
                partition=0,
            )
            for number in range(self.random.choice((0, 1, 2)))
        ]

        self.admins = [
            Restless(
                "restless",
                [node.name for node in self.nodes],
                TOPIC,
                self.promises,
                self.random,
                partitions=self.partition_count,
                brokers=[node.node_id for node in self.nodes],
            )
            for _ in range(self.random.choice((0, 0, 1)))
        ]

    def make_server(self, node: Node) -> Whole:
        config = self._configs.get(node.name)
        if config is None:
            settings = {
                **SETTINGS,
                "node.id": str(node.node_id),
                "listeners": f"PLAINTEXT://{node.name}:{PORT}",
            }
            config = BrokerConfig.from_sources(
                None, [f"{key}={value}" for key, value in settings.items()], {}
            )
            self._configs[node.name] = config
        return Whole(node, config)

    def patches(self) -> list[Any]:
        return [
            mock.patch.object(app, "bind", self._bind),
            mock.patch.object(app, "Acceptor", OrderedAcceptor),
            mock.patch.object(app, "open_store", self._open_store),
            mock.patch.object(office, "Random", self._new_random),
            # Calls of processes that were killed never end, and would be kept.
            mock.patch.object(common, "_going_on", set()),
        ]

    def _new_random(self) -> Random:
        return Random(self.random.getrandbits(32))

    def _bind(self, name: str, host: str, port: int, backlog: int) -> list[Listening]:
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process listens, not the world")
        return [Listening(self.network, self.network.machine(process.name), port)]

    async def _open_store(self, *_: Any) -> SimulatedStore:
        return await SimulatedStore.open(self.store, self.session_s)

    def _written(self, path: str, data: bytes) -> None:
        """Somebody wrote to the store: states of partitions say which replicas are in sync."""
        parts = path.split("/")
        if path.startswith("/brokers/ids/"):
            self.promises.registered(int(parts[3]))
        if path.startswith("/brokers/topics/") and parts[-1] == "state":
            state = PartitionStateNode.decode(parts[3], int(parts[5]), data)
            self.events.add(f"{parts[3]}-{parts[5]} is {state}", "the store")
            self.promises.state_written((parts[3], int(parts[5])), state.leader, tuple(state.isr))

    async def prepare(self) -> None:
        addresses = [node.name for node in self.nodes]
        admin = Admin("admin", addresses, TOPIC, self.promises, self.random)
        await admin.make(self.partition_count, self.min_isr)

    def more_clients(self) -> list[Client]:
        return [*self.committers, *self.admins]

    def places(self) -> list[Place]:
        return [*super().places(), *([(OFFSETS, 0)] if self.committers else [])]

    # -- faults

    def cluster_faults(self) -> list[Callable[[Node], None]]:
        return [self.lose_store, self.end_session, self.shut_down]

    def _store_of(self, node: Node) -> SimulatedStore | None:
        server = node.server
        return server.store if isinstance(server, Whole) else None

    def lose_store(self, node: Node) -> None:
        """The connection to the store breaks."""
        store = self._store_of(node)
        if store is not None:
            self.events.count("lost connections to the store")
            self.events.add(f"*** {node.name} loses its connection to the store", "the world")
            self.loop.call_soon(store.lose_connection, context=node.process.context)

    def end_session(self, node: Node) -> None:
        """The store ends a session, and its client learns of it."""
        store = self._store_of(node)
        if store is not None:
            self.events.count("ended sessions")
            self.events.add(f"*** the session of {node.name} is ended", "the world")
            self.store.end(store.session_id, "is ended")

    def shut_down(self, node: Node) -> None:
        """The broker is told to stop, does so in order, and is started again."""
        server, process = node.server, node.process
        if not node.is_running or not isinstance(server, Whole) or process.paused:
            return
        self.events.count("faults")
        self.events.count("stops in order")
        self.events.add(f"*** {node.name} is told to stop", "the world")
        node.server = None
        self.loop.create_task(self._stop_in_order(node, server, process), context=process.context)
        self.network.world_timer(self.loop.time() + STOP_S_MAX, lambda: node.end(process))

    async def _stop_in_order(self, node: Node, server: Whole, process: Process) -> None:
        await server.server.stop()
        self.events.add("has stopped")
        self.loop.call_soon(node.end, process, context=WORLD)
