"""The pipe that ends the poll of another thread, and the reuse of its descriptor numbers."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest

from tidemill.client.wake_pipe import WakePipe


def is_readable(pipe: WakePipe) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


def test_several_wakes_are_drained_at_once() -> None:
    pipe = WakePipe()
    assert not is_readable(pipe)
    for _ in range(100_000):  # More bytes than a pipe holds.
        pipe.wake()
    assert is_readable(pipe)
    pipe.drain()
    assert not is_readable(pipe)
    pipe.wake()
    assert is_readable(pipe)
    pipe.close()


def test_a_wake_during_close_writes_to_no_reused_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = WakePipe()
    opened: list[int] = []
    wakers: list[threading.Thread] = []
    close = os.close

    def close_and_open(number: int) -> None:
        close(number)
        opened.append(os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT, 0o600))
        wakers.append(threading.Thread(target=pipe.wake))
        wakers[-1].start()
        wakers[-1].join(0.2)

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close_and_open)
        pipe.close()
    for waker in wakers:
        waker.join()
    pipe.wake()
    pipe.close()
    for number in opened:
        close(number)
    assert len(opened) == 2
    assert (tmp_path / "other").read_bytes() == b""
