"""Decisions about leaders: who leads the partitions that nobody leads, and when an epoch has to grow.

No input or output here; see :mod:`tidemill.controller.topics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill.controller.topics import Plan
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import NO_BROKER, ClusterImage, PartitionImage, TopicImage, partition_state
from tidemill.coordination.nodes import PartitionStateNode, TopicNode
from tidemill.coordination.port import Create, Operation, SetData
from tidemill.model.types import ZERO_ID


def elect(
    image: ClusterImage,
    partition: PartitionImage,
    *,
    unclean: bool = False,
    lost: frozenset[int] = frozenset(),
) -> PartitionImage | None:
    """The state that a partition gets now that some brokers live and others do not; None to leave it.

    The dead leave the in-sync set, and so do those in ``lost``: they live, but may have lost what they had
    not synced. Where nobody else is in sync, they are all there is, and stay. The leader stays, or the first
    of the replicas in sync takes over. With nobody in sync alive the partition waits for the last members, or
    with ``unclean`` the first replica that lives leads alone, and what it does not have is gone.

    The leader epoch grows when the leader changes, or may have lost something.
    """
    living = [broker for broker in partition.replicas if broker in image.brokers]
    if partition.partition_epoch < 0:
        # It never had a state: the replicas that live are in sync, being empty.
        leader = living[0] if living else NO_BROKER
        return PartitionImage(partition.partition, leader, 0, partition.replicas, living, 0)
    there = [broker for broker in partition.isr if broker in image.brokers]
    isr = [broker for broker in there if broker not in lost] or there
    if not isr and unclean and living:
        isr = living[:1]
    if not isr:
        if partition.leader == NO_BROKER:
            return None
        return _changed(partition, NO_BROKER, partition.isr, is_new_epoch=True)
    leader = partition.leader
    if leader not in isr:
        leader = next((broker for broker in living if broker in isr), isr[0])
    is_new_epoch = leader != partition.leader or leader in lost
    if not is_new_epoch and isr == partition.isr:
        return None
    return _changed(partition, leader, isr, is_new_epoch=is_new_epoch)


def _changed(partition: PartitionImage, leader: int, isr: list[int], *, is_new_epoch: bool) -> PartitionImage:
    return PartitionImage(
        partition.partition,
        leader,
        partition.leader_epoch + is_new_epoch,
        partition.replicas,
        isr,
        partition.partition_epoch + 1,
    )


def plan_takeover(
    image: ClusterImage,
    lost: Iterable[int] = (),
    is_unclean: Callable[[TopicImage], bool] = lambda topic: False,
) -> list[Plan]:
    """What has to be put right in each topic: by a new controller, and when brokers came or went.

    Topics without an id get one, and partitions the state that :func:`elect` gives them. ``is_unclean`` says
    whether a topic rather loses records than waits (``unclean.leader.election.enable``).
    """
    gone = frozenset(lost)
    plans = []
    for topic in image.topics.values():
        changed = list(topic.partitions)
        operations: list[Operation] = []
        unclean = is_unclean(topic)
        for place, partition in enumerate(topic.partitions):
            elected = elect(image, partition, unclean=unclean, lost=gone)
            if elected is not None:
                changed[place] = elected
                operations += write_state(topic.name, partition, elected, image.controller_epoch)
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


def write_state(
    topic: str, old: PartitionImage, new: PartitionImage, controller_epoch: int
) -> list[Operation]:
    """Writes the state ``new`` over ``old``, unless somebody else has changed it."""
    data = PartitionStateNode.encode(partition_state(new, controller_epoch))
    path = PartitionStateNode.path(topic, new.partition)
    if old.partition_epoch < 0:
        return [Create(path, data)]
    return [SetData(path, data, old.partition_epoch)]
