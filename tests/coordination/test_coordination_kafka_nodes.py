"""Nodes that Apache Kafka 3.9.2 wrote: decoding and encoding yields the same bytes, in every store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Create, ensure_paths, parent_of
from tidemill.coordination.nodes import (
    CLUSTER_ID,
    PRODUCER_ID_BLOCK,
    ClusterIdNode,
    ConfigChangeNode,
    ConfigNode,
    PartitionStateNode,
    ProducerIdBlockNode,
    TopicNode,
)
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore

RECORDED = Path(__file__).parents[1] / "interchange" / "recorded" / "zookeeper" / "nodes.json"


def recorded() -> dict[str, str]:
    """The nodes of a cluster with a few topics."""
    nodes: dict[str, str] = json.loads(RECORDED.read_text())
    return nodes


def reencoded(path: str, data: bytes) -> bytes:
    """The bytes after decoding and encoding."""
    parts = path.split("/")[1:]
    if path == CLUSTER_ID:
        return ClusterIdNode.encode(ClusterIdNode.decode(data))
    if path == PRODUCER_ID_BLOCK:
        return ProducerIdBlockNode.encode(ProducerIdBlockNode.decode(data))
    if parts[:2] == ["config", "changes"]:
        kind, _, name = ConfigChangeNode.decode(data).partition("/")
        return ConfigChangeNode.encode(kind, name)
    if parts[0] == "config":
        assert ConfigNode.path(parts[1], ConfigNode.name(parts[1], parts[2])) == path
        return ConfigNode.encode(ConfigNode.decode(path, data))
    if parts[:2] == ["brokers", "topics"] and len(parts) == 3:
        return TopicNode.encode(TopicNode.decode(parts[2], data))
    if parts[-1] == "state":
        assert PartitionStateNode.path(parts[2], int(parts[4])) == path
        return PartitionStateNode.encode(PartitionStateNode.decode(parts[2], int(parts[4]), data))
    raise AssertionError(f"{path} is of no kind that is known here")


@pytest.mark.parametrize("path", sorted(path for path, data in recorded().items() if data))
def test_encodes_a_node_like_kafka(path: str) -> None:
    data = recorded()[path].encode()
    again = reencoded(path, data)
    assert json.loads(again) == json.loads(data)
    assert len(again) == len(data)


async def test_loads_a_cluster_of_kafka_from_zookeeper(zookeeper: Callable[..., ZooKeeperSettings]) -> None:
    nodes = recorded()

    store = await ZooKeeperStore.open(zookeeper())
    for path in sorted(nodes, key=lambda path: path.count("/")):
        if parent_of(path) != "/":
            await ensure_paths(store, [parent_of(path)])
        await store.transact([Create(path, nodes[path].encode())])
    image = await load_image(store)
    await store.close()
    assert image.cluster_id == json.loads(nodes[CLUSTER_ID])["id"]
    assert {name for name in image.topics if not name.startswith("__")} == {
        "old0",
        "old1",
        "kept",
        "stamped",
        "codecs",
        "bought",
    }
    stamped = image.topics["stamped"]
    assert stamped.config == {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    assert [(p.leader, p.isr, p.leader_epoch) for p in stamped.partitions] == [(1, [1], 0)] * 2
    assert image.broker_config(1) == {"message.max.bytes": "3000000"}
