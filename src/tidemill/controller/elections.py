"""Decisions about leaders: who leads the partitions that nobody leads, and when an epoch has to grow.

No input or output here; see :mod:`tidemill.controller.topics`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.controller.topics import Plan
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import NO_BROKER, ClusterImage, PartitionImage, TopicImage, partition_state
from tidemill.coordination.nodes import PartitionStateNode, TopicNode
from tidemill.coordination.port import Create, Operation, SetData
from tidemill.model.types import ZERO_ID


def elect(image: ClusterImage, partition: PartitionImage) -> PartitionImage | None:
    """The partition led by the first of its living replicas in sync; None to leave it as it is."""
    if partition.leader in image.brokers:
        return None
    living = [broker for broker in partition.replicas if broker in image.brokers]
    if (
        partition.partition_epoch < 0
    ):  # It never had a state: the replicas that live are in sync, being empty.
        leader = living[0] if living else NO_BROKER
        return PartitionImage(partition.partition, leader, 0, partition.replicas, living, 0)
    candidates = [broker for broker in living if broker in partition.isr]
    leader = candidates[0] if candidates else NO_BROKER
    if leader == partition.leader:
        return None
    isr = candidates if candidates else partition.isr
    return _next_epoch(partition, leader, isr)


def _next_epoch(partition: PartitionImage, leader: int, isr: list[int]) -> PartitionImage:
    return PartitionImage(
        partition.partition,
        leader,
        partition.leader_epoch + 1,
        partition.replicas,
        isr,
        partition.partition_epoch + 1,
    )


def plan_takeover(image: ClusterImage, unclean_brokers: Iterable[int] = ()) -> list[Plan]:
    """What a new controller has to put right in each topic.

    Topics without an id get one, partitions without a living leader get one where they can, and partitions
    led by a broker that may have lost what it had not synced get a new epoch, so that readers notice.
    """
    unclean = frozenset(unclean_brokers)
    plans = []
    for topic in image.topics.values():
        changed = list(topic.partitions)
        operations: list[Operation] = []
        for place, partition in enumerate(topic.partitions):
            elected = elect(image, partition)
            if elected is None and partition.leader in unclean:
                elected = _next_epoch(partition, partition.leader, partition.isr)
            if elected is not None:
                changed[place] = elected
                operations += _write_state(topic.name, partition, elected, image.controller_epoch)
        topic_id, node_version = topic.topic_id, topic.node_version
        if topic_id == ZERO_ID:
            topic_id, node_version = new_id(), node_version + 1
        if operations or topic_id != topic.topic_id:
            renewed = TopicImage(
                topic.name, topic_id, tuple(changed), topic.config, node_version, topic.has_config_node
            )
            if topic_id != topic.topic_id:
                data = TopicNode.encode(renewed.assignment())
                operations.append(SetData(TopicNode.path(topic.name), data, topic.node_version))
            plans.append(Plan(renewed, operations))
    return plans


def _write_state(
    topic: str, old: PartitionImage, new: PartitionImage, controller_epoch: int
) -> list[Operation]:
    data = PartitionStateNode.encode(partition_state(new, controller_epoch))
    path = PartitionStateNode.path(topic, new.partition)
    if old.partition_epoch < 0:
        return [Create(path, data)]
    return [SetData(path, data, old.partition_epoch)]
