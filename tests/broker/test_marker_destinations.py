"""Which partitions count as deleted, so that a transaction ends without their markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.metadata_cache import ClusterImage, MetadataCache, PartitionImage, TopicImage
from tidemill.broker.transaction_markers import LeaderDestinations
from tidemill.coordination.coordination_store import Create, ensure_paths
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import TOPICS, DeleteTopicNode, TopicAssignment, TopicNode
from tidemill.model.types import NO_BROKER, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID = bytes(range(16))
NODE = Create(TopicNode.path("t"), TopicNode.encode(TopicAssignment(ID, {0: [1]})))
UNREADABLE = Create(TopicNode.path("t"), b"{")
DELETION = Create(DeleteTopicNode.path("t"))
LEADERLESS = PartitionImage(0, NO_BROKER, 3, [1], [1], 5)
KNOWN = ClusterImage("c", 1, 1, {}, {"t": TopicImage("t", ID, (LEADERLESS,), {})})


@pytest.mark.parametrize(
    ("image", "nodes", "deleted"),
    [
        (ClusterImage(), [], {P0, P1}),
        (ClusterImage(), [NODE, DELETION], {P0, P1}),
        (ClusterImage(), [NODE], {P1}),
        (ClusterImage(), [UNREADABLE], set()),
        (KNOWN, [NODE], {P1}),
        (KNOWN, [], {P1}),
    ],
    ids=[
        "deleted",
        "being deleted",
        "not in the metadata yet",
        "unreadable",
        "fewer partitions",
        "leaderless",
    ],
)
async def test_a_partition_is_deleted_if_neither_the_metadata_nor_the_store_has_it(
    tmp_path: Path, image: ClusterImage, nodes: Sequence[Create], deleted: set[TopicPartition]
) -> None:
    """A broker that starts coordinates transactions before it has the metadata of their topics."""
    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    try:
        await ensure_paths(store, [TOPICS, str(Path(DELETION.path).parent)])
        await store.transact(list(nodes))
        broker: Any = SimpleNamespace(metadata_cache=MetadataCache(image), store=store)
        assert set(await LeaderDestinations(broker, None).deleted([P0, P1])) == deleted
    finally:
        await store.close()


async def test_no_partition_counts_as_deleted_while_the_store_does_not_answer(tmp_path: Path) -> None:
    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    await store.close()
    broker: Any = SimpleNamespace(metadata_cache=MetadataCache(), store=store)
    assert set(await LeaderDestinations(broker, None).deleted([P0])) == set()
