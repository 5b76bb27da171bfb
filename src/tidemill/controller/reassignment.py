"""Decisions about moves of partitions to other brokers.

The topic's node says where a move stands, so that any controller can go on with it. While it is under way,
the replicas are the wished ones in their order, and after them those that go:

===================== ========================= ============= ============= ====== =====================
step                  replicas                  adding        removing      leader in sync
===================== ========================= ============= ============= ====== =====================
before                1, 2, 3                                               1      1, 2, 3
begun                 4, 5, 1, 2, 3             4, 5          2, 3          1      1, 2, 3
caught up             4, 5, 1, 2, 3             4, 5          2, 3          1      1, 2, 3, 4, 5
done (wish: 4, 5, 1)  4, 5, 1                                               1      1, 4, 5
===================== ========================= ============= ============= ====== =====================

A move is done when all wished replicas are in sync; the leader changes if it has to go. Another wish replaces
one that is under way, and starts from where the partition was before that. To cancel is to wish that; the
order of replicas that are in both is lost by then. The leader epoch grows with every step, so that every
replica takes notice. A wish for what is so already changes nothing.

A step writes the states first and the topic's node last, if they do not fit into one transaction: see
:mod:`tidemill.coordination.pieces`.

No input or output here; see :mod:`tidemill.controller.topics`. Source: KIP-455, KIP-860; the nodes as Kafka
3.9 writes them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tidemill.controller.elections import (
    NO_BROKERS,
    ElectionPolicy,
    PolicyOf,
    default_policy,
    elect,
    is_able,
    next_state,
    plan_states,
    whole_replicas,
)
from tidemill.controller.topics import Plan, shown
from tidemill.coordination.image import NO_BROKER, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import ReassignmentNode, TopicNode
from tidemill.coordination.port import Delete, Operation, SetData
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.slices import ITEMS_A_PAUSE
from tidemill.model.types import TopicPartition

Wishes = Mapping[TopicPartition, Sequence[int] | None]
"""The brokers that partitions are to have, the preferred leader first; None stops a move and reverts it."""


class Decisions(NamedTuple):
    """What to do for those who can have their wish, a plan for each topic, and why others cannot."""

    plans: list[Plan]
    errors: dict[TopicPartition, KafkaError]


def plan_reassignment(
    image: ClusterImage,
    wishes: Wishes,
    *,
    factor_may_change: bool = True,
    policy_of: PolicyOf = default_policy,
    stopping: frozenset[int] = NO_BROKERS,
) -> Decisions:
    """Begins, replaces, stops, and where nobody has to catch up also ends, the moves of partitions.

    Errors: UNKNOWN_TOPIC_OR_PARTITION; INVALID_REPLICA_ASSIGNMENT for replicas that cannot be;
    INVALID_REPLICATION_FACTOR for another number of them, unless ``factor_may_change``;
    NO_REASSIGNMENT_IN_PROGRESS where nothing can be stopped.
    """
    changed: dict[str, dict[int, PartitionImage]] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for wished, replicas in wishes.items():
        try:
            topic, partition = _known(image, wished)
            target = _target(image, partition, replicas, factor_may_change, stopping)
            moved = _moved(image, partition, target, policy_of(topic), stopping)
        except KafkaError as error:
            # Without a traceback, and so without a way back to ``errors``.
            errors[wished] = KafkaError(f"{wished.topic}-{wished.partition}: {error}", error.code)
            continue
        if moved is not None:
            changed.setdefault(wished.topic, {})[wished.partition] = moved
    plans = [_plan(image.topics[name], parts, image.controller_epoch) for name, parts in changed.items()]
    return Decisions(plans, errors)


def plan_progress(
    image: ClusterImage,
    topics: Iterable[TopicImage] | None = None,
    stopping: frozenset[int] = NO_BROKERS,
    policy_of: PolicyOf = default_policy,
) -> list[Plan]:
    """Ends the moves, of ``topics`` or of all, whose wished replicas are in sync by now."""
    plans = []
    for topic in _moving(image) if topics is None else topics:
        changed = {}
        for partition in topic.partitions:
            done = _completed(image, partition, policy_of(topic), stopping) if partition.is_moving else None
            if done is not None:
                changed[partition.partition] = done
        if changed:
            plans.append(_plan(topic, changed, image.controller_epoch))
    return plans


def _moving(image: ClusterImage) -> list[TopicImage]:
    return [image.topics[name] for name in image.topic_index.moving]


def moves(
    image: ClusterImage, partitions: Iterable[TopicPartition] | None = None
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """The moves that are under way, of ``partitions`` or of all; what is not there does not move."""
    if partitions is None:
        for topic in _moving(image):
            for one in topic.partitions:
                if one.is_moving:
                    yield TopicPartition(topic.name, one.partition), one
        return
    for key in partitions:
        known = image.topics.get(key.topic)
        partition = known.partition(key.partition) if known is not None else None
        if partition is not None and partition.is_moving:
            yield key, partition


def finding_ended(delta: Delta) -> Generator[None, None, list[str]]:
    """The moves that a change has ended, as text; those that were cancelled are not named.

    It pauses between many partitions.
    """
    texts = []
    for old, new in delta.changed:
        for count, (before, after) in enumerate(zip(old.partitions, new.partitions, strict=False), 1):
            if count % ITEMS_A_PAUSE == 0:
                yield
            if before is after or after.is_moving:
                continue
            wished = [broker for broker in before.replicas if broker not in before.removing]
            # One that adds no replica is done at once.
            if (after.replicas == wished) if before.is_moving else (after.replicas != before.replicas):
                texts.append(f"{TopicPartition(new.name, after.partition)} to {after.replicas}")
    return texts


def unfinished(
    image: ClusterImage, wishes: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, Sequence[int]]:
    """Those of an administrator's wishes (/admin/reassign_partitions) that are under way as he wished."""
    moving = dict(moves(image, wishes))
    return {
        wished: replicas
        for wished, replicas in wishes.items()
        if wished in moving and moving[wished].target == list(replicas)
    }


def write_wishes(wishes: Mapping[TopicPartition, Sequence[int]], version: int) -> Operation:
    """Leaves these wishes in the administrator's node; without any the node goes, and is free for others."""
    if not wishes:
        return Delete(ReassignmentNode.path, version)
    return SetData(ReassignmentNode.path, ReassignmentNode.encode(wishes), version)


def _known(image: ClusterImage, wished: TopicPartition) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics.get(wished.topic)
    partition = topic.partition(wished.partition) if topic is not None else None
    if topic is None or partition is None:
        raise KafkaError("there is no such partition", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic, partition


def _target(
    image: ClusterImage,
    partition: PartitionImage,
    replicas: Sequence[int] | None,
    factor_may_change: bool,
    stopping: frozenset[int],
) -> list[int]:
    if replicas is None:
        if not partition.is_moving:
            raise KafkaError("it does not move", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return partition.origin
    problem = ""
    if not replicas:
        problem = "no replica is named. To stop a move, name none at all (null)."
    elif len(set(replicas)) < len(replicas):
        problem = f"two replicas would be on one broker: {shown(replicas)}"
    else:
        there = {broker for broker in image.brokers if broker not in stopping}
        missing = [broker for broker in replicas if broker not in there and broker not in partition.origin]
        if missing:
            problem = f"no broker {shown(missing)} lives to take a replica (living: {shown(sorted(there))})"
    if problem:
        raise KafkaError(problem, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    factor = len(partition.target)
    if len(replicas) != factor and not factor_may_change:
        raise KafkaError(
            f"{len(replicas)} replica(s) are named, and it has {factor}: the request says that the number "
            "does not change",
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
    """The partition on its way to ``target``, or there; None when it is so already."""
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
    done = _completed(image, moved, policy, stopping) if moved.is_moving else None
    if done is not None:
        return done
    if not policy.unclean:
        _check_redundancy(partition, moved, policy)
    if leader != NO_BROKER:
        return next_state(moved, leader, isr, policy, is_new_epoch=True)
    elected = elect(image, moved, policy, stopping=stopping)
    if elected is None and partition.partition_epoch < 0:
        return moved  # It has no state yet.
    state = moved.replaced(partition_epoch=partition.partition_epoch + 1) if elected is None else elected
    return state.replaced(leader_epoch=partition.leader_epoch + 1)


def _check_redundancy(before: PartitionImage, moved: PartitionImage, policy: ElectionPolicy) -> None:
    """Raises where replicas that a move has brought in would go, and too few of the others have each record.

    As many as ``min.insync.replicas`` have to stay, or as many as there are.
    """
    whole = sorted(whole_replicas(before, policy))
    kept = [broker for broker in whole if broker in moved.replicas]
    least = min(len(whole), moved.min_insync(policy.min_insync_replicas))
    if len(kept) < least:
        having = shown(kept) if kept else "none"
        raise KafkaError(
            f"of the replicas {shown(moved.replicas)} only {having} would have every committed record, and "
            f"min.insync.replicas asks for {least}. Wait until more of them are in sync, or keep others of "
            f"{shown(whole)}.",
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
    """The leader, if it can stay, or the first of ``replicas`` that can lead, or nobody."""
    if leader in isr and is_able(image, partition, leader, NO_BROKERS):
        return leader
    able = (one for one in replicas if one in isr and is_able(image, partition, one, stopping))
    return next(able, NO_BROKER)


def _completed(
    image: ClusterImage, partition: PartitionImage, policy: ElectionPolicy, stopping: frozenset[int]
) -> PartitionImage | None:
    target = partition.target
    if not set(target) <= set(partition.isr):
        return None
    isr = [broker for broker in partition.isr if broker in target]
    leader = _leader(image, partition, partition.leader, target, isr, stopping)
    if leader == NO_BROKER:
        return None  # The old ones stay, and one of them may be able to lead.
    arrived = partition.replaced(replicas=target, adding=None, removing=None)
    return next_state(arrived, leader, isr, policy, is_new_epoch=True)


def _plan(topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int) -> Plan:
    moved, operations = plan_states(topic, changed, controller_epoch)
    moved = moved.with_partitions(moved.partitions, topic.node_version + 1)
    data = TopicNode.encode(moved.assignment())
    return Plan(moved, [*operations, SetData(TopicNode.path(topic.name), data, topic.node_version)])
