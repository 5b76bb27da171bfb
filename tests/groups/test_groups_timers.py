"""Many deadlines behind one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from groups_stage import ManualTime
from hypothesis import given
from hypothesis import strategies as st

from tidemill.groups.timers import FIRED_AT_ONCE_MAX, Timers


class Fired:
    """What fired, and when."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.keys: list[tuple[Hashable, int]] = []
        self.timers = Timers(self.time, lambda key: self.keys.append((key, self.time.now_ms)))

    def advance(self, duration_ms: int) -> None:
        asyncio.run(self.time.advance(duration_ms))


def test_keys_fire_at_their_deadlines_in_order() -> None:
    fired = Fired()
    for key, deadline_ms in [("b", 1_200), ("a", 1_100), ("c", 1_300)]:
        fired.timers.set(key, deadline_ms)
    fired.advance(1_000)
    assert fired.keys == [("a", 1_101), ("b", 1_201), ("c", 1_301)]
    assert len(fired.timers) == 0
    assert fired.time.armed == 0


def test_setting_again_replaces_and_cancelling_forgets() -> None:
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


def test_what_is_due_together_does_not_hold_the_loop() -> None:
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


def test_stale_entries_do_not_pile_up() -> None:
    fired = Fired()
    for number in range(10_000):
        fired.timers.set("key", 100_000 - number)
    assert len(fired.timers._heap) < 200


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(1_000, 1_200))), max_size=60))
def test_exactly_the_last_word_on_each_key_counts(words: list[tuple[int, int | None]]) -> None:
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
