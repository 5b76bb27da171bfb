"""The cleaner's process keeps to its bytes a second and handles messages of the broker meanwhile."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tidemill.log import cleaner_process
from tidemill.log.cleaner_messages import ABORT, HEADER, CleanCounts, NewPace, decode, encode
from tidemill.log.cleaner_process import CHECK_BYTES, LogCleaningAborted, Pace, Pipes

RATE = 1_000_000.0


class Wire(Pipes):
    """A broker that sends messages at given times, with a clock that advances during waits."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.coming: list[tuple[float, Any]] = []

    def wait(self, seconds: float) -> bool:
        if self.coming and self.coming[0][0] <= self.now_s + seconds:
            self.now_s = max(self.now_s, self.coming[0][0])
            return True
        self.now_s += seconds
        return False

    def receive(self) -> Any:
        return self.coming.pop(0)[1]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(cleaner_process.time, "monotonic", lambda: made.now_s)
    return made


def work(pace: Pace, count: int) -> None:
    while count > 0:
        pace(min(count, CHECK_BYTES))
        count -= CHECK_BYTES


def test_bytes_are_delayed_to_the_configured_rate(wire: Wire) -> None:
    work(Pace(wire, RATE), 40 * CHECK_BYTES)
    assert wire.now_s - 100 == pytest.approx(40 * CHECK_BYTES / RATE)


def test_without_a_limit_there_is_no_delay(wire: Wire) -> None:
    work(Pace(wire, float("inf")), 40 * CHECK_BYTES)
    assert wire.now_s == 100


def test_unused_time_does_not_raise_the_rate(wire: Wire) -> None:
    pace = Pace(wire, RATE)
    work(pace, CHECK_BYTES)
    wire.now_s += 1000
    began = wire.now_s
    work(pace, 40 * CHECK_BYTES)
    assert wire.now_s - began >= 39 * CHECK_BYTES / RATE - 0.001


def test_a_new_limit_applies_to_a_current_wait(wire: Wire) -> None:
    pace = Pace(wire, 1.0)
    wire.coming.append((101.0, NewPace(RATE)))
    work(pace, 4 * CHECK_BYTES)
    assert wire.now_s - 100 < 1 + 4 * CHECK_BYTES / RATE


@pytest.mark.parametrize("message", [ABORT, None])
def test_an_abort_and_a_shutdown_end_a_wait(wire: Wire, message: str | None) -> None:
    wire.coming.append((101.0, message))
    with pytest.raises(LogCleaningAborted):
        work(Pace(wire, 1.0), CHECK_BYTES)
    assert wire.now_s == 101


def test_a_pipe_carries_messages_of_the_cleaner_alone() -> None:
    for message in (NewPace(1.5), CleanCounts(end_offset=7), ABORT):
        data = encode(message)
        assert decode(data[HEADER.size :]) == message
    with pytest.raises(TypeError, match="a dict is not a message of the cleaner"):
        decode(pickle.dumps({}))
