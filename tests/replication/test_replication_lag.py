"""What a leader tells of followers for who watches: how far they are behind, also before they have told."""

from __future__ import annotations

from replica_stage import Broker

from tidemill.replication.partition import Partition

ALL = (1, 2, 3)


def led(isr: tuple[int, ...] = ALL) -> tuple[Broker, Partition]:
    """Broker 1 with the partition that it leads in epoch 5, and three records in it."""
    broker = Broker(1)
    (partition,) = broker.partitions
    partition.become(1, 5, ALL, isr, 7, 0)
    broker.write(0, b"a", b"b", b"c")
    return broker, partition


def test_the_lag_is_that_of_the_follower_which_is_farthest_behind() -> None:
    _, partition = led()
    partition.fetched_by(2, 2, 0, 1)
    partition.fetched_by(3, 1, 0, 1)
    assert partition.lag_max == 2
    partition.fetched_by(3, 3, 0, 2)
    assert partition.lag_max == 1
    partition.fetched_by(2, 3, 0, 2)
    assert partition.lag_max == 0


def test_a_follower_that_has_not_told_yet_may_lack_all_that_is_not_committed() -> None:
    _, partition = led()
    partition.fetched_by(2, 3, 0, 1)
    assert partition.lag_max == 3
    partition.fetched_by(3, 2, 0, 1)
    assert partition.lag_max == 1


def test_a_follower_that_nobody_heard_of_may_lack_all_that_is_there() -> None:
    _, partition = led(isr=(1, 2))
    partition.fetched_by(2, 3, 0, 1)
    assert partition.lag_max == 3
    partition.advance_start(1)
    assert partition.lag_max == 2, "what is gone cannot be lacked"


def test_a_follower_that_died_lags_behind_from_where_it_was() -> None:
    broker, partition = led(isr=(1, 2))
    for follower in (2, 3):
        partition.fetched_by(follower, 3, 0, 1)
    partition.become(1, 5, ALL, ALL, 8, 0)
    partition.become(1, 5, ALL, (1, 2), 9, 0)
    broker.write(0, b"d", b"e")
    partition.fetched_by(2, 5, 0, 2)
    assert partition.lag_max == 2
    partition.fetched_by(3, 4, 0, 3)
    partition.follower_gone(3, 4)
    assert partition.lag_max == 1, "it had come closer"
    partition.fetched_by(3, 1, 0, 5)
    assert partition.lag_max == 4, "it came back with less"


def test_what_a_leader_knows_of_a_dead_follower_outlives_its_epoch() -> None:
    broker, partition = led()
    for follower in (2, 3):
        partition.fetched_by(follower, 3, 0, 1)
    partition.become(1, 6, ALL, (1, 2), 8, 0)
    broker.write(0, b"d")
    partition.fetched_by(2, 4, 0, 1)
    assert partition.lag_max == 1


def test_a_new_leader_knows_who_was_in_sync_while_it_followed() -> None:
    broker, partition = led()
    for follower in (2, 3):
        partition.fetched_by(follower, 3, 0, 1)
    partition.become(2, 6, ALL, ALL, 8, 0)
    assert partition.lag_max == 0, "who does not lead tells nothing"
    partition.become(2, 6, ALL, (1, 2), 9, 0)
    partition.become(1, 7, ALL, (1,), 10, 0)
    broker.write(0, b"d", b"e")
    assert partition.lag_max == 2, "of broker 3, which left the set before, and of the leader before"
    partition.fetched_by(2, 5, 0, 1)
    assert partition.lag_max == 2
    partition.fetched_by(3, 5, 0, 1)
    assert partition.lag_max == 0
