"""Reading the cluster from the coordination store."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import (
    NO_BROKER,
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
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
    ControllerEpochNode,
    ControllerNode,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Node, NoNode, Store
from tidemill.model.types import ZERO_ID


async def load_image(store: Store) -> ClusterImage:
    """Reads the whole cluster from the store; NodeFormatError or StoreError for what cannot be understood."""
    cluster, controller, epoch = await store.get_many([CLUSTER_ID, CONTROLLER, CONTROLLER_EPOCH])
    topics = await load_topics(store, await _children(store, TOPICS))
    deleting = {}
    for name in await _children(store, DELETE_TOPICS):
        topic = topics.pop(name, None)
        deleting[name] = topic if topic is not None else TopicImage(name, ZERO_ID, (), {})
    return ClusterImage(
        ClusterIdNode.decode(cluster.data) if cluster is not None else "",
        ControllerNode.decode(controller.data) if controller is not None else NO_BROKER,
        ControllerEpochNode.decode(epoch.data) if epoch is not None else 0,
        await load_brokers(store),
        topics,
        await _load_broker_configs(store),
        deleting,
    )


async def load_brokers(store: Store) -> dict[int, BrokerImage]:
    """The living brokers by id, lowest first."""
    ids = sorted(int(name) for name in await _children(store, BROKER_IDS))
    nodes = await store.get_many([BrokerNode.path(broker_id) for broker_id in ids])
    return {
        broker_id: BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)
        for broker_id, node in zip(ids, nodes, strict=True)
        if node is not None
    }


async def _load_broker_configs(store: Store) -> dict[str, dict[str, str]]:
    names = await _children(store, "/config/brokers")
    paths = [ConfigNode.path("brokers", name) for name in names]
    nodes = await store.get_many(paths)
    return {
        name: ConfigNode.decode(path, node.data)
        for name, path, node in zip(names, paths, nodes, strict=True)
        if node is not None
    }


async def load_settings(
    store: Store, entities: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """What was set for these entities, by kind and name; nothing for those without a node."""
    entities = list(entities)
    paths = [ConfigNode.path(kind, name) for kind, name in entities]
    nodes = await store.get_many(paths) if paths else []
    return {
        entity: ConfigNode.decode(path, node.data) if node is not None else {}
        for entity, path, node in zip(entities, paths, nodes, strict=True)
    }


async def load_topics(store: Store, names: list[str]) -> dict[str, TopicImage]:
    """The topics of these names, by name; those that are gone meanwhile are left out."""
    topic_nodes = await store.get_many([TopicNode.path(name) for name in names])
    config_paths = [ConfigNode.path("topics", name) for name in names]
    config_nodes = await store.get_many(config_paths)
    assignments: list[tuple[str, Node, TopicAssignment, dict[str, str], bool]] = []
    state_paths: list[str] = []
    for name, node, path, config in zip(names, topic_nodes, config_paths, config_nodes, strict=True):
        if node is None:
            continue
        assignment = TopicNode.decode(name, node.data)
        settings = ConfigNode.decode(path, config.data) if config is not None else {}
        assignments.append((name, node, assignment, settings, config is not None))
        state_paths += [PartitionStateNode.path(name, number) for number in range(len(assignment.replicas))]
    states = iter(await store.get_many(state_paths))
    topics = {}
    for name, node, assignment, settings, has_config_node in assignments:
        partitions = tuple(
            _partition(name, number, assignment, next(states)) for number in range(len(assignment.replicas))
        )
        topic_id = assignment.topic_id if assignment.topic_id is not None else ZERO_ID
        topics[name] = TopicImage(name, topic_id, partitions, settings, node.version, has_config_node)
    return topics


def _partition(topic: str, number: int, assignment: TopicAssignment, node: Node | None) -> PartitionImage:
    replicas = assignment.replicas.get(number)
    if replicas is None:
        raise NodeFormatError(
            TopicNode.path(topic),
            TopicNode.encode(assignment),
            f"it has no partition {number} although it has {max(assignment.replicas)}, and partitions are "
            "numbered without gaps",
        )
    adding, removing = assignment.adding.get(number), assignment.removing.get(number)
    if node is None:
        return PartitionImage(number, NO_BROKER, 0, replicas, [], -1, adding, removing)
    state = PartitionStateNode.decode(topic, number, node.data)
    return PartitionImage(
        number, state.leader, state.leader_epoch, replicas, state.isr, node.version, adding, removing
    )


async def _children(store: Store, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNode:
        return []
