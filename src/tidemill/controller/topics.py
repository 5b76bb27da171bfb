"""Decisions about topics: whether one may be made, grown or deleted, and what that writes to the store.

No input or output here: what is known (an image of the cluster, the configuration, a source of randomness)
goes in, and a plan comes out, or a :class:`KafkaError` with the code for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from tidemill.controller.deletions import waiting_text
from tidemill.controller.names import METADATA_TOPIC, TakenNames, check_name
from tidemill.controller.placement import PARTITIONS_A_PAUSE, placing_replicas
from tidemill.coordination.image import (
    OFFSETS_TOPIC,
    TOPIC,
    ClusterImage,
    PartitionImage,
    TopicImage,
    partition_state,
)
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    ConfigNode,
    DeleteTopicNode,
    PartitionStateNode,
    TopicNode,
)
from tidemill.coordination.port import Check, Create, Delete, Operation, SetData
from tidemill.coordination.topic_index import noting_traits
from tidemill.model.configs import BrokerConfig, check_topic_settings
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError
from tidemill.model.slices import in_one_go

PARTITIONS_PER_REQUEST_MAX = 10_000
"""As in Kafka: one request cannot tie the controller up, nor fill its memory by one large number."""

CHOOSE = -1
"""As a count: take the broker's default."""


class NewTopic(NamedTuple):
    """A topic that a client wants. Counts of -1 stand for the broker's defaults."""

    name: str
    partition_count: int = CHOOSE
    replication_factor: int = CHOOSE
    assignments: Mapping[int, Sequence[int]] = {}
    """Replicas by partition, when the client chose them itself."""
    config: Mapping[str, str | None] = {}


class Growth(NamedTuple):
    """A topic that is to have ``partition_count`` partitions in all."""

    name: str
    partition_count: int
    assignments: Sequence[Sequence[int]] | None = None
    """Replicas of each new partition, when the client chose them itself."""


class Plan(NamedTuple):
    """What to write for one topic, and what it is afterwards."""

    topic: TopicImage
    operations: list[Operation]


Planning = Generator[None, None, Plan]
"""Pauses now and then; what it plans for holds when it began."""


class PartitionBudget:
    """How many partitions one request may still make."""

    def __init__(self, partitions_max: int = PARTITIONS_PER_REQUEST_MAX) -> None:
        self._left = partitions_max

    def take(self, count: int) -> None:
        """Raises POLICY_VIOLATION when ``count`` are too many."""
        if count > self._left:
            raise KafkaError(
                f"{count} partitions are too many: one request makes at most {PARTITIONS_PER_REQUEST_MAX}. "
                "Ask for fewer, or in several requests.",
                ErrorCode.POLICY_VIOLATION,
            )
        self._left -= count


def plan_creation(
    image: ClusterImage,
    wanted: NewTopic,
    config: BrokerConfig,
    topic_id: bytes,
    random: Random,
    taken: TakenNames,
    budget: PartitionBudget,
) -> Plan:
    """As :func:`planning_creation`, in one go."""
    return in_one_go(planning_creation(image, wanted, config, topic_id, random, taken, budget))


def planning_creation(
    image: ClusterImage,
    wanted: NewTopic,
    config: BrokerConfig,
    topic_id: bytes,
    random: Random,
    taken: TakenNames,
    budget: PartitionBudget,
    awaited: Callable[[str], Collection[int]] = lambda name: (),
) -> Planning:
    """Makes a topic, with a pause after some partitions each.

    ``taken`` and ``budget`` are those of the whole request. ``awaited`` gives the brokers that the deletion
    of a topic of that name waits for.
    """
    check_name(wanted.name)
    if wanted.name == METADATA_TOPIC:
        raise KafkaError(f"the topic {METADATA_TOPIC} cannot be created", ErrorCode.INVALID_REQUEST)
    if wanted.name in image.topics:
        raise KafkaError(f"the topic {wanted.name!r} exists already", ErrorCode.TOPIC_ALREADY_EXISTS)
    if wanted.name in image.deleting:
        text = waiting_text(wanted.name, awaited(wanted.name), image.brokers)
        raise KafkaError(text, ErrorCode.TOPIC_ALREADY_EXISTS)
    if (TOPIC, wanted.name) in image.unreadable:
        raise KafkaError(
            f"the topic {wanted.name!r} exists already: {image.unreadable[TOPIC, wanted.name]}",
            ErrorCode.TOPIC_ALREADY_EXISTS,
        )
    taken.check(wanted.name)
    settings = check_settings(wanted.config)
    replicas = yield from _replicas_of(image, wanted, config, random, budget)
    taken.add(wanted.name)
    partitions = yield from _new_partitions(image, replicas, 0)
    topic = TopicImage(wanted.name, topic_id, tuple(partitions), settings)
    data = yield from _encoded(topic)
    operations: list[Operation] = [
        write_config("topics", topic.name, settings, False),
        Create(TopicNode.path(topic.name), data),
        Create(PartitionStateNode.parents(topic.name)),
    ]
    operations += yield from state_creations(topic, 0, image.controller_epoch)
    yield from noting_traits(topic)
    return Plan(topic, operations)


def _new_partitions(
    image: ClusterImage, replicas: Sequence[Sequence[int]], first: int
) -> Generator[None, None, list[PartitionImage]]:
    partitions = []
    for number, placed in enumerate(replicas, first):
        partitions.append(PartitionImage(number, placed[0], 0, list(placed), _in_sync(image, placed)))
        if len(partitions) % PARTITIONS_A_PAUSE == 0:
            yield
    return partitions


def _encoded(topic: TopicImage) -> Generator[None, None, bytes]:
    assignment = topic.assignment()
    if len(topic.partitions) > PARTITIONS_A_PAUSE:
        yield
    return (yield from TopicNode.encoding(assignment))


def is_creation(plan: Plan) -> bool:
    """Whether ``plan`` makes a topic, whose settings come first."""
    first = plan.operations[0]
    return isinstance(first, Create) and first.path == ConfigNode.path("topics", plan.topic.name)


def over_old_settings(plan: Plan) -> Plan:
    """As ``plan``, where the store holds settings under the topic's name, left from before."""
    config = write_config("topics", plan.topic.name, plan.topic.config, True)
    return plan._replace(operations=[config, *plan.operations[1:]])


def write_config(kind: str, name: str, settings: Mapping[str, str], exists: bool) -> Operation:
    """Writes the settings of a topic or broker, over those that are there if there are any."""
    path = ConfigNode.path(kind, name)
    data = ConfigNode.encode(settings)
    return SetData(path, data) if exists else Create(path, data)


def check_settings(settings: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of a topic, checked; INVALID_CONFIG for one that it cannot have."""
    try:
        check_topic_settings(settings)
    except ConfigError as error:
        raise KafkaError(str(error), ErrorCode.INVALID_CONFIG) from None
    return {name: text for name, text in settings.items() if text is not None}


def state_creations(
    topic: TopicImage, first: int, controller_epoch: int
) -> Generator[None, None, list[Operation]]:
    """Makes the state nodes of the partitions from number ``first`` on."""
    operations: list[Operation] = []
    for partition in topic.partitions[first:]:
        state = PartitionStateNode.encode(partition_state(partition, controller_epoch))
        operations.append(Create(PartitionStateNode.parent(topic.name, partition.partition)))
        operations.append(Create(PartitionStateNode.path(topic.name, partition.partition), state))
        if len(operations) % (2 * PARTITIONS_A_PAUSE) == 0:
            yield
    return operations


def _in_sync(image: ClusterImage, replicas: Sequence[int]) -> list[int]:
    """A new partition's in-sync set: the replicas that live."""
    return [broker for broker in replicas if broker in image.brokers]


def _replicas_of(
    image: ClusterImage, wanted: NewTopic, config: BrokerConfig, random: Random, budget: PartitionBudget
) -> Generator[None, None, Sequence[Sequence[int]]]:
    if wanted.assignments:
        if wanted.replication_factor != CHOOSE or wanted.partition_count != CHOOSE:
            raise KafkaError(
                "partitions and replication factor must be -1 when the replicas are assigned by hand",
                ErrorCode.INVALID_REQUEST,
            )
        budget.take(len(wanted.assignments))
        return (yield from _assigned_by_hand(image, wanted.assignments))
    factor = wanted.replication_factor
    if factor == CHOOSE:
        factor = config.int("default.replication.factor")
    elif factor < 1:
        raise KafkaError(
            f"a replication factor of {factor} is not possible: 1 or more, or -1 for the default",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    count = wanted.partition_count
    if count == CHOOSE:
        count = config.int("num.partitions")
    elif count < 1:
        raise KafkaError(
            f"{count} partitions are not possible: 1 or more, or -1 for the default",
            ErrorCode.INVALID_PARTITIONS,
        )
    budget.take(count)
    racks = {broker.broker_id: broker.rack for broker in image.brokers.values()}
    return (yield from placing_replicas(racks, count, factor, random))


def _assigned_by_hand(
    image: ClusterImage, assignments: Mapping[int, Sequence[int]]
) -> Generator[None, None, Sequence[Sequence[int]]]:
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(
            f"partitions are numbered from 0 without gaps; assigned were {shown(sorted(assignments))}",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    placed = [assignments[number] for number in range(len(assignments))]
    yield from _check_all_replicas(image, placed, 0, len(assignments[0]))
    return placed


def _check_all_replicas(
    image: ClusterImage, placed: Sequence[Sequence[int]], first: int, factor: int
) -> Generator[None, None, None]:
    for number, replicas in enumerate(placed, first):
        check_replicas(image, number, replicas, factor)
        if number % PARTITIONS_A_PAUSE == PARTITIONS_A_PAUSE - 1:
            yield


def check_replicas(image: ClusterImage, number: int, replicas: Sequence[int], factor: int) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT unless these brokers can hold partition ``number``."""
    problem = ""
    if not replicas:
        problem = "has no replica"
    elif len(set(replicas)) < len(replicas):
        problem = f"has two replicas on one broker: {shown(replicas)}"
    elif len(replicas) != factor:
        problem = f"has {len(replicas)} replicas where others have {factor}"
    else:
        unknown = [broker for broker in replicas if broker not in image.brokers]
        if unknown:
            problem = (
                f"is assigned to brokers that do not live: {shown(unknown)} (living: {shown(image.brokers)})"
            )
    if problem:
        raise KafkaError(f"partition {number} {problem}", ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def shown(numbers: Sequence[int] | Mapping[int, object]) -> str:
    """The first ten of ``numbers``, for an error text."""
    listed = list(numbers)
    return ", ".join(map(str, listed[:10])) + (", ..." if len(listed) > 10 else "")


def plan_growth(image: ClusterImage, growth: Growth, random: Random, budget: PartitionBudget) -> Plan:
    """As :func:`planning_growth`, in one go."""
    return in_one_go(planning_growth(image, growth, random, budget))


def planning_growth(image: ClusterImage, growth: Growth, random: Random, budget: PartitionBudget) -> Planning:
    """Adds partitions to a topic, with a pause after some each.

    They are placed so that they continue the round of those that are there.
    """
    topic = image.topics.get(growth.name)
    if topic is None:
        raise missing_topic(image, growth.name)
    if growth.name == OFFSETS_TOPIC:
        raise KafkaError(
            f"{OFFSETS_TOPIC} keeps its {len(topic.partitions)} partition(s): their number decides which of "
            "them has a group's positions, and with another number these would not be found. Any number of "
            "partitions serves any number of groups; reassign some to other brokers to spread the load.",
            ErrorCode.INVALID_REQUEST,
        )
    existing = len(topic.partitions)
    if growth.partition_count == existing:
        raise KafkaError(f"the topic has {existing} partition(s) already", ErrorCode.INVALID_PARTITIONS)
    if growth.partition_count < existing:
        raise KafkaError(
            f"the topic has {existing} partitions: it cannot shrink to {growth.partition_count}",
            ErrorCode.INVALID_PARTITIONS,
        )
    budget.take(growth.partition_count - existing)
    factor = len(topic.partitions[0].target) if topic.partitions else 1
    placed: Sequence[Sequence[int]]
    if growth.assignments is None:
        added_count = growth.partition_count - existing
        placed = yield from _placed_after(image, topic, added_count, factor, random)
    elif len(growth.assignments) != growth.partition_count - existing:
        added_count = growth.partition_count - existing
        raise KafkaError(
            f"{added_count} partition(s) are to be added, and {len(growth.assignments)} are assigned",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    else:
        placed = growth.assignments
        yield from _check_all_replicas(image, placed, existing, factor)
    added = yield from _new_partitions(image, placed, existing)
    grown = topic.with_partitions((*topic.partitions, *added), topic.node_version + 1)
    data = yield from _encoded(grown)
    operations: list[Operation] = [SetData(TopicNode.path(topic.name), data, topic.node_version)]
    operations += yield from state_creations(grown, existing, image.controller_epoch)
    yield from noting_traits(grown)
    return Plan(grown, operations)


def _placed_after(
    image: ClusterImage, topic: TopicImage, count: int, factor: int, random: Random
) -> Generator[None, None, list[list[int]]]:
    racks = {broker.broker_id: broker.rack for broker in image.brokers.values()}
    start: int | None = None
    if topic.partitions and topic.partitions[0].replicas[0] in racks:
        start = sorted(racks).index(topic.partitions[0].replicas[0])
    return (yield from placing_replicas(racks, count, factor, random, len(topic.partitions), start))


def unknown_topic(name: str) -> KafkaError:
    """The error for a topic that is not there."""
    return KafkaError(f"there is no topic {name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def missing_topic(image: ClusterImage, name: str) -> KafkaError:
    """The error for a topic that is not in the image: there is none, or it is set aside."""
    problem = image.unreadable.get((TOPIC, name))
    if problem is None:
        return unknown_topic(name)
    return KafkaError(f"the topic {name!r} is set aside: {problem}", ErrorCode.INVALID_TOPIC_EXCEPTION)


def find_topic(image: ClusterImage, name: str, topic_id: bytes | None = None) -> TopicImage | KafkaError:
    """The topic of this name, and of this id if one is given; or the error that says why there is none."""
    topic = image.topics.get(name)
    if topic is None and (topic_id is None or (TOPIC, name) in image.unreadable):
        return missing_topic(image, name)
    if topic is None or topic_id not in (None, topic.topic_id):
        return unknown_topic_id()
    return topic


def unknown_topic_id() -> KafkaError:
    """The error for an id that no topic has."""
    return KafkaError("there is no topic with this id", ErrorCode.UNKNOWN_TOPIC_ID)


def deletion_mark(topic: TopicImage) -> list[Operation]:
    """Begins a deletion: from now on it happens, whoever stops meanwhile."""
    return [Check(TopicNode.path(topic.name)), Create(DeleteTopicNode.path(topic.name))]


def deletion_check(topic: TopicImage) -> list[Operation]:
    """Fails unless somebody has begun the deletion: the mark may have gone with a former topic."""
    return [Check(TopicNode.path(topic.name)), Check(DeleteTopicNode.path(topic.name))]


def removal(topic: TopicImage) -> Iterator[Operation]:
    """Ends a deletion: takes all away that the controller writes of a topic, what lies below others first."""
    for one in topic.partitions:
        yield Delete(PartitionStateNode.path(topic.name, one.partition))
        yield Delete(PartitionStateNode.parent(topic.name, one.partition))
    yield Delete(PartitionStateNode.parents(topic.name))
    yield Delete(TopicNode.path(topic.name))
    if topic.has_config_node:
        yield Delete(ConfigNode.path("topics", topic.name))
    yield Delete(DeleteTopicNode.path(topic.name))


def fence(controller_epoch_version: int) -> Check:
    """Fails a transaction when another broker became the controller since."""
    return Check(CONTROLLER_EPOCH, controller_epoch_version)
