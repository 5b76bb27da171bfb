"""Loads the cluster image from the coordination store.

A topic, broker or settings node that cannot be read is recorded and skipped; everything else is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tidemill.coordination.cluster_image import (
    GROUP_SETTINGS,
    REGISTRATION,
    SETTINGS,
    TOPIC,
    BrokerImage,
    ClusterImage,
)
from tidemill.coordination.coordination_store import Node, NoNode, Store
from tidemill.coordination.encoding import INT32_MAX, NodeFormatError
from tidemill.coordination.nodes import (
    BROKER_IDS,
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    BrokerNode,
    ClusterIdNode,
    ConfigNode,
    ConfigResource,
    ControllerEpochNode,
    ControllerNode,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.configs import all_brokers_unreadable
from tidemill.model.topic_names import name_problem
from tidemill.model.types import NO_BROKER, ZERO_ID

logger = logging.getLogger(__name__)

Unreadable = dict[str, NodeFormatError]
"""By name: the error of its first node that cannot be read."""


async def load_image(store: Store, known: Mapping[int, BrokerImage] | None = None) -> ClusterImage:
    """Loads the whole cluster from the store; unreadable entities are in :attr:`ClusterImage.unreadable`.

    A topic with an unreadable node is left out, whether it is marked for deletion or not. ``known`` is as in
    :func:`load_brokers`. Raises StoreError, and NodeFormatError for the nodes of the controller.
    """
    cluster, controller, epoch = await store.get_many([CLUSTER_ID, CONTROLLER, CONTROLLER_EPOCH])
    bad_topics: Unreadable = {}
    bad_brokers: Unreadable = {}
    bad_settings: Unreadable = {}
    bad_groups: Unreadable = {}
    topics = await load_topics(store, await _children(store, TOPICS), bad_topics)
    deleting = {}
    for name in await _children(store, DELETE_TOPICS):
        if name not in bad_topics:
            topic = topics.pop(name, None)
            deleting[name] = topic if topic is not None else TopicImage(name, ZERO_ID, (), {})
    image = ClusterImage(
        ClusterIdNode.decode(cluster.data) if cluster is not None else "",
        ControllerNode.decode(controller.data) if controller is not None else NO_BROKER,
        ControllerEpochNode.decode(epoch.data) if epoch is not None else 0,
        await load_brokers(store, bad_brokers, known),
        topics,
        await _load_broker_configs(store, bad_settings),
        deleting,
        group_configs=await _load_group_configs(store, bad_groups),
    )
    for kind, found in (
        (TOPIC, bad_topics),
        (REGISTRATION, bad_brokers),
        (SETTINGS, bad_settings),
        (GROUP_SETTINGS, bad_groups),
    ):
        if found:
            image = image.with_unreadable(kind, found)
    return image


async def load_brokers(
    store: Store, unreadable: Unreadable, known: Mapping[int, BrokerImage] | None = None
) -> dict[int, BrokerImage]:
    """Returns the live brokers by id, lowest first. Errors of the other brokers are added to ``unreadable``.

    Of the unreadable brokers, a broker in ``known`` whose node is still the same (its session is alive) keeps
    its known image.
    """
    names = await _children(store, BROKER_IDS)
    nodes = await store.get_many([f"{BROKER_IDS}/{name}" for name in names])
    brokers = {}
    for name, node in zip(names, nodes, strict=True):
        if node is None:
            continue
        path = f"{BROKER_IDS}/{name}"
        try:
            broker_id = _broker_id(path, node.data, name)
        except NodeFormatError as problem:
            unreadable[name] = problem
            continue
        try:
            brokers[broker_id] = BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)
        except NodeFormatError as problem:
            unreadable[name] = problem
            before = known.get(broker_id) if known is not None else None
            if before is not None and before.epoch == node.creation_id:
                brokers[broker_id] = before
    return dict(sorted(brokers.items()))


def _broker_id(path: str, data: bytes, name: str) -> int:
    if name.isascii() and name.isdigit() and str(int(name)) == name and int(name) <= INT32_MAX:
        return int(name)
    raise NodeFormatError(path, data, f"{name!r} is not a broker id")


async def _load_broker_configs(store: Store, unreadable: Unreadable) -> dict[str, dict[str, str]]:
    names = await _children(store, "/config/brokers")
    paths = [ConfigNode.path("brokers", name) for name in names]
    nodes = await store.get_many(paths)
    configs = {}
    for name, path, node in zip(names, paths, nodes, strict=True):
        if node is not None:
            try:
                configs[name] = ConfigNode.decode(path, node.data)
            except NodeFormatError as problem:
                unreadable[name] = problem
                configs[name] = all_brokers_unreadable()
    return configs


async def group_names(store: Store) -> list[str]:
    """Returns the groups with settings in the store."""
    return [ConfigNode.name("groups", node) for node in await _children(store, f"/{GROUP_SETTINGS}")]


async def _load_group_configs(store: Store, unreadable: Unreadable) -> dict[str, dict[str, str]]:
    configs = {}
    groups = [ConfigResource("groups", name) for name in await group_names(store)]
    for (_, name), path, data in await _config_nodes(store, groups):
        try:
            settings = ConfigNode.decode(path, data)
        except NodeFormatError as problem:
            unreadable[name] = problem
        else:
            if settings:
                configs[name] = settings
    return configs


async def load_settings(
    store: Store, resources: Iterable[ConfigResource]
) -> dict[ConfigResource, dict[str, str]]:
    """Returns the settings of these resources; empty for resources without a node."""
    nodes = await _config_nodes(store, resources)
    return {resource: ConfigNode.decode(path, data) for resource, path, data in nodes}


async def read_settings(
    store: Store, resources: Iterable[ConfigResource]
) -> dict[ConfigResource, dict[str, str]]:
    """As :func:`load_settings`, without the resources whose nodes cannot be read."""
    found = {}
    for resource, path, data in await _config_nodes(store, resources):
        try:
            found[resource] = ConfigNode.decode(path, data)
        except NodeFormatError as problem:
            logger.debug("the previous settings are kept: %s", problem)
    return found


async def _config_nodes(
    store: Store, resources: Iterable[ConfigResource]
) -> list[tuple[ConfigResource, str, bytes]]:
    """Returns the resources with the path and the data of their nodes; the data is empty without a node."""
    resources = list(resources)
    paths = [ConfigNode.path(kind, name) for kind, name in resources]
    nodes = await store.get_many(paths) if paths else []
    return [
        (resource, path, node.data if node is not None else b"")
        for resource, path, node in zip(resources, paths, nodes, strict=True)
    ]


async def load_topics(store: Store, names: list[str], unreadable: Unreadable) -> dict[str, TopicImage]:
    """Returns the topics of these names, by name, without those that were deleted in the meantime.

    Unreadable topics are left out; their errors are added to ``unreadable``.
    """
    topic_nodes = await store.get_many([TopicNode.path(name) for name in names])
    config_paths = [ConfigNode.path("topics", name) for name in names]
    config_nodes = await store.get_many(config_paths)
    found: list[tuple[str, Node, TopicAssignment, dict[str, str], bool]] = []
    state_paths: list[str] = []
    for name, node, path, config in zip(names, topic_nodes, config_paths, config_nodes, strict=True):
        if node is None:
            continue
        try:
            assignment = _assignment(name, node.data)
            settings = ConfigNode.decode(path, config.data) if config is not None else {}
        except NodeFormatError as problem:
            unreadable[name] = problem
            continue
        found.append((name, node, assignment, settings, config is not None))
        state_paths += [PartitionStateNode.path(name, number) for number in range(len(assignment.replicas))]
    states = iter(await store.get_many(state_paths))
    topics = {}
    for name, node, assignment, settings, has_config_node in found:
        nodes = [next(states) for _ in assignment.replicas]
        try:
            partitions = tuple(
                _partition(name, number, assignment, state) for number, state in enumerate(nodes)
            )
        except NodeFormatError as problem:
            unreadable[name] = problem
            continue
        topic_id = assignment.topic_id if assignment.topic_id is not None else ZERO_ID
        topics[name] = TopicImage(name, topic_id, partitions, settings, node.version, has_config_node)
    return topics


def _assignment(name: str, data: bytes) -> TopicAssignment:
    path = TopicNode.path(name)
    problem = name_problem(name)
    if problem:
        raise NodeFormatError(path, data, problem)
    assignment = TopicNode.decode(name, data)
    missing = [number for number in range(len(assignment.replicas)) if number not in assignment.replicas]
    if missing:
        raise NodeFormatError(
            path,
            data,
            f"it has no partition {missing[0]} although it has {max(assignment.replicas)}, and "
            "partitions are numbered without gaps",
        )
    return assignment


def _partition(topic: str, number: int, assignment: TopicAssignment, node: Node | None) -> PartitionImage:
    replicas = assignment.replicas[number]
    adding, removing = assignment.adding.get(number), assignment.removing.get(number)
    if node is None:
        return PartitionImage(number, NO_BROKER, 0, replicas, [], -1, adding, removing)
    state = PartitionStateNode.decode(topic, number, node.data)
    return PartitionImage(
        number,
        state.leader,
        state.leader_epoch,
        replicas,
        state.isr,
        node.version,
        adding,
        removing,
        elr=state.elr,
        last_known_leader=state.last_known_leader,
        lost_replicas=state.lost_replicas,
    )


async def _children(store: Store, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNode:
        return []
