"""Reads and writes a cluster's metadata as the nodes that Apache Kafka keeps in ZooKeeper.

The nodes come from ZooKeeper itself (through kazoo), or from a file with one JSON object, path to data.
:mod:`tidemill.coordination.nodes` has their formats.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tidemill.coordination.coordination_store import parent_of
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    CLUSTER_ID,
    CONSUMERS,
    DEFAULT_ENTITY,
    DELETE_TOPICS,
    FEATURE,
    OFFSETS,
    PRODUCER_ID_BLOCK,
    TOPICS,
    ClusterIdNode,
    ConfigNode,
    ConsumerOffsetNode,
    FeatureNode,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    ProducerIdBlock,
    ProducerIdBlockNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.interchange.cluster import (
    ClusterMetadata,
    PartitionEntry,
    TopicEntry,
)
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.os_error_texts import fault_of
from tidemill.model.transaction_types import TRANSACTION_VERSION
from tidemill.model.types import ZERO_ID

READ_BELOW: Final = (TOPICS, "/config", DELETE_TOPICS, "/kafka-acl", "/delegation_token/tokens")
SINGLE: Final = (CLUSTER_ID, PRODUCER_ID_BLOCK, FEATURE)
"""The nodes outside of :data:`READ_BELOW` that are read."""
CONNECT_S: Final = 15
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
PRODUCER_IDS_A_BLOCK: Final = 1000

Nodes = dict[str, bytes]


def read_file(path: str) -> Nodes:
    """Reads the nodes of a file. Raises ConfigError if it is not a file of nodes."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        value = json.loads(data)
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        return {str(node): str(text).encode() for node, text in value.items()}
    except (OSError, ValueError, RecursionError) as problem:
        raise ConfigError(
            f"{path} is not a JSON object of ZooKeeper paths and their data: {fault_of(problem)}"
        ) from None


def read_zookeeper(address: str) -> Nodes:
    """Reads the nodes of a cluster at ``host:port,...[/chroot]``. Raises StorageError without an answer."""
    from kazoo.exceptions import NoNodeError

    nodes: Nodes = {}
    with connected(address) as (client, chroot):
        for path in SINGLE:
            if client.exists(chroot + path) is not None:
                nodes[path] = client.get(chroot + path)[0] or b""
        waiting = [path for path in READ_BELOW if client.exists(chroot + path) is not None]
        if client.exists(chroot + CONSUMERS) is not None:
            # Besides offsets, groups have nodes for the sessions of their consumers, which may be running.
            groups = client.get_children(chroot + CONSUMERS)
            waiting += [f"{CONSUMERS}/{group}/{OFFSETS}" for group in groups]
        while waiting:
            path = waiting.pop()
            try:
                data = client.get(chroot + path)[0] or b""
                below = client.get_children(chroot + path)
            except NoNodeError:
                continue  # A group has no offsets, or they were removed meanwhile.
            nodes[path] = data
            waiting += [f"{path}/{name}" for name in below]
    return nodes


@contextmanager
def connected(address: str) -> Iterator[tuple[Any, str]]:
    """Connects to ZooKeeper for a ``with`` block; yields the client and the chroot, which may not exist."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    hosts, slash, chroot = address.strip().partition("/")
    quiet = logging.getLogger(f"{__name__}.kazoo")
    quiet.setLevel(logging.CRITICAL)  # errors are raised
    try:
        client = KazooClient(hosts=hosts, timeout=CONNECT_S, logger=quiet)
    except ValueError as problem:
        raise ConfigError(
            f"{address} is not an address of ZooKeeper ({fault_of(problem)}): use HOST:PORT,.../CHROOT"
        ) from None
    try:
        client.start(timeout=CONNECT_S)
        yield client, (slash + chroot).rstrip("/")
    except KazooTimeoutError:
        raise StorageError(
            f"ZooKeeper at {hosts} does not answer: is the address right, and does it run?"
        ) from None
    except KazooException as problem:
        raise StorageError(f"ZooKeeper at {hosts} refused ({problem!r})") from None
    finally:
        client.stop()
        client.close()


def from_nodes(nodes: Nodes, source: str, *, is_file: bool = False) -> ClusterMetadata:
    """Converts nodes to metadata. ``is_file``: ``source`` is a file of nodes, not an address.

    Raises NodeFormatError for a node that cannot be read, StorageError without a cluster id.
    """
    if CLUSTER_ID not in nodes:
        if is_file:
            hint = (
                f"it must contain all nodes of a cluster that are read, with paths relative to its chroot: "
                f"{CLUSTER_ID}, and the nodes below {', '.join(READ_BELOW[:2])}"
            )
        else:
            hint = "does the address need a chroot, as host:2181/kafka?"
        raise StorageError(f"{source} has no node {CLUSTER_ID}: {hint}")
    metadata = ClusterMetadata(source, ClusterIdNode.decode(nodes[CLUSTER_ID]))
    deleting = set(_children(nodes, DELETE_TOPICS))
    for name in _children(nodes, TOPICS):
        if name in deleting:
            metadata.notes.append(f"the topic {name} was being deleted: it is omitted")
            continue
        metadata.topics[name] = _topic(nodes, name)
    for name in _children(nodes, "/config/brokers"):
        path = ConfigNode.path("brokers", name)
        config = ConfigNode.decode(path, nodes[path])
        if config:
            metadata.broker_configs["" if name == DEFAULT_ENTITY else name] = config
    for name in _children(nodes, "/config/groups"):
        path = f"/config/groups/{name}"
        config = ConfigNode.decode(path, nodes[path])
        if config:
            metadata.group_configs[ConfigNode.name("groups", name)] = config
    if nodes.get(PRODUCER_ID_BLOCK):
        metadata.next_producer_id = ProducerIdBlockNode.decode(nodes[PRODUCER_ID_BLOCK]).end + 1
    if FEATURE in nodes:
        metadata.transaction_version = FeatureNode.decode(nodes[FEATURE]).get(TRANSACTION_VERSION, 0)
    _read_group_offsets(nodes, metadata)
    for kind, root in (
        ("quotas and credentials of users", "/config/users"),
        ("quotas of clients", "/config/clients"),
        ("quotas of addresses", "/config/ips"),
        ("delegation tokens", "/delegation_token/tokens"),
    ):
        count = sum(1 for path, data in nodes.items() if path.startswith(f"{root}/") and data)
        if count:
            metadata.omitted[kind] = count
    rules = sum(1 for path in nodes if path.startswith("/kafka-acl/") and path.count("/") == 3)
    if rules:
        metadata.omitted["access rules"] = rules
    return metadata


def _read_group_offsets(nodes: Nodes, metadata: ClusterMetadata) -> None:
    for path, data in sorted(nodes.items()):
        owner = ConsumerOffsetNode.named(path)
        if owner is None:
            continue
        try:
            metadata.group_offsets[owner] = ConsumerOffsetNode.decode(path, data)
        except NodeFormatError as problem:
            metadata.notes.append(f"a group's offset is omitted: {problem}")


def _children(nodes: Nodes, parent: str) -> Iterator[str]:
    yield from sorted(path.rpartition("/")[2] for path in nodes if path != "/" and parent_of(path) == parent)


def _topic(nodes: Nodes, name: str) -> TopicEntry:
    assignment = TopicNode.decode(name, nodes[TopicNode.path(name)])
    topic = TopicEntry(name, assignment.topic_id or ZERO_ID)
    for number, replicas in assignment.replicas.items():
        entry = PartitionEntry(tuple(replicas))
        path = PartitionStateNode.path(name, number)
        if path in nodes:
            state = PartitionStateNode.decode(name, number, nodes[path])
            entry = entry._replace(leader=state.leader, leader_epoch=state.leader_epoch, isr=tuple(state.isr))
        topic.partitions[number] = entry
    path = ConfigNode.path("topics", name)
    if path in nodes:
        topic.config = ConfigNode.decode(path, nodes[path])
    return topic


def to_nodes(metadata: ClusterMetadata) -> Nodes:
    """Converts metadata to nodes, parents before their children."""
    nodes: Nodes = {"/cluster": b"", CLUSTER_ID: ClusterIdNode.encode(metadata.cluster_id)}
    nodes |= {"/brokers": b"", TOPICS: b"", "/config": b"", "/config/topics": b"", "/config/brokers": b""}
    for name, topic in sorted(metadata.topics.items()):
        replicas = {number: list(entry.replicas) for number, entry in sorted(topic.partitions.items())}
        topic_id = topic.topic_id if topic.topic_id != ZERO_ID else None
        nodes[ConfigNode.path("topics", name)] = ConfigNode.encode(topic.config)
        nodes[TopicNode.path(name)] = TopicNode.encode(TopicAssignment(topic_id, replicas))
        nodes[PartitionStateNode.parents(name)] = b""
        for number, entry in sorted(topic.partitions.items()):
            nodes[PartitionStateNode.parent(name, number)] = b""
            state = LeaderIsrAndControllerEpoch(
                entry.leader, entry.leader_epoch, list(entry.isr), controller_epoch=0
            )
            nodes[PartitionStateNode.path(name, number)] = PartitionStateNode.encode(state)
    for name, config in sorted(metadata.broker_configs.items()):
        nodes[ConfigNode.path("brokers", name or DEFAULT_ENTITY)] = ConfigNode.encode(config)
    if metadata.group_configs:
        nodes["/config/groups"] = b""
    for name, config in sorted(metadata.group_configs.items()):
        nodes[ConfigNode.path("groups", name)] = ConfigNode.encode(config)
    if metadata.next_producer_id > 0:
        end = metadata.next_producer_id - 1
        block = ProducerIdBlock(0, max(end - PRODUCER_IDS_A_BLOCK + 1, 0), end)
        nodes[PRODUCER_ID_BLOCK] = ProducerIdBlockNode.encode(block)
    if metadata.transaction_version is not None:
        nodes[FEATURE] = FeatureNode.encode({TRANSACTION_VERSION: metadata.transaction_version})
    for (group, partition), offset in sorted(metadata.group_offsets.items()):
        parent = ConsumerOffsetNode.parent(group, partition.topic)
        for depth in range(2, parent.count("/") + 2):
            nodes.setdefault("/".join(parent.split("/")[:depth]), b"")
        nodes[ConsumerOffsetNode.path(group, partition)] = ConsumerOffsetNode.encode(offset)
    return nodes


def write_file(path: str, nodes: Mapping[str, bytes]) -> None:
    """Writes nodes in the format of :func:`read_file`."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({node: data.decode() for node, data in nodes.items()}, file, indent=1, ensure_ascii=False)
        file.write("\n")


def check_empty(address: str) -> None:
    """Raises StorageError if ``address`` has a cluster, or is not a ZooKeeper."""
    with connected(address) as (client, chroot):
        if client.exists(chroot + CLUSTER_ID) is not None:
            raise StorageError(
                f"ZooKeeper at {address} already holds a cluster: name another chroot, such as host:2181/new"
            )


def write_zookeeper(address: str, nodes: Mapping[str, bytes]) -> None:
    """Creates the nodes and the chroot in ZooKeeper. Raises StorageError if it holds a cluster.

    The cluster id is created last: until then the call can be repeated.
    """
    from kazoo.exceptions import NodeExistsError

    check_empty(address)
    with connected(address) as (client, chroot):
        if chroot:
            client.ensure_path(chroot)
        for path in sorted(nodes, key=lambda path: path == CLUSTER_ID):
            try:
                client.create(chroot + path, nodes[path])
            except NodeExistsError:
                client.set(chroot + path, nodes[path])
