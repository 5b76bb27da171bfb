"""Syncs that fail: the next one succeeds without the data, so that no one of them may go unheard."""

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
from test_replication_moves import KEY, PATIENCE_S, A, B, Stage, check_whole, values

import tidemill.log.files as files_module
from tidemill.log.config import LogConfig
from tidemill.log.errors import storage_error
from tidemill.log.files import SystemFiles
from tidemill.log.manager import LogManager
from tidemill.log.moves import Move
from tidemill.model.errors import StorageError
from tidemill.testing.files import FaultyFile, FaultyFiles


class SlowFiles(FaultyFiles):
    """Syncs of paths that contain :attr:`slow` wait until :attr:`goes_on`."""

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
        """Returns once a sync waits."""
        assert await asyncio.get_running_loop().run_in_executor(None, self.waits.wait, PATIENCE_S)


async def stop(stage: Stage) -> list[str]:
    """Stops the partitions, and then the logs; what was wrong."""
    await stage.replicas.stop()
    stage.pool.shutdown()
    return stage.logs.close(0, {})


async def stop_while(files: SlowFiles, stage: Stage, task: asyncio.Task[Any] | None) -> list[str]:
    """Stops a broker while a sync is under way, which the ``task`` waits for."""
    await files.waiting()
    if task is not None:
        task.cancel()
    threading.Timer(0.05, files.goes_on.set).start()
    return await stop(stage)


async def losses_at_next_start(files: FaultyFiles) -> list[bool]:
    """For each directory, whether the next start has to assume that records are lost there."""
    again = Stage(files)
    may_have_lost = [one.may_have_lost for one in again.logs.directories]
    await stop(again)
    return may_have_lost


def failures(logs: LogManager) -> list[str]:
    return [directory.path for directory in logs.directories if directory.failure]


def test_a_sync_that_is_due_and_fails_during_the_stop_leaves_no_clean_mark() -> None:
    async def run() -> None:
        files = SlowFiles()
        stage = Stage(files)
        stage.append(80)
        files.slow = f"{A}/t-0"
        files.fail("sync", f"{A}/t-0", errno.EIO)
        assert await stop_while(files, stage, asyncio.ensure_future(stage.replicas.flushing.due())) == []
        assert failures(stage.logs) == [A]
        assert await losses_at_next_start(files) == [True, False, False]

    asyncio.run(run())


class SlowMarks(SlowFiles):
    """The mark of a directory that is not to be trusted is written once :attr:`goes_on` is set."""

    def check(self, operation: str, path: str) -> None:
        if operation == "replace" and path == f"{A}/.tidemill-boot":
            self.waits.set()
            self.goes_on.wait(PATIENCE_S)
        super().check(operation, path)


def test_a_stop_waits_until_a_directory_in_which_a_sync_failed_is_marked() -> None:
    async def run() -> None:
        files = SlowMarks()
        files.goes_on.set()
        stage = Stage(files)
        stage.append(80)
        files.waits.clear()
        files.goes_on.clear()
        files.fail("sync", f"{A}/t-0", errno.EIO)
        await stage.replicas.flushing.due()
        marked: list[bool] = []
        stage.replicas.directory_distrusted = lambda: marked.append(files.goes_on.is_set())
        assert await stop_while(files, stage, None) == []
        assert marked == [True]
        assert await losses_at_next_start(files) == [True, False, False]

    asyncio.run(run())


class LateFiles(SlowFiles):
    """The first sync of a log file fails, and says so late: another one that begins meanwhile succeeds."""

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


def test_what_another_sync_failed_to_write_is_not_acknowledged() -> None:
    async def run() -> None:
        files = LateFiles()
        stage = Stage(files)
        stage.log.set_config(LogConfig(flush_messages=5))
        stage.append(3)
        stage.log.roll(0)
        stage.append(1)
        files.fails = True
        due = asyncio.ensure_future(stage.replicas.flushing.due())
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

    asyncio.run(run())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("stops", [False, True])
def test_what_could_not_be_written_back_is_not_taken_for_what_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, number: int, stops: bool
) -> None:
    def write_back(file: FaultyFile, position: int, count: int) -> None:
        time.sleep(0.05)
        file._node.drop()
        raise OSError(number, "not written")

    async def run() -> None:
        files = FaultyFiles()
        stage = Stage(files)
        stage.append(80)
        with monkeypatch.context() as patched:
            patched.setattr(FaultyFile, "write_back", write_back)
            stage.replicas.write_back_wanted(stage.partition)
            if not stops:
                await asyncio.wait(stage.replicas.write_back.under_way)
            await stop(stage)
        assert failures(stage.logs) == [A]
        assert await losses_at_next_start(files) == [True, False, False]

    asyncio.run(run())


def test_a_write_back_for_want_of_descriptors_is_left_to_the_next_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_back(file: FaultyFile, position: int, count: int) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        monkeypatch.setattr(FaultyFile, "write_back", write_back)
        stage.replicas.write_back_wanted(stage.partition)
        assert await stop(stage) == []
        assert failures(stage.logs) == []

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is Linux's")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EPERM, 0])
def test_the_file_says_what_could_not_be_written_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked: list[tuple[bool, int, int]] = []

    def call(descriptor: int, position: int, count: int, flags: int) -> int:
        same = os.path.sameopenfile(descriptor, file.fileno())
        asked.append((same and descriptor != file.fileno(), position, count))
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
    # The error is told to each open file once: the one that is synced keeps its own.
    assert asked == [(True, 0, 100)]
    file.close()


@pytest.mark.parametrize("stops", [False, True])
def test_a_copy_whose_sync_failed_is_not_taken_for_what_is_on_the_disk(stops: bool) -> None:
    async def run() -> None:
        files = SlowFiles()
        stage = Stage(files)
        stage.append(80)
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

    asyncio.run(run())


def test_a_copy_that_found_no_room_at_its_sync_goes_with_the_stop() -> None:
    async def run() -> None:
        files = SlowFiles()
        stage = Stage(files)
        stage.append(80)
        files.fail("sync", f"{B}/t-0", errno.ENOSPC)
        stage.mover.begin(KEY, B)
        await stage.full()
        assert await stop(stage) == []
        assert failures(stage.logs) == []
        await check_moves_and_stays(files)

    asyncio.run(run())


async def check_moves_and_stays(files: FaultyFiles) -> None:
    """The next start moves the partition to its end, and no power cut takes anything of it then."""
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
    """A sync of a directory that fails says so once: the next ones succeed, and write nothing."""

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
def test_the_old_directory_does_not_come_back_where_the_new_name_is_not_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    sync_target = Move.sync_target

    async def run() -> None:
        files = ForgetfulFiles()
        stage = Stage(files)
        stage.log.set_config(LogConfig(flush_messages=1))
        stage.append(80)
        await asyncio.wait(stage.replicas.flushing.under_way)
        begun = threading.Event()

        def fail(move: Move) -> None:
            begun.set()
            time.sleep(0.05)
            files.fail("sync_directory", B, errno.EIO)
            sync_target(move)

        monkeypatch.setattr(Move, "sync_target", fail)
        stage.mover.begin(KEY, B)
        if stops:
            await asyncio.get_running_loop().run_in_executor(None, begun.wait, PATIENCE_S)
        else:
            await stage.moved()
        if not stage.partition.failed and not stops:
            stage.append(5)
            await asyncio.wait(stage.replicas.flushing.under_way)
        acknowledged = int(stage.partition.high_watermark)
        await stop(stage)
        is_put_aside = failures(stage.logs) == [B]
        files.power_cut()
        again = Stage(files)
        assert len(values(again.log)) >= acknowledged
        assert again.logs.directories[1].may_have_lost
        await stop(again)
        assert is_put_aside

    asyncio.run(run())


@pytest.mark.parametrize(("number", "is_distrusted"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_a_disk_that_fails_while_segments_are_exchanged_is_not_trusted_by_the_next_start(
    number: int, is_distrusted: bool
) -> None:
    async def run() -> None:
        files = FaultyFiles()
        stage = Stage(files)
        stage.logs.loss_heeded()
        stage.append(80)
        problem = OSError(number, os.strerror(number))
        stage.replicas.storage_failed(stage.log, storage_error("exchange", stage.log.directory, problem))
        await stop(stage)
        assert failures(stage.logs) == [A]
        assert await losses_at_next_start(files) == [is_distrusted, False, False]

    asyncio.run(run())


def test_a_stop_that_could_not_sync_the_names_of_partitions_is_heeded_by_the_next_start() -> None:
    async def run() -> None:
        files = ForgetfulFiles()
        stage = Stage(files)
        stage.logs.loss_heeded()
        stage.append(80)
        files.fail("sync_directory", A, after=1)
        (problem,) = await stop(stage)
        assert problem.startswith(f"cannot sync {A}: ")
        assert await losses_at_next_start(files) == [True, False, False]

    asyncio.run(run())


def test_a_sync_that_finds_no_room_while_a_cut_fails_is_not_tried_again() -> None:
    async def run() -> None:
        files = SlowFiles()
        stage = Stage(files)
        stage.append(80)
        files.slow = f"{A}/t-0"
        stage.replicas.flush_wanted(stage.partition)
        await files.waiting()
        files.fail("truncate", f"{A}/t-0", errno.ENOSPC)
        files.fail("sync", f"{A}/t-0", errno.ENOSPC)
        with pytest.raises(StorageError, match="No space"):
            stage.partition.truncate_to(70, 0)
        assert stage.log.has_unfinished_cut
        files.goes_on.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(stage.replicas.flushing.under_way)
        assert failures(stage.logs) == [A]
        await stop(stage)

    asyncio.run(run())


def test_a_cut_in_the_directory_that_a_partition_has_moved_to_is_synced_before_others_count_on_it() -> None:
    async def run() -> None:
        files = SlowFiles()
        stage = Stage(files)
        stage.append(3)
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
        await asyncio.wait(stage.replicas.flushing.under_way)
        assert not partition.is_settling
        files.power_cut()
        again = Stage(files)
        assert values(again.log) == [0, 1, 2]
        await stop(again)

    asyncio.run(run())
