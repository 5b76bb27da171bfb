"""Elects partition leaders when brokers register, fail or report losses, and when the leader epoch must grow.

A leader is elected from the in-sync replicas (ISR), else from the eligible leader replicas (ELR). The ELR
holds the replicas that left the ISR while it was below ``min.insync.replicas``. Below that size nothing is
committed, so these replicas have every committed record.

An ISR shrink keeps ISR and ELR together at the minimum or above. They are smaller after creation with too few
live replicas, a reported loss, a recovery or unclean election, and a change of the minimum.

If both are empty, no replica is known to have every committed record. The partition recovers automatically
once waiting cannot help: the last leader is back with a log, or every replica has reported a loss. In this
case, and with ``unclean.leader.election.enable``, the controller elects the log with the highest last epoch,
and among these the longest.

This module has no I/O; see :mod:`tidemill.controller.topics`. Source: KIP-966; Apache Kafka,
``PartitionChangeBuilder.java``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidemill.controller.topics import Plan
from tidemill.coordination.cluster_image import ClusterImage, partition_state
from tidemill.coordination.coordination_store import Create, Operation, SetData
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import PartitionStateNode, TopicNode
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.coordination.topic_index import compute_traits_in_slices
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.ids import new_id
from tidemill.model.types import NO_BROKER, ZERO_ID, TopicPartition

CHANGES_PER_SLICE: Final = 100
"""Partitions planned without a pause, at some ten microseconds each."""

NO_BROKERS: frozenset[int] = frozenset()
NO_IDS: Mapping[str, bytes] = {}

Losses = Mapping[int, LostReplicas]
"""The reported losses, by broker."""
NO_LOSSES: Losses = {}


class LogEnd(NamedTuple):
    """The leader epoch of a replica's last record (-1: the log is empty), and its log end offset.

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
    """``unclean.leader.election.enable``: prefer availability over records."""
    min_insync_replicas: int = 1
    """``min.insync.replicas`` of the topic, or else of the cluster."""


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
    """Returns the partition with another leader and ISR. Replicas in ``lost`` lose their eligibility."""
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
    """The replicas that have reported a loss, now or before, since they were last in sync."""
    if not lost and not partition.lost_replicas:
        return []
    known = {*lost, *partition.lost_replicas}.difference(isr)
    return [broker for broker in partition.replicas if broker in known]


def _eligible(
    partition: PartitionImage, isr: Sequence[int], policy: ElectionPolicy, lost: Collection[int]
) -> list[int]:
    """The ELR for this ISR: empty while the ISR has enough members to commit."""
    if len(isr) >= partition.effective_min_isr(policy.min_insync_replicas):
        return []
    complete = complete_replicas(partition, policy)
    return [
        broker
        for broker in partition.replicas
        if broker in complete and broker not in isr and broker not in lost
    ]


def complete_replicas(partition: PartitionImage, policy: ElectionPolicy) -> Collection[int]:
    """The replicas that have every committed record: the ISR and the ELR.

    Without the ELR if the leader can commit by the ISR alone: another client has lowered
    ``min.insync.replicas`` in the store and left the ELR unchanged.
    """
    minimum = partition.effective_min_isr(policy.min_insync_replicas)
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
    """The partition without a leader. Dead replicas leave ``isr`` and become eligible."""
    last_known = partition.leader if partition.leader != NO_BROKER else partition.last_known_leader
    if last_known == NO_BROKER and len(partition.isr) == 1:
        last_known = partition.isr[0]  # Written by Apache Kafka, which leaves the last leader in the ISR.
    # A broker that lost the replica by a reassignment has deleted it, and returns with an empty log.
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


def available_replicas(
    image: ClusterImage, partition: PartitionImage, stopping: frozenset[int] = NO_BROKERS
) -> list[int]:
    """The replicas that can be elected, in their order."""
    return [broker for broker in partition.replicas if is_available(image, partition, broker, stopping)]


def recovery_candidates(
    image: ClusterImage,
    partition: PartitionImage,
    policy: ElectionPolicy,
    stopping: frozenset[int] = NO_BROKERS,
) -> list[int]:
    """The leader candidates of a leaderless partition that may lack committed records.

    Empty while the partition waits for a member of its ISR or ELR, for its last leader, for an unclean
    election, or for a candidate to clear the loss from its registration. The next controller would apply the
    loss of a leader again, after the leader has acknowledged records.
    """
    if partition.leader != NO_BROKER or partition.partition_epoch < 0:
        return []
    available = available_replicas(image, partition, stopping)
    eligible = {*partition.isr, *partition.elr}
    if not eligible.isdisjoint(available):
        return []
    is_unrecoverable = not eligible and (
        partition.last_known_leader in available or set(partition.replicas) <= set(partition.lost_replicas)
    )
    readable = available_replicas(image, partition)
    is_reporting = any(not image.brokers[broker].lost.is_none for broker in readable)
    return available if (policy.unclean or is_unrecoverable) and not is_reporting else []


def _best_candidate(candidates: Sequence[int], ends: Mapping[int, LogEnd] | None) -> int:
    """The candidate with the best log. Of several candidates, only those with a known log end count."""
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
    """The new state of a partition for the current live brokers; None to leave it unchanged.

    Replicas in ``lost`` may hold less than they acknowledged, those in ``missing`` hold nothing: both leave
    the ISR and the ELR first. Dead and offline replicas leave the ISR. The leader stays, or the first
    available replica of the ISR is elected, else of the ELR; never one that is ``stopping``. ``ends`` selects
    among the candidates of a recovery. Without ``recovers`` there is no recovery.

    The leader epoch grows when the leader changes. The partition epoch grows if a replica in ``lost`` is not
    in sync: its leader may be requesting to add it because of its former log, and that request is then
    rejected.
    """
    living = [
        broker for broker in partition.replicas if broker in image.brokers and broker not in partition.offline
    ]
    available = available_replicas(image, partition, stopping)
    if partition.partition_epoch < 0:
        # The partition has no state yet: its live replicas are in sync, with empty logs. If none is live, the
        # state is created later: with an empty ISR no leader could ever be elected.
        if not living:
            return None
        leader = (available or living)[0]
        return partition.replaced(leader=leader, leader_epoch=0, isr=living, partition_epoch=0)
    isr = [broker for broker in partition.isr if broker in living and broker not in lost]
    leader = partition.leader
    if leader not in isr:
        leader = next((broker for broker in available if broker in isr), NO_BROKER)
    if leader == NO_BROKER:
        complete = set(complete_replicas(partition, policy)).difference(lost)
        leader = next((broker for broker in available if broker in complete), NO_BROKER)
        isr = isr if leader == NO_BROKER else [leader]
    if leader == NO_BROKER:
        leaderless = _leaderless_state(partition, isr, policy, lost, missing)
        candidates = recovery_candidates(image, leaderless, policy, stopping) if recovers else []
        recovered = _best_candidate(candidates, ends)
        if recovered == NO_BROKER:
            return None if _is_unchanged(partition, leaderless) else leaderless
        # Records of other replicas beyond its log end are lost: no other replica is eligible.
        return next_state(leaderless, recovered, [recovered], policy, is_new_epoch=False).replaced(
            leader_epoch=partition.leader_epoch + 1, partition_epoch=partition.partition_epoch + 1, elr=[]
        )
    is_new_epoch = leader != partition.leader
    is_fencing = any(broker in lost and broker not in partition.isr for broker in partition.replicas)
    after = next_state(partition, leader, isr, policy, is_new_epoch=is_new_epoch, lost=lost)
    return None if not is_fencing and _is_unchanged(partition, after) else after


def _is_unchanged(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether two states are equal except for the partition epoch."""
    return (
        before.leader == after.leader
        and before.leader_epoch == after.leader_epoch
        and list(before.isr) == list(after.isr)
        and list(before.elr) == list(after.elr)
        and before.last_known_leader == after.last_known_leader
        and list(before.lost_replicas) == list(after.lost_replicas)
    )


def is_available(
    image: ClusterImage, partition: PartitionImage, broker: int, stopping: frozenset[int]
) -> bool:
    """Whether a replica can be elected: it is online, and its broker is live and not shutting down."""
    return broker in image.brokers and broker not in partition.offline and broker not in stopping


def plan_topic_elections(
    image: ClusterImage,
    losses: Losses = NO_LOSSES,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
    known_ids: Mapping[str, bytes] = NO_IDS,
    topics: Iterable[TopicImage] | None = None,
    ends: LogEnds = NO_LOG_ENDS,
    recovers: bool = True,
) -> list[Plan]:
    """Plans the elections of a new controller in all topics, or in ``topics``.

    A topic without an id gets the one in ``known_ids`` (a client has overwritten its node), or a new one.
    Partitions get the states of :func:`elect`. Without ``recovers``, no replica that may lack records is
    elected: the live brokers are not known.
    """
    plans = []
    for topic in image.topics.values() if topics is None else topics:
        elections = _plan_partitions_in_slices(
            image, topic, topic.partitions, policy_of(topic), losses, stopping, ends, recovers
        )
        plan = run_at_once(elections)
        if topic.topic_id == ZERO_ID:
            plan = _with_id(plan, known_ids.get(topic.name) or new_id())
        if plan.operations:
            plans.append(plan)
    return plans


def plan_broker_change_in_slices(
    image: ClusterImage,
    gone: Iterable[int] = (),
    came: Iterable[int] = (),
    losses: Losses = NO_LOSSES,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
    cleared: Iterable[int] = (),
) -> Generator[None, None, list[Plan]]:
    """Plans the elections of partitions with replicas on the named brokers.

    These are brokers that are ``gone``, ``came``, reported ``losses``, or have ``cleared`` their losses, so
    that recovery may elect them. ``image`` has the current live brokers. For the other parameters see
    :func:`plan_topic_elections`. Pauses between many partitions.
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
            plan = yield from _plan_partitions_in_slices(
                image, topic, partitions, policy_of(topic), losses, stopping
            )
            if plan.topic is not topic:
                plans.append(plan)
    return plans


def plan_reported_replicas_in_slices(
    image: ClusterImage,
    broker: int,
    reported: Mapping[bytes, Iterable[int]],
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
    *,
    is_offline: bool,
) -> Generator[None, None, list[Plan]]:
    """Plans the elections of the partitions (by topic id) whose replicas a broker has reported.

    ``is_offline``: the replicas of this live broker have failed; otherwise it serves offline replicas again.
    Pauses between many partitions.
    """
    plans = []
    for topic_id, numbers in reported.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        partitions = [
            partition.with_offline(
                partition.offline | {broker} if is_offline else partition.offline - {broker}
            )
            for partition in (topic.partition(number) for number in set(numbers))
            if partition is not None
            and broker in partition.replicas
            and (broker in partition.offline) != is_offline
        ]
        plan = yield from _plan_partitions_in_slices(
            image, topic, partitions, policy_of(topic), NO_LOSSES, stopping
        )
        if plan.topic is not topic:
            plans.append(plan)
    return plans


def _plan_partitions_in_slices(
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
        if count % CHANGES_PER_SLICE == 0:
            yield
        number = partition.partition
        lost = [
            replica
            for replica in partition.replicas
            if replica in losses and losses[replica].is_lost(topic.name, number)
        ]
        missing = [broker for broker in lost if losses[broker].is_missing(topic.name, number)]
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
    return (yield from plan_states_in_slices(topic, changed, image.controller_epoch))


def plan_policy_change(image: ClusterImage, topic: TopicImage) -> Plan:
    """Empties the ELR of a topic's partitions that have a leader, when ``min.insync.replicas`` changes.

    With a lower value, the leader commits without these replicas. Without a leader, nothing is committed.
    """
    changed = {
        partition.partition: partition.replaced(elr=[], partition_epoch=partition.partition_epoch + 1)
        for partition in topic.partitions
        if partition.elr and partition.leader != NO_BROKER
    }
    return plan_states(topic, changed, image.controller_epoch)


def plan_states(topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int) -> Plan:
    """Same as :func:`plan_states_in_slices`, without pauses."""
    return run_at_once(plan_states_in_slices(topic, changed, controller_epoch))


def plan_states_in_slices(
    topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int
) -> Generator[None, None, Plan]:
    """Plans new states of partitions, by number. Pauses between many partitions."""
    operations: list[Operation] = []
    for count, (number, partition) in enumerate(changed.items(), 1):
        if count % CHANGES_PER_SLICE == 0:
            yield
        old = topic.partitions[number]
        if partition.partition_epoch != old.partition_epoch:
            operations += write_state(topic.name, old, partition, controller_epoch)
    if not changed:
        return Plan(topic, operations)
    renewed = topic.with_partitions(changed.get(p.partition, p) for p in topic.partitions)
    yield from compute_traits_in_slices(renewed)
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
    """Writes the state ``new``. The transaction fails unless the stored state is ``old``."""
    data = PartitionStateNode.encode(partition_state(new, controller_epoch))
    path = PartitionStateNode.path(topic, new.partition)
    if old.partition_epoch < 0:
        return [Create(path, data)]
    return [SetData(path, data, old.partition_epoch)]
