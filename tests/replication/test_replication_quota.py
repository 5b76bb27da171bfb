"""Replication throttles: the covered replicas and the delays."""

from __future__ import annotations

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.model.configs import TOPIC_KEYS, BrokerConfig, TopicConfig
from tidemill.model.errors import ConfigError
from tidemill.replication.replication_quota import RateLimit, ReplicationQuota, Turns


@pytest.mark.parametrize("text", ["", "*", "0:1", "0:1,1:2 , 10:3", " * ", "0:1,,2:3"])
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_lists_of_throttled_replicas_are_parsed(side: str, text: str) -> None:
    key = TOPIC_KEYS[f"{side}.replication.throttled.replicas"]
    expected = tuple(part.strip() for part in text.split(",") if part.strip())
    assert key.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["1", "a:b", "0:1,*", "*,*", "0:-1", "0:1:2", "0 : 1", "٣:1", "0:99999999999"]
)
def test_invalid_lists_of_throttled_replicas_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed is \* for all replicas, or a list of partition:broker"):
        TOPIC_KEYS["leader.replication.throttled.replicas"].parse(text)


def test_a_throttle_covers_the_listed_replicas_of_its_broker() -> None:
    config = TopicConfig(BrokerConfig.of(), {"leader.replication.throttled.replicas": "0:1,1:2,2:1"})
    throttle = ReplicationQuota(1, RateLimit())
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


def test_only_out_of_sync_replicas_are_throttled_above_the_rate() -> None:
    throttle = ReplicationQuota(1, RateLimit(1000))
    throttle.set_topic("t", ["0:1"])
    throttle.record("t", 1, 1_000_000, 50.0)
    assert not throttle.is_throttled("t", 0, 50.0, in_sync=False), "another partition is not counted"
    throttle.record("t", 0, 3000, 50.0)
    assert throttle.is_throttled("t", 0, 50.5, in_sync=False)
    assert not throttle.is_throttled("t", 0, 50.5, in_sync=True)
    assert not throttle.is_throttled("t", 1, 50.5, in_sync=False)
    assert throttle.is_throttled("t", 0, 52.9, in_sync=False)
    assert not throttle.is_throttled("t", 0, 53.1, in_sync=False), "3000 bytes in more than three seconds"
    throttle.limit.bytes_per_second = 500
    assert throttle.is_throttled("t", 0, 53.1, in_sync=False)


def test_the_first_second_counts_fully_and_old_samples_expire() -> None:
    limit = RateLimit(100, samples=3, sample_s=1.0)
    assert limit.rate(0.0) == 0.0
    limit.record(90, 10.0)
    assert limit.rate(10.1) == 90.0
    limit.record(90, 10.5)
    assert limit.rate(10.5) == 180.0
    limit.record(30, 11.0)
    assert limit.rate(12.0) == 105.0
    assert limit.rate(12.99) == pytest.approx(210 / 2.99)
    assert limit.rate(13.0) == 15.0, "the sample of second 10 has expired"
    assert limit.rate(14.0) == 0.0


def test_without_a_limit_the_rate_is_not_exceeded() -> None:
    limit = RateLimit()
    limit.record(10**15, 0.0)
    assert not limit.is_exceeded(0.0)
    assert limit.wait_s(0.0) == 0.0


def would_be_exceeded(limit: RateLimit, at: float) -> bool:
    """Returns the state at that time without further records. It asks a copy, as time never decreases."""
    return copy.deepcopy(limit).is_exceeded(at)


EVENTS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 5000)), max_size=40)


@given(EVENTS, st.integers(0, 3000), st.integers(1, 11))
@example([(0.0, 1869), (1.875, 127)], 975, 2)  # The remaining bytes count over one second.
@example([(0.0, 5), (1.0, 0)], 0, 2)  # No bytes remain.
@example([(7.8776797773146861, 1), (1.0, 1)], 0, 1)  # Slightly less than a second.
@example([(0.0, 0), (1.0, 2)], 1, 2)  # The older sample expires just before the rate is kept.
def test_the_rate_is_not_exceeded_after_the_returned_wait(
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
        # One of the two holds, because of rounding, and because an older sample may expire just after it.
        assert not (would_be_exceeded(limit, now + wait) and would_be_exceeded(limit, now + wait + 1e-6))


@given(st.integers(1, 2000), st.lists(st.integers(1, 3000), min_size=1, max_size=200))
def test_a_caller_that_waits_keeps_to_the_rate(rate: int, sizes: list[int]) -> None:
    limit = RateLimit(rate)
    now, total = 0.0, 0
    for size in sizes:
        now += limit.wait_s(now) + 1e-6
        if limit.is_exceeded(now):
            continue
        limit.record(size, now)
        total += size
    assert total <= rate * (now + 1.0) + max(sizes) * (1 + now / 10)


def test_waits_are_queued_and_follow_a_change_of_the_rate() -> None:
    turns = Turns(100)
    first, second = turns.append(1000, 50.0), turns.append(500, 50.0)
    assert turns.wait_s(first, 50.0) == pytest.approx(10.0)
    assert turns.wait_s(second, 50.0) == pytest.approx(15.0)
    assert turns.wait_s(first, 55.0) == pytest.approx(5.0)
    turns.bytes_per_second = 1000
    assert turns.wait_s(second, 55.0) == pytest.approx(1.0)
    assert turns.wait_s(second, 56.0) == 0.0
    # An idle time gives no credit.
    assert turns.wait_s(turns.append(1000, 99.0), 99.0) == pytest.approx(1.0)
    turns.bytes_per_second = 0
    assert turns.wait_s(turns.append(1000, 100.0), 100.0) >= 1000.0
