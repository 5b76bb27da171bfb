"""How the controller handles failed data directories, also during outages of the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.controller.log_dir_events import process_log_dir_events
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import (
    Create,
    Operation,
    Result,
    SetData,
    StoreUnavailable,
    ensure_paths,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import LOG_DIR_EVENTS, LogDirEventNode
from tidemill.log.log_directories import DataDirectories
from tidemill.log.system_files import SystemFiles
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.server.cluster_member import ClusterMember
from tidemill.server.failed_sync_store import DistrustedDirectories
from unwatched_controller import new_controller


class Failover:
    """Raises the faults first, and then records the calls."""

    def __init__(self, *faults: KafkaError) -> None:
        self.faults = list(faults)
        self.asked = 0
        self.relieved: list[int] = []

    async def replicas_failed(
        self, broker_id: int, failed: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        self.relieved.append(broker_id)


def replicas_failed_with(*faults: KafkaError) -> Failover:
    failover = Failover(*faults)
    started: list[Coroutine[Any, Any, None]] = []
    cluster: Any = SimpleNamespace(
        _broker=SimpleNamespace(controller=SimpleNamespace(failover=failover)),
        _tasks=SimpleNamespace(start=started.append),
    )
    ClusterMember.replicas_failed(cluster, 2, [(b"t" * 16, 0)], broker_epoch=7)
    (work,) = started
    asyncio.run(work)
    return failover


def test_retries_the_election_until_the_store_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.server.store_retries.RETRY_S", 0.0)
    assert replicas_failed_with(StoreUnavailable("away"), StoreUnavailable("still")).relieved == [2]


def test_a_former_controller_does_not_retry() -> None:
    failover = replicas_failed_with(KafkaError("another is", ErrorCode.NOT_CONTROLLER))
    assert (failover.asked, failover.relieved) == (1, [])


async def test_stores_directories_with_failed_syncs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    await known.save_with_retries()
    logs, known = await started()
    assert logs.distrusted == {"one", "two"}
    logs.distrusted -= {"one", "two"}
    await known.save_at_shutdown()
    logs, _ = await started()
    assert logs.distrusted == set()
    await store.transact([SetData("/tidemill/distrusted_directories/1", b"{")])
    logs, _ = await started()
    assert logs.distrusted == set()
    assert "/tidemill/distrusted_directories/1" in caplog.text
    await store.close()


async def test_stores_a_failed_sync_after_an_unanswered_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def process_notifications(directory: Path, *, is_replaced: bool) -> tuple[list[int], int]:
    """Returns the brokers that a controller queries for two notifications, and the number of nodes left."""

    async def announce(delta: Delta) -> Announcement:
        return Announcement(delta)

    async def scenario() -> tuple[list[int], int]:
        store = EmbeddedStore.open(str(directory / "coordination.db"))
        controller = new_controller(store, 1, BrokerConfig.of, announce, SystemClock())
        await controller.context.load()
        assert await controller.context.activate()
        await ensure_paths(store, [LOG_DIR_EVENTS])
        for note in (b"{", LogDirEventNode.encode(2)):
            await store.transact([Create(LogDirEventNode.prefix, note, sequential=True)])
        if is_replaced:
            other = new_controller(store.join(), 3, BrokerConfig.of, announce, SystemClock())
            assert await other.context.activate(dead=1)
        asked: list[int] = []

        async def own_directory_failed() -> None:
            raise AssertionError("no notification names this broker")

        with pytest.raises(KafkaError, match="controller") if is_replaced else contextlib.nullcontext():
            await process_log_dir_events(controller.context, own_directory_failed, asked.append)
        left = len(await store.children(LOG_DIR_EVENTS))
        await store.close()
        return asked, left

    return asyncio.run(scenario())


def test_deletes_an_invalid_notification(tmp_path: Path) -> None:
    assert process_notifications(tmp_path, is_replaced=False) == ([2], 0)


def test_a_fenced_controller_leaves_the_notifications(tmp_path: Path) -> None:
    """The broker does not respond to it, and the next controller must query the broker."""
    assert process_notifications(tmp_path, is_replaced=True) == ([2], 2)
