"""Decisions about leaders: who leads the partitions that nobody leads, and when an epoch has to grow.

No input or output here; see :mod:`tidemill.controller.topics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tidemill.controller.topics import Plan
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import NO_BROKER, ClusterImage, PartitionImage, TopicImage, partition_state
from tidemill.coordination.nodes import PartitionStateNode, TopicNode
from tidemill.coordination.port import Create, Operation, SetData
from tidemill.model.types import ZERO_ID

NOBODY: frozenset[int] = frozenset()
NO_IDS: Mapping[str, bytes] = {}


def elect(
    image: ClusterImage,
    partition: PartitionImage,
    *,
    unclean: bool = False,
    lost: frozenset[int] = NOBODY,
    stopping: frozenset[int] = NOBODY,
) -> PartitionImage | None:
    """The state that a partition gets now that some brokers live and others do not; None to leave it.

    Those in ``lost`` live, but may have lost what they had not synced: they leave the in-sync set, also if
    the others of it are dead. Where there are no others, they are all there is, and stay. The dead and those
    whose replica is offline leave it while somebody leads: the leader stays, or the first of the replicas
    in sync takes over, but none that is ``stopping``. With nobody to lead, the partition waits for the last
    members, or with ``unclean`` the first replica that lives leads alone, and what it does not have is gone.

    The leader epoch grows when the leader changes, or may have lost something. The version grows where one in
    ``lost`` is not in sync: its leader may be asking for it, by what it had before, and is then refused.
    """
    living = [
        broker for broker in partition.replicas if broker in image.brokers and broker not in partition.offline
    ]
    able = [broker for broker in living if broker not in stopping] if stopping else living
    if partition.partition_epoch < 0:
        # It never had a state: the replicas that live are in sync, being empty.
        leader = next(iter(able or living), NO_BROKER)
        number, adding, removing = partition.partition, partition.adding, partition.removing
        return PartitionImage(number, leader, 0, partition.replicas, living, 0, adding, removing)
    members = [broker for broker in partition.isr if broker not in lost] or partition.isr
    isr = [broker for broker in members if broker in living]
    leader = partition.leader
    if leader not in isr:
        leader = next((broker for broker in able if broker in isr), NO_BROKER)
        if leader == NO_BROKER and unclean and able:
            leader, isr = able[0], able[:1]
    if leader == NO_BROKER:
        is_news = partition.leader != NO_BROKER
        if not is_news and members == partition.isr:
            return None
        return partition.with_state(NO_BROKER, members, is_new_epoch=is_news)
    is_new_epoch = leader != partition.leader or leader in lost
    is_asked_for = any(broker in lost and broker not in partition.isr for broker in partition.replicas)
    if not is_new_epoch and isr == partition.isr and not is_asked_for:
        return None
    return partition.with_state(leader, isr, is_new_epoch=is_new_epoch)


def is_able(image: ClusterImage, partition: PartitionImage, broker: int, stopping: frozenset[int]) -> bool:
    """Whether a replica could lead: its broker lives, can read and write it, and is not about to stop."""
    return broker in image.brokers and broker not in partition.offline and broker not in stopping


def never(topic: TopicImage) -> bool:
    """For ``is_unclean``: no topic may lose records."""
    return False


def plan_takeover(
    image: ClusterImage,
    lost: Iterable[int] = (),
    is_unclean: Callable[[TopicImage], bool] = never,
    stopping: frozenset[int] = NOBODY,
    known_ids: Mapping[str, bytes] = NO_IDS,
    topics: Iterable[TopicImage] | None = None,
) -> list[Plan]:
    """What a new controller has to put right in each topic, or in each of ``topics``.

    Topics without an id get the one in ``known_ids`` (it was lost when somebody wrote their node), or a new
    one, and partitions the state that :func:`elect` gives them. ``is_unclean`` says
    whether a topic rather loses records than waits (``unclean.leader.election.enable``).
    """
    gone = frozenset(lost)
    plans = []
    for topic in image.topics.values() if topics is None else topics:
        plan = _plan_elections(image, topic, topic.partitions, is_unclean(topic), gone, stopping)
        if topic.topic_id == ZERO_ID:
            plan = _with_id(plan, known_ids.get(topic.name) or new_id())
        if plan.operations:
            plans.append(plan)
    return plans


def plan_broker_change(
    image: ClusterImage,
    gone: Iterable[int] = (),
    came: Iterable[int] = (),
    lost: Iterable[int] = (),
    is_unclean: Callable[[TopicImage], bool] = never,
    stopping: frozenset[int] = NOBODY,
) -> list[Plan]:
    """What becomes of the partitions with replicas on brokers that are gone, came, or may have lost records.

    ``image`` is the cluster with the brokers that live now. Partitions without a replica on one of them are
    not looked at. The rest as in :func:`plan_takeover`.
    """
    losers = frozenset(lost)
    returned = frozenset(came)
    touched = losers.union(gone, came)
    plans = []
    for topic in image.topics.values():
        partitions = [
            p if returned.isdisjoint(p.offline) else p.with_offline(p.offline - returned)
            for p in topic.partitions
            if not touched.isdisjoint(p.replicas)
        ]
        if partitions:
            plan = _plan_elections(image, topic, partitions, is_unclean(topic), losers, stopping)
            if plan.topic is not topic:
                plans.append(plan)
    return plans


def plan_failed_replicas(
    image: ClusterImage,
    broker: int,
    failed: Mapping[bytes, Iterable[int]],
    is_unclean: Callable[[TopicImage], bool] = never,
    stopping: frozenset[int] = NOBODY,
) -> list[Plan]:
    """What becomes of the partitions (by topic id) whose replicas on a broker that lives have failed."""
    plans = []
    for topic_id, numbers in failed.items():
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        partitions = [
            one.with_offline(one.offline | {broker})
            for one in (topic.partition(number) for number in set(numbers))
            if one is not None and broker in one.replicas and broker not in one.offline
        ]
        plan = _plan_elections(image, topic, partitions, is_unclean(topic), NOBODY, stopping)
        if plan.topic is not topic:
            plans.append(plan)
    return plans


def _plan_elections(
    image: ClusterImage,
    topic: TopicImage,
    partitions: Sequence[PartitionImage],
    unclean: bool,
    lost: frozenset[int],
    stopping: frozenset[int],
) -> Plan:
    changed = {}
    for partition in partitions:
        elected = elect(image, partition, unclean=unclean, lost=lost, stopping=stopping)
        if elected is not None:
            changed[partition.partition] = elected
        elif partition is not topic.partitions[partition.partition]:
            changed[partition.partition] = partition
    return plan_states(topic, changed, image.controller_epoch)


def plan_states(topic: TopicImage, changed: Mapping[int, PartitionImage], controller_epoch: int) -> Plan:
    """Gives the partitions of these numbers other states."""
    operations: list[Operation] = []
    for number, partition in changed.items():
        old = topic.partitions[number]
        if partition.partition_epoch != old.partition_epoch:
            operations += write_state(topic.name, old, partition, controller_epoch)
    if not changed:
        return Plan(topic, operations)
    return Plan(topic.with_partitions(changed.get(p.partition, p) for p in topic.partitions), operations)


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
