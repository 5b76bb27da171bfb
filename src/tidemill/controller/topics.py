"""Plans the creation, growth and deletion of topics, and validates requests.

This module has no I/O. Inputs are an image of the cluster, the configuration and a source of randomness. The
output is a plan, or a :class:`KafkaError` with the error code for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from tidemill.controller.replica_placement import PARTITIONS_PER_SLICE, place_replicas_in_slices
from tidemill.controller.topic_deletion import waiting_text
from tidemill.controller.topic_name_validator import METADATA_TOPIC, UsedTopicNames, check_name
from tidemill.coordination.cluster_image import TOPIC, ClusterImage, partition_state
from tidemill.coordination.coordination_store import Check, Create, Delete, Operation, SetData
from tidemill.coordination.nodes import (
    ConfigNode,
    DeleteTopicNode,
    PartitionStateNode,
    TopicNode,
)
from tidemill.coordination.topic_image import OFFSETS_TOPIC, PartitionImage, TopicImage
from tidemill.coordination.topic_index import compute_traits_in_slices
from tidemill.model.configs import BrokerConfig, check_topic_settings
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError
from tidemill.model.mirror_state import check_new_state

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Same limit as in Kafka: one large number cannot block the controller or fill its memory."""

CHOOSE = -1
"""As a count: use the broker's default."""


class NewTopic(NamedTuple):
    """A topic to create. A count of -1 selects the broker's default."""

    name: str
    partition_count: int = CHOOSE
    replication_factor: int = CHOOSE
    assignments: Mapping[int, Sequence[int]] = {}
    """Replicas by partition, if the client assigns them."""
    config: Mapping[str, str | None] = {}


class Growth(NamedTuple):
    """A topic to expand to ``partition_count`` partitions."""

    name: str
    partition_count: int
    assignments: Sequence[Sequence[int]] | None = None
    """The replicas of each new partition, if the client assigns them."""


class Plan(NamedTuple):
    """The operations that change one topic, and its new image."""

    topic: TopicImage
    operations: list[Operation]


Planning = Generator[None, None, Plan]
"""Pauses between many partitions; the plan is based on the image at the start."""


class PartitionBudget:
    """The number of partitions that one request may still create."""

    def __init__(self) -> None:
        self._left = PARTITIONS_PER_REQUEST_MAX

    def reserve(self, count: int) -> None:
        """Raises POLICY_VIOLATION if ``count`` exceeds the budget."""
        if count > self._left:
            raise KafkaError(
                f"{count} partitions are too many: one request creates at most {PARTITIONS_PER_REQUEST_MAX}. "
                "Create fewer, or use several requests.",
                ErrorCode.POLICY_VIOLATION,
            )
        self._left -= count


def plan_creation_in_slices(
    image: ClusterImage,
    requested: NewTopic,
    config: BrokerConfig,
    topic_id: bytes,
    random: Random,
    used_names: UsedTopicNames,
    budget: PartitionBudget,
    awaited: Callable[[str], Collection[int]],
) -> Planning:
    """Plans the creation of a topic. Pauses between many partitions.

    ``used_names`` and ``budget`` belong to the whole request. ``awaited`` returns the brokers that the
    deletion of a topic with that name waits for.
    """
    check_name(requested.name)
    if requested.name == METADATA_TOPIC:
        raise KafkaError(f"the topic {METADATA_TOPIC} cannot be created", ErrorCode.INVALID_REQUEST)
    if requested.name in image.topics:
        raise KafkaError(f"the topic {requested.name!r} already exists", ErrorCode.TOPIC_ALREADY_EXISTS)
    if requested.name in image.deleting:
        text = waiting_text(requested.name, awaited(requested.name), image.brokers)
        raise KafkaError(text, ErrorCode.TOPIC_ALREADY_EXISTS)
    if (TOPIC, requested.name) in image.unreadable:
        raise KafkaError(
            f"the topic {requested.name!r} already exists: {image.unreadable[TOPIC, requested.name]}",
            ErrorCode.TOPIC_ALREADY_EXISTS,
        )
    used_names.check(requested.name)
    settings = check_settings(requested.name, requested.config)
    replicas = yield from _replicas_of(image, requested, config, random, budget)
    used_names.add(requested.name)
    partitions = yield from _new_partitions(image, replicas, 0)
    topic = TopicImage(requested.name, topic_id, tuple(partitions), settings)
    data = yield from _encoded(topic)
    operations: list[Operation] = [
        write_config("topics", topic.name, settings, False),
        Create(TopicNode.path(topic.name), data),
        Create(PartitionStateNode.parents(topic.name)),
    ]
    operations += yield from create_states_in_slices(topic, 0, image.controller_epoch)
    yield from compute_traits_in_slices(topic)
    return Plan(topic, operations)


def _new_partitions(
    image: ClusterImage, replicas: Sequence[Sequence[int]], first: int
) -> Generator[None, None, list[PartitionImage]]:
    partitions = []
    for number, placed in enumerate(replicas, first):
        isr = [broker for broker in placed if broker in image.brokers]
        partitions.append(PartitionImage(number, placed[0], 0, list(placed), isr))
        if len(partitions) % PARTITIONS_PER_SLICE == 0:
            yield
    return partitions


def _encoded(topic: TopicImage) -> Generator[None, None, bytes]:
    assignment = topic.assignment()
    if len(topic.partitions) > PARTITIONS_PER_SLICE:
        yield
    return (yield from TopicNode.encode_in_slices(assignment))


def is_creation(plan: Plan) -> bool:
    """Whether ``plan`` creates a topic; its first operation creates the settings node."""
    first = plan.operations[0]
    return isinstance(first, Create) and first.path == ConfigNode.path("topics", plan.topic.name)


def replacing_old_settings(plan: Plan) -> Plan:
    """Same as ``plan``, but overwrites settings that the store still has under the topic's name."""
    config = write_config("topics", plan.topic.name, plan.topic.config, True)
    return plan._replace(operations=[config, *plan.operations[1:]])


def write_config(kind: str, name: str, settings: Mapping[str, str], exists: bool) -> Operation:
    """Writes the settings of a resource. ``exists``: the settings node exists."""
    path = ConfigNode.path(kind, name)
    data = ConfigNode.encode(settings)
    return SetData(path, data) if exists else Create(path, data)


def check_settings(name: str, settings: Mapping[str, str | None]) -> dict[str, str]:
    """Validates the settings of a new topic. Raises INVALID_CONFIG."""
    try:
        check_topic_settings(settings)
        check_new_state(name, settings)
    except ConfigError as error:
        raise KafkaError(str(error), ErrorCode.INVALID_CONFIG) from None
    return {name: text for name, text in settings.items() if text is not None}


def create_states_in_slices(
    topic: TopicImage, first: int, controller_epoch: int
) -> Generator[None, None, list[Operation]]:
    """Creates the state nodes of the partitions from number ``first`` on."""
    operations: list[Operation] = []
    for partition in topic.partitions[first:]:
        state = PartitionStateNode.encode(partition_state(partition, controller_epoch))
        operations.append(Create(PartitionStateNode.parent(topic.name, partition.partition)))
        operations.append(Create(PartitionStateNode.path(topic.name, partition.partition), state))
        if len(operations) % (2 * PARTITIONS_PER_SLICE) == 0:
            yield
    return operations


def _replicas_of(
    image: ClusterImage, requested: NewTopic, config: BrokerConfig, random: Random, budget: PartitionBudget
) -> Generator[None, None, Sequence[Sequence[int]]]:
    if requested.assignments:
        if requested.replication_factor != CHOOSE or requested.partition_count != CHOOSE:
            raise KafkaError(
                "partition count and replication factor must be -1 if replicas are assigned explicitly",
                ErrorCode.INVALID_REQUEST,
            )
        budget.reserve(len(requested.assignments))
        return (yield from _assigned_by_hand(image, requested.assignments))
    factor = requested.replication_factor
    if factor == CHOOSE:
        factor = config.int("default.replication.factor")
    elif factor < 1:
        raise KafkaError(
            f"invalid replication factor {factor}: use 1 or more, or -1 for the default",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    count = requested.partition_count
    if count == CHOOSE:
        count = config.int("num.partitions")
    elif count < 1:
        raise KafkaError(
            f"invalid partition count {count}: use 1 or more, or -1 for the default",
            ErrorCode.INVALID_PARTITIONS,
        )
    budget.reserve(count)
    racks = {broker.broker_id: broker.rack for broker in image.brokers.values()}
    return (yield from place_replicas_in_slices(racks, count, factor, random))


def _assigned_by_hand(
    image: ClusterImage, assignments: Mapping[int, Sequence[int]]
) -> Generator[None, None, Sequence[Sequence[int]]]:
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(
            f"partitions must be numbered from 0 without gaps, not {format_ids(sorted(assignments))}",
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
        if number % PARTITIONS_PER_SLICE == PARTITIONS_PER_SLICE - 1:
            yield


def check_replicas(image: ClusterImage, number: int, replicas: Sequence[int], factor: int) -> None:
    """Raises INVALID_REPLICA_ASSIGNMENT unless these brokers can hold partition ``number``."""
    problem = ""
    if not replicas:
        problem = "has no replica"
    elif len(set(replicas)) < len(replicas):
        problem = f"has two replicas on one broker: {format_ids(replicas)}"
    elif len(replicas) != factor:
        problem = f"has {len(replicas)} replicas, but other partitions have {factor}"
    else:
        unknown = [broker for broker in replicas if broker not in image.brokers]
        if unknown:
            problem = (
                f"is assigned to brokers that are not live: {format_ids(unknown)} "
                f"(live: {format_ids(image.brokers)})"
            )
    if problem:
        raise KafkaError(f"partition {number} {problem}", ErrorCode.INVALID_REPLICA_ASSIGNMENT)


def format_ids(numbers: Sequence[int] | Mapping[int, object]) -> str:
    """The first ten of ``numbers``, for an error text."""
    listed = list(numbers)
    return ", ".join(map(str, listed[:10])) + (", ..." if len(listed) > 10 else "")


def plan_growth_in_slices(
    image: ClusterImage, growth: Growth, random: Random, budget: PartitionBudget
) -> Planning:
    """Plans additional partitions of a topic. Pauses between many partitions.

    Their placement continues that of the existing partitions.
    """
    topic = image.topics.get(growth.name)
    if topic is None:
        raise missing_topic(image, growth.name)
    if growth.name == OFFSETS_TOPIC:
        raise KafkaError(
            f"{OFFSETS_TOPIC} cannot be expanded beyond {len(topic.partitions)} partition(s): their number "
            "decides which of them holds the offsets of a group, which would not be found with another "
            "number. Any number of partitions serves any number of groups; reassign some to other brokers "
            "to spread the load.",
            ErrorCode.INVALID_REQUEST,
        )
    existing = len(topic.partitions)
    if growth.partition_count == existing:
        raise KafkaError(f"the topic already has {existing} partition(s)", ErrorCode.INVALID_PARTITIONS)
    if growth.partition_count < existing:
        raise KafkaError(
            f"the topic has {existing} partitions: the number cannot be reduced to {growth.partition_count}",
            ErrorCode.INVALID_PARTITIONS,
        )
    added_count = growth.partition_count - existing
    budget.reserve(added_count)
    factor = len(topic.partitions[0].target) if topic.partitions else 1
    placed: Sequence[Sequence[int]]
    if growth.assignments is None:
        placed = yield from _placed_after(image, topic, added_count, factor, random)
    elif len(growth.assignments) != added_count:
        raise KafkaError(
            f"{added_count} partition(s) are to be added, but {len(growth.assignments)} are assigned",
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        )
    else:
        placed = growth.assignments
        yield from _check_all_replicas(image, placed, existing, factor)
    added = yield from _new_partitions(image, placed, existing)
    grown = topic.with_partitions((*topic.partitions, *added), topic.node_version + 1)
    data = yield from _encoded(grown)
    operations: list[Operation] = [SetData(TopicNode.path(topic.name), data, topic.node_version)]
    operations += yield from create_states_in_slices(grown, existing, image.controller_epoch)
    yield from compute_traits_in_slices(grown)
    return Plan(grown, operations)


def _placed_after(
    image: ClusterImage, topic: TopicImage, count: int, factor: int, random: Random
) -> Generator[None, None, list[list[int]]]:
    racks = {broker.broker_id: broker.rack for broker in image.brokers.values()}
    start: int | None = None
    if topic.partitions and topic.partitions[0].replicas[0] in racks:
        start = sorted(racks).index(topic.partitions[0].replicas[0])
    return (yield from place_replicas_in_slices(racks, count, factor, random, len(topic.partitions), start))


def unknown_topic(name: str) -> KafkaError:
    """The error for a topic that does not exist."""
    return KafkaError(f"the topic {name!r} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def missing_topic(image: ClusterImage, name: str) -> KafkaError:
    """The error for a topic that is not in the image: it does not exist or is unreadable."""
    problem = image.unreadable.get((TOPIC, name))
    if problem is None:
        return unknown_topic(name)
    return KafkaError(f"the topic {name!r} is set aside: {problem}", ErrorCode.INVALID_TOPIC_EXCEPTION)


def find_topic(image: ClusterImage, name: str, topic_id: bytes | None = None) -> TopicImage | KafkaError:
    """The topic with this name, and with this id if given; otherwise the error."""
    topic = image.topics.get(name)
    if topic is None and (topic_id is None or (TOPIC, name) in image.unreadable):
        return missing_topic(image, name)
    if topic is None or topic_id not in (None, topic.topic_id):
        return unknown_topic_id()
    return topic


def unknown_topic_id() -> KafkaError:
    """The error for an unknown topic id."""
    return KafkaError("no topic has this id", ErrorCode.UNKNOWN_TOPIC_ID)


def deletion_mark(topic: TopicImage) -> list[Operation]:
    """Starts a deletion. From now on it continues even if brokers fail."""
    return [Check(TopicNode.path(topic.name)), Create(DeleteTopicNode.path(topic.name))]


def deletion_check(topic: TopicImage) -> list[Operation]:
    """Fails unless the deletion mark exists: it may have been removed with a former topic."""
    return [Check(TopicNode.path(topic.name)), Check(DeleteTopicNode.path(topic.name))]


def removal(topic: TopicImage) -> Iterator[Operation]:
    """Ends a deletion: deletes all nodes of a topic that the controller writes, children first."""
    for partition in topic.partitions:
        yield Delete(PartitionStateNode.path(topic.name, partition.partition))
        yield Delete(PartitionStateNode.parent(topic.name, partition.partition))
    yield Delete(PartitionStateNode.parents(topic.name))
    yield Delete(TopicNode.path(topic.name))
    if topic.has_config_node:
        yield Delete(ConfigNode.path("topics", topic.name))
    yield Delete(DeleteTopicNode.path(topic.name))
