"""Many deadlines on one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from coordinator_fixture import ManualTime
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinator_runtime.timers import Timers
from tidemill.net.deadlines import FIRED_AT_ONCE_MAX


class Fired:
    """Records the keys that fired, and the times."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.keys: list[tuple[Hashable, int]] = []
        self.timers = Timers[Hashable](self.time, lambda key: self.keys.append((key, self.time.now_ms)))

    def advance(self, duration_ms: int) -> None:
        asyncio.run(self.time.advance(duration_ms))


def test_keys_fire_at_their_deadlines_in_order() -> None:
    fired = Fired()
    for key, deadline_ms in [("b", 1_200), ("a", 1_100), ("c", 1_300)]:
        fired.timers.set(key, deadline_ms)
    fired.advance(1_000)
    assert fired.keys == [("a", 1_101), ("b", 1_201), ("c", 1_301)]
    assert len(fired.timers.current) == 0
    assert fired.time.armed == 0


def test_replaces_and_cancels_deadlines() -> None:
    fired = Fired()
    fired.timers.set("later", 1_100)
    fired.timers.set("later", 1_500)
    fired.timers.set("earlier", 1_500)
    fired.timers.set("earlier", 1_100)
    fired.timers.set("never", 1_100)
    fired.timers.cancel("never")
    fired.timers.cancel("unknown")
    fired.advance(1_000)
    assert fired.keys == [("earlier", 1_101), ("later", 1_501)]


def test_many_due_deadlines_do_not_block_the_event_loop() -> None:
    fired = Fired()
    for number in range(3 * FIRED_AT_ONCE_MAX):
        fired.timers.set(number, 1_100)
    fired.advance(101)
    assert len(fired.keys) == FIRED_AT_ONCE_MAX
    fired.advance(10)
    assert [key for key, _ in fired.keys] == list(range(3 * FIRED_AT_ONCE_MAX))


def test_a_timer_may_set_another() -> None:
    fired = Fired()

    def fire(key: Hashable) -> None:
        fired.keys.append((key, fired.time.now_ms))
        if key == "first":
            timers.set("overdue", 1_050)
            timers.set("next", 1_120)

    timers = Timers(fired.time, fire)
    timers.set("first", 1_100)
    timers.set("last", 1_130)
    fired.advance(125)
    assert [key for key, _ in fired.keys] == ["first", "overdue", "next"]
    timers.close()
    fired.advance(125)
    assert len(fired.keys) == 3
    assert fired.time.armed == 0


def test_stale_entries_do_not_accumulate() -> None:
    fired = Fired()
    for number in range(10_000):
        fired.timers.set("key", 100_000 - number)
    assert len(fired.timers._deadlines) < 200


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(1_000, 1_200))), max_size=60))
def test_the_last_deadline_of_each_key_applies(words: list[tuple[int, int | None]]) -> None:
    fired = Fired()
    expected: dict[int, int] = {}
    for key, deadline_ms in words:
        if deadline_ms is None:
            fired.timers.cancel(key)
            expected.pop(key, None)
        else:
            fired.timers.set(key, deadline_ms)
            expected[key] = deadline_ms
    fired.advance(1_000)
    assert {key for key, _ in fired.keys} == set(expected)
    assert all(0 <= at - expected[key] <= 1 for key, at in fired.keys if isinstance(key, int))
    assert len(fired.keys) == len(expected)
