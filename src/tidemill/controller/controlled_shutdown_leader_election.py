"""Plans the leader changes of a controlled shutdown.

This module has no I/O; see :mod:`tidemill.controller.topics`. Source: KIP-49 (ControlledShutdown), KIP-841.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from tidemill.controller.alter_partition import ANY_EPOCH
from tidemill.controller.leader_election import (
    CHANGES_PER_SLICE,
    ElectionPolicy,
    PolicyOf,
    default_policy,
    next_state,
    plan_states_in_slices,
)
from tidemill.controller.topics import Plan
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition


class Shutdown(NamedTuple):
    """The plans for a broker that is shutting down, and the partitions that it still leads."""

    plans: list[Plan]
    remaining: list[TopicPartition]
    """Partitions that no other replica can lead now. Partitions with a single replica are not included."""


def check_stopping(image: ClusterImage, broker: int, *, broker_epoch: int = ANY_EPOCH) -> None:
    """Raises BROKER_NOT_AVAILABLE if the broker is not live, STALE_BROKER_EPOCH for another registration."""
    registered = image.brokers.get(broker)
    if registered is None:
        raise KafkaError(f"broker {broker} is not live", ErrorCode.BROKER_NOT_AVAILABLE)
    if broker_epoch not in (ANY_EPOCH, registered.epoch):
        raise KafkaError(
            f"broker {broker} has epoch {registered.epoch}, not {broker_epoch}: it has registered again",
            ErrorCode.STALE_BROKER_EPOCH,
        )


def plan_shutdown_in_slices(
    image: ClusterImage, broker: int, stopping: frozenset[int], policy_of: PolicyOf = default_policy
) -> Generator[None, None, Shutdown]:
    """Moves leadership away from ``broker`` and removes it from the ISRs, where other replicas are in sync.

    ``stopping`` are all brokers that are shutting down. None of them is elected. Pauses between many
    partitions.
    """
    stopping |= {broker}
    plans = []
    remaining = []
    for topic in image.topic_index.with_replicas_on([broker]):
        changed = {}
        for count, partition in enumerate(topic.partitions, 1):
            if count % CHANGES_PER_SLICE == 0:
                yield
            if broker not in partition.replicas or len(partition.replicas) == 1:
                continue
            relieved = _relieved(image, partition, broker, policy_of(topic), stopping)
            if relieved is not None:
                changed[partition.partition] = relieved
            elif partition.leader == broker:
                remaining.append(TopicPartition(topic.name, partition.partition))
        if changed:
            plans.append((yield from plan_states_in_slices(topic, changed, image.controller_epoch)))
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
