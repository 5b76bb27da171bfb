"""Deadlines of delayed requests, on an event loop with a clock of the test."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tidemill.net.deadlines import CLEAN_FROM, Deadlines, DelayedOperation


class Loop:
    """The part of an event loop that deadlines use."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.when <= self.now and not timer.cancelled]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.callback()

    @property
    def armed(self) -> list[float]:
        return [timer.when for timer in self.timers if not timer.cancelled]


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Wait(DelayedOperation):
    def __init__(self, name: str, fired: list[str]) -> None:
        self.name = name
        self.fired = fired
        self.completed = False
        self.holds: list[list[str]] = []

    def on_expiration(self) -> None:
        self.fired.append(self.name)

    def is_completed(self) -> bool:
        return self.completed


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def deadlines(loop: Loop) -> Deadlines:
    return Deadlines(loop)


def test_entries_expire_on_time_and_in_order(loop: Loop, deadlines: Deadlines) -> None:
    fired: list[str] = []
    for name, delay_ms in (("late", 300), ("early", 100), ("early too", 100)):
        deadlines.add(delay_ms, Wait(name, fired))
    loop.advance(0.05)
    assert fired == []
    loop.advance(0.06)
    assert fired == ["early", "early too"]
    loop.advance(0.2)
    assert fired == ["early", "early too", "late"]


def test_one_timer_serves_all_entries(loop: Loop, deadlines: Deadlines) -> None:
    for delay_ms in (500, 400, 600, 100, 900):
        deadlines.add(delay_ms, Wait("", []))
    assert loop.armed == [100.101]


@pytest.mark.parametrize(
    ("added_ms", "other_ms"),
    [
        pytest.param(10, None, id="a callback may add an entry"),
        pytest.param(30_000, 20, id="an entry added during expiration does not delay the next"),
    ],
)
def test_an_entry_is_added_during_expiration(
    loop: Loop, deadlines: Deadlines, added_ms: int, other_ms: int | None
) -> None:
    fired: list[str] = []

    class Adds(Wait):
        def on_expiration(self) -> None:
            super().on_expiration()
            deadlines.add(added_ms, Wait("added", fired))

    deadlines.add(10, Adds("first", fired))
    if other_ms is not None:
        deadlines.add(other_ms, Wait("other", fired))
    loop.advance(0.012)
    loop.advance(0.012)
    assert fired == ["first", "added" if other_ms is None else "other"]


def test_completed_entries_do_not_accumulate_before_distant_deadlines(deadlines: Deadlines) -> None:
    for _ in range(10 * CLEAN_FROM):
        wait = Wait("", [])
        deadlines.add(2**31 - 1, wait)
        wait.completed = True
    assert len(deadlines) <= CLEAN_FROM + 1


def test_no_callback_runs_after_close(loop: Loop, deadlines: Deadlines) -> None:
    fired: list[str] = []
    deadlines.add(10, Wait("x", fired))
    deadlines.close()
    loop.advance(1)
    assert fired == []


def test_a_failing_callback_does_not_affect_other_entries(loop: Loop, deadlines: Deadlines) -> None:
    fired: list[str] = []

    class Breaks(Wait):
        def on_expiration(self) -> None:
            raise ZeroDivisionError

    deadlines.add(100, Breaks("broken", fired))
    deadlines.add(100, Wait("beside it", fired))
    deadlines.add(500, Wait("later", fired))
    with pytest.raises(ZeroDivisionError):
        loop.advance(0.2)
    loop.advance(0.002)
    assert fired == ["beside it"]
    loop.advance(0.4)
    assert fired == ["beside it", "later"]


def collections_of_waits_that_end() -> int:
    """Returns the collections of the youngest generation while 20,000 entries are added and completed."""
    deadlines = Deadlines(Loop())
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    for _ in range(20_000):
        wait = Wait("", [])
        # About as many objects as a request has.
        wait.holds = [[], [], []]
        deadlines.add(30_000, wait)
        wait.completed = True
    found: int = gc.get_stats()[0]["collections"] - before
    return found


def test_completed_entries_are_released_without_the_garbage_collector() -> None:
    # Other threads of the process may cause some as well.
    assert min(collections_of_waits_that_end() for _ in range(5)) < 10
