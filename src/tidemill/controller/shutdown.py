"""Decisions about a broker that is about to stop: who leads in its place.

No input or output here; see :mod:`tidemill.controller.topics`. Source: KIP-49 (ControlledShutdown), KIP-841.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from tidemill.controller.elections import (
    CHANGES_A_PAUSE,
    ElectionPolicy,
    PolicyOf,
    default_policy,
    next_state,
    planning_states,
)
from tidemill.controller.topics import Plan
from tidemill.coordination.image import ClusterImage, PartitionImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.slices import in_one_go
from tidemill.model.types import TopicPartition

ANY_EPOCH = -1
"""A broker that does not say which of its registrations it means."""


class Shutdown(NamedTuple):
    """What to do for a broker that stops, and what it leads until it has stopped."""

    plans: list[Plan]
    remaining: list[TopicPartition]
    """With other replicas, none of which can lead now. What has no other replica is not counted."""


def check_stopping(image: ClusterImage, broker: int, epoch: int = ANY_EPOCH) -> None:
    """Raises BROKER_NOT_AVAILABLE when there is no such broker, STALE_BROKER_EPOCH for another run of it."""
    registered = image.brokers.get(broker)
    if registered is None:
        raise KafkaError(f"broker {broker} is not there", ErrorCode.BROKER_NOT_AVAILABLE)
    if epoch not in (ANY_EPOCH, registered.epoch):
        raise KafkaError(
            f"broker {broker} has epoch {registered.epoch}: the one of {epoch} was another run of it",
            ErrorCode.STALE_BROKER_EPOCH,
        )


def plan_shutdown(
    image: ClusterImage, broker: int, stopping: frozenset[int], policy_of: PolicyOf = default_policy
) -> Shutdown:
    """The same as :func:`planning_shutdown`, in one go."""
    return in_one_go(planning_shutdown(image, broker, stopping, policy_of))


def planning_shutdown(
    image: ClusterImage, broker: int, stopping: frozenset[int], policy_of: PolicyOf = default_policy
) -> Generator[None, None, Shutdown]:
    """Moves leaderships away from ``broker``, and takes it out of the in-sync sets, where others are in sync.

    ``stopping`` are all brokers that are about to stop, ``broker`` among them; none of them is elected. It
    pauses between many partitions.
    """
    stopping |= {broker}
    plans = []
    remaining = []
    for topic in image.topic_index.with_replicas_on([broker]):
        changed = {}
        for count, partition in enumerate(topic.partitions, 1):
            if count % CHANGES_A_PAUSE == 0:
                yield
            if broker not in partition.replicas or len(partition.replicas) == 1:
                continue
            relieved = _relieved(image, partition, broker, policy_of(topic), stopping)
            if relieved is not None:
                changed[partition.partition] = relieved
            elif partition.leader == broker:
                remaining.append(TopicPartition(topic.name, partition.partition))
        if changed:
            plans.append((yield from planning_states(topic, changed, image.controller_epoch)))
    return Shutdown(plans, remaining)


def _relieved(
    image: ClusterImage,
    partition: PartitionImage,
    broker: int,
    policy: ElectionPolicy,
    stopping: frozenset[int],
) -> PartitionImage | None:
    if partition.leader != broker:
        isr = [member for member in partition.isr if member != broker]
        if isr == partition.isr or partition.leader not in isr:
            return None
        return next_state(partition, partition.leader, isr, policy, is_new_epoch=False)
    isr = [member for member in partition.isr if member in image.brokers and member not in stopping]
    leader = next((member for member in partition.replicas if member in isr), None)
    if leader is None:
        return None
    return next_state(partition, leader, isr, policy, is_new_epoch=True)
