"""Decides who leads a partition: after brokers came, went or reported a loss, and when an epoch has to grow.

A leader is elected from the in-sync set, else from the eligible leader replicas (ELR). The ELR holds the
replicas that left the in-sync set while it fell below ``min.insync.replicas``. As nothing is committed below
that, they have every committed record. In-sync set and ELR together never fall below
``min.insync.replicas``, except by a loss that a broker reports.

Where both are empty, no replica is known to have every committed record. The partition recovers by itself
once waiting cannot help: the last leader is back with a log, or every replica has reported a loss. Then, and
with ``unclean.leader.election.enable``, the log with the highest last epoch leads, among these the longest.

No input or output here; see :mod:`tidemill.controller.topics`. Source: KIP-966; Apache Kafka,
``PartitionChangeBuilder.java``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidemill.controller.topics import Plan
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import NO_BROKER, ClusterImage, PartitionImage, TopicImage, partition_state
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import PartitionStateNode, TopicNode
from tidemill.coordination.port import Create, Operation, SetData
from tidemill.coordination.topic_index import noting_traits
from tidemill.model.slices import in_one_go
from tidemill.model.types import ZERO_ID, TopicPartition

CHANGES_A_PAUSE: Final = 100
"""Partitions that are decided in one go, some ten microseconds each."""

NO_BROKERS: frozenset[int] = frozenset()
NO_IDS: Mapping[str, bytes] = {}

Losses = Mapping[int, LostReplicas]
"""What brokers have reported lost, by broker."""
NO_LOSSES: Losses = {}


class LogEnd(NamedTuple):
    """How far a replica's log reaches: the leader epoch of its last record (-1: it has none), its end offset.

    The larger of two is the better leader.
    """

    epoch: int
    offset: int


LogEnds = Mapping[TopicPartition, Mapping[int, LogEnd]]
"""Log ends by broker."""
NO_LOG_ENDS: LogEnds = {}


class ElectionPolicy(NamedTuple):
    """The settings of a topic that elections depend on."""

    unclean: bool = False
    """``unclean.leader.election.enable``: lose records rather than wait."""
    min_insync_replicas: int = 1
    """``min.insync.replicas`` of the topic, else of the cluster."""


PolicyOf = Callable[[TopicImage], ElectionPolicy]


def default_policy(topic: TopicImage) -> ElectionPolicy:
    """The policy of a topic without settings in a cluster without settings."""
    return ElectionPolicy()


def next_state(
    partition: PartitionImage,
    leader: int,
    isr: Sequence[int],
    policy: ElectionPolicy,
    *,
    is_new_epoch: bool,
    lost: Collection[int] = NO_BROKERS,
) -> PartitionImage:
    """The partition with a leader and this in-sync set. Replicas in ``lost`` are not eligible any more."""
    return partition.replaced(
        leader=leader,
        leader_epoch=partition.leader_epoch + is_new_epoch,
        isr=list(isr),
        partition_epoch=partition.partition_epoch + 1,
        elr=_eligible(partition, isr, policy, lost),
        last_known_leader=NO_BROKER,
        lost_replicas=_lost_replicas(partition, isr, lost),
    )


def _lost_replicas(partition: PartitionImage, isr: Sequence[int], lost: Collection[int]) -> list[int]:
    """The replicas that have reported a loss since they were in sync last: now, or as the state says."""
    if not lost and not partition.lost_replicas:
        return []
    known = {*lost, *partition.lost_replicas}.difference(isr)
    return [broker for broker in partition.replicas if broker in known]


def _eligible(
    partition: PartitionImage, isr: Sequence[int], policy: ElectionPolicy, lost: Collection[int]
) -> list[int]:
    """The ELR beside ``isr``: empty as long as enough are in sync for commits."""
    if len(isr) >= partition.min_insync(policy.min_insync_replicas):
        return []
    whole = whole_replicas(partition, policy)
    return [
        broker
        for broker in partition.replicas
        if broker in whole and broker not in isr and broker not in lost
    ]


def whole_replicas(partition: PartitionImage, policy: ElectionPolicy) -> Collection[int]:
    """The replicas that have every committed record: the in-sync set and the ELR.

    Without the ELR, where a leader commits by the in-sync set alone: somebody has lowered
    ``min.insync.replicas`` in the store, and left the ELR as it was.
    """
    minimum = partition.min_insync(policy.min_insync_replicas)
    if partition.leader != NO_BROKER and len(partition.isr) >= minimum:
        return partition.isr
    return {*partition.isr, *partition.elr}


def _leaderless_state(
    partition: PartitionImage,
    isr: Sequence[int],
    policy: ElectionPolicy,
    lost: Collection[int],
    missing: Collection[int],
) -> PartitionImage:
    """The partition without a leader. The dead leave ``isr``, and are eligible."""
    last_known = partition.leader if partition.leader != NO_BROKER else partition.last_known_leader
    if last_known == NO_BROKER and len(partition.isr) == 1:
        last_known = partition.isr[0]  # Written by Apache Kafka, which leaves the last leader there.
    # A broker that a move took the replica from has deleted it, and comes back empty.
    is_gone = last_known in missing or last_known not in partition.replicas
    return partition.replaced(
        leader=NO_BROKER,
        leader_epoch=partition.leader_epoch + (partition.leader != NO_BROKER),
        isr=list(isr),
        partition_epoch=partition.partition_epoch + 1,
        elr=_eligible(partition, isr, policy, lost),
        last_known_leader=NO_BROKER if is_gone else last_known,
        lost_replicas=_lost_replicas(partition, isr, lost),
    )


def able_replicas(
    image: ClusterImage, partition: PartitionImage, stopping: frozenset[int] = NO_BROKERS
) -> list[int]:
    """The replicas that could lead, in their order."""
    return [broker for broker in partition.replicas if is_able(image, partition, broker, stopping)]


def recovery_candidates(
    image: ClusterImage,
    partition: PartitionImage,
    policy: ElectionPolicy,
    stopping: frozenset[int] = NO_BROKERS,
) -> list[int]:
    """The candidates for the leader of a leaderless partition that may lack committed records.

    Empty as long as the partition waits: for a member of its in-sync set or ELR, for its last leader, for an
    unclean election, or for a candidate to clear the loss from its registration. A leader's loss would be
    counted once more by the next controller, after the leader has acknowledged records.
    """
    if partition.leader != NO_BROKER or partition.partition_epoch < 0:
        return []
    able = able_replicas(image, partition, stopping)
    eligible = {*partition.isr, *partition.elr}
    if not eligible.isdisjoint(able):
        return []
    is_hopeless = not eligible and (
        partition.last_known_leader in able or set(partition.replicas) <= set(partition.lost_replicas)
    )
    readable = able_replicas(image, partition)
    is_reporting = any(not image.brokers[one].lost.is_none for one in readable)
    return able if (policy.unclean or is_hopeless) and not is_reporting else []


def _best(candidates: Sequence[int], ends: Mapping[int, LogEnd] | None) -> int:
    """The candidate with the best log. Of several candidates only those whose log end is known count."""
    if len(candidates) == 1:
        return candidates[0]
    known = [broker for broker in candidates if ends is not None and broker in ends]
    return max(known, key=lambda broker: ends[broker], default=NO_BROKER) if ends else NO_BROKER


def elect(
    image: ClusterImage,
    partition: PartitionImage,
    policy: ElectionPolicy,
    *,
    lost: Collection[int] = NO_BROKERS,
    missing: Collection[int] = NO_BROKERS,
    stopping: frozenset[int] = NO_BROKERS,
    ends: Mapping[int, LogEnd] | None = None,
    recovers: bool = True,
) -> PartitionImage | None:
    """The state that a partition gets now that some brokers live and others do not; None to leave it.

    Replicas in ``lost`` may hold less than they acknowledged, those in ``missing`` hold nothing: they leave
    the in-sync set and the ELR before anything is decided. The dead, and those whose replica is offline,
    leave the in-sync set. The leader stays, or the first able replica of the in-sync set takes over, else of
    the ELR; none that is ``stopping``. ``ends`` decides among the candidates of a recovery; there is none
    without ``recovers``.

    The leader epoch grows when the leader changes. The version grows where one in ``lost`` is not in sync:
    its leader may be asking for it, by what it had before, and is then refused.
    """
    living = [
        broker for broker in partition.replicas if broker in image.brokers and broker not in partition.offline
    ]
    able = able_replicas(image, partition, stopping)
    if partition.partition_epoch < 0:
        # It never had a state: the replicas that live are in sync, being empty. Where none lives it gets its
        # state later: in one without any replica in sync, nobody could be elected.
        if not living:
            return None
        leader = (able or living)[0]
        return partition.replaced(leader=leader, leader_epoch=0, isr=living, partition_epoch=0)
    isr = [broker for broker in partition.isr if broker in living and broker not in lost]
    leader = partition.leader
    if leader not in isr:
        leader = next((broker for broker in able if broker in isr), NO_BROKER)
    if leader == NO_BROKER:
        whole = set(whole_replicas(partition, policy)).difference(lost)
        leader = next((broker for broker in able if broker in whole), NO_BROKER)
        isr = isr if leader == NO_BROKER else [leader]
    if leader == NO_BROKER:
        leaderless = _leaderless_state(partition, isr, policy, lost, missing)
        candidates = recovery_candidates(image, leaderless, policy, stopping) if recovers else []
        recovered = _best(candidates, ends)
        if recovered == NO_BROKER:
            return None if _is_same(partition, leaderless) else leaderless
        # What others hold beyond its log counts no more: no other replica is eligible.
        return next_state(leaderless, recovered, [recovered], policy, is_new_epoch=False).replaced(
            leader_epoch=partition.leader_epoch + 1, partition_epoch=partition.partition_epoch + 1, elr=[]
        )
    is_new_epoch = leader != partition.leader
    is_asked_for = any(broker in lost and broker not in partition.isr for broker in partition.replicas)
    after = next_state(partition, leader, isr, policy, is_new_epoch=is_new_epoch, lost=lost)
    return None if not is_asked_for and _is_same(partition, after) else after


def _is_same(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether two states say the same, whatever their version."""
    return (
        before.leader == after.leader
        and before.leader_epoch == after.leader_epoch
        and list(before.isr) == list(after.isr)
        and list(before.elr) == list(after.elr)
        and before.last_known_leader == after.last_known_leader
        and list(before.lost_replicas) == list(after.lost_replicas)
    )


def is_able(image: ClusterImage, partition: PartitionImage, broker: int, stopping: frozenset[int]) -> bool:
    """Whether a replica could lead: its broker lives, can read and write it, and is not about to stop."""
    return broker in image.brokers and broker not in partition.offline and broker not in stopping


def plan_takeover(
    image: ClusterImage,
    losses: Losses = NO_LOSSES,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
    known_ids: Mapping[str, bytes] = NO_IDS,
    topics: Iterable[TopicImage] | None = None,
    ends: LogEnds = NO_LOG_ENDS,
    recovers: bool = True,
) -> list[Plan]:
    """Plans the elections that a new controller has to hold in each topic, or in each of ``topics``.

    Topics without an id get the one in ``known_ids`` (it was lost when somebody wrote their node), or a new
    one, and partitions the state that :func:`elect` gives them. Without ``recovers`` no replica leads that
    may lack records: it is not known who lives.
    """
    plans = []
    for topic in image.topics.values() if topics is None else topics:
        elections = _planning_elections(
            image, topic, topic.partitions, policy_of(topic), losses, stopping, ends, recovers
        )
        plan = in_one_go(elections)
        if topic.topic_id == ZERO_ID:
            plan = _with_id(plan, known_ids.get(topic.name) or new_id())
        if plan.operations:
            plans.append(plan)
    return plans


def plan_broker_change(
    image: ClusterImage,
    gone: Iterable[int] = (),
    came: Iterable[int] = (),
    losses: Losses = NO_LOSSES,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
) -> list[Plan]:
    """The same as :func:`planning_broker_change`, in one go."""
    return in_one_go(planning_broker_change(image, gone, came, losses, policy_of, stopping))


def planning_broker_change(
    image: ClusterImage,
    gone: Iterable[int] = (),
    came: Iterable[int] = (),
    losses: Losses = NO_LOSSES,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
    cleared: Iterable[int] = (),
) -> Generator[None, None, list[Plan]]:
    """Plans the elections of partitions with replicas on brokers that are gone, came, have lost records, or
    have ``cleared`` their losses: recovery may elect them now.

    ``image`` is the cluster with the brokers that live now. Partitions without a replica on one of them are
    not looked at. The rest as in :func:`plan_takeover`. It pauses between many partitions.
    """
    returned = frozenset(came)
    touched = returned.union(gone, losses, cleared)
    plans = []
    for topic in image.topic_index.with_replicas_on(sorted(touched)):
        partitions = [
            p if returned.isdisjoint(p.offline) else p.with_offline(p.offline - returned)
            for p in topic.partitions
            if not touched.isdisjoint(p.replicas)
        ]
        if partitions:
            plan = yield from _planning_elections(
                image, topic, partitions, policy_of(topic), losses, stopping
            )
            if plan.topic is not topic:
                plans.append(plan)
    return plans


def plan_failed_replicas(
    image: ClusterImage,
    broker: int,
    failed: Mapping[bytes, Iterable[int]],
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
) -> list[Plan]:
    """The same as :func:`planning_failed_replicas`, in one go."""
    return in_one_go(planning_failed_replicas(image, broker, failed, policy_of, stopping))


def planning_failed_replicas(
    image: ClusterImage,
    broker: int,
    failed: Mapping[bytes, Iterable[int]],
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
) -> Generator[None, None, list[Plan]]:
    """Plans the elections of the partitions (by topic id) whose replicas on a live broker have failed.

    It pauses between many partitions.
    """
    return (yield from _planning_reported_replicas(image, broker, failed, True, policy_of, stopping))


def planning_served_replicas(
    image: ClusterImage,
    broker: int,
    served: Mapping[bytes, Iterable[int]],
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
) -> Generator[None, None, list[Plan]]:
    """Plans the elections of the partitions (by topic id) whose offline replicas a broker serves again.

    It pauses between many partitions.
    """
    return (yield from _planning_reported_replicas(image, broker, served, False, policy_of, stopping))


def _planning_reported_replicas(
    image: ClusterImage,
    broker: int,
    reported: Mapping[bytes, Iterable[int]],
    is_offline: bool,
    policy_of: PolicyOf,
    stopping: frozenset[int],
) -> Generator[None, None, list[Plan]]:
    plans = []
    for topic_id, numbers in reported.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        partitions = [
            one.with_offline(one.offline | {broker} if is_offline else one.offline - {broker})
            for one in (topic.partition(number) for number in set(numbers))
            if one is not None and broker in one.replicas and (broker in one.offline) != is_offline
        ]
        plan = yield from _planning_elections(image, topic, partitions, policy_of(topic), NO_LOSSES, stopping)
        if plan.topic is not topic:
            plans.append(plan)
    return plans


def _planning_elections(
    image: ClusterImage,
    topic: TopicImage,
    partitions: Sequence[PartitionImage],
    policy: ElectionPolicy,
    losses: Losses,
    stopping: frozenset[int],
    ends: LogEnds = NO_LOG_ENDS,
    recovers: bool = True,
) -> Generator[None, None, Plan]:
    changed = {}
    for count, partition in enumerate(partitions, 1):
        if count % CHANGES_A_PAUSE == 0:
            yield
        number = partition.partition
        lost = [
            one for one in partition.replicas if one in losses and losses[one].is_lost(topic.name, number)
        ]
        missing = [one for one in lost if losses[one].is_missing(topic.name, number)]
        known = ends.get(TopicPartition(topic.name, number)) if ends else None
        elected = elect(
            image,
            partition,
            policy,
            lost=lost,
            missing=missing,
            stopping=stopping,
            ends=known,
            recovers=recovers,
        )
        if elected is not None:
            changed[number] = elected
        elif partition is not topic.partitions[number]:
            changed[number] = partition
    return (yield from planning_states(topic, changed, image.controller_epoch))


def plan_policy_change(image: ClusterImage, topic: TopicImage) -> Plan:
    """Empties the ELR of a topic's partitions that are led, as ``min.insync.replicas`` becomes another.

    With a lower value the leader commits without them. Nothing is committed without a leader.
    """
    changed = {
        one.partition: one.replaced(elr=[], partition_epoch=one.partition_epoch + 1)
        for one in topic.partitions
        if one.elr and one.leader != NO_BROKER
    }
    return plan_states(topic, changed, image.controller_epoch)


def plan_states(topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int) -> Plan:
    """The same as :func:`planning_states`, in one go."""
    return in_one_go(planning_states(topic, changed, controller_epoch))


def planning_states(
    topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int
) -> Generator[None, None, Plan]:
    """Gives the partitions of these numbers other states; pauses between many."""
    operations: list[Operation] = []
    for count, (number, partition) in enumerate(changed.items(), 1):
        if count % CHANGES_A_PAUSE == 0:
            yield
        old = topic.partitions[number]
        if partition.partition_epoch != old.partition_epoch:
            operations += write_state(topic.name, old, partition, controller_epoch)
    if not changed:
        return Plan(topic, operations)
    renewed = topic.with_partitions(changed.get(p.partition, p) for p in topic.partitions)
    yield from noting_traits(renewed)
    return Plan(renewed, operations)


def _with_id(plan: Plan, topic_id: bytes) -> Plan:
    topic = plan.topic
    renewed = TopicImage(
        topic.name, topic_id, topic.partitions, topic.config, topic.node_version + 1, topic.has_config_node
    )
    data = TopicNode.encode(renewed.assignment())
    return Plan(renewed, [*plan.operations, SetData(TopicNode.path(topic.name), data, topic.node_version)])


def write_state(
    topic: str, old: PartitionImage, new: PartitionImage, controller_epoch: int
) -> list[Operation]:
    """Writes the state ``new`` over ``old``, unless somebody else has changed it."""
    data = PartitionStateNode.encode(partition_state(new, controller_epoch))
    path = PartitionStateNode.path(topic, new.partition)
    if old.partition_epoch < 0:
        return [Create(path, data)]
    return [SetData(path, data, old.partition_epoch)]
