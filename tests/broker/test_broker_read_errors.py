"""A disk that breaks while a log is being sent from it counts as with every other read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths_bench import Bench, bench_in

from tidemill.broker.conversion import Conversions
from tidemill.broker.dispatch import Dispatch
from tidemill.broker.down_conversion import DownConversion, DownRange
from tidemill.broker.fetch_sessions import FetchPart
from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode
from tidemill.model.ports import File
from tidemill.net.sending import FileRange


class BrokenFile(File):
    """A log file of which nothing more can be read; ``cached`` says whether it claims to be in memory."""

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
    with bench_in(tmp_path, in_slices=request.param) as one:
        yield one


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_of_the_disk_during_sendfile_puts_the_directory_aside(bench: Bench, number: int) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    log.active._file = BrokenFile(log.active.path, number, True)
    client.fetch(11, {("t", 0): 0})
    bench.until(client.is_closed)
    bench.until(lambda: bool(bench.partition().failed))
    assert os.strerror(number) in bench.logs.directories[0].failure
    assert log.active.path in bench.logs.directories[0].failure
    assert log.closed


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EHOSTUNREACH, errno.ENOTCONN])
def test_an_error_of_the_socket_does_not(bench: Bench, number: int) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    file = log.active._file
    log.active._file = BrokenFile(log.active.path, number, True)
    client.fetch(11, {("t", 0): 0})
    bench.turn(0.05)
    log.active._file = file
    assert not bench.partition().failed


def test_a_log_of_another_partition_of_that_name_is_not_blamed(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    file = log.active._file
    log.active._file = BrokenFile(f"/elsewhere/t-0/{Path(log.active.path).name}", errno.EIO, True)
    client.fetch(11, {("t", 0): 0})
    bench.until(client.is_closed)
    log.active._file = file
    assert not bench.partition().failed


def test_an_error_of_the_disk_while_it_is_read_ahead_counts_too(bench: Bench) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    part = FileRange(BrokenFile(log.active.path, errno.EIO, False), 0, 100, True)
    dispatch: Any = SimpleNamespace(loop=bench.loop, readers=bench.pool)
    Dispatch.read_ahead(dispatch, client.connection, part, 100)
    bench.until(client.is_closed)
    bench.until(lambda: bool(bench.partition().failed))


@pytest.fixture
def down(bench: Bench) -> Iterator[DownConversion]:
    conversions = Conversions(1)
    bench.fetches.down = DownConversion(bench.loop, conversions)
    yield bench.fetches.down
    bench.loop.run_until_complete(bench.fetches.down.stop())
    conversions.close()


def test_an_error_of_the_disk_before_records_are_converted_is_answered(
    bench: Bench, down: DownConversion
) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    log.active._file = BrokenFile(log.active.path, errno.EIO, True)
    client.fetch(3, {("t", 0): 0})
    (topic,) = client.fetched(3).responses
    assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # the other is not known yet
    bench.until(lambda: bool(bench.partition().failed))
    assert log.active.path in bench.logs.directories[0].failure


def test_an_error_of_the_disk_while_records_are_converted_and_sent_counts_too(
    bench: Bench, down: DownConversion
) -> None:
    client = bench.client()
    client.append(b"a")
    log = bench.partition().log
    found = Slice(BrokenFile(log.active.path, errno.EIO, True), 0, 100, False)
    made = DownRange(down.conversions, found, 1, 0, FetchPart(b"t", 0))
    made.count = 100
    dispatch: Any = SimpleNamespace(loop=bench.loop, readers=bench.pool)
    Dispatch.read_ahead(dispatch, client.connection, FileRange(made, 0, 100, True), 100)
    bench.until(client.is_closed)
    bench.until(lambda: bool(bench.partition().failed))
