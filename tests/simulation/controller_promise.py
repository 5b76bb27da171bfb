"""The decisions of controllers and their images: the promises ``decision``, ``image`` and ``one-controller``.

Each state that a controller writes is judged by the facts that it knew then (:mod:`state_decisions`). Its
image of topics is compared with the store whenever it is idle and has changed. The methods that
:meth:`ControllerPromise.patches` replaces record the facts that it reads of brokers, requests from replicas,
and receives from leaders.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from simulated_loop import PROCESS, Process
from state_decisions import NOBODY, Answers, KnownState, faults_of, faults_of_first

from tidemill.controller import alter_partition, failover
from tidemill.controller.alter_partition import ANY_EPOCH, AlterPartitionItem, plan_isr_change
from tidemill.controller.controller_context import ControllerContext
from tidemill.controller.election_settings import UNCLEAN
from tidemill.controller.failover import Failover
from tidemill.controller.leader_election import LogEnd, plan_reported_replicas_in_slices
from tidemill.controller.unclean_recovery import ReceivedLogEnds, UncleanRecovery
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.coordination_store import Check, Create, Operation, SetData
from tidemill.coordination.coordination_store import Node as StoreNode
from tidemill.coordination.embedded_store_tree import Tree
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import (
    BROKER_IDS,
    CONTROLLER_EPOCH,
    DEFAULT_ENTITY,
    DELETE_TOPICS,
    TOPICS,
    ConfigNode,
    ConfigResource,
    ControllerEpochNode,
    DeleteTopicNode,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.coordination.topic_index import TopicIndex
from tidemill.model.configs import MIN_INSYNC
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from promises import PartitionKey, Promises

APPLY_S = 2.0
"""What a broker has read it counts by within this time."""
ANSWERS_KEPT = 20
"""Operators and the recovery may ask at the same time, for each topic."""
SETTINGS = (ConfigNode.path("topics", ""), ConfigNode.path("brokers", ""))
"""What the paths of settings begin with."""
DEFAULTS = ConfigNode.path("brokers", DEFAULT_ENTITY)
REFRESH_BROKERS = Failover.refresh_brokers
CHANGE_LOCK = ControllerContext.change_lock
ASK = UncleanRecovery._request_log_ends
APPLY_SETTINGS = ControllerContext._apply_settings
PLAN_ISR_CHANGE = plan_isr_change
PLANNING_REPORTED = plan_reported_replicas_in_slices


class LogEndsResponse(NamedTuple):
    """The log ends that a controller received, and when."""

    answered: ReceivedLogEnds
    at_s: float


class Written(NamedTuple):
    """The writes of a transaction, and the previous nodes."""

    session: int
    operations: Sequence[Operation]
    before: Mapping[str, StoreNode | None]


class ControllerKnowledge:
    """The facts that one process has read and received as the controller."""

    def __init__(self) -> None:
        self.registrations: dict[int, int] = {}
        """The epochs of the registrations that it has read last."""
        self.read_s = -1.0
        self.changing_since_s = 0.0
        self.changes = 0
        self.asked: deque[LogEndsResponse] = deque(maxlen=ANSWERS_KEPT)
        self.granted: dict[PartitionKey, set[frozenset[int]]] = {}
        """ISRs that leaders were granted over the present states."""
        self.failed: dict[tuple[bytes, int], tuple[int, int]] = {}
        """Replicas reported as failed: the broker, and the number of the change that processes the report."""
        self.failed_in: dict[tuple[bytes, int, int], int] = {}
        """The registrations of the brokers that have reported them, by topic id, partition and broker."""
        self.compared: ClusterImage | None = None
        self.minimum_changed: set[str] = set()
        """The topics for which others wrote another ``min.insync.replicas``, while it is taken over."""


class ControllerPromise:
    """Checks the reads, the images and the writes of controllers."""

    def __init__(self, promises: Promises, tree: Callable[[], Tree]) -> None:
        self._promises = promises
        self._tree = tree
        self.min_insync_default = 1
        """``min.insync.replicas`` in the files of all brokers."""
        self.log_of: Callable[[int, int, PartitionKey], Partition | None] = lambda broker, epoch, tp: None
        """The replica of a broker that runs, and is registered with that epoch."""
        self._knowledge_of: dict[Process, ControllerKnowledge] = {}
        self._marked: dict[str, int] = {}
        """The marks of deletions that were in the store when the present controller began."""
        self._indexes: dict[Process, TopicIndex] = {}
        """The last checked topic index of each process."""
        self._late: dict[tuple[Process, str, int], float] = {}
        """Leaders that do not count by what their brokers have read, and since when."""
        self._gone: dict[int, dict[PartitionKey, bytes]] = {}
        """By broker the partitions, with the topics' ids, of which it has nothing, or an old log, since its
        machine has another disk, and which no controller has heeded yet."""
        self._configs: dict[str, tuple[int, int]] = {}
        """By path the session that wrote settings last, and the version."""

    # -- what the world reports

    def patches(self) -> list[Any]:
        """Returns the patches of the program: each calls the replaced method at the same loop steps."""
        promise = self

        @contextlib.asynccontextmanager
        async def change_lock(context: ControllerContext) -> AsyncIterator[None]:
            async with CHANGE_LOCK(context):
                knowledge = promise._knowledge()
                knowledge.changing_since_s, knowledge.changes = promise._promises.now(), knowledge.changes + 1
                yield

        async def look(self: Failover) -> None:
            dead = dict(self._dead)
            promise._knowledge().registrations.clear()
            await REFRESH_BROKERS(self)
            if self._context.election.is_active:  # Otherwise it has dropped its dead brokers meanwhile.
                promise._looked(self, {**dead, **self._dead})

        async def ask(
            self: UncleanRecovery, wanted: Mapping[TopicPartition, Sequence[int]]
        ) -> ReceivedLogEnds:
            answered = await ASK(self, wanted)
            promise._knowledge().asked.append(LogEndsResponse(answered, promise._promises.now()))
            promise._check_answers(answered)
            return answered

        async def apply_settings(
            self: ControllerContext, settings: Mapping[ConfigResource, Mapping[str, str]]
        ) -> Delta | None:
            knowledge = promise._knowledge()
            knowledge.minimum_changed = _with_another_minimum(self.image, settings)
            try:
                return await APPLY_SETTINGS(self, settings)
            finally:
                knowledge.minimum_changed = set()

        def plan_change(
            image: ClusterImage,
            topic: str,
            partition: PartitionImage,
            change: AlterPartitionItem,
            *others: Any,
        ) -> PartitionImage:
            after = PLAN_ISR_CHANGE(image, topic, partition, change, *others)
            if after is not partition:
                promise._granted(image, topic, partition, change, after, others[1])
            elif (change.leader_epoch, [broker for broker, _ in change.isr]) != (
                partition.leader_epoch,
                partition.isr,
            ):
                promise._broken(
                    "decision", f"{change} is answered with {partition}, which it does not ask for"
                )
            return after

        def plan_reported_in_slices(
            image: ClusterImage,
            broker: int,
            reported: Mapping[bytes, Iterable[int]],
            *others: Any,
            is_offline: bool,
        ) -> Generator[None, None, Any]:
            knowledge = promise._knowledge()
            for topic_id, numbers in reported.items() if is_offline else ():
                for number in numbers:
                    knowledge.failed[topic_id, number] = broker, knowledge.changes
                    knowledge.failed_in[topic_id, number, broker] = image.brokers[broker].epoch
            return PLANNING_REPORTED(image, broker, reported, *others, is_offline=is_offline)

        return [
            mock.patch.object(ControllerContext, "change_lock", change_lock),
            mock.patch.object(Failover, "refresh_brokers", look),
            mock.patch.object(ControllerContext, "_apply_settings", apply_settings),
            mock.patch.object(UncleanRecovery, "_request_log_ends", ask),
            mock.patch.object(alter_partition, "plan_isr_change", plan_change),
            mock.patch.object(failover, "plan_reported_replicas_in_slices", plan_reported_in_slices),
        ]

    def controller_begins(self) -> None:
        """The store has a new controller, which knows of no failed replica yet."""
        for knowledge in self._knowledge_of.values():
            knowledge.failed.clear()
        tree = self._tree()
        self._marked = {}
        for name in tree.children(DELETE_TOPICS) if tree.get(DELETE_TOPICS) is not None else ():
            mark = tree.get(f"{DELETE_TOPICS}/{name}")
            if mark is not None:
                self._marked[name] = mark.creation_id

    def disk_changed(self, broker: int) -> None:
        """The machine of a broker has another disk: an empty one, or a former one."""
        self._gone[broker] = {
            tp: known.topic_id
            for tp, known in self._promises.partitions.items()
            if broker in known.replicas and self._state(tp) is not None
        }

    def registered(self, broker: int, lost: LostReplicas) -> None:
        """A new process of a broker has registered."""
        for tp, topic_id in self._gone.get(broker, {}).items():
            known, state = self._promises.partitions.get(tp), self._state(tp)
            if known is None or known.topic_id != topic_id or state is None or broker not in known.replicas:
                continue
            may_lead = broker in {*state.isr, *state.elr, state.last_known_leader}
            if not may_lead or lost.is_lost(*tp):
                continue
            if not (known.is_being_deleted and self._promises.excused("being-deleted")):
                self._broken("losses", f"{broker} has another disk, and reports {lost}: {tp} is {state}")

    def _remove_handled_losses(
        self, tp: PartitionKey, before: LeaderIsrAndControllerEpoch | None, after: LeaderIsrAndControllerEpoch
    ) -> None:
        """A replica that joins the ISR, or is recorded as lost, has nothing more to report."""
        for broker in {*after.isr} - {*(before.isr if before is not None else ())} | {*after.lost_replicas}:
            self._gone.get(broker, {}).pop(tp, None)

    def read(self, path: str, node: StoreNode) -> None:
        """The running process has read one of many nodes."""
        if path.startswith(f"{BROKER_IDS}/") and PROCESS.get() is not None:
            knowledge = self._knowledge()
            if knowledge.read_s != self._promises.now():
                knowledge.read_s = self._promises.now()
                knowledge.registrations.clear()
            knowledge.registrations[int(path.rpartition("/")[2])] = node.creation_id

    def wrote(self, written: Written, process: Process | None, context: ControllerContext | None) -> None:
        """A broker's transaction is in the store.

        ``context``: that of the sending process, unless it has ended, or does not wait for the response.
        """
        self._check_fence(written)
        for operation in written.operations:
            if isinstance(operation, Create | SetData) and operation.path.startswith(SETTINGS):
                node = self._tree().get(operation.path)
                if node is not None:
                    self._configs[operation.path] = written.session, node.version
                self._check_min_insync_change(written, operation)
        for operation in written.operations:
            if isinstance(operation, Create | SetData) and operation.path.startswith(f"{TOPICS}/"):
                parts = operation.path.split("/")
                if len(parts) == 4:
                    self._check_assignment(parts[3])
                elif parts[-1] == "state":
                    tp = (parts[3], int(parts[5]))
                    old = written.before.get(operation.path)
                    state = PartitionStateNode.decode(*tp, old.data) if old is not None else None
                    self._remove_handled_losses(tp, state, PartitionStateNode.decode(*tp, operation.data))
                    if process is not None and context is not None:
                        self._check_state(written, tp, operation, process, context)
                    else:
                        self._promises.excused("in-transition")

    def look_at_index(self, broker: int, process: Process, image: ClusterImage) -> None:
        """Compares a broker's topic index with an index rebuilt from the same topics."""
        index = image.topic_index
        if self._indexes.get(process) is index:
            return
        self._indexes[process] = index
        self._compare_index(f"broker {broker}", index)

    def look_at_leader(
        self, broker: int, process: Process, image: ClusterImage, partition: Partition
    ) -> None:
        """Checks the partitions that a broker leads, and its image of the cluster.

        It applies changes shortly after it has read them.
        """
        topic = image.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.log.topic_id:
            return
        wanted = self._min_insync(image, topic)
        least = min(int(partition.min_insync_replicas), len(partition.replicas) - len(partition.adding))
        if int(partition.effective_min_isr) != least:
            self._broken(
                "image", f"{broker} requires {partition.effective_min_isr} replicas of {partition.replicas}"
            )
        key = (process, partition.topic, int(partition.index))
        if int(partition.min_insync_replicas) == wanted:
            self._late.pop(key, None)
        elif self._promises.now() - self._late.setdefault(key, self._promises.now()) > APPLY_S:
            self._broken(
                "image",
                f"{broker} uses {MIN_INSYNC} {partition.min_insync_replicas} for {key[1:]}, and has read"
                f" {wanted}",
            )

    def _min_insync(self, image: ClusterImage, topic: TopicImage) -> int:
        settings = {**image.default_broker_config(), **topic.config}
        return int(settings.get(MIN_INSYNC, self.min_insync_default))

    def look(self, context: ControllerContext, process: Process) -> None:
        """Checks a broker that may be the controller."""
        if not context.election.is_active or context.is_changing or context._is_stale:
            return
        knowledge = self._knowledge_of.setdefault(process, ControllerKnowledge())
        if context.image is not knowledge.compared:
            node = self._tree().get(CONTROLLER_EPOCH)
            if node is not None and ControllerEpochNode.decode(node.data) == context.election.epoch:
                knowledge.compared = context.image
                self._compare_index("the controller", context.image.topic_index)
                self._compare(context, process)

    # -- what follows from it

    def _knowledge(self) -> ControllerKnowledge:
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process is the controller, not the world")
        return self._knowledge_of.setdefault(process, ControllerKnowledge())

    def _broken(self, promise: str, text: str) -> None:
        self._promises.broken(promise, text)

    def _check_fence(self, written: Written) -> None:
        paths = [one.path for one in written.operations if isinstance(one, Create | SetData)]
        if not any(path.startswith((f"{TOPICS}/", f"{DELETE_TOPICS}/")) for path in paths):
            return
        if not any(
            isinstance(one, Check) and one.path == CONTROLLER_EPOCH and one.version >= 0
            for one in written.operations
        ):
            self._broken("one-controller", f"{paths[0]} is written without a check of the controller epoch")

    def _check_assignment(self, topic: str) -> None:
        """No partition has an in-sync or eligible replica that is not assigned."""
        node = self._tree().get(TopicNode.path(topic))
        if node is None:
            return
        for number, replicas in TopicNode.decode(topic, node.data).replicas.items():
            state = self._state((topic, number))
            others = {*state.isr, *state.elr} - set(replicas) if state is not None else ()
            # An operator lets a deletion continue without a broker.
            if others and not self._is_deletion_excused(topic):
                self._broken("decision", f"{topic}-{number} is {state}, and its replicas are {replicas}")

    def _is_deletion_excused(self, topic: str) -> bool:
        """Whether a topic is being deleted: its partitions have no leaders."""
        is_marked = self._tree().get(DeleteTopicNode.path(topic)) is not None
        return is_marked and self._promises.excused("being-deleted")

    def _check_min_insync_change(self, written: Written, operation: Create | SetData) -> None:
        """After a change of the value, no partition with a leader has eligible replicas."""
        path = operation.path
        old = written.before.get(path)
        before = _minimum_in(path, old.data) if old is not None else None
        after = _minimum_in(path, operation.data)
        defaults = self._tree().get(DEFAULTS)
        if path != DEFAULTS and defaults is not None:
            shared = _minimum_in(DEFAULTS, defaults.data)
            before, after = (shared if one is None else one for one in (before, after))
        if before == after:
            return
        name = path.rpartition("/")[2]
        if path == DEFAULTS and before is None:
            return  # The first controller writes the value that is in effect anyway.
        for tp in self._promises.partitions:
            if not self._is_setting_of(tp[0], path):
                continue
            state = self._state(tp)
            is_wrong = state is not None and state.elr and state.leader != NOBODY
            if is_wrong and not self._is_deletion_excused(tp[0]):
                self._broken("decision", f"{name} gets another {MIN_INSYNC}, and {tp} is {state}")

    def _is_setting_of(self, topic: str, path: str) -> bool:
        """Whether ``min.insync.replicas`` in this node applies to a topic."""
        is_default = path == DEFAULTS and not self._promises.min_insync.has_own(topic)
        return is_default or path == ConfigNode.path("topics", topic)

    def _changes_minimum(self, written: Written, topic: str) -> bool:
        """Whether a transaction writes another ``min.insync.replicas`` for a topic."""
        for operation in written.operations:
            if isinstance(operation, Create | SetData) and self._is_setting_of(topic, operation.path):
                path, old = operation.path, written.before.get(operation.path)
                before = _minimum_in(path, old.data) if old is not None else None
                if before != _minimum_in(path, operation.data):
                    return True
        return False

    def _state(self, tp: PartitionKey) -> LeaderIsrAndControllerEpoch | None:
        node = self._tree().get(PartitionStateNode.path(*tp))
        return None if node is None else PartitionStateNode.decode(*tp, node.data)

    def _check_state(
        self,
        written: Written,
        tp: PartitionKey,
        operation: Create | SetData,
        process: Process,
        context: ControllerContext,
    ) -> None:
        image, knowledge = context.image, self._knowledge_of.setdefault(process, ControllerKnowledge())
        topic = image.topics.get(tp[0])
        node = self._tree().get(TopicNode.path(tp[0]))
        if node is None:
            return
        now = TopicNode.decode(tp[0], node.data)
        after = PartitionStateNode.decode(*tp, operation.data)
        old = written.before.get(operation.path)
        granted = knowledge.granted.pop(tp, set())
        if isinstance(operation, Create) or old is None:
            known = KnownState(now.replicas[tp[1]], 1, {})
            self._judge(tp, None, after, faults_of_first(after, known))
            return
        partition = topic.partition(tp[1]) if topic is not None else None
        if topic is None or partition is None or partition.partition_epoch != old.version:
            self._promises.excused("in-transition")
            return
        before = PartitionStateNode.decode(*tp, old.data)
        self._compare_state(tp, partition, before)
        self._check_policy(context, topic)
        known = self._known(written, tp, context, knowledge, topic, partition, old, now)
        known = known._replace(joined=granted)
        operator = self._promises.partitions[tp].unclean if tp in self._promises.partitions else None
        if operator is not None and (operator.leader, operator.epoch) == (after.leader, after.leader_epoch):
            known = known._replace(is_unclean=True)
        self._promises.events.count("states of partitions judged")
        if after.leader not in (NOBODY, before.leader):
            self._promises.events.count("elections judged")
            if after.leader not in {*before.isr, *before.elr} - known.lost:
                self._promises.events.count("recoveries judged")
        self._judge(tp, before, after, faults_of(before, after, known))
        if after.leader not in (NOBODY, before.leader):
            self._check_reading(tp, after.leader, image, knowledge, known)

    def _judge(
        self,
        tp: PartitionKey,
        before: LeaderIsrAndControllerEpoch | None,
        after: LeaderIsrAndControllerEpoch,
        faults: Iterable[str],
    ) -> None:
        for fault in faults:
            self._broken("decision", f"{tp} is {after} after {before}: {fault}")
            return

    def _known(
        self,
        written: Written,
        tp: PartitionKey,
        context: ControllerContext,
        knowledge: ControllerKnowledge,
        topic: TopicImage,
        partition: PartitionImage,
        state: StoreNode,
        now: TopicAssignment,
    ) -> KnownState:
        image = context.image
        replicas, adding = now.replicas[tp[1]], now.adding.get(tp[1], [])
        old = written.before.get(TopicNode.path(tp[0]))
        was = TopicNode.decode(tp[0], old.data) if old is not None else now
        offline = {
            broker
            for broker in partition.offline
            if broker not in image.brokers
            # After another registration the replica may be readable again.
            or knowledge.failed_in.get((topic.topic_id, tp[1], broker)) in (None, image.brokers[broker].epoch)
        }
        failed = knowledge.failed.get((topic.topic_id, tp[1]))
        if failed is not None and failed[1] == knowledge.changes:
            offline.add(failed[0])
        reports = {one.broker_id: one for one in image.brokers.values() if not one.lost.is_none}
        named = {broker for broker, one in reports.items() if one.lost.is_lost(*tp)}
        # A report does not apply to replicas created since.
        lost = {
            broker
            for broker in named
            if state.creation_id
            <= min(reports[broker].lost.first_epoch or reports[broker].epoch, reports[broker].epoch)
        }
        settings = {**image.default_broker_config(), **topic.config}
        return KnownState(
            replicas,
            min(self._min_insync(image, topic), len(replicas) - len(adding)),
            {broker: one.epoch for broker, one in image.brokers.items()},
            frozenset(offline),
            context.stopping(),
            frozenset(lost),
            frozenset(named),
            frozenset(one for one in lost if reports[one].lost.is_missing(*tp)),
            frozenset(reports),
            is_unclean=settings.get(UNCLEAN) == "true",
            has_moved=_moved(was, now, tp[1]),
            minimum_changed=tp[0] in knowledge.minimum_changed or self._changes_minimum(written, tp[0]),
            answers=[_answers(one.answered, tp) for one in knowledge.asked],
        )

    def _check_reading(
        self,
        tp: PartitionKey,
        leader: int,
        image: ClusterImage,
        knowledge: ControllerKnowledge,
        known: KnownState,
    ) -> None:
        """A leader is elected by registrations that were read since the change began."""
        read = knowledge.registrations.get(leader)
        if knowledge.read_s < knowledge.changing_since_s:
            self._broken("decision", f"{leader} is elected for {tp} without a read of the registrations")
        elif read is None:
            self._broken("decision", f"{leader} is elected for {tp}, and was not registered then")
        elif read != known.epochs.get(leader):
            self._broken("decision", f"{leader} is elected for {tp}, and {image.brokers} are not the present")

    def _granted(
        self,
        image: ClusterImage,
        topic: str,
        partition: PartitionImage,
        change: AlterPartitionItem,
        after: PartitionImage,
        stopping: frozenset[int],
    ) -> None:
        """A leader's request for another ISR was granted."""
        tp = (topic, partition.partition)
        asked = (change.leader, change.leader_epoch, change.partition_epoch)
        present = (partition.leader, partition.leader_epoch, partition.partition_epoch)
        if asked != present:
            self._broken(
                "decision", f"{tp}: an ISR request of {asked} is accepted, and the leader is {present}"
            )
        if set(after.isr) != {broker for broker, _ in change.isr}:
            self._broken("decision", f"{tp}: {change.isr} is asked for, and {after.isr} granted")
        for broker, epoch in change.isr:
            registered = image.brokers.get(broker)
            if registered is None:
                self._broken("decision", f"{tp}: {broker} joins the ISR, and is not alive")
            elif epoch not in (ANY_EPOCH, registered.epoch):
                self._broken("decision", f"{tp}: {broker} joins the ISR, and was requested in epoch {epoch}")
            elif broker not in partition.isr and (
                epoch == ANY_EPOCH
                or broker in stopping
                or broker in partition.offline
                or registered.lost.is_lost(*tp)
            ):
                self._broken("decision", f"{tp}: {broker} ({epoch}) joins {partition}, and may not")
        self._knowledge().granted.setdefault(tp, set()).add(frozenset(after.isr))

    def _looked(self, of: Failover, dead: Mapping[int, int]) -> None:
        """A controller has read the brokers: it knows those that it has read, except the dead.

        A registration that it cannot decode counts as read: the known broker stays.
        """
        image, registrations = of._context.image, self._knowledge().registrations
        if gone := sorted(image.brokers.keys() - registrations.keys()):
            self._broken("image", f"{gone} are known to live, and {sorted(registrations)} are registered")
        for broker, epoch in registrations.items():
            known = image.brokers.get(broker)
            if (known is None or known.epoch != epoch) and dead.get(broker) != epoch:
                self._broken("image", f"{broker} is registered with {epoch}, and is known as {known}, {dead}")

    def _check_answers(self, answered: ReceivedLogEnds) -> None:
        """No replica of a leaderless partition has less than it reports.

        Another controller may have elected a leader since, which the replica follows and for which it
        truncates its log.
        """
        for key, ends in answered.ends.items():
            tp = (key.topic, key.partition)
            for broker, end in ends.items():
                partition = self.log_of(broker, answered.registrations.get(broker, -1), tp)
                if partition is None or partition.is_offline:
                    continue
                latest = int(partition.log.leader_epochs.latest)
                has = LogEnd(latest, int(partition.log.end_offset))
                if end > has and partition.leader == NOBODY:
                    self._broken("decision", f"{broker} reports that {tp} ends at {end}, and has {has}")

    def _compare(self, context: ControllerContext, process: Process) -> None:
        """The controller's image of topics equals the store."""
        image, tree = context.image, self._tree()
        names = set(tree.children(TOPICS)) if tree.get(TOPICS) is not None else set()
        if names - {*image.topics, *image.deleting} or set(image.topics) - names:
            self._broken("image", f"the store has {sorted(names)}, and the controller {sorted(image.topics)}")
        for name, creation_id in self._marked.items():
            mark = tree.get(f"{DELETE_TOPICS}/{name}")
            if mark is not None and mark.creation_id == creation_id and name in image.topics:
                self._broken("image", f"{name} is marked for deletion, and the controller does not know it")
        for name, topic in image.topics.items():
            node = tree.get(TopicNode.path(name))
            if node is not None:
                self._compare_topic(topic, node)
            self._compare_settings(ConfigNode.path("topics", name), topic.config, context)
            self._check_policy(context, topic)
            for partition in topic.partitions:
                self._check_led(context, topic, partition, process)
        for name, config in image.broker_configs.items():
            self._compare_settings(ConfigNode.path("brokers", name), config, context)

    def _compare_index(self, whose: str, index: TopicIndex) -> None:
        """An incrementally changed index equals a rebuilt one."""
        for fault in _faults_of_index(index):
            self._broken("image", f"{whose} knows {sorted(index.by_name)}, and {fault}")
            return

    def _check_led(
        self, context: ControllerContext, topic: TopicImage, partition: PartitionImage, process: Process
    ) -> None:
        """The leader and the ISR are live and online; a partition with a candidate has a leader."""
        living, offline = context.image.brokers.keys(), partition.offline
        unfit = ({*partition.isr, partition.leader} - {NOBODY}) - (living - offline)
        tp = (topic.name, partition.partition)
        if unfit:
            self._broken(
                "decision",
                f"{tp} is {partition}, and {sorted(unfit)} do not live or cannot be read ({set(offline)})",
            )
        if partition.leader != NOBODY or partition.partition_epoch < 0:
            return
        read = self._knowledge_of[process].registrations
        able = living - offline - context.stopping()
        # A newly registered broker may have lost records: the report is handled first.
        able = {one for one in able if read.get(one) == context.image.brokers[one].epoch}
        could = able & {*partition.isr, *partition.elr} & set(partition.replicas)
        if could:
            self._broken("decision", f"{tp} is {partition}, and {sorted(could)} could lead")

    def _compare_topic(self, topic: TopicImage, node: StoreNode) -> None:
        name = topic.name
        assignment = TopicNode.decode(name, node.data)
        if (topic.topic_id, topic.node_version) != (assignment.topic_id, node.version):
            self._broken(
                "image", f"{name} is known as {topic.topic_id.hex()}, and the store has {assignment}"
            )
        if len(assignment.replicas) != len(topic.partitions):
            self._broken("image", f"{name} has {assignment.replicas}, and is known with {topic.partitions}")
            return
        for partition in topic.partitions:
            number = partition.partition
            known = (partition.replicas, partition.adding, partition.removing)
            stored = (
                assignment.replicas[number],
                assignment.adding.get(number, []),
                assignment.removing.get(number, []),
            )
            if known != stored:
                self._broken("image", f"{name}-{number} has the replicas {stored}, and is known with {known}")
            state = self._tree().get(PartitionStateNode.path(name, number))
            if (state.version if state is not None else -1) != partition.partition_epoch:
                self._broken("image", f"{name}-{number} has a state {state}, and is known with {partition}")
            elif state is not None:
                self._compare_state(
                    (name, number), partition, PartitionStateNode.decode(name, number, state.data)
                )

    def _compare_state(
        self, tp: PartitionKey, partition: PartitionImage, state: LeaderIsrAndControllerEpoch
    ) -> None:
        known = state._replace(
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            elr=tuple(partition.elr),
            last_known_leader=partition.last_known_leader,
            lost_replicas=tuple(partition.lost_replicas),
        )
        if known != state:
            self._broken("image", f"{tp} is {state} in the store, and is known as {known}")

    def _compare_settings(self, path: str, config: Mapping[str, str], context: ControllerContext) -> None:
        """A controller may learn later of settings that other clients have written since it was elected."""
        node = self._tree().get(path)
        writer, version = self._configs.get(path, (0, -1))
        if node is None or writer != context.store.session_id or version != node.version:
            return
        if ConfigNode.decode(path, node.data) != dict(config):
            self._broken("image", f"{path} is {node.data!r}, and is known as {config}")

    def _check_policy(self, context: ControllerContext, topic: TopicImage) -> None:
        """A controller uses the settings that it knows."""
        wanted = self._min_insync(context.image, topic)
        if context.policies.of(topic).min_insync_replicas != wanted:
            self._broken(
                "image",
                f"{topic.name} is elected with {context.policies.of(topic)}, and has {MIN_INSYNC} {wanted}",
            )


def _minimum_in(path: str, data: bytes) -> str | None:
    return ConfigNode.decode(path, data).get(MIN_INSYNC)


def _faults_of_index(index: TopicIndex) -> Iterator[str]:
    """Returns the differences of an index from one rebuilt from the same topics."""
    anew = TopicIndex(index.by_name)
    for what in ("by_id", "reassigning", "leaderless", "eligible"):
        known, right = getattr(index, what), getattr(anew, what)
        if dict(known) != dict(right):
            yield f"{what} has {list(known)}, and should have {list(right)}"
    for broker in sorted({*index.by_broker, *anew.by_broker}):
        # A broker may have no topics left.
        has, should = sorted(index.by_broker.get(broker, ())), sorted(anew.by_broker.get(broker, ()))
        if has != should:
            yield f"by_broker has {has} on {broker}, and should have {should}"


def _with_another_minimum(
    image: ClusterImage, settings: Mapping[ConfigResource, Mapping[str, str]]
) -> set[str]:
    """Returns the topics whose ``min.insync.replicas`` in these settings differs from the controller's."""
    known = image.default_broker_config()
    default = settings.get(ConfigResource("brokers", DEFAULT_ENTITY), known)
    is_other = default.get(MIN_INSYNC) != known.get(MIN_INSYNC)
    changed = set()
    for name, topic in image.topics.items():
        own = settings.get(ConfigResource("topics", name), topic.config)
        if own.get(MIN_INSYNC) != topic.config.get(MIN_INSYNC) or (is_other and MIN_INSYNC not in own):
            changed.add(name)
    return changed


def _moved(before: TopicAssignment, after: TopicAssignment, number: int) -> bool:
    return any(
        getattr(before, what).get(number) != getattr(after, what).get(number)
        for what in ("replicas", "adding", "removing")
    )


def _answers(answered: ReceivedLogEnds, tp: PartitionKey) -> Answers:
    key = TopicPartition(*tp)
    asked = answered.requested.get(key, ())
    registrations = {broker: answered.registrations[broker] for broker in asked}
    return Answers(answered.ends.get(key, {}), registrations)
