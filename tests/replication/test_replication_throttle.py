"""Throttles of replicas: which ones, and when they are held back."""

from __future__ import annotations

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.model.configs import TOPIC_KEYS, BrokerConfig
from tidemill.model.errors import ConfigError
from tidemill.replication.throttle import RateLimit, Throttle, Turns


@pytest.mark.parametrize("text", ["", "*", "0:1", "0:1,1:2 , 10:3", " * ", "0:1,,2:3"])
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_lists_of_replicas(side: str, text: str) -> None:
    key = TOPIC_KEYS[f"{side}.replication.throttled.replicas"]
    expected = tuple(part.strip() for part in text.split(",") if part.strip())
    assert key.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["1", "a:b", "0:1,*", "*,*", "0:-1", "0:1:2", "0 : 1", "٣:1", "0:99999999999"]
)
def test_lists_that_name_no_replicas(text: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed is \* for all replicas, or a list of partition:broker"):
        TOPIC_KEYS["leader.replication.throttled.replicas"].parse(text)


def test_a_throttle_holds_what_its_topic_lists_for_its_broker() -> None:
    config = BrokerConfig.of().topic_config({"leader.replication.throttled.replicas": "0:1,1:2,2:1"})
    throttle = Throttle(1, RateLimit())
    assert not throttle.is_set
    throttle.set_topic("t", config.list("leader.replication.throttled.replicas"))
    throttle.set_topic("u", ["*"])
    throttle.set_topic("v", ["0:2"])
    assert [throttle.covers("t", number) for number in range(4)] == [True, False, True, False]
    assert throttle.covers("u", 99)
    assert not throttle.covers("v", 0)
    assert throttle.is_set
    for topic in "tu":
        throttle.set_topic(topic, [])
    assert not throttle.is_set
    assert not throttle.covers("t", 0)


def test_only_what_catches_up_is_held_back_while_the_rate_is_exceeded() -> None:
    throttle = Throttle(1, RateLimit(1000))
    throttle.set_topic("t", ["0:1"])
    throttle.record("t", 1, 1_000_000, 50.0)
    assert not throttle.holds_back("t", 0, 50.0, in_sync=False), "another partition is not counted"
    throttle.record("t", 0, 3000, 50.0)
    assert throttle.holds_back("t", 0, 50.5, in_sync=False)
    assert not throttle.holds_back("t", 0, 50.5, in_sync=True)
    assert not throttle.holds_back("t", 1, 50.5, in_sync=False)
    assert throttle.holds_back("t", 0, 52.9, in_sync=False)
    assert not throttle.holds_back("t", 0, 53.1, in_sync=False), "3000 bytes in more than three seconds"
    throttle.limit.bytes_per_second = 500
    assert throttle.holds_back("t", 0, 53.1, in_sync=False)


def test_the_first_second_counts_as_a_whole_one_and_old_samples_are_forgotten() -> None:
    limit = RateLimit(100, samples=3, sample_s=1.0)
    assert limit.rate(0.0) == 0.0
    limit.record(90, 10.0)
    assert limit.rate(10.1) == 90.0
    limit.record(90, 10.5)
    assert limit.rate(10.5) == 180.0
    limit.record(30, 11.0)
    assert limit.rate(12.0) == 105.0
    assert limit.rate(12.99) == pytest.approx(210 / 2.99)
    assert limit.rate(13.0) == 15.0, "the sample of second 10 is gone"
    assert limit.rate(14.0) == 0.0


def test_without_a_limit_nothing_is_exceeded() -> None:
    limit = RateLimit()
    limit.record(10**15, 0.0)
    assert not limit.is_exceeded(0.0)
    assert limit.wait_s(0.0) == 0.0


def would_be_exceeded(limit: RateLimit, at: float) -> bool:
    """Whether it is then, if nothing is recorded meanwhile. A copy is asked, as time never goes back."""
    return copy.deepcopy(limit).is_exceeded(at)


EVENTS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 5000)), max_size=40)


@given(EVENTS, st.integers(0, 3000), st.integers(1, 11))
@example([(0.0, 1869), (1.875, 127)], 975, 2)  # What is left then counts over a second.
@example([(0.0, 5), (1.0, 0)], 0, 2)  # Nothing is left.
@example([(7.8776797773146861, 1), (1.0, 1)], 0, 1)  # A second that is a little less.
@example([(0.0, 0), (1.0, 2)], 1, 2)  # The older sample goes just when it would have been enough.
def test_whoever_waits_as_long_as_told_may_go_on(
    events: list[tuple[float, int]], rate: int, samples: int
) -> None:
    limit = RateLimit(rate, samples)
    now = 0.0
    for later, size in events:
        now += later
        limit.record(size, now)
        wait = limit.wait_s(now)
        assert 0.0 <= wait <= samples + 1e-6
        assert (wait == 0.0) == (not limit.is_exceeded(now))
        if wait > 0.01:
            assert would_be_exceeded(limit, now + wait - 0.005), "no longer than needed"
        # Either of them, for what is rounded, and as the moment after an older sample may be gone.
        assert not (would_be_exceeded(limit, now + wait) and would_be_exceeded(limit, now + wait + 1e-6))


@given(st.integers(1, 2000), st.lists(st.integers(1, 3000), min_size=1, max_size=200))
def test_who_asks_first_keeps_to_the_rate(rate: int, sizes: list[int]) -> None:
    limit = RateLimit(rate)
    now, total = 0.0, 0
    for size in sizes:
        now += limit.wait_s(now) + 1e-6
        if limit.is_exceeded(now):
            continue
        limit.record(size, now)
        total += size
    assert total <= rate * (now + 1.0) + max(sizes) * (1 + now / 10)


def test_bytes_take_turns_and_a_change_of_the_rate_concerns_those_that_wait() -> None:
    turns = Turns(100)
    first, second = turns.take(1000, 50.0), turns.take(500, 50.0)
    assert turns.wait_s(first, 50.0) == pytest.approx(10.0)
    assert turns.wait_s(second, 50.0) == pytest.approx(15.0)
    assert turns.wait_s(first, 55.0) == pytest.approx(5.0)
    turns.bytes_per_second = 1000
    assert turns.wait_s(second, 55.0) == pytest.approx(1.0)
    assert turns.wait_s(second, 56.0) == 0.0
    # Silence is nothing that could be made up for.
    assert turns.wait_s(turns.take(1000, 99.0), 99.0) == pytest.approx(1.0)
    turns.bytes_per_second = 0
    assert turns.wait_s(turns.take(1000, 100.0), 100.0) >= 1000.0
