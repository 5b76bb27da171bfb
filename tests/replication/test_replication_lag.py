"""The replication lag that a leader reports, also before the first fetch of a follower."""

from __future__ import annotations

from replica_stage import ALL, Broker, led

from tidemill.replication.partition import Partition


def led_with_records(isr: tuple[int, ...] = ALL) -> tuple[Broker, Partition]:
    """The leader with three records."""
    broker, partition = led(isr)
    broker.write(0, b"a", b"b", b"c")
    return broker, partition


def test_the_lag_is_the_greatest_lag_of_a_follower() -> None:
    _, partition = led_with_records()
    partition.fetched_by(2, 2, 0, 1)
    partition.fetched_by(3, 1, 0, 1)
    assert partition.lag_max == 2
    partition.fetched_by(3, 3, 0, 2)
    assert partition.lag_max == 1
    partition.fetched_by(2, 3, 0, 2)
    assert partition.lag_max == 0


def test_a_follower_without_fetches_lags_from_the_high_watermark() -> None:
    _, partition = led_with_records()
    partition.fetched_by(2, 3, 0, 1)
    assert partition.lag_max == 3
    partition.fetched_by(3, 2, 0, 1)
    assert partition.lag_max == 1


def test_an_unknown_follower_lags_by_the_whole_log() -> None:
    _, partition = led_with_records(isr=(1, 2))
    partition.fetched_by(2, 3, 0, 1)
    assert partition.lag_max == 3
    partition.advance_start(1)
    assert partition.lag_max == 2, "a deleted record cannot be missing"


def test_a_failed_follower_lags_from_its_last_offset() -> None:
    broker, partition = led_with_records(isr=(1, 2))
    for follower in (2, 3):
        partition.fetched_by(follower, 3, 0, 1)
    partition.apply_state(1, 5, ALL, ALL, partition_epoch=8, now_ms=0)
    partition.apply_state(1, 5, ALL, (1, 2), partition_epoch=9, now_ms=0)
    broker.write(0, b"d", b"e")
    partition.fetched_by(2, 5, 0, 2)
    assert partition.lag_max == 2
    partition.fetched_by(3, 4, 0, 3)
    partition.follower_gone(3, 4)
    assert partition.lag_max == 1, "its offset was higher"
    partition.fetched_by(3, 1, 0, 5)
    assert partition.lag_max == 4, "it restarted with fewer records"


def test_the_offset_of_a_failed_follower_survives_a_new_leader_epoch() -> None:
    broker, partition = led_with_records()
    for follower in (2, 3):
        partition.fetched_by(follower, 3, 0, 1)
    partition.apply_state(1, 6, ALL, (1, 2), partition_epoch=8, now_ms=0)
    broker.write(0, b"d")
    partition.fetched_by(2, 4, 0, 1)
    assert partition.lag_max == 1


def test_a_new_leader_knows_the_in_sync_replicas_of_its_time_as_follower() -> None:
    broker, partition = led_with_records()
    for follower in (2, 3):
        partition.fetched_by(follower, 3, 0, 1)
    partition.apply_state(2, 6, ALL, ALL, partition_epoch=8, now_ms=0)
    assert partition.lag_max == 0, "only a leader reports a lag"
    partition.apply_state(2, 6, ALL, (1, 2), partition_epoch=9, now_ms=0)
    partition.apply_state(1, 7, ALL, (1,), partition_epoch=10, now_ms=0)
    broker.write(0, b"d", b"e")
    assert partition.lag_max == 2, "of broker 3, which left the set before, and of the former leader"
    partition.fetched_by(2, 5, 0, 1)
    assert partition.lag_max == 2
    partition.fetched_by(3, 5, 0, 1)
    assert partition.lag_max == 0
