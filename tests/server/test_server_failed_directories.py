"""What the controller does about data directories that brokers lost, while its store is away now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.nodes import LOG_DIR_EVENTS, LogDirEventNode
from tidemill.coordination.port import Create, StoreUnavailable, ensure_paths
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.server.cluster import Cluster


class Failover:
    """Meets faults first."""

    def __init__(self, *faults: KafkaError) -> None:
        self.faults = list(faults)
        self.asked = 0
        self.relieved: list[int] = []

    async def replicas_failed(self, broker_id: int, failed: Sequence[tuple[bytes, int]]) -> None:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        self.relieved.append(broker_id)


def relieve(*faults: KafkaError) -> Failover:
    failover = Failover(*faults)
    cluster: Any = SimpleNamespace(_broker=SimpleNamespace(failover=failover))
    asyncio.run(Cluster._relieve(cluster, 2, [(b"t" * 16, 0)]))
    return failover


def test_a_store_that_is_away_is_asked_until_others_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.server.cluster.TELL_AGAIN_S", 0.0)
    assert relieve(StoreUnavailable("away"), StoreUnavailable("still")).relieved == [2]


def test_who_is_not_the_controller_any_more_leaves_it_to_the_next() -> None:
    failover = relieve(KafkaError("another is", ErrorCode.NOT_CONTROLLER))
    assert (failover.asked, failover.relieved) == (1, [])


def test_a_note_that_makes_no_sense_goes_with_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await ensure_paths(store, [LOG_DIR_EVENTS])
        for note in (b"{", LogDirEventNode.encode(2)):
            await store.transact([Create(LogDirEventNode.prefix, note, sequential=True)])
        asked: list[int] = []
        cluster: Any = SimpleNamespace(
            _broker=SimpleNamespace(store=store, node_id=1, controller=SimpleNamespace(image=None)),
            _channels=SimpleNamespace(repeat=lambda image, broker_id: asked.append(broker_id)),
        )
        await Cluster._directories_failed(cluster)
        assert asked == [2]
        assert await store.children(LOG_DIR_EVENTS) == []
        await store.close()

    asyncio.run(story())
