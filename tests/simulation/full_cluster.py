"""Simulates whole brokers: :class:`~tidemill.server.broker_server.BrokerServer` as in ``tidemill serve``.

Only sockets, files, clock and coordination store are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, cast
from unittest import mock

from change_phases import CLUSTER_PHASES, COMPACTION_PHASES, MIN_INSYNC_PHASES
from controller_promise import ControllerPromise, Written
from deposed_leaders import NEVER, SLACK_S
from promises import ALL, LEADER, PartitionKey, TopicSettings
from requested_deletions import ADMIN_MARK
from simulated_admins import (
    REPLACED_TOPIC,
    TEMPORARY_TOPIC,
    UNCLEAN,
    Admin,
    ClusterAdmin,
    MinInsyncAdmin,
    RecordDeleter,
    TopicReplacer,
)
from simulated_clients import (
    BY_TOPIC_ID,
    PORT,
    Client,
    Consumer,
    Producer,
    Refused,
    TemporaryProducer,
    node_of,
)
from simulated_compaction import (
    COMPACTION_FAULTS,
    OPERATIONS_MAX,
    CompactedTopic,
    SimulatedCleaner,
)
from simulated_disk import OLD_SEGMENTS, SimulatedFiles
from simulated_faults import (
    AT_ONCE_S,
    CUT_FROM_STORE,
    DISK_PUT_BACK,
    FAILING_STOP,
    LATE_STORE,
    LEADER_AND_CONTROLLER,
    LONG_S,
    LOST_DISKS_OF_OTHERS,
    SHORT_S,
)
from simulated_groups import OFFSETS, Committer, GroupMember, GroupMembers, PassingCommitter, PositionReader
from simulated_loop import PROCESS, Process
from simulated_network import WORLD, Listening
from simulated_store import STORE_MACHINE, SimulatedStore, StoreServer

from simulation import BATCHES, CHANGES, TOPIC, Node, Simulation
from tidemill.broker import log_cleaner
from tidemill.broker.handlers import common
from tidemill.broker.log_cleaner import LogCleaner
from tidemill.controller import controller_context, leader_election_requests
from tidemill.controller.controller_context import ControllerContext
from tidemill.controller.preferred_leader_election import plan_elections
from tidemill.controller.reassignment import Decisions
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Check, Create, Operation, SetData
from tidemill.coordination.coordination_store import Node as StoreNode
from tidemill.coordination.nodes import (
    BROKER_IDS,
    CONTROLLER,
    BrokerNode,
    ConfigChangeNode,
    ConfigNode,
    ControllerEpochNode,
    DeleteTopicNode,
    PartitionStateNode,
    TopicNode,
)
from tidemill.log.cleaner_messages import STORAGE, Failure
from tidemill.log.file_names import CLEAN_SHUTDOWN, LOG, parse_partition_directory
from tidemill.log.log import Log
from tidemill.model.configs import MIN_INSYNC, BrokerConfig
from tidemill.model.task_set import TaskSet
from tidemill.model.types import TopicPartition
from tidemill.net.link import LinkError
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server import broker_server
from tidemill.server.broker_server import BrokerServer
from tidemill.server.socket_server import SocketServer

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
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "offsets.topic.segment.bytes": "2000",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "50",
}
CLEAN_FAILED = LogCleaner._failed
CLEAN_AGAIN_MS = 300
"""How long a log is left alone that could not be cleaned."""
NEAR_PRODUCER = "near-producer"
LOST_ANSWERS = 0.5
"""Of the registrations that are written again are not answered, where any are."""
LED_EVERY_S = 0.3
"""So often it is looked by which settings leaders count."""
STORE_CUT_SESSIONS = 2
"""The minimum duration of an isolation from the store, in session timeouts."""
HANGING_SYNC_S_MEAN = 0.5
STOP_S_MAX = 8.0
"""A process whose shutdown takes longer is killed."""


class InOrder(dict[Any, None]):
    """A set that iterates in insertion order."""

    def add(self, one: Any) -> None:
        """Adds an element."""
        self[one] = None

    def discard(self, one: Any) -> None:
        """Removes an element, if it is present."""
        self.pop(one, None)


class OrderedAcceptor(SocketServer):
    """An acceptor that closes its connections in order: sets of objects have none."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        connections: Any = InOrder()
        self.connections = connections


class BrokerProcess:
    """A whole broker, for the lifetime of one process."""

    def __init__(self, node: Node, config: BrokerConfig) -> None:
        self.server = BrokerServer(config)
        self.server.broker.clock = node.clock
        self.server.broker.files = node.files

    @property
    def partitions(self) -> ReplicaManager:
        """The partitions that the broker leads and follows."""
        return self.server.broker.replica_manager

    @property
    def image(self) -> ClusterImage:
        """The broker's image of the cluster."""
        return self.server.broker.metadata_cache.image

    @property
    def store(self) -> SimulatedStore:
        """The broker's session."""
        return cast(SimulatedStore, self.server.broker.store)

    async def start(self) -> None:
        """Starts the broker; returns when it serves."""
        await self.server.start()


class FullCluster(Simulation):
    """Three whole brokers, a store, administrators and consumer groups."""

    phase_names = CLUSTER_PHASES
    is_whole = True

    def __init__(self, seed: int, batches: int = BATCHES) -> None:
        super().__init__(seed, batches)
        random = self.random
        self.session_s = random.choice((0.8, 2.0))
        self.failures_of_disks: list[Failure] = []
        """Failures of cleanings in which a disk has refused something."""
        self.store = StoreServer(self.network)
        self.store.session_ended = lambda text: self.events.add(text, "the store")
        self.store.written = self._written
        self.store.removed = self._removed
        self.store.read = self._read
        self.store.ended = self._session_ended
        self.store.transacted = self._transacted
        self.controllers = ControllerPromise(self.promises, lambda: self.store.tree)
        self.controllers.log_of = self._log_of
        self._led_s = 0.0
        """When it was looked last by what leaders count."""
        self.promises.deposed.session_s = self.session_s
        self.min_isr_default = random.choice((1, 2))
        self.controllers.min_insync_default = self.min_isr_default
        is_compacted = self.compacted.is_compacted
        self.promises.settings[OFFSETS] = TopicSettings(min_isr=self.min_isr_default, compacts=is_compacted)
        if is_compacted:
            self.phase_names = (*CLUSTER_PHASES, *COMPACTION_PHASES)
        self.promises.min_insync.begin(self.min_isr_default)
        self._configs: dict[str, BrokerConfig] = {}
        self._moving: set[PartitionKey] = set()
        self._losses_cleared_by: dict[int, Process | None] = {}
        """By broker the process whose losses were processed: further reports of it are ignored."""
        self._unread_settings: set[str] = set()
        """Paths of settings that were written past all brokers, and that no controller has read since."""
        self._unapplied_states: dict[str, int] = {}
        """State nodes that had eligible replicas then, with their versions: controllers rewrite them."""
        self._operator_s: dict[PartitionKey, float] = {}
        self.committers = [
            self._client(Committer, f"committer-{number}", TOPIC, group=f"group-{number}", partition=0)
            for number in range(random.choice((0, 1, 1)))
        ]
        self.position_readers = [
            self._client(PositionReader, f"reader-of-{one.group}", TOPIC, group=one.group, partition=0)
            for one in self.committers
        ]
        members = GroupMembers(self.partition_count)
        self.members = [
            self._client(
                GroupMember, f"member-{number}", TOPIC, group="members", members=members, phases=self.phases
            )
            for number in range(random.choice((0, 1, 2, 3)))
        ]
        self.admins = [self._make_admin() for _ in range(random.choice((0, 1, 1)))]
        self.temporary_clients = self._make_temporary_clients() if self.admins else []
        self.near_clients: list[Client] = (
            [self._make_near_producer()] if self.variations.has_store_cuts else []
        )
        self.min_insync_admins = self._make_min_insync_admins()
        self.topic_replacers = [self._make_topic_replacer()] if self.variations.has_deletion_bursts else []
        self.passing_committers: list[Client] = []
        if self.variations.has_passing_positions:
            self.passing_committers.append(
                self._client(PassingCommitter, "passing-committer", REPLACED_TOPIC, group="passing")
            )

    def _draw_topic_config(self) -> dict[str, str]:
        self.compacted = CompactedTopic(self.seed)
        return self.compacted.config(super()._draw_topic_config())

    def settings(self) -> TopicSettings:
        return self.compacted.settings(super().settings(), self.topic_config)

    def _make_deleters(self) -> list[RecordDeleter]:
        deleters = super()._make_deleters()
        # Records of a topic that is only compacted cannot be deleted.
        return [] if self.compacted.is_compacted and not self.compacted.deletes else deleters

    def _client(self, kind: Any, name: str, topic: str, **options: Any) -> Any:
        return kind(name, self.addresses, topic, self.promises, self.random, **options)

    def _make_admin(self) -> ClusterAdmin:
        config = {"min.insync.replicas": "1", "segment.bytes": str(self.random.choice((800, 2000)))}
        self.promises.settings[TEMPORARY_TOPIC] = TopicSettings(min_isr=1)
        admin: ClusterAdmin = self._client(
            ClusterAdmin,
            "cluster-admin",
            TOPIC,
            phases=self.phases,
            partitions=self.partition_count,
            brokers=[node.node_id for node in self.nodes],
            temporary_config=config,
            pause_s=self.random.choice((0.2, 0.6)),
        )
        return admin

    def _gone(self) -> list[int]:
        registered = [self.store.tree.get(f"{BROKER_IDS}/{one.node_id}") is not None for one in self.nodes]
        return [one.node_id for one, is_there in zip(self.nodes, registered, strict=True) if not is_there]

    def _make_topic_replacer(self) -> TopicReplacer:
        self.promises.settings[REPLACED_TOPIC] = TopicSettings(min_isr=1)
        replacer: TopicReplacer = self._client(
            TopicReplacer,
            "topic-replacer",
            REPLACED_TOPIC,
            mark=self._mark_for_deletion,
            gone=self._gone,
            pause_s=0.15,
        )
        return replacer

    async def _mark_for_deletion(self, topic: str) -> None:
        """Deletes a topic as Kafka's old tools do. Raises StoreError, NoNode without a topic."""
        store = await SimulatedStore.open(self.store, self.session_s)
        try:
            mark = Create(DeleteTopicNode.path(topic), ADMIN_MARK)
            await store.transact([Check(TopicNode.path(topic)), mark])
            self.events.count("topics marked for deletion in the store")
        finally:
            await store.close()

    def _make_temporary_clients(self) -> list[Client]:
        is_idempotent = self.random.random() < 0.5
        producer = self._client(
            TemporaryProducer,
            "temporary-producer",
            TEMPORARY_TOPIC,
            partitions=2,
            acks=ALL if is_idempotent else LEADER,
            is_idempotent=is_idempotent,
            pause_s=0.1,
            in_flight=3,
            versions=(BY_TOPIC_ID,),
        )
        consumers = [
            self._client(
                Consumer,
                f"temporary-consumer-{partition}",
                TEMPORARY_TOPIC,
                partition=partition,
                again=0.0,
                versions=(BY_TOPIC_ID,),
            )
            for partition in range(2)
        ]
        return [producer, *consumers]

    def _make_min_insync_admins(self) -> list[MinInsyncAdmin]:
        if not self.variations.has_min_insync_changes:
            return []
        self.phase_names = (*self.phase_names, *MIN_INSYNC_PHASES)
        pause_s = self.random.choice((0.2, 0.6))
        admin = self._client(
            MinInsyncAdmin,
            "min-insync-admin",
            TOPIC,
            phases=self.phases,
            write=self._write_min_insync,
            has_unapplied_writes=self._has_unapplied_writes,
            pause_s=pause_s,
        )
        return [admin]

    async def _write_min_insync(self, value: str | None) -> None:
        """Changes settings of a topic as Kafka's old tools do. Raises StoreError."""
        store = await SimulatedStore.open(self.store, self.session_s)
        try:
            path = ConfigNode.path("topics", TOPIC)
            node = await store.get(path)
            config = ConfigNode.decode(path, node.data if node is not None else b"")
            config.pop(MIN_INSYNC, None)
            if value is not None:
                config[MIN_INSYNC] = value
            data = ConfigNode.encode(config)
            change = Create(
                ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", TOPIC), sequential=True
            )
            write = SetData(path, data, node.version) if node is not None else Create(path, data)
            self._record_unapplied(path)
            await store.transact([write, change])
            self.events.count("min.insync.replicas written to the store by others")
        finally:
            await store.close()

    def _record_unapplied(self, path: str) -> None:
        self._unread_settings.add(path)
        for tp in self.promises.partitions:
            state_path = PartitionStateNode.path(*tp)
            node = self.store.tree.get(state_path)
            if node is not None and PartitionStateNode.decode(*tp, node.data).elr:
                self._unapplied_states[state_path] = node.version

    def _has_unapplied_writes(self) -> bool:
        """Whether no controller has applied a direct write to the store yet."""
        for path, version in list(self._unapplied_states.items()):
            node = self.store.tree.get(path)
            if node is None or node.version != version:
                del self._unapplied_states[path]
        return bool(self._unread_settings or self._unapplied_states) or not self._is_known_to_controller()

    def _is_known_to_controller(self) -> bool:
        """Whether the controller uses the stored value. The rest of its broker may know it before."""
        node = self._controller()
        controller = cast(BrokerProcess, node.server).server.broker.controller if node is not None else None
        topic = controller.image.topics.get(TOPIC) if controller is not None else None
        own = topic.config.get(MIN_INSYNC) if topic is not None else ""
        return own == self.promises.min_insync.own(TOPIC)

    def changes(self) -> int:
        if not self.admins:
            return super().changes() if self.deleters else CHANGES
        return super().changes() + sum(admin.changes for admin in self.admins)

    def make_server(self, node: Node) -> BrokerProcess:
        config = self._configs.get(node.name)
        if config is None:
            settings = {
                **SETTINGS,
                **self.more_settings(),
                **self.compacted.broker_settings(self.variations),
                "min.insync.replicas": str(self.min_isr_default),
                "node.id": str(node.node_id),
                "listeners": f"PLAINTEXT://{node.name}:{PORT}",
            }
            config = BrokerConfig.from_sources(
                None, [f"{key}={value}" for key, value in settings.items()], {}
            )
            self._configs[node.name] = config
        return BrokerProcess(node, config)

    def cleaning_begins(self, tp: PartitionKey, partition: Partition, data: bytes) -> None:
        """A log with these batches is about to be compacted."""

    def more_settings(self) -> dict[str, str]:
        """Returns further settings of brokers."""
        return {}

    def patches(self) -> list[Any]:
        return [
            *self.controllers.patches(),
            mock.patch.object(broker_server, "bind", self._bind),
            mock.patch.object(broker_server, "SocketServer", OrderedAcceptor),
            mock.patch.object(broker_server, "open_store", self._open_store),
            mock.patch.object(broker_server, "CleanerProcess", self._new_cleaner),
            mock.patch.object(log_cleaner, "RETRY_MS", CLEAN_AGAIN_MS),
            mock.patch.object(LogCleaner, "_failed", lambda *of: self._clean_failed(*of)),
            mock.patch.object(controller_context, "Random", self._new_random),
            mock.patch.object(leader_election_requests, "plan_elections", self._plan_elections),
            # Calls of killed processes never end, and would be kept.
            mock.patch.object(common, "_unfinished_work", TaskSet(on_failure=common.log_failure)),
            *self.promises.commands.patches(),
            *self.promises.coordinators.patches(),
        ]

    def _look(self) -> None:
        super()._look()
        for node in self.nodes:
            if isinstance(node.server, BrokerProcess):
                broker = node.server.server.broker
                self.promises.coordinators.look(node.name, broker.group_coordinator, broker.replica_manager)

    def _clean_failed(self, cleaning: LogCleaner, log: Log, failure: Failure) -> None:
        """A broker excludes a log from compaction for a while: its disk must have a fault, or had one during
        the compaction.
        """
        files = log.segment_list.files
        is_failing = isinstance(files, SimulatedFiles) and files.is_failing
        is_explained = is_failing or any(one is failure for one in self.failures_of_disks)
        if failure.kind == STORAGE and not is_explained:
            self.promises.broken("no-error", f"a log is not compacted for a while: {failure.text}")
        CLEAN_FAILED(cleaning, log, failure)

    def _new_cleaner(self) -> SimulatedCleaner:
        process = PROCESS.get()
        (node,) = [node for node in self.nodes if process is not None and node.name == process.name]
        return SimulatedCleaner(self, node, self.compacted.group_s_mean)

    def _new_random(self) -> Random:
        return Random(self.random.getrandbits(32))

    def _plan_elections(
        self,
        image: ClusterImage,
        partitions: Iterable[TopicPartition] | None,
        election_type: int,
        stopping: frozenset[int],
        *others: Any,
        **named: Any,
    ) -> Decisions:
        """A controller plans requested elections."""
        decisions = plan_elections(image, partitions, election_type, stopping, *others, **named)
        if election_type == UNCLEAN:
            for plan in decisions.plans:
                for one in plan.topic.partitions:
                    able = image.brokers.keys() - one.offline - stopping
                    tp = (plan.topic.name, one.partition)
                    self.promises.elected_unclean(tp, one.leader, one.leader_epoch, able)
        return decisions

    def _bind(self, name: str, host: str, port: int, backlog: int) -> list[Listening]:
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process listens, not the world")
        return [Listening(self.network, self.network.machine(process.name), port)]

    async def _open_store(self, *_: Any) -> SimulatedStore:
        return await SimulatedStore.open(self.store, self.session_s)

    def _written(self, path: str, data: bytes) -> None:
        """The store was written."""
        parts = path.split("/")
        if path.startswith("/brokers/ids/"):
            if not data:
                return  # The controller has checked whether the broker is registered.
            broker_id = int(parts[3])
            lost = BrokerNode.decode(broker_id, data).lost
            node = self.store.tree.get(path)
            machine = self.node(broker_id)
            is_created = node is not None and node.version == 0
            # Writes of a killed process may reach the store when the next one runs.
            is_its_own = node is not None and self._process_of(node.owner) is machine.process
            # Nor do they concern a disk that was inserted meanwhile.
            has_started = machine.stopping is None and machine.started_s >= machine.disk_since_s
            is_new = is_created and is_its_own and has_started
            self.promises.registered(broker_id, lost, is_new=is_new)
            if is_new:
                self.controllers.registered(broker_id, lost)
            if node is not None and not is_created and lost.is_none:
                if is_its_own:
                    self._losses_cleared_by[broker_id] = machine.process
                if self.variations.has_lost_answers:
                    self._lose_answer(node.owner)
        elif path.startswith("/config/"):
            self._settings_written(path, data)
        elif path == "/controller":
            self.events.count("controllers")
            self.phases.moment("controller change")
        elif path == "/controller_epoch":
            self.controllers.controller_begins()
            self.promises.controller_begins(ControllerEpochNode.decode(data))
        elif path.startswith("/admin/delete_topics/"):
            self.phases.begin("topic deletion written")
            if data == ADMIN_MARK:
                self.promises.deletions.by_id(self.promises.topic_id_of(parts[3]))
            self.promises.deletion_began(parts[3])
            if self.variations.has_refused_deletions and not self.faults.ended:
                self._refuse_deletion(parts[3])
        elif path.startswith("/brokers/topics/") and len(parts) == 4:
            self._topic_written(parts[3], data)
        elif path.startswith("/brokers/topics/") and parts[-1] == "state":
            state = PartitionStateNode.decode(parts[3], int(parts[5]), data)
            self.events.add(f"{parts[3]}-{parts[5]} is {state}", "the store")
            tp = (parts[3], int(parts[5]))
            self.promises.controller_wrote(tp, state.controller_epoch)
            if self.variations.has_lost_isr_answers and tp in self.promises.partitions:
                self._lose_isr_answer(tp, state.leader, set(state.isr))
            self.state_written(tp, state.leader, state.leader_epoch, tuple(state.isr))
            if not self._has_unapplied_writes():
                self.promises.eligible_written(tp, state.elr)

    def _process_of(self, session: int) -> Process | None:
        """Returns the process that began a session, while the session lasts."""
        known = self.store.sessions.get(session)
        return known.connection.store.context.get(PROCESS) if known and known.connection else None

    def _transacted(
        self, session: int, operations: Sequence[Operation], before: dict[str, StoreNode | None]
    ) -> None:
        """A transaction was written."""
        process = self._process_of(session)
        node = next((one for one in self.nodes if process is not None and one.name == process.name), None)
        if node is None:
            return  # A tool of an administrator.
        controller = self._controller_of(node) if node.process is process else None
        if controller is not None:
            is_known = controller.is_changing and not controller._is_stale
            if not is_known or controller.store.session_id != session:
                controller = None  # It does not wait any more, or begins another session.
        try:
            self.controllers.wrote(Written(session, operations, before), process, controller)
        except Exception as problem:
            # The store would send it to the broker.
            self.events.violate(f"a checker has failed: {problem!r}")
            raise

    def _controller_of(self, node: Node) -> ControllerContext | None:
        """Returns the controller context of a broker, also while its process starts and stops."""
        whole = node.server or node.starting or node.stopping
        controller = (
            getattr(whole.server.broker, "controller", None) if isinstance(whole, BrokerProcess) else None
        )
        return controller.context if controller is not None else None

    def _log_of(self, broker: int, epoch: int, tp: PartitionKey) -> Partition | None:
        node, registration = self.node(broker), self.store.tree.get(BrokerNode.path(broker))
        if registration is None or registration.creation_id != epoch:
            return None
        found = (one for one in node.all_partitions if (one.topic, int(one.index)) == tp)
        return next(found, None)

    def disk_changed(self, node: Node) -> None:
        self.controllers.disk_changed(node.node_id)

    def look_at_commits(self) -> None:
        super().look_at_commits()
        for node in self.nodes:
            controller = self._controller_of(node)
            if controller is not None:
                self.controllers.look(controller, node.process)
        if self.loop.time() - self._led_s < LED_EVERY_S:
            return
        self._led_s = self.loop.time()
        for node in self.nodes:
            if node.server is not None and not node.process.paused:
                image = node.server.image
                self.controllers.look_at_index(node.node_id, node.process, image)
                for partition in node.partitions:
                    if partition.is_leader and not partition.is_offline:
                        self.controllers.look_at_leader(node.node_id, node.process, image, partition)

    def _lose_answer(self, session: int) -> None:
        """The store commits a write, and ends the session before the response arrives."""
        if self._begun_s is None or self.faults.ended or self.random.random() >= LOST_ANSWERS:
            return
        self.events.count("sessions that ended with the removal of losses")
        self.faults.later(lambda: self.store.end(session, "is ended"), 0.0001)

    def _lose_isr_answer(self, tp: PartitionKey, leader: int, isr: set[int]) -> None:
        """The controller does not learn that it has written a larger set, nor the leader its later result.

        The joined replica is suspended meanwhile.
        """
        controller, before = self._controller(), self.promises.partitions[tp].holders.isr
        if controller is None or leader not in before or not set(before) < isr:
            return
        if self._begun_s is None or self.faults.ended or self.random.random() >= LOST_ANSWERS:
            return
        self.events.count("responses to ISR requests lost")
        self.lose_store(controller)

        def silence() -> None:
            if controller.node_id != leader:
                self.faults.cut([(controller.name, self.node(leader).name)], SHORT_S, after_s=SHORT_S)
            for broker in sorted(isr - set(before)):
                self.faults.pause(self.node(broker))

        # First the leader learns that the controller had no response.
        self.network.world_timer(self.loop.time() + AT_ONCE_S / 3, silence)

    def _refuse_deletion(self, topic: str) -> None:
        """Disks have no space at first to rename the logs of a topic."""
        for node in self.nodes:
            if self.random.random() < 0.5:
                self.events.add(f"*** the disk of {node.name} refuses to rename {topic}", "the world")
                node.files.refuse_deletions(f"/data/{topic}-", self.random.choice((1, 2)))

    def _settings_written(self, path: str, data: bytes) -> None:
        before = self.promises.settings_of(TOPIC).min_isr
        self.promises.min_insync.written(path, data)
        if self.min_insync_admins and before != self.promises.settings_of(TOPIC).min_isr:
            self.phases.moment("min.insync.replicas changed")

    def _session_ended(self, paths: list[str]) -> None:
        """The store has ended the session of these nodes."""
        for path in paths:
            if path.startswith(f"{BROKER_IDS}/"):
                self.promises.deposed.session_ended(int(path.rpartition("/")[2]), self.loop.time())

    def _read(self, session: int, path: str, node: StoreNode) -> None:
        """One of many nodes was read: registrations by a controller, or settings by a broker."""
        process = PROCESS.get()
        self.controllers.read(path, node)
        if path.startswith("/config/") and process is not None:
            self.promises.min_insync.read(node_of(process.name), path, node.data)
        holder = self.store.tree.get(CONTROLLER)
        if holder is None or holder.owner != session:
            return
        self._unread_settings.discard(path)
        if path.startswith(f"{BROKER_IDS}/"):
            broker_id = int(path.rpartition("/")[2])
            if self._losses_cleared_by.get(broker_id) is self.node(broker_id).process:
                return
            self.promises.loss_read(broker_id, BrokerNode.decode(broker_id, node.data).lost)

    def _topic_written(self, topic: str, data: bytes) -> None:
        assignment = TopicNode.decode(topic, data)
        if (topic, 0) not in self.promises.partitions:
            self.phases.moment("topic creation written")
            self.events.count(f"topics made: {topic}")
        self.promises.topic_written(
            topic, assignment.topic_id or b"", assignment.replicas, assignment.adding, assignment.removing
        )
        for index in assignment.replicas:
            tp = (topic, index)
            is_moving = bool(assignment.adding.get(index) or assignment.removing.get(index))
            if is_moving and tp not in self._moving:
                self._moving.add(tp)
                self.phases.begin("move copying")
            elif not is_moving and tp in self._moving:
                self._end_move(tp)

    def _end_move(self, tp: PartitionKey) -> None:
        self._moving.discard(tp)
        self.phases.end("move copying")
        self.phases.moment("move ended")

    def _removed(self, path: str) -> None:
        """A node of the store was deleted."""
        parts = path.split("/")
        if path.startswith("/admin/delete_topics/"):
            self.phases.end("topic deletion written")
        elif path.startswith("/brokers/topics/") and len(parts) == 4:
            for tp in [tp for tp in self._moving if tp[0] == parts[3]]:
                self._end_move(tp)
            self._check_replicas_are_gone(parts[3])
            self.promises.topic_removed(parts[3])
            self._check_directories(parts[3])

    def _check_replicas_are_gone(self, topic: str) -> None:
        """The nodes of a topic are deleted after every broker has deleted its replicas.

        An operator may have unregistered a broker that does not return.
        """
        for tp, known in self.promises.partitions.items():
            for broker in known.replicas if tp[0] == topic else ():
                if self.store.tree.get(BrokerNode.path(broker)) is None:
                    continue
                server = self.node(broker).server
                log = server.partitions.logs.logs.get(TopicPartition(*tp)) if server is not None else None
                if log is not None and log.topic_id == known.topic_id:
                    self.promises.broken("deletion", f"{topic} is gone, and {broker} has {tp}")

    def _check_directories(self, topic: str) -> None:
        """A broker that acknowledged the deletion of a topic has no records of it, or knows its remaining
        directories.
        """
        for node in self.nodes:
            logs = node.server.partitions.logs if node.server is not None else None
            if logs is None or not logs.dirs.online:
                continue  # A log set aside is recognised by its topic id at a later start.
            for name in node.files.directories("/data"):
                key = parse_partition_directory(name)
                if key is None or key.topic != topic or key in logs.logs:
                    continue
                # A full disk leaves a directory without a log.
                files = [f"/data/{name}/{one}" for one in node.files.list(f"/data/{name}")]
                if any(one.endswith(LOG) and node.files.size(one) for one in files):
                    self.promises.broken("new-topic", f"{node.name} does not know its directory of {name}")

    async def prepare(self) -> None:
        await self._client(Admin, "admin", TOPIC).make(self.partition_count, self.topic_config)

    def more_clients(self) -> list[Client]:
        return [
            *(*self.committers, *self.position_readers, *self.members),
            *(*self.admins, *self.temporary_clients, *self.near_clients),
            *(*self.min_insync_admins, *self.topic_replacers, *self.passing_committers),
        ]

    def _make_near_producer(self) -> Client:
        """Creates a producer that writes to one partition, and is disconnected together with its leader."""
        producer: Producer = self._client(
            Producer,
            NEAR_PRODUCER,
            TOPIC,
            partitions=1,
            acks=LEADER,
            is_idempotent=False,
            pause_s=0.2,
            in_flight=1,
        )
        return producer

    def elect_unclean(self, tp: PartitionKey) -> bool:
        """An operator requests the election every few seconds, as long as it is needed."""
        now = self.loop.time()
        if now - self._operator_s.get(tp, 0.0) < 3.0:
            return False
        self._operator_s[tp] = now
        process = self.process(f"operator-{int(now)}")
        operator: Admin = self._client(Admin, process.name, tp[0])

        async def elect() -> None:
            for address in self.addresses:  # One of them is the controller.
                try:
                    await operator.link(address)  # The request may take until the broker starts.
                    if not self.promises.needs_election(tp):
                        return
                    await operator.elect(tp[0], [tp[1]], UNCLEAN, address)
                except (LinkError, Refused) as problem:
                    self.events.add(f"{type(problem).__name__}: {problem}")

        self.loop.create_task(elect(), context=process.context)
        return True

    # -- faults

    def cluster_faults(self) -> dict[str, Callable[[Node], bool]]:
        return {
            "store connection": self.lose_store,
            "session end": self.end_session,
            "controller session end": self.end_controller_session,
            "shutdown": self.shut_down,
            **(self._compaction_faults() if self.compacted.is_compacted else {}),
            **self._rare_faults(),
        }

    def _rare_faults(self) -> dict[str, Callable[[Node], bool]]:
        found: dict[str, Callable[[Node], bool]] = {
            DISK_PUT_BACK: lambda node: self.faults.put_disk_back(node)
        }
        if self.variations.has_store_cuts:
            found[CUT_FROM_STORE] = self.cut_from_store
        if self.variations.has_late_store:
            found[LATE_STORE] = self.delay_store
        if self.variations.has_failing_stops:
            found[FAILING_STOP] = self.stop_in_failing_sync
        if self.variations.has_min_insync_changes:
            found[LEADER_AND_CONTROLLER] = self.kill_leader_and_controller
        if self.variations.has_operator:
            found[LOST_DISKS_OF_OTHERS] = lambda node: self.faults.lose_others(node)
        return found

    def _compaction_faults(self) -> dict[str, Callable[[Node], bool]]:
        kill, cut = COMPACTION_FAULTS
        return {
            kill: lambda node: self._stop_in_cleaning(node, self.faults.kill),
            cut: lambda node: self._stop_in_cleaning(node, self.faults.cut_power),
        }

    def stop_in_exchange(self, node: Node) -> None:
        """The process ends during the next exchange of several segments."""
        stop = self.random.choice((self.faults.kill, self.faults.kill, self.faults.cut_power))
        self._stop_in_cleaning(node, stop, OLD_SEGMENTS)

    def _stop_in_cleaning(self, node: Node, stop: Callable[[Node], bool], stops_at: str = "") -> bool:
        """The process ends between two operations of the next compaction."""
        if not node.is_running:
            return False
        process = node.process

        def stop_at(operation: str) -> bool:
            if self.faults.ended or node.process is not process or not stop(node):
                return False
            self.events.count(f"processes that ended in a cleaning, before {operation}")
            return True

        stops_at = stops_at or self.random.choice(list(OPERATIONS_MAX))
        node.files.stop_in_cleaning(self.random.randrange(OPERATIONS_MAX[stops_at]), stop_at, stops_at)
        return True

    def _store_of(self, node: Node) -> SimulatedStore | None:
        server = node.server
        return server.store if isinstance(server, BrokerProcess) else None

    def lose_store(self, node: Node) -> bool:
        """The connection to the store breaks."""
        store = self._store_of(node)
        if store is None:
            return False
        self.events.add(f"*** {node.name} loses its connection to the store", "the world")
        self.promises.deposed.store_troubled(node.node_id, self.loop.time())
        self.loop.call_soon(store.lose_connection, context=node.process.context)
        return True

    def end_session(self, node: Node) -> bool:
        """The store ends a session, and its client learns of it."""
        store = self._store_of(node)
        if store is None:
            return False
        self.events.add(f"*** the session of {node.name} is ended", "the world")
        self.store.end(store.session_id, "is ended")
        return True

    def end_controller_session(self, node: Node) -> bool:
        """The store ends the session of the controller: another broker is elected."""
        controller = self._controller()
        return controller is not None and self.end_session(controller)

    def _controller(self) -> Node | None:
        for one in self.nodes:
            server = one.server
            if isinstance(server, BrokerProcess) and server.server.broker.controller.is_active:
                return one
        return None

    def kill_leader_and_controller(self, node: Node) -> bool:
        """The leader of the topic's first partition and the controller fail at the same time."""
        known = self.promises.partitions.get((TOPIC, 0))
        leader = node if known is None or known.leader <= 0 else self.node(known.leader)
        controller = self._controller()
        # The leader stays stopped for a while: others lead, if possible.
        done = self.faults.kill(leader, back_s_mean=LONG_S)
        return (controller is not None and controller is not leader and self.faults.kill(controller)) or done

    def delay_store(self, node: Node) -> bool:
        """Packets from the store to a broker are delayed for a while, preferably to the controller.

        Packets to the store are not: then another broker registers, preferably with losses, while the
        controller does not know. Or an operator removes its node, as operators of Apache Kafka do to replace
        the controller.
        """
        if self.random.random() < 0.7:
            node = self._controller() or node
        store = self._store_of(node)
        if store is None or store.late_s:
            return False
        store.late_s = self.session_s * self.random.choice((0.1, 0.25, 0.4))
        self.events.add(f"*** the store answers {node.name} {store.late_s:.2f} s later", "the world")

        self.promises.deposed.store_troubled(node.node_id, NEVER)

        def mend() -> None:
            store.late_s = 0.0
            self.promises.deposed.store_troubled(node.node_id, self.loop.time())

        self.faults.later(mend, LONG_S, after_s=self.session_s)
        others = [one for one in self.nodes if one is not node]
        if self.random.random() < 0.5:
            self.faults.cut_power(self.random.choice(others))
        elif node is self._controller():
            self.events.add("*** the node of the controller is removed", "the world")
            self.events.count("controller nodes removed")
            self.store.remove(CONTROLLER)
        return True

    def cut_from_store(self, node: Node) -> bool:
        """A broker reaches no store, or only clients, for longer than its session timeout.

        One client without replicas stays on its side, and does not learn of another leader.
        """
        if not node.is_running:
            return False
        known = self.promises.partitions.get((TOPIC, 0))
        if known is not None and known.leader > 0:
            node = self.node(known.leader)
        others = [STORE_MACHINE]
        if self.random.random() < 0.7:
            others += [one.name for one in self.nodes if one is not node]
        ends = [(node.name, name) for name in others]
        ends += [(NEAR_PRODUCER, one.name) for one in self.nodes if one is not node]
        pairs = [pair for one, other in ends for pair in ((one, other), (other, one))]
        for client in self.near_clients:
            client.know_only(node.name)
        lasts_s = STORE_CUT_SESSIONS * self.session_s + 5 * SLACK_S
        self.faults.cut(pairs, 1.0, lasts_s)
        self.faults.alone_until_s = self.loop.time() + lasts_s
        return True

    def shut_down(self, node: Node) -> bool:
        """The broker gets a stop signal, shuts down cleanly, and is started again."""
        server, process = node.server, node.process
        if not node.is_running or not isinstance(server, BrokerProcess) or process.paused:
            return False
        self.events.add(f"*** {node.name} receives a shutdown request", "the world")
        self.look_at_commits()
        node.server, node.stopping = None, server
        self.loop.create_task(self._stop_in_order(node, server, process), context=process.context)
        self.network.world_timer(self.loop.time() + STOP_S_MAX, lambda: node.end(process))
        return True

    def stop_in_failing_sync(self, node: Node) -> bool:
        """A sync hangs, the broker gets a stop signal meanwhile, and the sync fails: its data are dropped."""
        if not node.is_running or not self.faults.may_lose(node):
            return False
        self.events.add(f"*** the next sync of {node.name} hangs, and fails", "the world")
        process = node.process

        def hangs() -> float:
            if node.process is process and not self.faults.ended and self.shut_down(node):
                self.events.count("stops while a sync hangs that fails")
            return self.random.expovariate(1 / HANGING_SYNC_S_MEAN)

        node.files.drop_syncs(LOG, 1, hangs)
        self.faults.repair_later(node, LONG_S)
        return True

    async def _stop_in_order(self, node: Node, server: BrokerProcess, process: Process) -> None:
        await server.server.stop()
        self.events.add("has stopped")
        self._check_clean_stop(node)
        self.loop.call_soon(node.end, process, context=WORLD)

    def _check_clean_stop(self, node: Node) -> None:
        """After a stop with a clean shutdown file, all data are on the disk."""
        if not node.files.exists(f"/data/{CLEAN_SHUTDOWN}"):
            return
        self.events.count("clean stops")
        for path in node.files.unsynced(LOG):
            if parse_partition_directory(path.split("/")[-2]) is not None:
                self.promises.broken("restart", f"{node.name} stops as if {path} were on its disk")
