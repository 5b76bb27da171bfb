"""Outdated data directories: restored from a backup, or mounted again after a start without them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from test_lost_replica_detection import NODE, NOW, TOPIC_ID, fill, image_of

from tidemill.coordination.coordination_store import SetData
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import DirectoryStartsNode
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.server.directory_starts import DirectoryStarts
from tidemill.server.lost_replica_detection import detect_lost_replicas

IMAGE = image_of([1, 2], [1, 2], [2, 1], [2, 1])
ALL = frozenset(range(4))


async def start(store: EmbeddedStore, *disks: Path, is_processed: bool = True) -> LostReplicas:
    """Starts and stops the broker once. Returns the lost replicas that it reports."""
    logs = LogManager(SystemFiles(), [str(disk) for disk in disks])
    logs.dirs.lock()
    logs.dirs.claim("c" * 22, NODE)
    starts = DirectoryStarts(store, NODE, logs.dirs)
    await starts.load()
    logs.load(NOW, lambda topic: LogConfig())
    await starts.save()
    lost = detect_lost_replicas(IMAGE, NODE, logs)
    for key in sorted(logs.dirs.reported_missing):
        logs.create(key, TOPIC_ID, LogConfig(), NOW)
    if is_processed:
        logs.dirs.write_new_meta_properties()
        logs.dirs.mark_losses_handled()
        await starts.save()
    assert logs.close(NOW, {}) == []
    return lost


@asynccontextmanager
async def opened_store(path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore.open(str(path / "coordination.db"))
    try:
        yield store
    finally:
        await store.close()


async def test_reports_lost_replicas_of_a_remounted_disk_after_their_rebuild_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"

    async with opened_store(tmp_path) as store:
        fill((disk,))
        assert (await start(store, disk)).is_none
        assert (await start(store, disk)).is_none
        disk.rename(away)
        assert (await start(store, disk)).missing is True
        shutil.rmtree(disk)
        away.rename(disk)
        assert (await start(store, disk, is_processed=False)).missing == {"t": ALL}
        assert f"the data directory {disk} was not in use at the last start of this broker" in caplog.text
        assert (await start(store, disk)).missing == {"t": ALL}, "the first report was not processed"
        assert (await start(store, disk)).is_none


async def test_reports_lost_replicas_of_a_directory_restored_from_a_backup_only(
    tmp_path: Path,
) -> None:
    disks = (tmp_path / "a", tmp_path / "b")

    async with opened_store(tmp_path) as store:
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


async def test_a_new_directory_is_not_outdated_at_the_next_start(tmp_path: Path) -> None:
    disks = (tmp_path / "a", tmp_path / "b")

    async with opened_store(tmp_path) as store:
        fill(disks[:1])
        assert (await start(store, disks[0])).is_none
        for _ in range(2):
            assert (await start(store, *disks)).is_none


async def test_a_directory_after_a_failure_is_not_outdated(tmp_path: Path) -> None:
    disks = (tmp_path / "a", tmp_path / "b")

    async with opened_store(tmp_path) as store:
        fill(disks)
        assert (await start(store, *disks)).is_none
        disks[1].rename(tmp_path / "away")
        disks[1].write_text("no directory")
        assert (await start(store, *disks)).is_none
        disks[1].unlink()
        (tmp_path / "away").rename(disks[1])
        assert (await start(store, *disks)).is_none


@pytest.mark.parametrize("damage", [b"{", b'{"version": 1, "directories": {"x": "y"}}'])
async def test_an_unreadable_node_reports_no_lost_replicas(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = tmp_path / "disk"

    async with opened_store(tmp_path) as store:
        fill((disk,))
        assert (await start(store, disk)).is_none
        await store.transact([SetData(DirectoryStartsNode.path(NODE), damage)])
        assert (await start(store, disk)).is_none
        assert DirectoryStartsNode.path(NODE) in caplog.text
