"""What the controller does about data directories that brokers lost, while its store is away now and then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.controller.shell import Controller
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import Delta
from tidemill.coordination.nodes import LOG_DIR_EVENTS, LogDirEventNode
from tidemill.coordination.port import (
    Create,
    Operation,
    Result,
    SetData,
    StoreUnavailable,
    ensure_paths,
)
from tidemill.log.directories import DataDirectories
from tidemill.log.files import SystemFiles
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.server.cluster import Cluster
from tidemill.server.failed_sync_store import DistrustedDirectories


class Failover:
    """Meets faults first."""

    def __init__(self, *faults: KafkaError) -> None:
        self.faults = list(faults)
        self.asked = 0
        self.relieved: list[int] = []

    async def replicas_failed(self, broker_id: int, epoch: int, failed: Sequence[tuple[bytes, int]]) -> None:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        self.relieved.append(broker_id)


def relieve(*faults: KafkaError) -> Failover:
    failover = Failover(*faults)
    begun: list[Coroutine[Any, Any, None]] = []
    cluster: Any = SimpleNamespace(_broker=SimpleNamespace(failover=failover), begin=begun.append)
    Cluster.replicas_failed(cluster, 2, 7, [(b"t" * 16, 0)])
    (work,) = begun
    asyncio.run(work)
    return failover


def test_a_store_that_is_away_is_asked_until_others_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.server.cluster.TELL_AGAIN_S", 0.0)
    assert relieve(StoreUnavailable("away"), StoreUnavailable("still")).relieved == [2]


def test_who_is_not_the_controller_any_more_leaves_it_to_the_next() -> None:
    failover = relieve(KafkaError("another is", ErrorCode.NOT_CONTROLLER))
    assert (failover.asked, failover.relieved) == (1, [])


def test_the_store_knows_of_directories_where_syncs_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))

        async def started() -> tuple[DataDirectories, DistrustedDirectories]:
            logs = DataDirectories(SystemFiles(), [str(tmp_path)])
            known = DistrustedDirectories(store, 1, logs)
            await known.load()
            return logs, known

        logs, known = await started()
        await known.save()
        assert not await store.exists("/tidemill")
        logs.distrusted |= {"one", "two"}
        await known.save_for_sure()
        logs, known = await started()
        assert logs.distrusted == {"one", "two"}
        logs.distrusted -= {"one", "two"}
        await known.save_last()
        logs, _ = await started()
        assert logs.distrusted == set()
        await store.transact([SetData("/tidemill/distrusted_directories/1", b"{")])
        logs, _ = await started()
        assert logs.distrusted == set()
        assert "/tidemill/distrusted_directories/1" in caplog.text
        await store.close()

    asyncio.run(story())


def test_the_store_knows_of_a_sync_that_failed_while_the_end_of_a_former_one_was_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        logs = DataDirectories(SystemFiles(), [str(tmp_path)])
        known = DistrustedDirectories(store, 1, logs)
        logs.distrusted = {"one"}
        await known.save()
        transact = store.transact

        async def lose_answer(operations: Sequence[Operation]) -> list[Result]:
            monkeypatch.undo()
            await transact(operations)
            raise StoreUnavailable("the connection broke")

        monkeypatch.setattr(store, "transact", lose_answer)
        logs.distrusted = set()
        with pytest.raises(StoreUnavailable):
            await known.save()
        logs.distrusted = {"one"}
        await known.save()
        logs.distrusted = set()
        await DistrustedDirectories(store, 1, logs).load()
        assert logs.distrusted == {"one"}
        await store.close()

    asyncio.run(story())


def heed_notes(directory: Path, *, is_replaced: bool) -> tuple[list[int], int]:
    """The brokers that a controller asks on account of two notes, and how many notes it leaves."""

    async def announce(delta: Delta) -> None:
        pass

    async def story() -> tuple[list[int], int]:
        store = EmbeddedStore.open(str(directory / "coordination.db"))
        controller = Controller(store, 1, BrokerConfig.of, announce, SystemClock())
        await controller.load()
        assert await controller.activate()
        await ensure_paths(store, [LOG_DIR_EVENTS])
        for note in (b"{", LogDirEventNode.encode(2)):
            await store.transact([Create(LogDirEventNode.prefix, note, sequential=True)])
        if is_replaced:
            other = Controller(store.join(), 3, BrokerConfig.of, announce, SystemClock())
            assert await other.activate(dead=1)
        asked: list[int] = []
        cluster: Any = SimpleNamespace(
            _broker=SimpleNamespace(store=store, node_id=1, controller=controller),
            _channels=SimpleNamespace(repeat=lambda image, broker_id: asked.append(broker_id)),
        )
        with pytest.raises(KafkaError, match="controller") if is_replaced else contextlib.nullcontext():
            await Cluster._directories_failed(cluster)
        left = len(await store.children(LOG_DIR_EVENTS))
        await store.close()
        return asked, left

    return asyncio.run(story())


def test_a_note_that_makes_no_sense_goes_with_the_others(tmp_path: Path) -> None:
    assert heed_notes(tmp_path, is_replaced=False) == ([2], 0)


def test_a_controller_that_was_replaced_leaves_the_notes_to_the_next_one(tmp_path: Path) -> None:
    """The broker answers it nothing, and would not be asked any more."""
    assert heed_notes(tmp_path, is_replaced=True) == ([2], 2)
