"""All stores have the same results, errors, events and content after the same random transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tidemill.coordination.coordination_store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Event,
    Operation,
    OperationError,
    SetData,
    Store,
    subtree,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.testing import StoreServer

PATHS = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep")
TRANSACTIONS = 150


def transaction(random: Random) -> list[Operation]:
    """One to four operations, each of which may fail."""
    operations: list[Operation] = []
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        path = random.choice(PATHS)
        version = random.choice((ANY_VERSION, ANY_VERSION, ANY_VERSION, 0, 1))
        data = random.randbytes(random.randrange(4))
        kind = random.randrange(10)
        if kind < 5:
            is_numbered = random.random() < 0.2
            operations.append(
                Create(f"{path}_" if is_numbered else path, data, random.random() < 0.2, is_numbered)
            )
        elif kind < 7:
            operations.append(SetData(path, data, version))
        elif kind < 9:
            operations.append(Delete(path, version))
        else:
            operations.append(Check(path, version))
    return operations


async def told(store: Store, seed: int) -> list[object]:
    """The results, errors, events and content of a store after the transactions of a seed."""
    random = Random(seed)
    story: list[object] = []
    events: list[Event] = []
    for path in ("/", *PATHS):
        await store.watch(path, events.append)
    for _ in range(TRANSACTIONS):
        operations = transaction(random)
        try:
            results = await store.transact(operations)
        except OperationError as error:
            story.append((operations, type(error), error.path, error.index))
        else:
            # A check returns no version that its caller did not give.
            pairs = zip(operations, results, strict=True)
            story.append((operations, [r if not isinstance(o, Check) else r.path for o, r in pairs]))
        story.append(tuple(events))
        events.clear()
    paths = await subtree(store, "/")
    nodes = await store.get_many(paths)
    owned = store.session_id
    story.append(
        [(p, n and (n.data, n.version, n.owner == owned)) for p, n in zip(paths, nodes, strict=True)]
    )
    ids = sorted({node.creation_id for node in nodes if node is not None})
    places = [ids.index(node.creation_id) for node in nodes if node is not None]
    story.append(places)
    return story


@pytest.fixture(scope="module")
def store_for_tests() -> Iterator[StoreServer]:
    with StoreServer() as server:
        yield server


@pytest.mark.parametrize("seed", range(6))
def test_engines_agree(seed: int, zookeeper: Callable[..., ZooKeeperSettings], tmp_path: Path) -> None:
    agree(seed, zookeeper(), tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_the_store_for_tests_agrees(seed: int, store_for_tests: StoreServer, tmp_path: Path) -> None:
    agree(seed, ZooKeeperSettings(store_for_tests.address, f"/seed-{seed}"), tmp_path)


def agree(seed: int, settings: ZooKeeperSettings, tmp_path: Path) -> None:
    """Fails if a server and the embedded store differ."""

    async def both() -> None:
        embedded = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        other = await ZooKeeperStore.open(settings)
        try:
            expected = await told(embedded, seed)
            found = await told(other, seed)
        finally:
            await embedded.close()
            await other.close()
        failed = sum(isinstance(entry, tuple) and len(entry) == 4 for entry in expected[:-2:2])
        assert 20 < failed < TRANSACTIONS - 10
        for one, two in zip(expected[:-2], found[:-2], strict=True):
            assert one == two
        assert expected[-2] == found[-2]
        assert expected[-1] == found[-1]

    asyncio.run(both())
