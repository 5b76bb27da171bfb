"""The file port over the operating system."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from tidemill.log.system_files import CACHE_PROBE_STRIDE, SystemFiles

FILES = SystemFiles()


def test_a_failed_append_leaves_no_bytes(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = FILES.open(path, create=True)
    file.append([b"kept"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append([bytes(8000), bytes(8000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert file.size() == 4
    assert file.append([b"more"]) == 4
    assert FILES.read(path) == b"keptmore"


def test_appends_go_to_the_end_after_reopening_and_truncation(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    FILES.open(path, create=True).append([b"one", memoryview(b"two")])
    file = FILES.open(path)
    file.append([b"three"])
    file.truncate(6)
    file.append([b"!"])
    file.write_at(0, b"O")
    assert FILES.read(path) == b"Onetwo!"
    assert (file.read_at(3, 100), file.read_at(100, 5)) == (b"two!", b"")


def test_a_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = FILES.open(path, create=True)
    file.append([b"still here"])
    FILES.remove(path)
    user = file
    del file
    assert user.read_at(0, 5) == b"still"
    descriptor = user.fileno()
    opened = os.fstat(descriptor)
    del user
    gc.collect()
    # Another thread may have opened a file with the same descriptor.
    with contextlib.suppress(OSError):
        assert not os.path.samestat(os.fstat(descriptor), opened)


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(0, 1)


def test_replace_is_atomic(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    FILES.replace(path, b"first, longer")
    FILES.replace(path, b"second")
    assert FILES.read(path) == b"second"
    assert FILES.list(str(tmp_path)) == ["file"]


def test_remove_deletes_files_and_empty_directories(tmp_path: Path) -> None:
    FILES.make_directory(str(tmp_path / "a/b"))
    FILES.open(str(tmp_path / "a/f"), create=True).close()
    FILES.remove(str(tmp_path / "a/b"))
    FILES.remove(str(tmp_path / "a/f"))
    FILES.remove(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError):
        FILES.remove(str(tmp_path / "a"))


def test_a_lock_is_exclusive_until_it_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = FILES.lock(path)
    with pytest.raises(BlockingIOError):
        FILES.lock(path)
    lock.close()
    FILES.lock(path).close()


def test_a_file_range_is_sent_to_a_socket(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.append([b"0123456789"])
    here, there = socket.socketpair()
    with here, there:
        assert file.send_to(here.fileno(), 2, 5) == 5
        assert there.recv(100) == b"23456"
        assert file.send_to(here.fileno(), 10, 5) == 0


def test_a_full_socket_reports_that_it_would_block(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.append([bytes(4 << 20)])
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        while True:
            try:
                assert file.send_to(here.fileno(), 0, 4 << 20) > 0
            except BlockingIOError:
                break


def test_recently_written_bytes_are_cached(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.append([bytes(3 * CACHE_PROBE_STRIDE + 5)])
    assert file.is_cached(0, 3 * CACHE_PROBE_STRIDE + 5)
    assert file.is_cached(7, 1)
    assert file.is_cached(0, 0)


def test_the_modification_time_is_in_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.utime(path, ns=(0, 1_700_000_000_123_000_000))
    assert FILES.modified_ms(str(path)) == 1_700_000_000_123
