"""Disk errors while records are sent take the directory offline, as other read errors do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths_bench import Bench, bench_in

from tidemill.broker.down_conversion import DownRange
from tidemill.broker.handler_dispatch import HandlerDispatch
from tidemill.log.log_segment import LogRange
from tidemill.model.errors import ErrorCode
from tidemill.model.system_interfaces import File
from tidemill.net.send_queue import FileRange


class BrokenFile(File):
    """A log file that cannot be read; ``cached``: whether it reports to be in the page cache."""

    def __init__(self, path: str, number: int, cached: bool) -> None:
        self.path = path
        self.number = number
        self.cached = cached

    def is_cached(self, position: int, count: int) -> bool:
        return self.cached

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        raise OSError(self.number, os.strerror(self.number))

    def read_at(self, position: int, count: int) -> bytes:
        raise OSError(self.number, os.strerror(self.number))

    def size(self) -> int:
        return 1 << 20


@pytest.fixture(params=[False, True], ids=["at-once", "in-slices"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench_in(tmp_path, in_slices=request.param, converts=True) as one:
        yield one


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_error_during_sendfile_takes_the_directory_offline(bench: Bench, number: int) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    log.active._file = BrokenFile(log.active.path, number, True)
    client.fetch(11, {("t", 0): 0})
    bench.until(client.is_closed)
    bench.until(lambda: bench.partition().is_offline)
    assert os.strerror(number) in bench.logs.dirs.all[0].offline_reason
    assert log.active.path in bench.logs.dirs.all[0].offline_reason
    assert log.closed


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EHOSTUNREACH, errno.ENOTCONN])
def test_a_socket_error_does_not_take_the_directory_offline(bench: Bench, number: int) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    file = log.active._file
    log.active._file = BrokenFile(log.active.path, number, True)
    client.fetch(11, {("t", 0): 0})
    bench.turn(0.05)
    log.active._file = file
    assert not bench.partition().is_offline


def test_a_disk_error_does_not_affect_a_recreated_partition(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    file = log.active._file
    log.active._file = BrokenFile(f"/elsewhere/t-0/{Path(log.active.path).name}", errno.EIO, True)
    client.fetch(11, {("t", 0): 0})
    bench.until(client.is_closed)
    log.active._file = file
    assert not bench.partition().is_offline


def test_a_disk_error_during_read_ahead_takes_the_directory_offline(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    part = FileRange(BrokenFile(log.active.path, errno.EIO, False), 0, 100, True, bench.partition())
    dispatch: Any = SimpleNamespace(loop=bench.loop, readers=bench.pool)
    HandlerDispatch.read_ahead(dispatch, client.connection, part, 100)
    bench.until(client.is_closed)
    bench.until(lambda: bench.partition().is_offline)


def test_a_disk_error_before_the_conversion_is_returned(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    log.active._file = BrokenFile(log.active.path, errno.EIO, True)
    client.fetch(3, {("t", 0): 0})
    (topic,) = client.fetched(3).responses
    assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # the other one is unknown yet
    bench.until(lambda: bench.partition().is_offline)
    assert log.active.path in bench.logs.dirs.all[0].offline_reason


def test_a_disk_error_during_a_streamed_conversion_takes_the_directory_offline(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    found = LogRange(BrokenFile(log.active.path, errno.EIO, True), 0, 100, False)
    made = DownRange(bench.conversions, found, 1, 0, bench.partition())
    made.count = 100
    dispatch: Any = SimpleNamespace(loop=bench.loop, readers=bench.pool)
    HandlerDispatch.read_ahead(
        dispatch, client.connection, FileRange(made, 0, 100, True, bench.partition()), 100
    )
    bench.until(client.is_closed)
    bench.until(lambda: bench.partition().is_offline)
