"""A start after a crash: many logs and directories at once, told while it goes on, and ended soon."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable

import pytest

from tidemill.log import loading
from tidemill.log.checkpoints import write_offsets
from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.log.names import HIGH_WATERMARKS
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.testing.files import FaultyFile, FaultyFiles

NOW = 1_700_000_000_000
PATIENCE_S = 20.0
MakeBatch = Callable[..., Batch]


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
    manager = LogManager(files, paths, recovery_threads=threads)
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: LogConfig())
    return manager


@pytest.fixture
def filled(batch: MakeBatch) -> Callable[..., Watched]:
    """Files of a broker that was killed: so many partitions of a batch each, spread over directories."""

    def fill(paths: tuple[str, ...], partitions: int) -> Watched:
        files = Watched()
        manager = started(files, paths, 1)
        for at in range(partitions):
            log = manager.create(TopicPartition("t", at), bytes(16), LogConfig(), NOW)
            log.append([batch(1)], 0, NOW)
        files.kill()
        return files

    return fill


@pytest.mark.parametrize(("paths", "threads"), [(("/a", "/b"), 1), (("/a",), 2), (("/a", "/b"), 2)])
def test_directories_and_the_logs_in_each_are_checked_at_once(
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
    assert manager.warnings == []


def test_no_more_threads_than_asked_for_check_a_directory(filled: Callable[..., Watched]) -> None:
    files = filled(("/a",), 12)
    names: set[str] = set()
    files.on_read = lambda path: names.add(threading.current_thread().name)
    assert len(started(files, ("/a",), 3).logs) == 12
    assert 1 <= len(names) <= 3


def test_what_takes_long_is_told_while_it_goes_on(
    filled: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = filled(("/a",), 3)
    monkeypatch.setattr(loading, "PROGRESS_S", 0.01)
    told = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "2 of 3 logs are open" in record.getMessage():
                told.set()

    def wait(path: str) -> None:
        if "/t-2/" in path:
            told.wait(PATIENCE_S)

    files.on_read = wait
    handler = Handler()
    loading.log.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "tidemill.log"):
            started(files, ("/a",), 1)
    finally:
        loading.log.removeHandler(handler)
    assert told.is_set(), caplog.text
    assert "/a: 2 of 3 logs are open, 0.0 MB were checked" in caplog.text


def test_a_disk_that_fails_while_logs_are_checked_takes_its_own_only(filled: Callable[..., Watched]) -> None:
    files = filled(("/a", "/b"), 40)
    files.fail("read_at", "/a/t-0/", times=99)
    manager = started(files, ("/a", "/b"), 2)
    assert {log.directory[:3] for log in manager.logs.values()} == {"/b/"}
    assert len(manager.logs) == 20
    assert manager.directories[0].failure.startswith("cannot open /a/t-0")
    assert manager.directories[0].logs == {}


class Signal(BaseException):
    """As what a signal raises in the main thread."""


def test_a_signal_ends_the_check_between_two_batches(
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
    stop = loading.DirectoryLoading.stop

    def stop_and_go_on(loading: loading.DirectoryLoading) -> None:
        stop(loading)
        interrupted.set()

    monkeypatch.setattr(loading, "wait", wait)
    monkeypatch.setattr(loading.DirectoryLoading, "stop", stop_and_go_on)
    with pytest.raises(Signal):
        started(files, ("/a",), 1)
    assert {path[:7] for path in read} == {"/a/t-0/"}
    files.on_read = lambda path: None
    monkeypatch.undo()
    files.kill()
    manager = started(files, ("/a",), 1)
    assert [int(log.end_offset) for log in manager.logs.values()] == [1] * 6


def test_a_partition_that_lies_in_two_directories_is_told(filled: Callable[..., Watched]) -> None:
    files = filled(("/a", "/b"), 2)
    files.rename("/b/t-1", "/b/t-0")
    manager = started(files, ("/a", "/b"), 1)
    assert "partition t-0 is in /a/t-0 and in /b/t-0: move one of them away" in manager.directories[1].failure
    assert [str(key) for key in manager.logs] == ["t-0"]
    assert manager.logs[TopicPartition("t", 0)].directory == "/a/t-0"


def mounted_again(files: FaultyFiles, former: str) -> LogManager:
    """A start with both directories, of which ``former`` was not in use at the last one."""
    manager = LogManager(files, ("/a", "/b"))
    manager.lock()
    manager.claim("c" * 22, 1)
    outdated = manager.at_path(former)
    assert outdated is not None
    outdated.is_outdated = True
    manager.load(NOW, lambda topic: LogConfig())
    return manager


@pytest.mark.parametrize("former", ["/a", "/b"])
def test_a_disk_that_is_mounted_again_keeps_no_replica_offline_that_was_rebuilt_elsewhere(
    former: str, filled: Callable[..., Watched]
) -> None:
    files = filled(("/a", "/b"), 4)
    (kept,) = {"/a", "/b"} - {former}
    key = TopicPartition("t", 0 if former == "/a" else 1)
    files.make_directory(f"{kept}/{key}")  # It was rebuilt there, and is empty yet.
    write_offsets(files, f"{former}/{HIGH_WATERMARKS}", {key: 1})
    manager = mounted_again(files, former)
    assert [one.failure for one in manager.directories] == ["", ""]
    assert manager.logs[key].directory == f"{kept}/{key}"
    assert manager.logs[key].end_offset == 0
    assert sorted(str(key) for key in manager.logs) == ["t-0", "t-1", "t-2", "t-3"]
    assert manager.damaged == set()
    (stray,) = [name for name in files.list(former) if name.endswith("-stray")]
    assert "00000000000000000000.log" in files.list(f"{former}/{stray}")
    # Nor does it come back once the directory counts as one in use.
    files.power_cut()
    again = started(files, ("/a", "/b"), 1)
    assert [one.failure for one in again.directories] == ["", ""]


@pytest.mark.parametrize("failed", ["/a", "/b"])
def test_a_disk_that_failed_and_comes_back_keeps_no_topic_offline_that_was_made_anew_meanwhile(
    failed: str, batch: MakeBatch
) -> None:
    files = Watched()
    manager = started(files, ("/a", "/b"), 1)
    (kept,) = {"/a", "/b"} - {failed}
    key, other = TopicPartition("t", 0), TopicPartition("other", 0)
    manager.loss_heeded()
    manager.prefer(key, failed)
    manager.create(key, b"f" * 16, LogConfig(), NOW).append([batch(1)], 0, NOW)
    manager.prefer(other, kept)
    manager.create(other, b"o" * 16, LogConfig(), NOW)
    directory = manager.at_path(failed)
    assert directory is not None
    manager.fail_directory(failed, "a sync failed")
    assert manager.distrust(directory) == []
    manager.delete(key, NOW)
    manager.create(key, b"n" * 16, LogConfig(), NOW).append([batch(1), batch(1)], 0, NOW)
    assert manager.close(NOW, {}) == []
    again = started(files, ("/a", "/b"), 1)
    assert [one.failure for one in again.directories] == ["", ""]
    assert (again.logs[key].directory, again.logs[key].topic_id) == (f"{kept}/{key}", b"n" * 16)
    assert other in again.logs


class Refusing(Watched):
    """Cannot rename what lies below :attr:`refused`, with the error :attr:`code`."""

    refused = ""
    code = errno.EIO

    def rename(self, old: str, new: str) -> None:
        if self.refused and old.startswith(self.refused):
            raise OSError(self.code, os.strerror(self.code), old)
        super().rename(old, new)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("former", ["/a", "/b"])
def test_a_disk_that_is_mounted_again_and_fails_keeps_no_replica_offline_on_another(
    former: str, code: int, batch: MakeBatch
) -> None:
    files = Refusing()
    key = TopicPartition("t", 0)
    (kept,) = {"/a", "/b"} - {former}
    manager = started(files, ("/a", "/b"), 1)
    for path, count in ((former, 3), (kept, 1)):
        manager.make_log(f"{path}/{key}", key, b"t" * 16, LogConfig(), NOW).append([batch(count)], 0, NOW)
    files.kill()
    files.refused, files.code = f"{former}/", code
    manager = mounted_again(files, former)
    failures = {one.path: bool(one.failure) for one in manager.directories}
    assert failures == {former: True, kept: False}
    assert manager.logs[key].directory == f"{kept}/{key}"
    assert (manager.logs[key].closed, int(manager.logs[key].end_offset)) == (False, 1)


@pytest.mark.parametrize("former", ["/a", "/b"])
def test_a_disk_that_is_mounted_again_says_not_where_a_topic_made_anew_goes_on(former: str) -> None:
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
