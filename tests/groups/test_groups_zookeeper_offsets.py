"""Offsets of OffsetCommit v0 in the coordination store, with the paths and data of Kafka 0.8.2."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    NodeExists,
    Operation,
    Result,
    SetData,
    Store,
    ensure_paths,
    subtree,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import PERSISTENT_PATHS, ConsumerOffsetNode, GroupPartition
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.groups.zookeeper_offsets import NO_OFFSET, PartitionOffset, StoredOffset, ZooKeeperOffsets
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

Story = Callable[[Store], Awaitable[None]]
UNKNOWN = StoredOffset(offset=NO_OFFSET, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(params=["embedded", "zookeeper"])
def run_scenario(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Runs a coroutine with a new store with the nodes of a broker."""

    async def run(story: Story) -> None:
        if request.param == "zookeeper":
            store: Store = await ZooKeeperStore.open(settings)
        else:
            store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        try:
            await ensure_paths(store, PERSISTENT_PATHS)
            await story(store)
        finally:
            await store.close()

    settings = request.getfixturevalue("zookeeper")() if request.param == "zookeeper" else None
    return lambda story: asyncio.run(run(story))


def test_stores_offsets_in_the_nodes_of_kafka_082(run_scenario: Callable[[Story], None]) -> None:
    async def story(store: Store) -> None:
        kept = ZooKeeperOffsets(store)
        assert await kept.commit(
            "g", [PartitionOffset(partition=T0, offset=5), PartitionOffset(partition=T1, offset=2**40)]
        ) == [0, 0]
        assert await subtree(store, "/consumers") == [
            "/consumers",
            "/consumers/g",
            "/consumers/g/offsets",
            "/consumers/g/offsets/t",
            "/consumers/g/offsets/t/0",
            "/consumers/g/offsets/t/1",
        ]
        nodes = await store.get_many(["/consumers/g/offsets/t/0", "/consumers/g/offsets/t/1"])
        assert [(node.data, node.owner) for node in nodes if node] == [(b"5", 0), (b"1099511627776", 0)]
        assert await kept.commit("g", [PartitionOffset(partition=T0, offset=4)]) == [0]
        found = await kept.fetch("g", [T1, T0, TopicPartition("other", 0)])
        assert found == [StoredOffset(offset=2**40), StoredOffset(offset=4), UNKNOWN]
        assert await kept.fetch("another", [T0]) == [UNKNOWN]

    run_scenario(story)


def test_returns_offsets_written_by_consumers(run_scenario: Callable[[Story], None]) -> None:
    async def story(store: Store) -> None:
        await ensure_paths(store, ["/consumers/g/offsets/t", "/consumers/g/owners/t"])
        written = {0: b"7", 1: b"-1", 2: b"", 3: b"seven", 4: b"9223372036854775808", 5: b" 7"}
        await store.transact([Create(f"/consumers/g/offsets/t/{n}", data) for n, data in written.items()])
        found = await ZooKeeperOffsets(store).fetch("g", [TopicPartition("t", n) for n in written])
        broken = StoredOffset(offset=NO_OFFSET, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        assert found == [StoredOffset(offset=7), StoredOffset(offset=-1), broken, broken, broken, broken]

    run_scenario(story)


def test_stores_many_offsets_in_few_transactions_and_the_last_of_each_partition(
    run_scenario: Callable[[Story], None],
) -> None:
    async def story(store: Store) -> None:
        offsets = [PartitionOffset(partition=TopicPartition("many", n), offset=n) for n in range(2_500)]
        twice = [*offsets[:10], PartitionOffset(partition=TopicPartition("many", 3), offset=77)]
        kept = ZooKeeperOffsets(store)
        assert set(await kept.commit("g", offsets)) == {0}
        transactions: list[Sequence[Operation]] = []
        transact = store.transact

        async def counted(operations: Sequence[Operation]) -> list[Result]:
            transactions.append(operations)
            return await transact(operations)

        store.transact = counted  # type: ignore[method-assign]
        assert set(await kept.commit("g", offsets)) == {0}
        assert len(transactions) == 5
        assert set(await kept.commit("fresh", twice)) == {0}
        found = await kept.fetch("fresh", [TopicPartition("many", n) for n in (3, 9)])
        assert found == [StoredOffset(offset=77), StoredOffset(offset=9)]

    run_scenario(story)


def test_a_commit_succeeds_while_a_consumer_creates_or_deletes_the_nodes(
    run_scenario: Callable[[Story], None],
) -> None:
    async def story(store: Store) -> None:
        kept = ZooKeeperOffsets(store)
        path = ConsumerOffsetNode.path("g", T0)
        transact = store.transact
        raced = []

        async def beside(operations: Sequence[Operation]) -> list[Result]:
            if operations == [Create(path, b"5")] and not raced:
                raced.append("made")
                await transact([Create(path, b"1")])
            if operations == [SetData(path, b"6")] and len(raced) < 2:
                raced.append("deleted")
                await transact([Delete(path)])
            return await transact(operations)

        store.transact = beside  # type: ignore[method-assign]
        assert await kept.commit("g", [PartitionOffset(partition=T0, offset=5)]) == [0]
        assert await kept.fetch("g", [T0]) == [StoredOffset(offset=5)]
        assert await kept.commit("g", [PartitionOffset(partition=T0, offset=6)]) == [0]
        assert await kept.fetch("g", [T0]) == [StoredOffset(offset=6)]
        assert raced == ["made", "deleted"]

        async def fail(operations: Sequence[Operation]) -> list[Result]:
            raise NodeExists(path)

        store.transact = fail  # type: ignore[method-assign]
        assert await kept.commit("g", [PartitionOffset(partition=T0, offset=7)]) == [
            ErrorCode.UNKNOWN_SERVER_ERROR
        ]

    run_scenario(story)


@pytest.mark.parametrize("group", ["", ".", "..", "a/b", "/a", "a/", "a/offsets/t/0", "nul\0"])
def test_rejects_group_names_that_are_not_valid_nodes(
    run_scenario: Callable[[Story], None], group: str
) -> None:
    async def story(store: Store) -> None:
        kept = ZooKeeperOffsets(store)
        assert await kept.commit(group, [PartitionOffset(partition=T0, offset=5)]) == [
            ErrorCode.INVALID_GROUP_ID
        ]
        assert await kept.fetch(group, [T0]) == [
            StoredOffset(offset=NO_OFFSET, error=ErrorCode.INVALID_GROUP_ID)
        ]
        assert await store.children("/consumers") == []

    run_scenario(story)


def test_an_unavailable_store_is_an_error_of_each_offset(run_scenario: Callable[[Story], None]) -> None:
    async def story(store: Store) -> None:
        await store.close()
        kept = ZooKeeperOffsets(store)
        gone = ErrorCode.KAFKA_STORAGE_ERROR
        assert await kept.commit(
            "g", [PartitionOffset(partition=T0, offset=5), PartitionOffset(partition=T1, offset=5)]
        ) == [gone, gone]
        assert await kept.fetch("g", [T0]) == [StoredOffset(offset=NO_OFFSET, error=gone)]

    run_scenario(story)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/consumers/g/offsets/t/0", GroupPartition("g", T0)),
        ("/consumers/offsets/offsets/offsets/12", GroupPartition("offsets", TopicPartition("offsets", 12))),
        ("/consumers/g/offsets/t", None),
        ("/consumers/g/offsets/t/00", None),
        ("/consumers/g/offsets/t/x", None),
        ("/consumers/g/owners/t/0", None),
        ("/consumers/g/offsets/t/0/1", None),
    ],
)
def test_recognizes_paths_of_offsets(path: str, named: GroupPartition | None) -> None:
    assert ConsumerOffsetNode.named(path) == named
