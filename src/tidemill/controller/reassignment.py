"""Plans partition reassignments.

The topic node records the state of a reassignment, so any controller can continue it. In progress, the
replicas are the target replicas in their order, followed by the replicas to be removed:

===================== ========================= ============= ============= ====== =====================
step                  replicas                  adding        removing      leader in sync
===================== ========================= ============= ============= ====== =====================
before                1, 2, 3                                               1      1, 2, 3
begun                 4, 5, 1, 2, 3             4, 5          2, 3          1      1, 2, 3
caught up             4, 5, 1, 2, 3             4, 5          2, 3          1      1, 2, 3, 4, 5
done (target 4, 5, 1) 4, 5, 1                                               1      1, 4, 5
===================== ========================= ============= ============= ====== =====================

A reassignment is complete when all target replicas are in sync. The leader changes if it is to be removed. A
new target replaces a reassignment in progress, and starts from the original replicas. Cancelling makes these
the target; the order of replicas that are in both is lost by then. The leader epoch grows with every step, so
that every replica is notified. A target that equals the current replicas changes nothing.

If the changes do not fit into one transaction, the states are written first and the topic node last: see
:mod:`tidemill.coordination.write_batches`.

This module has no I/O; see :mod:`tidemill.controller.topics`. Source: KIP-455, KIP-860; the nodes as Kafka
3.9 writes them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tidemill.controller.leader_election import (
    NO_BROKERS,
    ElectionPolicy,
    PolicyOf,
    complete_replicas,
    default_policy,
    elect,
    is_available,
    next_state,
    plan_states,
)
from tidemill.controller.topics import Plan, format_ids
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.coordination_store import Delete, Operation, SetData
from tidemill.coordination.nodes import REASSIGN_PARTITIONS, ReassignmentNode, TopicNode
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.types import NO_BROKER, TopicPartition

Reassignments = Mapping[TopicPartition, Sequence[int] | None]
"""The target replicas of partitions, preferred leader first; None cancels a reassignment."""


class Decisions(NamedTuple):
    """A plan for each topic that changes, and the errors of rejected partitions."""

    plans: list[Plan]
    errors: dict[TopicPartition, KafkaError]


def plan_reassignment(
    image: ClusterImage,
    reassignments: Reassignments,
    *,
    factor_may_change: bool = True,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
) -> Decisions:
    """Starts, replaces and cancels reassignments, and completes those that add no replica.

    Errors: UNKNOWN_TOPIC_OR_PARTITION; INVALID_REPLICA_ASSIGNMENT for invalid replicas;
    INVALID_REPLICATION_FACTOR for another number of replicas, unless ``factor_may_change``;
    NO_REASSIGNMENT_IN_PROGRESS if there is none to cancel.
    """
    changed: dict[str, dict[int, PartitionImage]] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for key, replicas in reassignments.items():
        try:
            topic, partition = _find_partition(image, key)
            target = _target(image, partition, replicas, factor_may_change, stopping)
            moved = _moved(image, partition, target, policy_of(topic), stopping)
        except KafkaError as error:
            # A new error: the traceback of the caught one would refer to ``errors``.
            errors[key] = KafkaError(f"{key.topic}-{key.partition}: {error}", error.code)
            continue
        if moved is not None:
            changed.setdefault(key.topic, {})[key.partition] = moved
    plans = [_plan(image.topics[name], parts, image.controller_epoch) for name, parts in changed.items()]
    return Decisions(plans, errors)


def plan_completions(
    image: ClusterImage,
    stopping: frozenset[int] = NO_BROKERS,
    policy_of: PolicyOf = default_policy,
) -> list[Plan]:
    """Completes the reassignments whose target replicas are in sync."""
    plans = []
    for topic in _reassigned(image):
        changed = {}
        for partition in topic.partitions:
            done = (
                _completed(image, partition, policy_of(topic), stopping) if partition.is_reassigning else None
            )
            if done is not None:
                changed[partition.partition] = done
        if changed:
            plans.append(_plan(topic, changed, image.controller_epoch))
    return plans


def _reassigned(image: ClusterImage) -> list[TopicImage]:
    return [image.topics[name] for name in image.topic_index.reassigning]


def in_progress(
    image: ClusterImage, partitions: Iterable[TopicPartition] | None = None
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The reassignments in progress, of ``partitions`` or of all."""
    if partitions is None:
        for topic in _reassigned(image):
            for p in topic.partitions:
                if p.is_reassigning:
                    yield TopicPartition(topic.name, p.partition), p
        return
    for key in partitions:
        known = image.topics.get(key.topic)
        partition = known.partition(key.partition) if known is not None else None
        if partition is not None and partition.is_reassigning:
            yield key, partition


def find_completed_in_slices(delta: Delta) -> Generator[None, None, list[str]]:
    """The reassignments that a change has completed, as text, without cancelled ones.

    Pauses between many partitions.
    """
    texts = []
    for old, new in delta.changed:
        for count, (before, after) in enumerate(zip(old.partitions, new.partitions, strict=False), 1):
            if count % ITEMS_PER_SLICE == 0:
                yield
            if before is after or after.is_reassigning:
                continue
            target = [broker for broker in before.replicas if broker not in before.removing]
            # A reassignment that adds no replica completes at once.
            if (after.replicas == target) if before.is_reassigning else (after.replicas != before.replicas):
                texts.append(f"{TopicPartition(new.name, after.partition)} to {after.replicas}")
    return texts


def still_in_progress(
    image: ClusterImage, reassignments: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, Sequence[int]]:
    """Those of an administrator's reassignments (/admin/reassign_partitions) that are still in progress."""
    moving = dict(in_progress(image, reassignments))
    return {
        key: replicas
        for key, replicas in reassignments.items()
        if key in moving and moving[key].target == list(replicas)
    }


def write_reassignments(reassignments: Mapping[TopicPartition, Sequence[int]], version: int) -> Operation:
    """Writes the remaining reassignments to the administrator's node, or deletes the node."""
    if not reassignments:
        return Delete(REASSIGN_PARTITIONS, version)
    return SetData(REASSIGN_PARTITIONS, ReassignmentNode.encode(reassignments), version)


def _find_partition(image: ClusterImage, key: TopicPartition) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics.get(key.topic)
    partition = topic.partition(key.partition) if topic is not None else None
    if topic is None or partition is None:
        raise KafkaError("the partition does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic, partition


def _target(
    image: ClusterImage,
    partition: PartitionImage,
    replicas: Sequence[int] | None,
    factor_may_change: bool,
    stopping: frozenset[int],
) -> list[int]:
    if replicas is None:
        if not partition.is_reassigning:
            raise KafkaError("no reassignment is in progress", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return partition.origin
    problem = ""
    if not replicas:
        problem = "the list of replicas is empty. To cancel a reassignment, send null."
    elif len(set(replicas)) < len(replicas):
        problem = f"two replicas would be on one broker: {format_ids(replicas)}"
    else:
        there = {broker for broker in image.brokers if broker not in stopping}
        missing = [broker for broker in replicas if broker not in there and broker not in partition.origin]
        if missing:
            problem = f"brokers {format_ids(missing)} are not live (live: {format_ids(sorted(there))})"
    if problem:
        raise KafkaError(problem, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    factor = len(partition.target)
    if len(replicas) != factor and not factor_may_change:
        raise KafkaError(
            f"{len(replicas)} replica(s) are given, but the partition has {factor}: the request does not "
            "allow another replication factor",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    return list(replicas)


def _moved(
    image: ClusterImage,
    partition: PartitionImage,
    target: list[int],
    policy: ElectionPolicy,
    stopping: frozenset[int],
) -> PartitionImage | None:
    """The partition with the reassignment started or completed; None if nothing changes."""
    origin = partition.origin
    replicas = target + [broker for broker in origin if broker not in target]
    adding = [broker for broker in replicas if broker not in origin]
    removing = [broker for broker in replicas if broker not in target]
    before = (partition.replicas, partition.adding, partition.removing)
    if (replicas, adding, removing) == before:
        return None
    isr = [broker for broker in partition.isr if broker in replicas]
    leader = _leader(image, partition, partition.leader, replicas, isr, stopping)
    moved = partition.replaced(replicas=replicas, isr=isr, adding=adding, removing=removing)
    done = _completed(image, moved, policy, stopping) if moved.is_reassigning else None
    if done is not None:
        return done
    if not policy.unclean:
        _check_redundancy(partition, moved, policy)
    if leader != NO_BROKER:
        return next_state(moved, leader, isr, policy, is_new_epoch=True)
    elected = elect(image, moved, policy, stopping=stopping)
    if elected is None and partition.partition_epoch < 0:
        return moved  # The partition has no state yet.
    state = moved.replaced(partition_epoch=partition.partition_epoch + 1) if elected is None else elected
    return state.replaced(leader_epoch=partition.leader_epoch + 1)


def _check_redundancy(before: PartitionImage, moved: PartitionImage, policy: ElectionPolicy) -> None:
    """Raises if too few of the target replicas have every committed record.

    ``min.insync.replicas`` of the replicas with every record must stay, or all if there are fewer.
    """
    complete = sorted(complete_replicas(before, policy))
    kept = [broker for broker in complete if broker in moved.replicas]
    least = min(len(complete), moved.effective_min_isr(policy.min_insync_replicas))
    if len(kept) < least:
        having = format_ids(kept) if kept else "none"
        raise KafkaError(
            f"of the replicas {format_ids(moved.replicas)} only {having} would have every committed record, "
            f"but min.insync.replicas requires {least}. Wait until more of them are in sync, or keep some of "
            f"{format_ids(complete)}.",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )


def _leader(
    image: ClusterImage,
    partition: PartitionImage,
    leader: int,
    replicas: list[int],
    isr: list[int],
    stopping: frozenset[int],
) -> int:
    """The current leader if it can stay, else the first of ``replicas`` that can lead, else NO_BROKER."""
    if leader in isr and is_available(image, partition, leader, NO_BROKERS):
        return leader
    available = (
        replica
        for replica in replicas
        if replica in isr and is_available(image, partition, replica, stopping)
    )
    return next(available, NO_BROKER)


def _completed(
    image: ClusterImage, partition: PartitionImage, policy: ElectionPolicy, stopping: frozenset[int]
) -> PartitionImage | None:
    target = partition.target
    if not set(target) <= set(partition.isr):
        return None
    isr = [broker for broker in partition.isr if broker in target]
    leader = _leader(image, partition, partition.leader, target, isr, stopping)
    if leader == NO_BROKER:
        return None  # The old replicas stay: one of them may be able to lead.
    arrived = partition.replaced(replicas=target, adding=None, removing=None)
    return next_state(arrived, leader, isr, policy, is_new_epoch=True)


def _plan(topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int) -> Plan:
    moved, operations = plan_states(topic, changed, controller_epoch)
    moved = moved.with_partitions(moved.partitions, topic.node_version + 1)
    data = TopicNode.encode(moved.assignment())
    return Plan(moved, [*operations, SetData(TopicNode.path(topic.name), data, topic.node_version)])
