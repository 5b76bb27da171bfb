"""Data directories that come back after others were in their place."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_lost_replicas import NODE, NOW, TOPIC_ID, fill, image_of

from tidemill.coordination.directory_starts_node import DirectoryStartsNode
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.port import SetData
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.manager import LogManager
from tidemill.server.directory_starts import DirectoryStarts
from tidemill.server.lost_replicas import report_lost_replicas

IMAGE = image_of([1, 2], [1, 2], [2, 1], [2, 1])
ALL = frozenset(range(4))


async def start(store: EmbeddedStore, *disks: Path, is_heeded: bool = True) -> LostReplicas:
    """Starts and stops the broker once; what it reports."""
    logs = LogManager(SystemFiles(), [str(disk) for disk in disks])
    logs.lock()
    logs.claim("c" * 22, NODE)
    starts = DirectoryStarts(store, NODE, logs)
    await starts.load()
    logs.load(NOW, lambda topic: LogConfig())
    await starts.save()
    lost = report_lost_replicas(IMAGE, NODE, logs)
    for key in sorted(logs.reported_missing):
        logs.create(key, TOPIC_ID, LogConfig(), NOW)
    if is_heeded:
        logs.accept()
        logs.loss_heeded()
        await starts.save()
    assert logs.close(NOW, {}) == []
    return lost


def with_store(path: Path, story: Callable[[EmbeddedStore], object]) -> None:
    """Runs a story that is a coroutine, with a store."""

    async def run() -> None:
        store = EmbeddedStore.open(str(path / "coordination.db"))
        try:
            await story(store)  # type: ignore[misc]
        finally:
            await store.close()

    asyncio.run(run())


def test_a_disk_that_is_mounted_again_after_its_replicas_were_rebuilt_is_reported_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"

    async def story(store: EmbeddedStore) -> None:
        fill((disk,))
        assert (await start(store, disk)).is_none
        assert (await start(store, disk)).is_none
        disk.rename(away)
        assert (await start(store, disk)).missing is True
        shutil.rmtree(disk)
        away.rename(disk)
        assert (await start(store, disk, is_heeded=False)).missing == {"t": ALL}
        assert f"the data directory {disk} was not in use when this broker was last started" in caplog.text
        assert (await start(store, disk)).missing == {"t": ALL}, "the first report was not heeded"
        assert (await start(store, disk)).is_none

    with_store(tmp_path, story)


def test_a_directory_restored_from_a_backup_is_reported_as_lost_and_the_other_one_is_not(
    tmp_path: Path,
) -> None:
    disks = (tmp_path / "a", tmp_path / "b")

    async def story(store: EmbeddedStore) -> None:
        (on_a, on_b) = fill(disks)
        assert on_a
        assert on_b
        assert (await start(store, *disks)).is_none
        shutil.copytree(disks[1], tmp_path / "backup")
        assert (await start(store, *disks)).is_none
        shutil.rmtree(disks[1])
        (tmp_path / "backup").rename(disks[1])
        assert (await start(store, *disks)).missing == {"t": frozenset(on_b)}
        assert (await start(store, *disks)).is_none

    with_store(tmp_path, story)


def test_a_new_directory_beside_others_is_no_outdated_one_at_the_next_start(tmp_path: Path) -> None:
    disks = (tmp_path / "a", tmp_path / "b")

    async def story(store: EmbeddedStore) -> None:
        fill(disks[:1])
        assert (await start(store, disks[0])).is_none
        for _ in range(2):
            assert (await start(store, *disks)).is_none

    with_store(tmp_path, story)


def test_a_directory_that_could_not_be_used_for_a_while_is_no_outdated_one(tmp_path: Path) -> None:
    disks = (tmp_path / "a", tmp_path / "b")

    async def story(store: EmbeddedStore) -> None:
        fill(disks)
        assert (await start(store, *disks)).is_none
        disks[1].rename(tmp_path / "away")
        disks[1].write_text("no directory")
        assert (await start(store, *disks)).is_none
        disks[1].unlink()
        (tmp_path / "away").rename(disks[1])
        assert (await start(store, *disks)).is_none

    with_store(tmp_path, story)


@pytest.mark.parametrize("damage", [b"{", b'{"version": 1, "directories": {"x": "y"}}'])
def test_a_node_that_cannot_be_read_takes_no_replica_out_of_sync(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = tmp_path / "disk"

    async def story(store: EmbeddedStore) -> None:
        fill((disk,))
        assert (await start(store, disk)).is_none
        await store.transact([SetData(DirectoryStartsNode.path(NODE), damage)])
        assert (await start(store, disk)).is_none
        assert DirectoryStartsNode.path(NODE) in caplog.text

    with_store(tmp_path, story)
