"""A start after a crash: parallel recovery of logs and directories, its progress, and its cancellation."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable

import pytest
from faulty_files import FaultyFile, FaultyFiles
from log_stage import MakeBatch

from log_start import NOW, start_logs
from tidemill.log import log_directory_loader
from tidemill.log.checkpoint_files import write_offsets
from tidemill.log.file_names import HIGH_WATERMARKS
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.model.types import TopicPartition

PATIENCE_S = 20.0


class Watched(FaultyFiles):
    """Calls ``on_read`` with the path of each log file that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.on_read: Callable[[str], None] = lambda path: None

    def open(self, path: str, create: bool = False, read_only: bool = False) -> FaultyFile:
        file = super().open(path, create, read_only)
        read_at = file.read_at

        def read(position: int, count: int) -> bytes:
            if path.endswith(".log"):
                self.on_read(path)
            return read_at(position, count)

        file.read_at = read  # type: ignore[method-assign]
        return file


def started(files: FaultyFiles, paths: tuple[str, ...], threads: int) -> LogManager:
    return start_logs(files, paths, recovery_threads=threads)


@pytest.fixture
def filled(batch: MakeBatch) -> Callable[..., Watched]:
    """Files of a killed broker: this number of partitions with one batch each, in several directories."""

    def fill(paths: tuple[str, ...], partitions: int) -> Watched:
        files = Watched()
        manager = started(files, paths, 1)
        for at in range(partitions):
            log = manager.create(TopicPartition("t", at), bytes(16), LogConfig(), NOW)
            log.append(batch(1), 0, NOW)
        files.kill()
        return files

    return fill


@pytest.mark.parametrize(("paths", "threads"), [(("/a", "/b"), 1), (("/a",), 2), (("/a", "/b"), 2)])
def test_directories_and_their_logs_are_recovered_in_parallel(
    filled: Callable[..., Watched], paths: tuple[str, ...], threads: int
) -> None:
    at_once = len(paths) * threads
    files = filled(paths, at_once)
    meeting = threading.Barrier(at_once)
    seen: set[str] = set()

    def meet(path: str) -> None:
        if path not in seen:
            seen.add(path)
            meeting.wait(PATIENCE_S)

    files.on_read = meet
    manager = started(files, paths, threads)
    assert len(seen) == len(manager.logs) == at_once
    assert manager.dirs.warnings == []


def test_recovery_uses_at_most_the_configured_threads_per_directory(filled: Callable[..., Watched]) -> None:
    files = filled(("/a",), 12)
    names: set[str] = set()
    files.on_read = lambda path: names.add(threading.current_thread().name)
    assert len(started(files, ("/a",), 3).logs) == 12
    assert 1 <= len(names) <= 3


def test_a_long_recovery_logs_its_progress(
    filled: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = filled(("/a",), 3)
    monkeypatch.setattr(log_directory_loader, "PROGRESS_S", 0.01)
    reported = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "2 of 3 logs are open" in record.getMessage():
                reported.set()

    def wait(path: str) -> None:
        if "/t-2/" in path:
            reported.wait(PATIENCE_S)

    files.on_read = wait
    handler = Handler()
    log_directory_loader.logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "tidemill.log"):
            started(files, ("/a",), 1)
    finally:
        log_directory_loader.logger.removeHandler(handler)
    assert reported.is_set(), caplog.text
    assert "/a: 2 of 3 logs are open, 0.0 MB checked" in caplog.text


def test_a_disk_failure_during_recovery_affects_one_directory_only(filled: Callable[..., Watched]) -> None:
    files = filled(("/a", "/b"), 40)
    files.fail("read_at", "/a/t-0/", times=99)
    manager = started(files, ("/a", "/b"), 2)
    assert {log.directory[:3] for log in manager.logs.values()} == {"/b/"}
    assert len(manager.logs) == 20
    assert manager.dirs.all[0].offline_reason.startswith("cannot open /a/t-0")
    assert manager.dirs.all[0].logs == {}


class Signal(BaseException):
    """As an exception that a signal handler raises in the main thread."""


def test_a_signal_stops_recovery_between_two_batches(
    filled: Callable[..., Watched], batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = filled(("/a",), 6)
    reading = threading.Event()
    interrupted = threading.Event()
    read: list[str] = []

    def read_on(path: str) -> None:
        read.append(path)
        reading.set()
        interrupted.wait(PATIENCE_S)

    def wait(futures: object, timeout: float) -> None:
        assert reading.wait(PATIENCE_S)
        raise Signal

    files.on_read = read_on
    stop = log_directory_loader.DirectoryLoading.stop

    def stop_and_go_on(loading: log_directory_loader.DirectoryLoading) -> None:
        stop(loading)
        interrupted.set()

    monkeypatch.setattr(log_directory_loader, "wait", wait)
    monkeypatch.setattr(log_directory_loader.DirectoryLoading, "stop", stop_and_go_on)
    with pytest.raises(Signal):
        started(files, ("/a",), 1)
    assert {path[:7] for path in read} == {"/a/t-0/"}
    files.on_read = lambda path: None
    monkeypatch.undo()
    files.kill()
    manager = started(files, ("/a",), 1)
    assert [int(log.end_offset) for log in manager.logs.values()] == [1] * 6


def test_a_partition_in_two_directories_is_reported(filled: Callable[..., Watched]) -> None:
    files = filled(("/a", "/b"), 2)
    files.rename("/b/t-1", "/b/t-0")
    manager = started(files, ("/a", "/b"), 1)
    failure = manager.dirs.all[1].offline_reason
    assert "partition t-0 exists in /a/t-0 and in /b/t-0: move one of them away" in failure
    assert [str(key) for key in manager.logs] == ["t-0"]
    assert manager.logs[TopicPartition("t", 0)].directory == "/a/t-0"


def mounted_again(files: FaultyFiles, former: str) -> LogManager:
    """A start with both directories. The last start did not use ``former``."""
    manager = LogManager(files, ("/a", "/b"))
    manager.dirs.lock()
    manager.dirs.claim("c" * 22, 1)
    outdated = manager.dirs.at_path(former)
    assert outdated is not None
    outdated.is_outdated = True
    manager.load(NOW, lambda topic: LogConfig())
    return manager


@pytest.mark.parametrize("former", ["/a", "/b"])
def test_a_remounted_disk_does_not_take_a_rebuilt_replica_offline(
    former: str, filled: Callable[..., Watched]
) -> None:
    files = filled(("/a", "/b"), 4)
    (kept,) = {"/a", "/b"} - {former}
    key = TopicPartition("t", 0 if former == "/a" else 1)
    files.make_directory(f"{kept}/{key}")  # It was rebuilt there, and is still empty.
    write_offsets(files, f"{former}/{HIGH_WATERMARKS}", {key: 1})
    manager = mounted_again(files, former)
    assert [one.offline_reason for one in manager.dirs.all] == ["", ""]
    assert manager.logs[key].directory == f"{kept}/{key}"
    assert manager.logs[key].end_offset == 0
    assert sorted(str(key) for key in manager.logs) == ["t-0", "t-1", "t-2", "t-3"]
    assert manager.dirs.damaged == set()
    (stray,) = [name for name in files.list(former) if name.endswith("-stray")]
    assert "00000000000000000000.log" in files.list(f"{former}/{stray}")
    # It does not reappear once the directory counts as in use.
    files.power_cut()
    again = started(files, ("/a", "/b"), 1)
    assert [one.offline_reason for one in again.dirs.all] == ["", ""]


@pytest.mark.parametrize("failed", ["/a", "/b"])
def test_a_restored_disk_does_not_take_a_recreated_topic_offline(failed: str, batch: MakeBatch) -> None:
    files = Watched()
    manager = started(files, ("/a", "/b"), 1)
    (kept,) = {"/a", "/b"} - {failed}
    key, other = TopicPartition("t", 0), TopicPartition("other", 0)
    manager.dirs.mark_losses_handled()
    manager.set_preferred_directory(key, failed)
    manager.create(key, b"f" * 16, LogConfig(), NOW).append(batch(1), 0, NOW)
    manager.set_preferred_directory(other, kept)
    manager.create(other, b"o" * 16, LogConfig(), NOW)
    directory = manager.dirs.at_path(failed)
    assert directory is not None
    manager.dirs.fail_directory(failed, "a sync failed")
    assert manager.dirs.mark_sync_failed(directory) == []
    manager.delete(key, NOW)
    recreated = manager.create(key, b"n" * 16, LogConfig(), NOW)
    for _ in range(2):
        recreated.append(batch(1), 0, NOW)
    assert manager.close(NOW, {}) == []
    again = started(files, ("/a", "/b"), 1)
    assert [one.offline_reason for one in again.dirs.all] == ["", ""]
    assert (again.logs[key].directory, again.logs[key].topic_id) == (f"{kept}/{key}", b"n" * 16)
    assert other in again.logs


class Refusing(Watched):
    """Fails to rename paths below :attr:`refused` with the error :attr:`code`."""

    refused = ""
    code = errno.EIO

    def rename(self, old: str, new: str) -> None:
        if self.refused and old.startswith(self.refused):
            raise OSError(self.code, os.strerror(self.code), old)
        super().rename(old, new)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("former", ["/a", "/b"])
def test_a_remounted_disk_that_fails_takes_no_replica_on_another_disk_offline(
    former: str, code: int, batch: MakeBatch
) -> None:
    files = Refusing()
    key = TopicPartition("t", 0)
    (kept,) = {"/a", "/b"} - {former}
    manager = started(files, ("/a", "/b"), 1)
    for path, count in ((former, 3), (kept, 1)):
        manager.make_log(f"{path}/{key}", key, b"t" * 16, LogConfig(), NOW).append(batch(count), 0, NOW)
    files.kill()
    files.refused, files.code = f"{former}/", code
    manager = mounted_again(files, former)
    failures = {one.path: one.is_offline for one in manager.dirs.all}
    assert failures == {former: True, kept: False}
    assert manager.logs[key].directory == f"{kept}/{key}"
    assert (manager.logs[key].closed, int(manager.logs[key].end_offset)) == (False, 1)


@pytest.mark.parametrize("former", ["/a", "/b"])
def test_a_remounted_disk_does_not_set_the_offsets_of_a_recreated_topic(former: str) -> None:
    files = Watched()
    key = TopicPartition("t", 0)
    (kept,) = {"/a", "/b"} - {former}
    manager = started(files, ("/a", "/b"), 1)
    for path in (former, kept):
        manager.make_log(f"{path}/{key}", key, b"t" * 16, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    for path, mark in ((former, 1000), (kept, 5)):
        write_offsets(files, f"{path}/{HIGH_WATERMARKS}", {key: mark})
    manager = mounted_again(files, former)
    assert manager.promised == {key: 5}
