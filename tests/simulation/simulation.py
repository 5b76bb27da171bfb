"""One simulated run: a cluster, its clients and its faults from a seed, and whether all promises were kept.

The run has three parts. First everything happens at once for a number of steps: clients work, and things
break. Then nothing breaks any more and everything is mended: the cluster has to come to rest within a time,
with all replicas in sync and all the same. Last, what the logs hold is compared with what clients were told.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import random as global_random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, NamedTuple, Protocol
from unittest import mock

from event_log import EventLog, Violation
from promises import Message, Place, Promises
from simulated_clients import ALL, LEADER, Client, Consumer, Producer
from simulated_disk import SimulatedFiles
from simulated_faults import Faults
from simulated_loop import START_S, Process, SimulatedClock, SimulatedLoop
from simulated_network import WORLD, Network, Weather

from tidemill.log.open_files import OPEN_FILES
from tidemill.model.errors import TidemillError
from tidemill.net import link as net_link
from tidemill.records.reader import iter_records
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition

TOPIC = "t"
REST_S = 90.0
"""The cluster comes to rest within this time, once nothing breaks any more."""
LEADERS_EVERY = 8
"""Steps between two looks at who takes itself for a leader."""


class Report(NamedTuple):
    """What a run was like."""

    seed: int
    steps: int
    simulated_s: float
    real_s: float
    counts: dict[str, int]
    fingerprint: str
    """Identifies the events: equal for equal runs."""


class Server(Protocol):
    """A broker of a simulated cluster, as long as its process lives."""

    @property
    def partitions(self) -> ReplicaManager:
        """What it leads and follows."""
        ...

    async def start(self) -> None:
        """Returns when it serves. Raises TidemillError."""
        ...


class Node:
    """A broker's machine, and the process on it."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self.simulation = simulation
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.machine = simulation.network.machine(self.name)
        self.files = SimulatedFiles(simulation.loop)
        self.clock = SimulatedClock(simulation.loop)
        self.process: Process
        self.server: Server | None = None
        self.is_running = False

    def boot(self) -> None:
        """Starts the process, unless it runs."""
        if self.is_running:
            return
        self.is_running = True
        self.process = self.simulation.process(self.name)
        self.machine.process = self.process
        self.simulation.loop.create_task(self._serve(self.process), context=self.process.context)

    async def _serve(self, process: Process) -> None:
        events = self.simulation.events
        events.add("starts")
        server = self.simulation.make_server(self)
        try:
            await server.start()
        except TidemillError as problem:
            events.add(f"cannot start: {problem}")
            self.end(process)
            return
        except Exception as problem:
            logging.getLogger("tidemill.simulated").exception("the start broke")
            events.violate(f"{self.name} breaks at its start: {problem!r}")
            return
        events.add("serves")
        self.server = server

    def end(self, process: Process) -> None:
        """The process has given up, or has stopped; somebody starts it again."""
        if self.process is process and self.is_running:
            self.stop()
            self.files.kill()
            self.simulation.network.process_ended(self.machine)
            self.simulation.network.world_timer(self.simulation.loop.time() + 0.3, self.boot)

    def stop(self) -> None:
        """The process is gone."""
        self.is_running = False
        self.server = None
        self.process.kill()

    @property
    def partitions(self) -> list[Partition]:
        """Those of the process that runs."""
        return [] if self.server is None else list(self.server.partitions.all())


class Simulation:
    """A world with a cluster in it; subclasses say of which kind."""

    def __init__(self, seed: int, steps: int = 2000) -> None:
        self.seed = seed
        self.steps = steps
        self.random = Random(seed)
        self.loop = SimulatedLoop(self.random)
        self.events = EventLog(self.loop)
        self.promises = Promises(self.events)
        choice = self.random.choice
        weather = Weather(choice((0.0002, 0.001, 0.004)), choice((0.0, 0.02, 0.1)), choice((0.02, 0.2)))
        self.network = Network(self.loop, self.random, weather)
        self.partition_count = choice((1, 2, 3))
        self.min_isr = choice((1, 2, 2))
        self.processes: list[Process] = []
        self.nodes = [Node(self, node_id) for node_id in range(1, 4)]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._stopped = self.loop.create_future()
        self._end_step = 1 << 60
        """The first part takes until here: what it takes to come up is not counted."""
        self._tasks: list[asyncio.Task[None]] = []

    # -- what kinds of cluster differ in

    def make_server(self, node: Node) -> Server:
        """A broker for the process that starts on ``node``."""
        raise NotImplementedError

    def cluster_faults(self) -> list[Callable[[Node], None]]:
        """What else may break."""
        return []

    def machine_names(self) -> list[str]:
        """Between which machines the network may be cut."""
        return sorted(self.network.machines)

    def patches(self) -> list[Any]:
        """What is replaced in the program for the time of the run."""
        return []

    async def prepare(self) -> None:
        """What a client does before all others begin."""

    def more_clients(self) -> list[Client]:
        """Clients beside producers and consumers."""
        return []

    # -- the run

    def run(self) -> Report:
        """Runs; raises Violation, whose text is the last events, when a promise was broken."""
        began = time.perf_counter()
        logger = logging.getLogger("tidemill")
        with ExitStack() as stack:
            for patch in (
                mock.patch.object(net_link, "_connect", self.network.connect),
                mock.patch.object(uuid, "uuid4", self._next_uuid),
                mock.patch.object(secrets, "token_bytes", self.random.randbytes),
                *self.patches(),
            ):
                stack.enter_context(patch)
            stack.enter_context(_logging_to(self.events, logger))
            stack.enter_context(_own_randomness(self.seed))
            stack.callback(_let_files_go)
            stack.callback(self.loop.end, self.processes)
            self.loop.set_exception_handler(self._broken)
            self.events.on_violation = self._stop
            self._run_to_the_end()
            if self.events.violation:
                raise Violation(
                    f"{type(self).__name__}: seed {self.seed}, {self.loop.steps} steps: "
                    f"{self.events.violation}\n{self.events.last_lines()}"
                )
        elapsed = time.perf_counter() - began
        simulated_s = self.loop.time() - START_S
        fingerprint = self.events.fingerprint()
        return Report(self.seed, self.loop.steps, simulated_s, elapsed, self.events.counts, fingerprint)

    def _run_to_the_end(self) -> None:
        task = self.loop.create_task(self._run(), context=WORLD)
        try:
            self.loop.run_until_complete(task)
        except _Stopped:
            pass
        except RuntimeError:
            if not self.events.violation:
                raise
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, _Stopped):
                self.loop.run_until_complete(task)

    def _next_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def process(self, name: str) -> Process:
        """Another process."""
        one = Process(name)
        self.processes.append(one)
        return one

    async def _run(self) -> None:
        self.loop.on_step = self._look
        for node in self.nodes:
            node.boot()
        await self._begin_clients()
        self._end_step = self.loop.steps + self.steps
        faults = Faults(self)
        breaking = self.loop.create_task(faults.run(), context=WORLD)
        await self._stopped
        self._check_stopped()
        faults.ended = True
        breaking.cancel()
        self.events.add("*** nothing breaks any more")
        self._mend()
        await self._come_to_rest()
        self._check_logs()

    def _look(self) -> None:
        steps = self.loop.steps
        if steps % LEADERS_EVERY == 0:
            for node in self.nodes:
                for partition in node.partitions:
                    if partition.is_leader and not partition.failed:
                        place = (partition.topic, int(partition.index))
                        epoch = int(partition.leader_epoch)
                        self.promises.leads(place, partition.log.topic_id, epoch, node.node_id)
        if steps >= self._end_step and not self._stopped.done():
            self._stopped.set_result(None)

    def _stop(self) -> None:
        self.loop.call_soon(self._raise, context=WORLD)

    def _raise(self) -> None:
        self.loop.stop()

    def _check_stopped(self) -> None:
        if self.events.violation:
            raise _Stopped

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop met an exception that nobody took."""
        problem = context.get("exception")
        if problem is None or isinstance(problem, _Stopped):
            return
        logging.getLogger("tidemill.simulated").error(
            "%s", context.get("message"), exc_info=(type(problem), problem, problem.__traceback__)
        )

    # -- clients

    async def _begin_clients(self) -> None:
        client = self.process("admin")
        await self.loop.create_task(self.prepare(), context=client.context)
        random = self.random
        addresses = [node.name for node in self.nodes]
        for number in range(random.choice((1, 2, 3))):
            is_idempotent = random.random() < 0.6
            producer = Producer(
                f"producer-{number}",
                addresses,
                TOPIC,
                self.promises,
                random,
                partitions=self.partition_count,
                acks=ALL if is_idempotent or random.random() < 0.6 else LEADER,
                is_idempotent=is_idempotent,
                pause_s=random.choice((0.005, 0.03, 0.1)),
            )
            self.producers.append(producer)
        for partition in range(self.partition_count):
            consumer = Consumer(
                f"consumer-{partition}",
                addresses,
                TOPIC,
                self.promises,
                random,
                partition=partition,
                again=random.choice((0.0, 0.02)),
            )
            self.consumers.append(consumer)
        for one in self._clients():
            process = self.process(one.name)
            self._tasks.append(self.loop.create_task(one.run(), context=process.context))

    def _clients(self) -> list[Client]:
        return [*self.producers, *self.consumers, *self.more_clients()]

    # -- the end

    def _mend(self) -> None:
        self.network.mend()
        for node in self.nodes:
            node.clock.skew_ms = 0
            node.files.heal()
            if not node.machine.is_up:
                self.network.power_back(node.machine)
            node.boot()
            if node.process.paused:
                self.loop.resume(node.process)

    async def _come_to_rest(self) -> None:
        deadline = self.loop.time() + REST_S
        for consumer in self.consumers:
            consumer.again = 0.0
        for client in self._clients():
            client.ended = client not in self.consumers
        while missing := self._unrest():
            self._check_stopped()
            if self.loop.time() > deadline:
                self.events.violate(f"the cluster does not come to rest: {missing}")
                raise _Stopped
            await asyncio.sleep(0.1)
        for consumer in self.consumers:
            consumer.ended = True

    def _unrest(self) -> str:
        """What is still amiss; empty when nothing is."""
        for client in self._clients():
            if not client.is_settled:
                return f"{client.name} does not know what became of what it asked for"
        for place in self.places():
            found = self._replicas(place)
            if len(found) < len(self.nodes):
                return f"{place} has {len(found)} replicas"
            leaders = [node for node, partition in found if partition.is_leader]
            if len(leaders) != 1:
                return f"{place} is led by {[node.name for node in leaders]}"
            ends = [int(partition.log.end_offset) for _, partition in found]
            marks = [int(partition.high_watermark) for _, partition in found]
            if len(set(ends + marks)) != 1:
                return f"the logs of {place} end at {ends}, and are committed up to {marks}"
            isr = next(partition.isr for _, partition in found if partition.is_leader)
            if len(isr) < len(self.nodes):
                return f"{place} has {isr} in sync"
        return self._behind()

    def _behind(self) -> str:
        for consumer in self.consumers:
            ((_, partition), *_) = self._replicas(consumer.place)
            if consumer.position < partition.log.end_offset:
                return f"{consumer.name} is at {consumer.position} of {partition.log.end_offset}"
        return ""

    def places(self) -> list[Place]:
        """The partitions whose logs are looked at in the end."""
        return [(TOPIC, index) for index in range(self.partition_count)]

    def _replicas(self, place: Place) -> list[tuple[Node, Partition]]:
        return [
            (node, partition)
            for node in self.nodes
            for partition in node.partitions
            if (partition.topic, int(partition.index)) == place
        ]

    def _check_logs(self) -> None:
        ordered = {one.name for one in self.producers if one.is_idempotent}
        for place in self.places():
            contents = [records_of(partition) for _, partition in self._replicas(place)]
            if any(content != contents[0] for content in contents[1:]):
                self.events.violate(f"the replicas of {place} differ in the end")
                raise _Stopped
            if place[0] == TOPIC:
                log = {
                    int(record.offset): Message.decode(record.value or b"")
                    for record in iter_records(contents[0])
                }
                self.promises.check_log(place, log, ordered)
        self._check_stopped()


class _Stopped(Exception):
    """A promise was broken, and the run is over."""


def records_of(partition: Partition) -> bytes:
    """All batches of a log, byte for byte."""
    log = partition.log
    found = b""
    offset = int(log.start_offset)
    end = int(log.end_offset)
    while offset < end:
        piece = log.read(offset, 1 << 20, end, True)
        if piece is None:
            break
        data = piece.read()
        found += data
        last = max((int(record.offset) for record in iter_records(data)), default=end)
        offset = last + 1
    return found


@contextmanager
def _logging_to(events: EventLog, logger: logging.Logger) -> Iterator[None]:
    before = (logger.level, logger.propagate)
    logger.addHandler(events)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(events)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _let_files_go() -> None:
    """Segments of processes that were killed have files open, and with them the whole world in memory."""
    while OPEN_FILES.make_room(OSError(errno.EMFILE, "the run has ended")):
        pass


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """The module's own generator begins with the seed, and nothing is collected at a time of its own."""
    state = global_random.getstate()
    global_random.seed(seed)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        global_random.setstate(state)
