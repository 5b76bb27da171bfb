"""Deadlines of waiting requests, on a loop whose time the test drives."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tidemill.net.deadlines import CLEAN_FROM, Deadlines, Waiting


class Loop:
    """As much of an event loop as deadlines use."""

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


class Wait(Waiting):
    def __init__(self, name: str, fired: list[str]) -> None:
        self.name = name
        self.fired = fired
        self.over = False
        self.holds: list[list[str]] = []

    def on_deadline(self) -> None:
        self.fired.append(self.name)

    def is_over(self) -> bool:
        return self.over


def test_each_fires_in_its_time_and_in_order() -> None:
    loop, fired = Loop(), []
    deadlines = Deadlines(loop)
    for name, delay_ms in (("late", 300), ("early", 100), ("early too", 100)):
        deadlines.add(delay_ms, Wait(name, fired))
    loop.advance(0.05)
    assert fired == []
    loop.advance(0.06)
    assert fired == ["early", "early too"]
    loop.advance(0.2)
    assert fired == ["early", "early too", "late"]


def test_one_timer_serves_all() -> None:
    loop = Loop()
    deadlines = Deadlines(loop)
    for delay_ms in (500, 400, 600, 100, 900):
        deadlines.add(delay_ms, Wait("", []))
    assert loop.armed == [100.1]


def test_a_deadline_may_set_another() -> None:
    loop, fired = Loop(), []
    deadlines = Deadlines(loop)

    class Again(Wait):
        def on_deadline(self) -> None:
            super().on_deadline()
            deadlines.add(10, Wait("second", fired))

    deadlines.add(10, Again("first", fired))
    loop.advance(0.01)
    loop.advance(0.01)
    assert fired == ["first", "second"]


def test_waits_that_ended_do_not_pile_up_before_far_deadlines() -> None:
    loop = Loop()
    deadlines = Deadlines(loop)
    for _ in range(10 * CLEAN_FROM):
        wait = Wait("", [])
        deadlines.add(2**31 - 1, wait)
        wait.over = True
    assert len(deadlines) <= CLEAN_FROM + 1


def test_nobody_is_called_after_the_end() -> None:
    loop, fired = Loop(), []
    deadlines = Deadlines(loop)
    deadlines.add(10, Wait("x", fired))
    deadlines.close()
    loop.advance(1)
    assert fired == []


def test_an_entry_that_is_added_while_others_fire_does_not_hold_back_the_next() -> None:
    loop = Loop()
    deadlines = Deadlines(loop)
    fired: list[str] = []

    class Adds(Wait):
        def on_deadline(self) -> None:
            super().on_deadline()
            deadlines.add(30_000, Wait("much later", fired))

    deadlines.add(100, Adds("first", fired))
    deadlines.add(1000, Wait("second", fired))
    loop.advance(0.2)
    loop.advance(1.0)
    assert fired == ["first", "second"]


def test_an_entry_that_raises_does_not_cost_the_others_their_deadlines() -> None:
    loop = Loop()
    deadlines = Deadlines(loop)
    fired: list[str] = []

    class Breaks(Wait):
        def on_deadline(self) -> None:
            raise ZeroDivisionError

    deadlines.add(100, Breaks("broken", fired))
    deadlines.add(100, Wait("beside it", fired))
    deadlines.add(500, Wait("later", fired))
    with pytest.raises(ZeroDivisionError):
        loop.advance(0.2)
    loop.advance(0)
    assert fired == ["beside it"]
    loop.advance(0.4)
    assert fired == ["beside it", "later"]


def collections_of_waits_that_end() -> int:
    """How often the collector looks at its youngest while 20,000 wait and are done with at once."""
    deadlines = Deadlines(Loop())
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    for _ in range(20_000):
        wait = Wait("", [])
        # About as many objects as a request has.
        wait.holds = [[], [], []]
        deadlines.add(30_000, wait)
        wait.over = True
    found: int = gc.get_stats()[0]["collections"] - before
    return found


def test_what_was_answered_goes_before_the_collector_looks_for_garbage() -> None:
    # Other threads of the process may make some as well.
    assert min(collections_of_waits_that_end() for _ in range(5)) < 10
