"""Failed syncs: the next sync succeeds without the data, so every failure must be handled."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFile, FaultyFiles
from test_replica_alter_log_dirs import KEY, PATIENCE_S, A, B, Stage, check_whole, staged, values

import tidemill.log.system_files as files_module
from tidemill.log.errors import storage_error
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import LogDirMove
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import StorageError


class SlowFiles(FaultyFiles):
    """Syncs of paths that contain :attr:`slow` block until :attr:`goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = "no path"
        self.waits = threading.Event()
        self.goes_on = threading.Event()

    def check(self, operation: str, path: str) -> None:
        if operation == "sync" and self.slow in path:
            self.waits.set()
            self.goes_on.wait(PATIENCE_S)
        super().check(operation, path)

    async def waiting(self) -> None:
        """Returns once a sync is blocked."""
        assert await asyncio.get_running_loop().run_in_executor(None, self.waits.wait, PATIENCE_S)


async def stop(stage: Stage) -> list[str]:
    """Stops the partitions and then the logs; returns the errors."""
    await stage.replicas.stop()
    stage.pool.shutdown()
    return stage.logs.close(0, {})


async def stop_while(files: SlowFiles, stage: Stage, task: asyncio.Task[Any] | None) -> list[str]:
    """Stops a broker during a sync that the ``task`` waits for."""
    await files.waiting()
    if task is not None:
        task.cancel()
    threading.Timer(0.05, files.goes_on.set).start()
    return await stop(stage)


async def losses_at_next_start(files: FaultyFiles) -> list[bool]:
    """Returns for each directory whether the next start has to assume lost records."""
    again = Stage(files)
    may_have_lost = [one.may_have_lost for one in again.logs.dirs.all]
    await stop(again)
    return may_have_lost


def failures(logs: LogManager) -> list[str]:
    return [directory.path for directory in logs.dirs.all if directory.is_offline]


async def test_a_failed_sync_during_shutdown_leaves_no_clean_shutdown_marker() -> None:
    files = SlowFiles()

    async with staged(80, files) as stage:
        files.slow = f"{A}/t-0"
        files.fail("sync", f"{A}/t-0", errno.EIO)
        flush = asyncio.ensure_future(stage.replicas.log_flusher.flush_due())
        assert await stop_while(files, stage, flush) == []
        assert failures(stage.logs) == [A]
        assert await losses_at_next_start(files) == [True, False, False]


class SlowMarks(SlowFiles):
    """Writing the marker of an untrusted directory blocks until :attr:`goes_on` is set."""

    def check(self, operation: str, path: str) -> None:
        if operation == "replace" and path == f"{A}/.tidemill-boot":
            self.waits.set()
            self.goes_on.wait(PATIENCE_S)
        super().check(operation, path)


async def test_shutdown_waits_until_a_failed_sync_is_recorded() -> None:
    files = SlowMarks()
    files.goes_on.set()
    stage = Stage(files)
    stage.append(80)
    files.waits.clear()
    files.goes_on.clear()
    files.fail("sync", f"{A}/t-0", errno.EIO)
    await stage.replicas.log_flusher.flush_due()
    marked: list[bool] = []
    stage.replicas.listener.directory_distrusted = lambda: marked.append(files.goes_on.is_set())
    assert await stop_while(files, stage, None) == []
    assert marked == [True]
    assert await losses_at_next_start(files) == [True, False, False]


class LateFiles(SlowFiles):
    """The first sync of a log file fails and returns late. A second sync that starts during it succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        if operation == "sync" and path.endswith(".log") and self.fails:
            self.fails = False
            self._file_node(path).drop()
            self.waits.set()
            self.goes_on.wait(PATIENCE_S)
            raise OSError(errno.EIO, "not written", path)


async def test_records_of_another_failed_sync_are_not_acknowledged() -> None:
    files = LateFiles()

    async with staged(0, files) as stage:
        stage.log.set_config(LogConfig(flush_messages=5))
        stage.append(3)
        stage.log.roll(0)
        stage.append(1)
        files.fails = True
        due = asyncio.ensure_future(stage.replicas.log_flusher.flush_due())
        await files.waiting()
        stage.append(1)
        assert stage.partition.flush_under_way
        await asyncio.sleep(0.05)
        assert stage.partition.high_watermark == 4
        files.goes_on.set()
        await due
        await stop(stage)
        assert stage.partition.high_watermark == 4
        assert failures(stage.logs) == [A]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("stops", [False, True])
async def test_records_of_a_failed_write_back_are_not_treated_as_synced(
    monkeypatch: pytest.MonkeyPatch, number: int, stops: bool
) -> None:
    def write_back(file: FaultyFile, position: int, count: int) -> None:
        time.sleep(0.05)
        file._node.drop()
        raise OSError(number, "not written")

    files = FaultyFiles()

    async with staged(80, files) as stage:
        with monkeypatch.context() as patched:
            patched.setattr(FaultyFile, "write_back", write_back)
            stage.replicas.write_back_requested(stage.partition)
            if not stops:
                await asyncio.wait(stage.replicas.write_back.under_way)
            await stop(stage)
        assert failures(stage.logs) == [A]
        assert await losses_at_next_start(files) == [True, False, False]


async def test_a_write_back_without_descriptors_is_retried_by_the_next_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_back(file: FaultyFile, position: int, count: int) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async with staged(80) as stage:
        monkeypatch.setattr(FaultyFile, "write_back", write_back)
        stage.replicas.write_back_requested(stage.partition)
        assert await stop(stage) == []
        assert failures(stage.logs) == []


@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is Linux's")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EPERM, 0])
def test_a_failed_write_back_is_reported_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    requested: list[tuple[bool, int, int]] = []

    def call(descriptor: int, position: int, count: int, flags: int) -> int:
        same = os.path.sameopenfile(descriptor, file.fileno())
        requested.append((same and descriptor != file.fileno(), position, count))
        return number

    file = SystemFiles().open(str(tmp_path / "file"), create=True)
    file.append([b"x" * 100])
    file.write_back(0, 100)
    monkeypatch.setattr(files_module, "_sync_file_range", lambda: call)
    if number in (errno.EIO, errno.ENOSPC):
        with pytest.raises(OSError, match="file") as caught:
            file.write_back(0, 100)
        assert caught.value.errno == number
    else:
        file.write_back(0, 100)
    # The error is reported once to each open file. The synced file keeps its own.
    assert requested == [(True, 0, 100)]
    file.close()


@pytest.mark.parametrize("stops", [False, True])
async def test_a_future_log_with_a_failed_sync_is_not_treated_as_synced(stops: bool) -> None:
    files = SlowFiles()

    async with staged(80, files) as stage:
        files.fail("sync", f"{B}/t-0", errno.EIO)
        if stops:
            files.slow = f"{B}/t-0"
        stage.mover.begin(KEY, B)
        if stops:
            assert await stop_while(files, stage, None) == []
        else:
            await stage.moved()
            assert await stop(stage) == []
        assert failures(stage.logs) == [B]
        assert stage.log.directory == f"{A}/t-0"
        await check_moves_and_stays(files)


async def test_a_future_log_without_room_for_its_sync_is_removed_at_shutdown() -> None:
    files = SlowFiles()

    async with staged(80, files) as stage:
        files.fail("sync", f"{B}/t-0", errno.ENOSPC)
        stage.mover.begin(KEY, B)
        await stage.full()
        assert await stop(stage) == []
        assert failures(stage.logs) == []
        await check_moves_and_stays(files)


async def check_moves_and_stays(files: FaultyFiles) -> None:
    """The next start moves the partition to its end. No later power cut loses its records."""
    stage = Stage(files)
    stage.mover.begin(KEY, B)
    await stage.moved()
    check_whole(stage, B, 80)
    assert await stop(stage) == []
    files.power_cut()
    again = Stage(files)
    assert values(again.log) == list(range(80))
    await stop(again)


class ForgetfulFiles(FaultyFiles):
    """A sync of a directory reports a failure once. Later syncs succeed without writing anything."""

    def __init__(self) -> None:
        super().__init__()
        self._forgotten: set[str] = set()

    def sync_directory(self, path: str) -> None:
        if path in self._forgotten:
            return
        try:
            super().sync_directory(path)
        except OSError:
            self._forgotten.add(path)
            raise


@pytest.mark.parametrize("stops", [False, True])
async def test_the_source_directory_does_not_reappear_when_the_new_name_is_unsynced(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    sync_target = LogDirMove.sync_target

    files = ForgetfulFiles()

    async with staged(0, files) as stage:
        stage.log.set_config(LogConfig(flush_messages=1))
        stage.append(80)
        await asyncio.wait(stage.replicas.log_flusher.under_way)
        begun = threading.Event()

        def fail(move: LogDirMove) -> None:
            begun.set()
            time.sleep(0.05)
            files.fail("sync_directory", B, errno.EIO)
            sync_target(move)

        monkeypatch.setattr(LogDirMove, "sync_target", fail)
        stage.mover.begin(KEY, B)
        if stops:
            await asyncio.get_running_loop().run_in_executor(None, begun.wait, PATIENCE_S)
        else:
            await stage.moved()
        if not stage.partition.is_offline and not stops:
            stage.append(5)
            await asyncio.wait(stage.replicas.log_flusher.under_way)
        acknowledged = int(stage.partition.high_watermark)
        await stop(stage)
        is_put_aside = failures(stage.logs) == [B]
        files.power_cut()
        again = Stage(files)
        assert len(values(again.log)) >= acknowledged
        assert again.logs.dirs.all[1].may_have_lost
        await stop(again)
        assert is_put_aside


@pytest.mark.parametrize(("number", "is_distrusted"), [(errno.EIO, True), (errno.EMFILE, False)])
async def test_the_next_start_does_not_trust_a_disk_that_failed_during_a_segment_swap(
    number: int, is_distrusted: bool
) -> None:
    files = FaultyFiles()

    async with staged(0, files) as stage:
        stage.logs.dirs.mark_losses_handled()
        stage.append(80)
        problem = OSError(number, os.strerror(number))
        stage.replicas.storage_failed(stage.log, storage_error("exchange", stage.log.directory, problem))
        await stop(stage)
        assert failures(stage.logs) == [A]
        assert await losses_at_next_start(files) == [is_distrusted, False, False]


async def test_the_next_start_detects_unsynced_partition_names() -> None:
    files = ForgetfulFiles()

    async with staged(0, files) as stage:
        stage.logs.dirs.mark_losses_handled()
        stage.append(80)
        files.fail("sync_directory", A, after=1)
        (problem,) = await stop(stage)
        assert problem.startswith(f"cannot sync {A}: ")
        assert await losses_at_next_start(files) == [True, False, False]


async def test_a_sync_without_room_during_a_failed_truncation_is_not_retried() -> None:
    files = SlowFiles()

    async with staged(80, files) as stage:
        files.slow = f"{A}/t-0"
        stage.replicas.flush_requested(stage.partition)
        await files.waiting()
        files.fail("truncate", f"{A}/t-0", errno.ENOSPC)
        files.fail("sync", f"{A}/t-0", errno.ENOSPC)
        with pytest.raises(StorageError, match="No space"):
            stage.partition.truncate_to(70, 0)
        assert stage.log.has_unfinished_truncation
        files.goes_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(stage.replicas.log_flusher.under_way)
        assert failures(stage.logs) == [A]
        await stop(stage)


async def test_a_truncation_after_a_move_is_synced_before_its_offset_is_reported() -> None:
    files = SlowFiles()

    async with staged(3, files) as stage:
        stage.log.flush(0)
        stage.log.set_config(LogConfig(flush_messages=1))
        files.slow = f"{A}/t-0/"
        stage.append(2)
        await files.waiting()
        stage.mover.begin(KEY, B)
        await stage.lies_in(B)
        partition = stage.partition
        partition.truncate_to(3, 0)
        files.goes_on.set()
        await asyncio.wait(stage.replicas.log_flusher.under_way)
        assert not partition.has_pending_sync
        files.power_cut()
        again = Stage(files)
        assert values(again.log) == [0, 1, 2]
        await stop(again)
