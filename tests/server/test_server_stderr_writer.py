"""Standard error whose reader takes nothing: lines wait in a queue, and the broker serves and stops."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.client import Admin
from tidemill.server import stderr_writer
from tidemill.server.stderr_writer import StderrWriter

STOP_S_MAX = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: the descriptors of its reader and of its writer."""
    ends = os.pipe()
    yield ends
    for descriptor in ends:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def fill(writer: int) -> int:
    """Writes to a pipe until it takes no more. Returns the number of bytes."""
    os.set_blocking(writer, False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            count += os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)
    return count


def read_all(reader: int) -> list[str]:
    """Returns the lines up to the end of the pipe."""
    with open(reader, closefd=False, encoding="utf-8") as file:
        return file.read().splitlines()


def stream_to(descriptor: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(StderrWriter(descriptor), "utf-8", line_buffering=True)


def test_lines_are_written_in_order_and_completely(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = [f"line {number}" for number in range(200)]
    with stream_to(writer) as stream:
        for line in lines:
            print(line, file=stream)
    os.close(writer)
    assert read_all(reader) == lines


def test_lines_lost_by_a_full_pipe_are_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = pipe
    left = fill(writer)
    # Another test may have configured the logger of the package.
    monkeypatch.setattr(stderr_writer, "logger", logging.getLogger("lost-lines"))
    monkeypatch.setattr(stderr_writer, "QUEUED_LINES_MAX", 10)
    monkeypatch.setattr(stderr_writer, "CLOSE_S_MAX", STOP_S_MAX)
    with stream_to(writer) as stream:
        for number in range(30):
            print(f"line {number}", file=stream)
        while left:
            left -= len(os.read(reader, left))
    os.close(writer)
    written = read_all(reader)
    assert written == [f"line {number}" for number in range(len(written))]
    # The thread may have taken the first line from the queue.
    assert len(written) in (10, 11)
    (notice,) = (record.getMessage() for record in caplog.records)
    assert notice == f"{30 - len(written)} lines before this one are lost: standard error did not take them"


def test_the_end_does_not_wait_long_for_a_full_pipe(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    began = time.monotonic()
    with stream_to(pipe[1]) as stream:
        print("a line", file=stream)
    assert time.monotonic() - began < stderr_writer.CLOSE_S_MAX + 5


def test_lines_in_a_file_are_complete_after_a_crash(tmp_path: Path) -> None:
    script = """
import os, sys
from tidemill.server.stderr_writer import background_stderr
with background_stderr():
    print("a line", file=sys.stderr)
    os._exit(3)
"""
    with open(tmp_path / "log", "w+") as log:
        ended = subprocess.run([sys.executable, "-c", script], stderr=log, timeout=60, check=False)
        log.seek(0)
        assert (ended.returncode, log.read()) == (3, "a line\n")


def test_a_traceback_follows_the_lines_before_it() -> None:
    script = """
import sys
from tidemill.server.stderr_writer import background_stderr
with background_stderr():
    for number in range(100):
        print("line", number, file=sys.stderr)
    raise ValueError("the end")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    lines = ended.stderr.splitlines()
    assert lines[:100] == [f"line {number}" for number in range(100)]
    assert (lines[100], lines[-1]) == ("Traceback (most recent call last):", "ValueError: the end")


def test_a_broker_serves_and_stops_while_its_log_is_not_read(tmp_path: Path, pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tidemill", "serve", "--ready-file", str(ready)),
            *("--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", str(tmp_path / "data")),
        ],
        stderr=pipe[1],
    )
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "the broker does not start"
            time.sleep(0.05)
        port = json.loads(ready.read_text())["listeners"][0]["port"]
        with Admin(f"127.0.0.1:{port}") as admin:
            admin.create_topic("logged")
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S_MAX) == 0
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
