"""Plans requested leader elections and the return of leadership to preferred replicas.

This module has no I/O; see :mod:`tidemill.controller.topics`. Source: KIP-460 (ElectLeaders), KIP-183.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from tidemill.controller.leader_election import (
    NO_BROKERS,
    NO_LOG_ENDS,
    ElectionPolicy,
    LogEnds,
    PolicyOf,
    default_policy,
    elect,
    is_available,
    next_state,
    plan_states,
)
from tidemill.controller.reassignment import Decisions
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import NO_BROKER, TopicPartition


class ElectionType(IntEnum):
    """The election type of ElectLeaders."""

    PREFERRED = 0
    """Elects the first replica, if it is in sync."""
    UNCLEAN = 1
    """For leaderless partitions: elects a live replica, and loses the records that it lacks."""


def plan_elections(
    image: ClusterImage,
    partitions: Iterable[TopicPartition] | None,
    election_type: int,
    stopping: frozenset[int] = NO_BROKERS,
    policy_of: PolicyOf = default_policy,
    ends: LogEnds = NO_LOG_ENDS,
    *,
    are_named: bool = True,
) -> Decisions:
    """Plans elections for ``partitions``, or if that is None, for all partitions that need one.

    ``are_named``: the request names the partitions, and gets an error for those that need no election or do
    not exist. ``ends`` are the log ends by which an unclean election chooses.

    Errors: INVALID_REQUEST for an unknown type, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION for
    topics in deletion, ELECTION_NOT_NEEDED (only with ``are_named``), PREFERRED_LEADER_NOT_AVAILABLE and
    ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    if election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        raise KafkaError(
            f"unknown election type {election_type}: preferred is {ElectionType.PREFERRED:d}, unclean "
            f"{ElectionType.UNCLEAN:d}",
            ErrorCode.INVALID_REQUEST,
        )
    requested = partitions if partitions is not None else every_partition(image, image.topics)
    is_all = partitions is None or not are_named
    changed: dict[str, dict[int, PartitionImage]] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for key in requested:
        try:
            elected = _elect_one(image, key, election_type, stopping, policy_of, ends)
        except KafkaError as error:
            if not is_all or error.code not in _OF_NAMED_ONLY:
                errors[key] = error.as_result()
            continue
        changed.setdefault(key.topic, {})[key.partition] = elected
    plans = [
        plan_states(image.topics[name], parts, image.controller_epoch) for name, parts in changed.items()
    ]
    return Decisions(plans, errors)


_OF_NAMED_ONLY = frozenset(
    {
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)


def every_partition(image: ClusterImage, topics: Iterable[str]) -> list[TopicPartition]:
    """The partitions of the existing topics among ``topics``."""
    found = (image.topics.get(name) for name in topics)
    return [
        TopicPartition(topic.name, p.partition)
        for topic in found
        if topic is not None
        for p in topic.partitions
    ]


def _elect_one(
    image: ClusterImage,
    requested: TopicPartition,
    election_type: int,
    stopping: frozenset[int],
    policy_of: PolicyOf,
    ends: LogEnds,
) -> PartitionImage:
    name, number = requested
    if name in image.deleting:
        raise KafkaError(f"the topic {name} is being deleted", ErrorCode.INVALID_TOPIC_EXCEPTION)
    topic = image.topics.get(name)
    partition = topic.partition(number) if topic is not None else None
    if topic is None or partition is None:
        raise KafkaError(f"there is no partition {name}-{number}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if election_type == ElectionType.PREFERRED:
        return _preferred(image, name, partition, policy_of(topic), stopping)
    if partition.leader in image.brokers:
        raise KafkaError(
            f"{name}-{number} is led by broker {partition.leader}", ErrorCode.ELECTION_NOT_NEEDED
        )
    policy = policy_of(topic)._replace(unclean=True)
    elected = elect(image, partition, policy, stopping=stopping, ends=ends.get(requested))
    if elected is None or elected.leader == NO_BROKER:
        raise KafkaError(
            f"no replica of {name}-{number} could be elected: the brokers {partition.replicas} are down, "
            "shutting down or starting, or did not return their log ends in time. Try again",
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        )
    return elected


def _preferred(
    image: ClusterImage,
    name: str,
    partition: PartitionImage,
    policy: ElectionPolicy,
    stopping: frozenset[int],
) -> PartitionImage:
    preferred = partition.replicas[0] if partition.replicas else NO_BROKER
    if partition.leader == preferred:
        raise KafkaError(
            f"{name}-{partition.partition} is led by its preferred replica, broker {preferred}",
            ErrorCode.ELECTION_NOT_NEEDED,
        )
    if not can_lead(image, partition, stopping):
        raise KafkaError(
            f"broker {preferred}, the preferred replica of {name}-{partition.partition}, is not live, "
            f"not in sync, offline or shutting down (in sync: {partition.isr})",
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        )
    isr = [broker for broker in partition.isr if broker in image.brokers]
    return next_state(partition, preferred, isr, policy, is_new_epoch=True)


def can_lead(image: ClusterImage, partition: PartitionImage, stopping: frozenset[int] = NO_BROKERS) -> bool:
    """Whether the preferred replica can be elected now."""
    preferred = partition.replicas[0] if partition.replicas else NO_BROKER
    return preferred in partition.isr and is_available(image, partition, preferred, stopping)


def imbalanced_partitions(
    image: ClusterImage, percentage: int, stopping: frozenset[int] = NO_BROKERS
) -> list[TopicPartition]:
    """The partitions that should be led by their preferred replicas again, and can be.

    These belong to brokers for which more than ``percentage`` of the partitions that prefer them have another
    leader (``leader.imbalance.per.broker.percentage``).
    """
    held: dict[int, int] = {}
    elsewhere: dict[int, list[tuple[str, PartitionImage]]] = {}
    for topic in image.topics.values():
        for partition in topic.partitions:
            if not partition.replicas:
                continue  # Written to the store by an administrator.
            preferred = partition.replicas[0]
            held[preferred] = held.get(preferred, 0) + 1
            if partition.leader != preferred:
                elsewhere.setdefault(preferred, []).append((topic.name, partition))
    return [
        TopicPartition(name, partition.partition)
        for broker, partitions in elsewhere.items()
        if len(partitions) * 100 > percentage * held[broker]
        for name, partition in partitions
        if can_lead(image, partition, stopping)
    ]
