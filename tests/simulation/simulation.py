"""One simulated run: a cluster, its clients and its faults from a seed, and the check of all promises.

The run has three parts. First, clients work and faults occur until enough batches were acknowledged and
enough changes made. Then no faults occur any more: the cluster has to come to rest within a time, with all
replicas in sync and equal, without an administrator's help. Last, the logs are compared with the responses to
clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import random as global_random
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, NamedTuple, Protocol
from unittest import mock

from change_phases import REPLICATION_PHASES, ChangePhases
from committed_promise import CheckedBroker, synced_end
from compaction_promise import Raw
from disk_state_promise import durable_start
from event_log import EventLog, Violation
from following_promise import FollowingPromise
from log_inspection import LogWatch, aborted_offsets, end_on_disk, records_of
from promises import ALL, LEADER, NONE, Message, PartitionKey, Promises, TopicSettings
from seed_variations import Variations
from simulated_admins import RecordDeleter
from simulated_clients import Client, Consumer, Producer
from simulated_disk import SimulatedFiles
from simulated_faults import Faults
from simulated_loop import PROCESS, START_S, JobsInOrder, Process, SimulatedClock, SimulatedLoop
from simulated_network import WORLD, Network, NetworkDelays

from tidemill import _build_mode
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.log import close_logs, log_directories, log_directory_loader, log_manager
from tidemill.log.file_names import LEADER_EPOCHS, LOG, offset_of
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.log_manager import LogManager
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.retention import Policy, expired_segments
from tidemill.model.errors import TidemillError
from tidemill.model.ids import encode_id
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.net import link as net_link
from tidemill.records.record_reader import iter_records
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager

TOPIC = "t"
BATCHES = 170
"""The first part takes until so many batches were acknowledged."""
CHANGES = 6
"""And until administrators have made so many changes."""
CAP_S = 45.0
"""The limit of simulated time, if faults explain it."""
DISTURBED_SHARE = 0.5
"""Faults explain a slow run where they, and the time to recover from them, fill this share of it."""
SLOW_DISTURBED_SHARE = 0.4
"""The same on a slow network."""
SLOW_PACKET_S = 0.02
"""A network is slow where a packet takes so long on average: each answer comes in several."""
REST_S = 60.0
"""The cluster comes to rest within this time after the last step forward of a replica or consumer, once
nothing breaks any more."""
REST_S_MAX = 1800.0
"""And within this time in any case: a consumer may have to read thousands of records in small fetches."""
OPERATOR_S = 10.0
"""After so long a partition that has lost all of its records gets a leader by an operator."""
ON_DUTY_S = 0.5
"""An operator on duty looks so often."""
TRUNCATE_UNSYNCED = ReplicaManager._truncate_unsynced
OPEN_LOG = LogLoader.open
TRUNCATE_TO = Log.truncate_to
TRUNCATE_FULLY = Log.truncate_fully_and_start_at
LOAD_LOGS = LogManager.load
EXPIRED_SEGMENTS = expired_segments
WITH_THREADS = (close_logs, log_directory_loader, log_manager)
"""These modules have jobs done by threads, and wait for them."""
LOOK_EVERY = 8
"""Steps between two looks at the brokers' partitions."""


class Report(NamedTuple):
    """The properties of a run."""

    seed: int
    steps: int
    simulated_s: float
    real_s: float
    counts: dict[str, int]
    batches: int
    """Acknowledged, with acks=all or 1."""
    fingerprint: str
    """Identifies the events: equal for equal runs."""


class Server(Protocol):
    """A broker of a simulated cluster, for the lifetime of its process."""

    @property
    def partitions(self) -> ReplicaManager:
        """The partitions that it leads and follows."""
        ...

    @property
    def image(self) -> ClusterImage:
        """Its image of the cluster."""
        ...

    async def start(self) -> None:
        """Starts; returns when it serves. Raises TidemillError."""
        ...


def opened_replicas(server: Server | None) -> ReplicaManager | None:
    """The replicas of a broker; None before it has opened its logs."""
    return getattr(server, "partitions", None)


class Node:
    """A broker's machine, and the process on it."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self.simulation = simulation
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.machine = simulation.network.machine(self.name)
        self.files: SimulatedFiles
        self.disk_since_s = 0.0
        """Since when the machine has this disk."""
        self.put_in_disk()
        self.clock = SimulatedClock(simulation.loop)
        self.process: Process
        self.server: Server | None = None
        self.starting: Server | None = None
        """The one that does not serve yet; its broker may lead already."""
        self.stopping: Server | None = None
        """The process in a clean shutdown: it is not checked, and continues its work for a time."""
        self.is_running = False
        self.started_s = 0.0
        self.stopped_s = 0.0

    def put_in_disk(self) -> None:
        """The machine has an empty disk from now on."""
        files = SimulatedFiles(self.simulation.loop)
        self.change_disk(files)
        files.dropped = lambda path: self.simulation.sync_dropped(self, path)
        files.deletion_refused = lambda: self.simulation.events.count("deletions refused by a full disk")
        files.shrunk = lambda path: self.simulation.promises.disk_state.shrunk(self.name, files, path)
        files.power_lost = lambda: self.simulation.promises.restart.power_lost(files)
        files.process_ends = lambda may_lose: self._process_ends(files, may_lose)

    def _process_ends(self, files: SimulatedFiles, may_lose: bool) -> None:
        promises = self.simulation.promises
        promises.log_state.process_ends(self.name, files, self.simulation.is_compacted)
        promises.restart.process_ends(files, may_lose=may_lose)

    def change_disk(self, files: SimulatedFiles) -> None:
        """The machine has this disk from now on."""
        self.files = files
        self.disk_since_s = self.simulation.loop.time()

    def boot(self) -> None:
        """Starts the process, unless it runs."""
        if self.is_running or not self.machine.is_up:
            return
        self.is_running = True
        self.started_s = self.simulation.loop.time()
        self.process = self.simulation.process(self.name)
        self.machine.process = self.process
        self.simulation.loop.create_task(self._serve(self.process), context=self.process.context)

    async def _serve(self, process: Process) -> None:
        events = self.simulation.events
        events.add("starts")
        server = self.starting = self.simulation.make_server(self)
        self.simulation.phases.moment("broker start")
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
        self.server, self.starting = server, None

    def end(self, process: Process) -> None:
        """The process has failed, or has stopped; a supervisor starts it again."""
        if self.process is process and self.is_running:
            self.stop()
            self.files.kill()
            self.simulation.network.process_ended(self.machine)
            self.simulation.network.world_timer(self.simulation.loop.time() + 0.3, self.boot)

    def stop(self) -> None:
        """Ends the process."""
        self.simulation.look_at_commits()
        for partition in self.partitions:
            if not partition.is_offline:
                self.simulation.promises.log_state.check(self.name, partition.log)
        self.is_running = False
        self.stopped_s = self.simulation.loop.time()
        self.server = self.starting = self.stopping = None
        self.process.kill()

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the running process."""
        return [] if self.server is None else list(self.server.partitions.all())

    @property
    def all_partitions(self) -> list[Partition]:
        """The partitions of the process, also while it starts or stops: it may lead then."""
        replicas = opened_replicas(self.server or self.starting or self.stopping)
        return [] if replicas is None else list(replicas.all())


class Simulation:
    """A simulated cluster; subclasses define its kind."""

    phase_names: tuple[str, ...] = REPLICATION_PHASES
    """What faults are aimed at."""
    is_whole = False
    """Whether brokers are complete, so that seeds have the properties of :class:`Variations`."""

    def __init__(self, seed: int, batches: int = BATCHES) -> None:
        self.seed = seed
        self.batches = batches
        self.variations = Variations(seed)
        self.random = Random(seed)
        self.loop = SimulatedLoop(self.random)
        self.events = EventLog(self.loop)
        self.promises = Promises(self.events, self.loop.time)
        self.promises.replica_ends = self._replica_ends
        self.promises.synced_end = lambda tp, broker: synced_end(self.node(broker).files, f"{tp[0]}-{tp[1]}")
        self.promises.live_start = self._live_start
        self.promises.durable_start = lambda tp, broker: durable_start(
            self.node(broker).files, f"{tp[0]}-{tp[1]}"
        )
        self.promises.started_s = self._started_s
        self.promises.has_opened = self._has_opened
        self.promises.stopped_s = lambda broker: self.node(broker).stopped_s
        self.following = FollowingPromise(self.promises, self._find, self._registered)
        self.phases = ChangePhases(self.loop.time)
        choice = self.random.choice
        weather = NetworkDelays(choice((0.0002, 0.001, 0.004)), choice((0.0, 0.02, 0.1)), choice((0.02, 0.2)))
        self.network = Network(self.loop, self.random, weather)
        self.partition_count = choice((1, 1, 2, 3))
        self.topic_config = self._draw_topic_config()
        self.processes: list[Process] = []
        self.nodes = [Node(self, node_id) for node_id in range(1, 4)]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.deleters: list[RecordDeleter] = []
        self.log_watch = LogWatch(self._log_changed)
        self.faults: Faults
        self._stopped = self.loop.create_future()
        self._begun_s: float | None = None
        self._looked_s = 0.0
        self._waited_s = 0.0
        """How long nothing but an operator could have helped, and no fault explains it."""
        self._tasks: list[asyncio.Task[None]] = []

    def _draw_topic_config(self) -> dict[str, str]:
        random = self.random
        config = {
            "min.insync.replicas": str(random.choice((1, 2, 2))),
            "segment.bytes": str(random.choice((800, 1500, 3000, 6000))),
            "index.interval.bytes": str(random.choice((100, 1000, 4096))),
        }
        if random.random() < 0.25:
            config["flush.messages"] = "1"
        luck = random.random()
        if luck < 0.15:
            config["retention.bytes"] = str(random.choice((0, 1500, 5000)))
        elif luck < 0.25:
            config["retention.ms"] = str(random.choice((500, 3000)))
        return config

    @property
    def min_isr(self) -> int:
        """Returns ``min.insync.replicas`` of the topic."""
        return int(self.topic_config["min.insync.replicas"])

    def settings(self) -> TopicSettings:
        """Returns the topic settings for the promises."""
        config = self.topic_config
        return TopicSettings(
            min_isr=self.min_isr,
            flush_each="flush.messages" in config,
            retention_bytes=int(config.get("retention.bytes", -1)),
            retention_ms=int(config.get("retention.ms", -1)),
        )

    def node(self, node_id: int) -> Node:
        """Returns a broker's machine."""
        return self.nodes[node_id - 1]

    # -- what kinds of cluster differ in

    def make_server(self, node: Node) -> Server:
        """Creates a broker for the process that starts on ``node``."""
        raise NotImplementedError

    def cluster_faults(self) -> dict[str, Callable[[Node], bool]]:
        """Returns further faults of the cluster."""
        return {}

    def own_aims(self) -> list[tuple[str, str]]:
        """Returns further faults with their phases."""
        return []

    def machine_names(self) -> list[str]:
        """Returns the machines between which network partitions may occur."""
        return sorted(self.network.machines)

    def patches(self) -> list[Any]:
        """Returns the patches of the program during the run."""
        return []

    async def prepare(self) -> None:
        """Prepares the cluster before all clients start."""

    def more_clients(self) -> list[Client]:
        """Returns clients besides producers and consumers."""
        return []

    def changes(self) -> int:
        """Returns the number of administrators' changes, of :data:`CHANGES`."""
        return self.events.counts.get("record deletions", 0)

    def partition_keys(self) -> list[PartitionKey]:
        """Returns the partitions that have to come to rest."""
        return list(self.promises.partitions)

    def elect_unclean(self, tp: PartitionKey) -> bool:
        """An operator has the replica with the longest log elected; False if there is no such command."""
        return False

    # -- the run

    def run(self) -> Report:
        """Runs; raises Violation, with the last events, if a promise was broken."""
        began = time.perf_counter()
        logger = logging.getLogger("tidemill")
        with ExitStack() as stack:
            for patch in (
                mock.patch.object(net_link, "_connect", self.network.connect),
                mock.patch.object(uuid, "uuid4", self._next_uuid),
                mock.patch.object(log_directories, "new_id", self._next_id),
                # Ids of topics. Their own stream: another number of ids changes nothing else.
                mock.patch.object(os, "urandom", Random(f"ids {self.seed}").randbytes),
                mock.patch.object(secrets, "token_bytes", self.random.randbytes),
                mock.patch.object(
                    ReplicaManager, "_truncate_unsynced", lambda *of: self._truncate_unsynced(*of)
                ),
                mock.patch.object(LogManager, "load", lambda *of: self._load_logs(*of)),
                mock.patch.object(log_manager, "expired_segments", self._expired_segments),
                mock.patch.object(Log, "truncate_to", lambda *of: self._truncate_to(*of)),
                mock.patch.object(Log, "truncate_fully_and_start_at", lambda *of: self._truncate_fully(*of)),
                mock.patch.object(LogLoader, "open", lambda opening: self._open_log(opening)),
                *(mock.patch.object(one, "ThreadPoolExecutor", JobsInOrder) for one in WITH_THREADS),
                *self.patches(),
            ):
                stack.enter_context(patch)
            if not _build_mode.compiled:
                self.following.watch(stack, _pauses)
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
        return Report(
            self.seed,
            self.loop.steps,
            simulated_s,
            elapsed,
            self.events.counts,
            self.batches_acknowledged,
            fingerprint,
        )

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

    def _next_id(self) -> bytes:
        """Returns the id of a data directory, whose text does not begin with a dash."""
        while True:
            identifier = self._next_uuid().bytes
            if not encode_id(identifier).startswith("-"):
                return identifier

    def process(self, name: str) -> Process:
        """Creates another process."""
        one = Process(name)
        self.processes.append(one)
        return one

    async def _run(self) -> None:
        self.loop.on_step, self.loop.steps_a_look = self._look, LOOK_EVERY
        for node in self.nodes:
            node.boot()
        await self._begin_clients()
        self._begun_s = self.loop.time()
        self.faults = Faults(self)
        breaking = self.loop.create_task(self.faults.run(), context=WORLD)
        if self.variations.has_operator and self.is_whole:
            self.loop.create_task(self._elect_waiting_leaders(), context=WORLD)
        await self._stopped
        self._check_stopped()
        self._check_progress()
        self.faults.ended = True
        breaking.cancel()
        self.events.add("*** nothing breaks any more")
        self._mend()
        await self._wait_until_settled()
        self._check_logs()
        self.promises.reassignments.check_settled()

    def _look(self) -> None:
        now = self.loop.time()
        for node in self.nodes:
            partitions = node.partitions
            self.log_watch.look(node.node_id, partitions)
            if node.server is not None:
                served = [one for one in partitions if not one.is_offline]
                self.promises.log_state.look(node.name, served, node.server.partitions.logs.dirs)
            for partition in partitions:
                tp = (partition.topic, int(partition.index))
                if not partition.is_leader:
                    self.promises.deposed.followed(tp, int(partition.leader), now)
                elif not partition.is_offline:
                    epoch = int(partition.leader_epoch)
                    self.promises.leads(tp, partition.log.topic_id, epoch, node.node_id)
                    self.promises.disk_state.look(node.name, partition, self._files_of)
        self.look_at_commits()
        self.following.look()
        if self._begun_s is not None and not self._stopped.done():
            self._count_waiting()
            if self._is_enough(self._begun_s):
                self._stopped.set_result(None)

    def look_at_commits(self) -> None:
        """Checks the high watermarks of all running brokers, also those that start and stop."""
        self.promises.commits.look([CheckedBroker(one.node_id, one.all_partitions) for one in self.nodes])

    def is_compacted(self, topic: str) -> bool:
        """Whether a topic is compacted."""
        return topic.startswith("_") or self.promises.settings_of(topic).compacts

    def _count_waiting(self) -> None:
        """Adds the time since the last call if all partitions of producers wait for an operator."""
        now, looked_s = self.loop.time(), self._looked_s
        self._looked_s = now
        topic = [known for tp, known in self.promises.partitions.items() if tp[0] == TOPIC]
        if topic and all(known.waits_for_operator for known in topic):
            self._waited_s += max(0.0, now - max(looked_s, self.faults.quiet_from_s))

    def _is_enough(self, begun_s: float) -> bool:
        if self.loop.time() - begun_s > CAP_S:
            return True
        return self._is_done

    @property
    def _is_done(self) -> bool:
        """Whether producers and administrators have reached the goals of the run."""
        return self.batches_acknowledged >= self.batches and self.changes() >= self._changes_wanted

    @property
    def _changes_wanted(self) -> int:
        return CHANGES if self.deleters else 0

    @property
    def batches_acknowledged(self) -> int:
        """Returns the acknowledged batches of all producers."""
        counts = self.events.counts
        return sum(counts.get(f"batches acknowledged with acks={acks}", 0) for acks in (ALL, LEADER))

    @property
    def is_disturbed(self) -> bool:
        """Whether there is a fault now, or was one recently."""
        return self._begun_s is not None and self.faults.quiet_from_s > self.loop.time()

    def _check_progress(self) -> None:
        """A run up to its limit had faults that explain it, also if only changes were missing."""
        if self._is_done:
            return
        self.events.count("runs that took until their cap")
        share = self.faults.disturbed_s / CAP_S
        if share < DISTURBED_SHARE <= share + self._waited_s / CAP_S:
            self.promises.excused("needs-operator")
        elif SLOW_DISTURBED_SHARE <= share < DISTURBED_SHARE and self.network.weather.mean_s >= SLOW_PACKET_S:
            self.promises.excused("slow-network")
        elif share < DISTURBED_SHARE:
            self.promises.broken(
                "progress",
                f"{self.batches_acknowledged} of {self.batches} batches were acknowledged and"
                f" {self.changes()} of {self._changes_wanted} changes made within {CAP_S:.0f} s, and faults"
                f" with the recovery from them take {share:.0%} of it",
            )
            raise _Stopped

    def _log_changed(self, what: str) -> None:
        self.events.count(what)
        if what in self.phase_names:
            self.phases.moment(what)

    def _replica_ends(self, tp: PartitionKey) -> dict[int, int]:
        """Excludes replicas that never came online: an empty log replaces an unreachable one."""
        ends = {}
        for node, one in self._replicas(tp):
            end = int(one.log.end_offset)
            if end or not one.is_offline:
                ends[node.node_id] = end
        return ends

    def _find(self, node_id: int, topic: str, index: int) -> Partition | None:
        """Returns the partition in the process of a broker, also while it starts or stops."""
        if not 0 < node_id <= len(self.nodes):
            return None
        node = self.node(node_id)
        replicas = opened_replicas(node.server or node.starting or node.stopping)
        return None if replicas is None else replicas.find(topic, index)

    def _live_start(self, tp: PartitionKey, node_id: int) -> int:
        partition = self._find(node_id, *tp)
        return -1 if partition is None or partition.is_offline else int(partition.log.start_offset)

    def _registered(self, node_id: int, broker: int) -> int:
        """Returns the registration epoch of ``broker`` that another broker knows; -1 if it knows none."""
        node = self.node(node_id)
        server = node.server or node.starting or node.stopping
        known = None if server is None else server.image.brokers.get(broker)
        return -1 if known is None else int(known.epoch)

    def _started_s(self, node_id: int) -> float | None:
        node = self.node(node_id)
        if not node.is_running:
            return None
        return node.started_s if node.server is not None else self.loop.time()

    def _has_opened(self, node_id: int, tp: PartitionKey) -> bool:
        node = self.node(node_id)
        replicas = opened_replicas(node.server or node.starting)
        if replicas is None:
            return True
        logs = replicas.logs
        return len(logs.dirs.online) == len(logs.dirs.all) or TopicPartition(*tp) in logs.logs

    def _stop(self) -> None:
        self.loop.call_soon(self._raise, context=WORLD)

    def _raise(self) -> None:
        self.loop.stop()

    def _check_stopped(self) -> None:
        if self.events.violation:
            raise _Stopped

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop has an unhandled exception."""
        problem = context.get("exception")
        if problem is None or isinstance(problem, _Stopped):
            return
        logging.getLogger("tidemill.simulated").error(
            "%s", context.get("message"), exc_info=(type(problem), problem, problem.__traceback__)
        )

    # -- what the store holds

    def state_written(self, tp: PartitionKey, leader: int, epoch: int, isr: Sequence[int]) -> None:
        """The store has another state of a partition."""
        known = self.promises.partitions.get(tp)
        if known is not None:
            before = set(known.holders.isr)
            if epoch != known.epoch:
                self.phases.moment("leader change")
            if before - set(isr):
                self.phases.moment("ISR shrink")
            elif before and set(isr) - before:
                self.phases.moment("ISR expand")
        self.promises.state_written(tp, leader, epoch, isr)

    # -- what disks lose

    def disk_changed(self, node: Node) -> None:
        """The machine of a broker has another disk, empty or with old content."""

    def check_synced(self, node: Node) -> None:
        """With flush.messages=1 a machine that lost its power has all acknowledged records."""
        for tp, known in self.promises.partitions.items():
            if not self.promises.settings_of(tp[0]).flush_each:
                continue
            log = self.promises.logs[*tp, known.topic_id]
            promised = -1
            if known.holders.since.get(node.node_id, 0.0) < 0 and node.node_id in known.holders.isr:
                promised = max(log.acknowledged, default=-1)
            if known.led_s >= node.disk_since_s:
                for offset, led in log.led.items():
                    if led.leader == known.leader == node.node_id and led.epoch == known.epoch:
                        promised = max(promised, offset)
            end = end_on_disk(node.files, f"{tp[0]}-{tp[1]}")
            if end >= 0 and end <= promised:
                self.promises.broken(
                    "flush",
                    f"{node.name} has {tp} up to {end} on its disk, and {promised} was acknowledged",
                )

    def sync_dropped(self, node: Node, path: str) -> None:
        """A sync has failed, and its data never reach the disk."""
        directory, _, name = path.rpartition("/")
        if name == LEADER_EPOCHS:
            self.promises.log_state.forget_last_epoch(node.name, directory)
        if not name.endswith(LOG):
            return  # Indexes are rebuilt, checkpoints rewritten, and leader epochs read from batches.
        self.events.add(f"*** {node.name} has lost what was not synced of {path}", "the world")
        self.events.count("syncs that dropped data")
        topic, _, index = directory.rpartition("/")[2].rpartition("-")
        if index.isdigit():
            self.promises.replica_lost((topic, int(index)), node.node_id)

    def _open_log(self, opening: LogLoader) -> Log:
        """A process opens a log."""
        files = opening.files
        segments: list[str] = []
        if isinstance(files, SimulatedFiles):
            segments = list(files.stored_names(opening.directory, lambda name: offset_of(name, LOG) >= 0))
        log = OPEN_LOG(opening)
        if isinstance(files, SimulatedFiles):
            self.promises.restart.opened(files, log)
            self.following.opened(log)
            self.promises.disk_state.opened(self._name_of(files), opening, log, segments)
            self.promises.log_state.opened(self._name_of(files), log)
        return log

    def _load_logs(self, logs: LogManager, now_ms: int, config_of: Callable[[str], LogConfig]) -> None:
        """A process opens all its logs."""
        files = logs.files
        if not isinstance(files, SimulatedFiles):
            LOAD_LOGS(logs, now_ms, config_of)
            return
        disk_state = self.promises.disk_state
        blank = [one.path for one in logs.dirs.all if disk_state.is_blank(files, one.path)]
        LOAD_LOGS(logs, now_ms, config_of)
        disk_state.loaded(self._name_of(files), files, logs, blank)

    def _expired_segments(
        self, log: Log, high_watermark: int, now_ms: int, policies: Iterable[Policy]
    ) -> int:
        """Retention selects segments of a log to remove."""
        count = EXPIRED_SEGMENTS(log, high_watermark, now_ms, policies)
        if isinstance(log.segment_list.files, SimulatedFiles):
            name = self._name_of(log.segment_list.files)
            self.promises.disk_state.expired(name, log, count, high_watermark, now_ms)
        return count

    def _files_of(self, broker: int) -> SimulatedFiles | None:
        """Returns the disk of a serving broker."""
        node = self.node(broker)
        return node.files if node.server is not None else None

    def _truncate_to(self, log: Log, offset: int, now_ms: int) -> bool:
        """A process truncates a log."""
        was_cut = TRUNCATE_TO(log, offset, now_ms)
        if isinstance(log.segment_list.files, SimulatedFiles):
            self.promises.log_state.cut(self._name_of(log.segment_list.files), log)
            topic, _, index = log.directory.rpartition("/")[2].rpartition("-")
            if was_cut and index.isdigit():
                self.promises.compaction.replica_lost((topic, int(index)), offset)
        return was_cut

    def _truncate_fully(self, log: Log, offset: int, now_ms: int) -> None:
        """A process truncates a log fully."""
        if isinstance(log.segment_list.files, SimulatedFiles):
            self.promises.log_state.forget_last_epoch(self._name_of(log.segment_list.files), log.directory)
        TRUNCATE_FULLY(log, offset, now_ms)

    def _name_of(self, files: SimulatedFiles) -> str:
        return next((node.name for node in self.nodes if node.files is files), "a broker")

    def _truncate_unsynced(self, manager: ReplicaManager, partition: Partition) -> None:
        """A replica follows a leader, and truncates records that it may have lost."""
        end = int(partition.log.end_offset)
        try:
            TRUNCATE_UNSYNCED(manager, partition)
        finally:
            if int(partition.log.end_offset) < end:
                self.following.cut_doubtful(partition, end)
                self.promises.replica_cut((partition.topic, int(partition.index)), manager.node_id)

    # -- clients

    async def _begin_clients(self) -> None:
        self.promises.settings[TOPIC] = self.settings()
        client = self.process("admin")
        await self.loop.create_task(self.prepare(), context=client.context)
        random = self.random
        pause_s = random.choice((0.01, 0.04, 0.1))
        for number in range(random.choice((1, 2, 2, 3))):
            self.producers.append(self._make_producer(number, pause_s, must_answer=number == 0))
        for partition in range(self.partition_count):
            self.consumers.append(self._make_consumer(partition))
        self.deleters = self._make_deleters()
        for one in self._clients():
            process = self.process(one.name)
            self._tasks.append(self.loop.create_task(one.run(), context=process.context))

    @property
    def addresses(self) -> list[str]:
        """Returns the addresses of all brokers."""
        return [node.name for node in self.nodes]

    def _make_producer(self, number: int, pause_s: float, *, must_answer: bool) -> Producer:
        random = self.random
        is_idempotent = random.random() < 0.5
        acks = (
            ALL
            if is_idempotent
            else random.choice((ALL, LEADER, LEADER) if must_answer else (ALL, LEADER, NONE))
        )
        return Producer(
            f"producer-{number}",
            self.addresses,
            TOPIC,
            self.promises,
            random,
            partitions=self.partition_count,
            acks=acks,
            is_idempotent=is_idempotent,
            pause_s=pause_s,
            in_flight=random.choice((1, 3, 5)),
        )

    def _make_consumer(self, partition: int) -> Consumer:
        again = self.random.choice((0.0, 0.03, 0.1))
        return Consumer(
            f"consumer-{partition}",
            self.addresses,
            TOPIC,
            self.promises,
            self.random,
            partition=partition,
            again=again,
        )

    def _make_deleters(self) -> list[RecordDeleter]:
        if self.random.random() < 0.3:
            return []
        return [
            RecordDeleter(
                "deleter",
                self.addresses,
                TOPIC,
                self.promises,
                self.random,
                phases=self.phases,
                partitions=self.partition_count,
                pause_s=self.random.choice((0.3, 1.0)),
            )
        ]

    def _clients(self) -> list[Client]:
        return [*self.producers, *self.consumers, *self.deleters, *self.more_clients()]

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

    async def _wait_until_settled(self) -> None:
        began_s = moved_s = self.loop.time()
        reached = 0
        for consumer in self.consumers:
            consumer.again = 0.0
        for client in self._clients():
            client.ended = client not in self.consumers
        while missing := self._unsettled_state():
            self._check_stopped()
            now_s = self.loop.time()
            if (now_reached := self._reached()) != reached:
                # Much data to copy and read takes a long time. The progress may decrease when a follower
                # truncates its log or a consumer starts again.
                reached, moved_s = now_reached, now_s
            if now_s - moved_s > REST_S or now_s - began_s > REST_S_MAX:
                self.promises.broken("rest", f"the cluster does not come to rest: {missing}")
                raise _Stopped
            if now_s - began_s > OPERATOR_S:
                self._help_as_operator()
            await asyncio.sleep(0.2)
        self._check_stopped()
        for consumer in self.consumers:
            consumer.ended = True

    def _reached(self) -> int:
        """Returns the progress of replicas and consumers."""
        ends = sum(int(one.log.end_offset) for node in self.nodes for one in node.partitions)
        return ends + sum(consumer.position for consumer in self.consumers)

    async def _elect_waiting_leaders(self) -> None:
        """An operator has leaders elected for waiting partitions, so that they accept writes again."""
        while not self.faults.ended:
            for tp, known in list(self.promises.partitions.items()):
                if known.waits_for_operator and self.elect_unclean(tp):
                    self.events.count("elections by an operator on duty")
            await asyncio.sleep(ON_DUTY_S)

    def _help_as_operator(self) -> None:
        """Partitions that wait only for an operator get a leader."""
        for tp in self.promises.partitions:
            if self.promises.needs_election(tp) and self.elect_unclean(tp):
                self.promises.excused("needs-operator")

    def _unsettled_state(self) -> str:
        """Returns the deviations from rest; empty without any."""
        for tp in self.partition_keys():
            problem = self._unsettled_partition(tp)
            if problem:
                return problem
        for client in self._clients():
            if not client.is_settled:
                return f"{client.name} does not know what became of what it asked for"
        return self._behind()

    def _unsettled_partition(self, tp: PartitionKey) -> str:
        known = self.promises.partitions[tp]
        if known.adding or known.removing:
            return f"{tp} is still being moved: to {known.replicas}, adding {known.adding}"
        found = [(node, one) for node, one in self._replicas(tp) if one.log.topic_id == known.topic_id]
        having = {node.node_id for node, _ in found}
        if having != set(known.replicas):
            return f"{tp} is on {sorted(having)}, and assigned to {known.replicas}"
        leaders = [node for node, partition in found if partition.is_leader]
        if len(leaders) != 1:
            return f"{tp} is led by {[node.name for node in leaders]}"
        ends = [int(partition.log.end_offset) for _, partition in found]
        marks = [int(partition.high_watermark) for _, partition in found]
        if len(set(ends + marks)) != 1:
            return f"the logs of {tp} end at {ends}, and are committed up to {marks}"
        deleted_to = self.promises.logs[*tp, known.topic_id].deleted_to
        starts = [int(partition.log.start_offset) for _, partition in found]
        is_forgotten = self.promises.may_forget
        if min(starts) < deleted_to and not (
            is_forgotten(tp) and self.promises.excused("records-lost-before")
        ):
            return f"the logs of {tp} start at {starts}, and records were deleted up to {deleted_to}"
        counted = {int(partition.effective_min_isr) for _, partition in found}
        if counted != {known.holders.min_isr}:
            return f"{tp} takes {known.holders.min_isr} replicas for a commit, and brokers count by {counted}"
        isr = next(partition.isr for _, partition in found if partition.is_leader)
        if set(isr) != having or set(known.holders.isr) != having:
            return f"{tp} has {isr} in sync, and {known.holders.isr} in the store"
        return ""

    def _behind(self) -> str:
        for consumer in self.consumers:
            found = [one for _, one in self._replicas(consumer.tp) if one.is_leader]
            if found and consumer.position < found[0].log.end_offset:
                return f"{consumer.name} is at {consumer.position} of {found[0].log.end_offset}"
        return ""

    def _replicas(self, tp: PartitionKey) -> list[tuple[Node, Partition]]:
        return [
            (node, partition)
            for node in self.nodes
            for partition in node.partitions
            if (partition.topic, int(partition.index)) == tp
        ]

    def _check_logs(self) -> None:
        for tp in self.partition_keys():
            replicas = [partition for _, partition in self._replicas(tp)]
            start = max(int(partition.log.start_offset) for partition in replicas)
            leader = next(partition for partition in replicas if partition.is_leader)
            self._check_files(tp)
            for node, partition in self._replicas(tp):
                self.promises.log_state.check(node.name, partition.log)
            contents = [records_of(partition) for partition in replicas]
            self._check_equal(tp, start, contents)
            if not tp[0].startswith("_"):
                own_start, end = int(leader.log.start_offset), int(leader.log.end_offset)
                held = self._messages(leader)
                self.promises.check_log(tp, leader.log.topic_id, own_start, end, held)
                self._check_retention(tp, leader)
                if self.promises.compaction.is_compacted(tp):
                    self._check_each_replica(tp, leader.log.topic_id)
            self._check_stopped()

    def _messages(self, partition: Partition) -> list[tuple[int, Message]]:
        start = int(partition.log.start_offset)
        return [
            (int(record.offset), Message.of(record))
            for record in iter_records(records_of(partition), unpacked_bytes_max=UNPACKED_BYTES_MAX)
            if record.offset >= start
        ]

    def _check_each_replica(self, tp: PartitionKey, topic_id: bytes) -> None:
        """Replicas of a compacted partition differ: each has to hold the promised records."""
        for node, partition in self._replicas(tp):
            start, held = int(partition.log.start_offset), dict(self._messages(partition))
            self.promises.check_lost(tp, topic_id, start, held)
            self.promises.compaction.check_replica(tp, topic_id, node.node_id, start, held)

    def _check_equal(self, tp: PartitionKey, start: int, contents: list[bytes]) -> None:
        """Replicas with other log start offsets are compared from the latest one."""
        if all(content == contents[0] for content in contents):
            return
        # Compaction removes the records of aborted transactions.
        aborted = set().union(*map(aborted_offsets, contents))
        held = [
            [
                Raw.of(record)
                for record in iter_records(content, unpacked_bytes_max=UNPACKED_BYTES_MAX)
                if record.offset not in aborted
            ]
            for content in contents
        ]
        held = [[record for record in records if record.offset >= start] for records in held]
        if self.promises.compaction.is_compacted(tp):
            difference = self.promises.compaction.difference(tp, held)
        else:
            difference = "" if all(records == held[0] for records in held) else "they hold other records"
        if difference:
            self.promises.broken("equal", f"the replicas of {tp} differ in the end: {difference}")
            raise _Stopped

    def _check_files(self, tp: PartitionKey) -> None:
        """Files removed by retention are on no disk: only the next start would find them."""
        for node, partition in self._replicas(tp):
            names = node.files.stored(partition.log.directory, lambda name: name.endswith(LOG))
            bases = {int(segment.base_offset) for segment in partition.log.segments}
            left = sorted(name for name in names if offset_of(name, LOG) not in bases)
            if left:
                self.promises.broken(
                    "retention", f"{node.name} has files of {tp} that are not of its log: {left}"
                )
                raise _Stopped

    def _check_retention(self, tp: PartitionKey, leader: Partition) -> None:
        settings = self.promises.settings_of(tp[0])
        history = self.promises.logs[*tp, leader.log.topic_id]
        if settings.retention_bytes < 0 or int(leader.log.start_offset) <= history.delete_tried_to:
            return
        kept = sum(int(segment.size) for segment in leader.log.segments)
        if kept >= settings.retention_bytes:
            return
        is_excused = (settings.compacts and self.promises.excused("compacted")) or (
            self.promises.may_forget(tp) and self.promises.excused("records-lost-before")
        )
        if not is_excused:
            self.promises.broken(
                "retention", f"{tp} keeps {kept} bytes, and retention.bytes is {settings.retention_bytes}"
            )


class _Stopped(Exception):
    """A promise was broken, and the run is over."""


def _pauses() -> Callable[[], bool]:
    """Whether the current process is suspended, or has ended, at a later time."""
    process = PROCESS.get()
    return lambda: process is None or process.paused or not process.alive


@contextmanager
def _logging_to(events: EventLog, logger: logging.Logger) -> Iterator[None]:
    """Only ``events`` receives the log lines: handlers that keep records keep exceptions, and so the whole
    world.
    """
    before = (logger.handlers[:], logger.level, logger.propagate)
    logger.handlers[:] = [events]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers[:] = before[0]
        logger.setLevel(before[1])
        logger.propagate = before[2]


def _let_files_go() -> None:
    """Closes files of segments of killed processes, which would keep the whole world in memory."""
    while OPEN_FILES.make_room(OSError(errno.EMFILE, "the run has ended")):
        pass


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Seeds the global random generator, and disables garbage collection at arbitrary times."""
    state = global_random.getstate()
    global_random.seed(seed)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        # Otherwise the worlds of earlier runs, which contain cycles, would stay for dozens of seeds.
        gc.collect()
        global_random.setstate(state)
