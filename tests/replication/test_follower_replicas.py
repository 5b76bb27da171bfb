"""Offsets and decisions that a leader derives from the fetches of its followers."""

from __future__ import annotations

from tidemill.model.types import NO_OFFSET
from tidemill.replication.follower_replicas import NEVER_MS, NO_BROKER_EPOCH, FollowerReplicas
from tidemill.replication.isr_state import IsrState

LAG_MS = 100


def led(isr: tuple[int, ...] = (1, 2, 3), now_ms: int = 0) -> FollowerReplicas:
    state = IsrState()
    state.commit(isr, 7)
    return FollowerReplicas(1, (1, 2, 3), state, now_ms, LAG_MS)


def change(replicas: FollowerReplicas, isr: tuple[int, ...], assigned: tuple[int, ...] = (1, 2, 3)) -> None:
    """The controller has written ``isr``, of the replicas ``assigned``."""
    former = replicas.isr_state.isr
    replicas.isr_state.commit(isr, 8)
    replicas.change(assigned, former)


def test_the_high_watermark_is_the_least_offset_of_the_in_sync_replicas() -> None:
    replicas = led()
    assert replicas.high_watermark(10, 0) == NO_OFFSET
    assert replicas.fetched(2, 8, 0, 10, 1)
    assert replicas.high_watermark(10, 1) == NO_OFFSET
    assert replicas.fetched(3, 5, 0, 10, 1)
    assert replicas.high_watermark(10, 1) == 5
    assert replicas.fetched(3, 10, 0, 10, 2)
    assert replicas.high_watermark(10, 2) == 8
    # The leader counts synced records only.
    assert replicas.high_watermark(6, 2) == 6


def test_a_lagging_replica_outside_the_isr_does_not_hold_the_high_watermark() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 4, 0, 10, 0)
    assert replicas.high_watermark(10, 0) == 10


def test_a_caught_up_replica_outside_the_isr_holds_the_high_watermark() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 10, 0, 10, 0)
    replicas.fetched(2, 20, 0, 20, 1)
    assert replicas.high_watermark(20, 1) == 10
    assert replicas.high_watermark(20, LAG_MS + 1) == 20


def test_a_replica_of_a_pending_isr_holds_the_high_watermark() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 4, 0, 10, 0)
    replicas.isr_state.request((1, 2, 3))
    assert replicas.isr_state.isr == (1, 2)
    assert replicas.high_watermark(10, 0) == 4
    change(replicas, (1, 2, 3))
    assert replicas.isr_state.pending is None
    assert replicas.high_watermark(10, 0) == 4


def test_a_follower_removed_from_the_isr_does_not_hold_the_high_watermark() -> None:
    replicas = led()
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 10, 0, 10, 0)
    assert replicas.high_watermark(11, 1) == 10
    change(replicas, (1, 2))
    replicas.fetched(2, 11, 0, 11, 2)
    assert replicas.high_watermark(11, 2) == 11


def test_a_follower_lags_after_the_maximum_lag_time() -> None:
    replicas = led()
    replicas.fetched(2, 10, 0, 10, LAG_MS)
    assert replicas.without_lagging(10, LAG_MS) == (1, 2, 3)
    assert replicas.without_lagging(10, LAG_MS + 1) == (1, 2)
    assert replicas.without_lagging(11, 2 * LAG_MS) == (1, 2)
    assert replicas.without_lagging(11, 2 * LAG_MS + 1) == (1,)
    # A caught-up follower does not lag, at any time after its last fetch.
    assert replicas.without_lagging(10, 10 * LAG_MS) == (1, 2)


def test_fetches_of_a_former_broker_epoch_are_ignored() -> None:
    replicas = led(isr=(1, 2))
    assert replicas.epoch_of(3) == NO_BROKER_EPOCH
    assert replicas.fetched(3, 10, 0, 10, 1, 5)
    assert replicas.can_join_isr(3, 10, 0, 0)
    assert replicas.fetched(3, 4, 0, 10, 2, 9)
    assert not replicas.fetched(3, 10, 0, 10, 3, 5)
    replicas.fetch_repeated(3, 3, 5)
    follower = replicas.followers[3]
    assert (follower.end_offset, follower.caught_up_ms, replicas.epoch_of(3)) == (4, NEVER_MS, 9)
    assert not replicas.can_join_isr(3, 10, 0, 0)
    # A broker may register again while its process is running. A fetch without broker epoch is accepted.
    assert replicas.fetched(3, 10, 0, 10, 4, 11)
    assert replicas.fetched(3, 9, 0, 10, 5)
    assert replicas.epoch_of(3) == NO_BROKER_EPOCH
    assert (replicas.epoch_of(1), replicas.epoch_of(9)) == (NO_BROKER_EPOCH, NO_BROKER_EPOCH)


def test_a_replica_that_returns_with_fewer_records_is_not_caught_up() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0, 4)
    replicas.fetched(3, 10, 0, 10, 0, 5)
    assert replicas.is_rejoining(3, 10, 1)
    replicas.fetched(3, 0, 0, 10, 1, 9)
    assert not replicas.is_rejoining(3, 10, 1)
    assert replicas.high_watermark(10, 1) == 10
    # An in-sync replica is waited for until its maximum lag expires.
    replicas.fetched(2, 0, 0, 10, 1, 9)
    assert replicas.high_watermark(10, 1) == 0
    assert replicas.without_lagging(10, LAG_MS) == (1, 2)


def test_a_replica_removed_from_the_isr_keeps_its_broker_epoch() -> None:
    replicas = led()
    replicas.fetched(3, 10, 0, 10, 0, 9)
    change(replicas, (1, 2))
    assert replicas.followers[3].end_offset == NO_OFFSET
    assert not replicas.fetched(3, 10, 0, 10, 1, 5)
    replicas.fetched(3, 10, 0, 10, 1, 9)
    assert replicas.broker_failed(3)
    assert not replicas.fetched(3, 10, 0, 10, 2, 5)


def test_a_follower_is_caught_up_when_it_reaches_the_end_offset_of_its_previous_fetch() -> None:
    replicas = led()
    for step in range(1, 5):
        now_ms = step * 60
        replicas.fetched(2, (step - 1) * 10, 0, step * 10, now_ms)
        replicas.fetched(3, 0, 0, step * 10, now_ms)
    assert replicas.without_lagging(50, 250) == (1, 2)


def test_only_one_isr_change_is_pending() -> None:
    replicas = led()
    replicas.isr_state.request((1, 2))
    assert replicas.without_lagging(10, 100 * LAG_MS) == (1, 2, 3)
    assert not replicas.can_join_isr(3, 0, 0, 0)


def test_a_replica_at_the_high_watermark_and_epoch_start_may_join_the_isr() -> None:
    replicas = led(isr=(1,))
    assert not replicas.can_join_isr(2, 0, 0, 0)
    replicas.fetched(2, 9, 0, 10, 0)
    assert not replicas.can_join_isr(2, 10, 0, 0)
    assert replicas.can_join_isr(2, 9, 9, 0)
    # It may hold records of an older epoch that this leader does not have.
    assert not replicas.can_join_isr(2, 9, 10, 0)
    assert not replicas.can_join_isr(4, 0, 0, 0)


def test_a_replica_with_records_deleted_by_the_leader_may_not_join_the_isr() -> None:
    """With such a replica as leader, the deleted records would be available again."""
    replicas = led(isr=(1,))
    replicas.fetched(2, 9, 4, 10, 0)
    assert not replicas.can_join_isr(2, 9, 0, 5)
    assert replicas.can_join_isr(2, 9, 0, 4)
    replicas.fetched(2, 9, 5, 10, 1)
    assert replicas.can_join_isr(2, 9, 0, 5)


def test_replicas_are_added_and_removed() -> None:
    replicas = led()
    change(replicas, (1, 3), (1, 3, 4))
    assert sorted(replicas.followers) == [3, 4]
    assert not replicas.fetched(2, 10, 0, 10, 0)
    assert replicas.fetched(4, 10, 0, 10, 0)


def test_the_log_start_offset_is_the_least_of_all_live_replicas() -> None:
    replicas = led(isr=(1, 2))
    assert replicas.start_offset(5, {1, 2, 3}.__contains__) == NO_OFFSET
    replicas.fetched(2, 10, 3, 10, 0)
    assert replicas.start_offset(5, {1, 2, 3}.__contains__) == NO_OFFSET
    assert replicas.start_offset(5, {1, 2}.__contains__) == 3
    replicas.fetched(3, 10, 2, 10, 0)
    assert replicas.start_offset(5, {1, 2, 3}.__contains__) == 2
    assert replicas.start_offset(5, {1, 2}.__contains__) == 3


def test_the_log_start_offset_of_an_in_sync_replica_counts_before_its_broker_is_known() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 3, 10, 0)
    replicas.fetched(3, 10, 2, 10, 0)
    assert replicas.start_offset(5, {1}.__contains__) == 3
    replicas.isr_state.request((1, 2, 3))
    assert replicas.isr_state.isr == (1, 2)
    assert replicas.start_offset(5, {1}.__contains__) == 2
    change(replicas, (1,))
    assert replicas.start_offset(5, {1}.__contains__) == 5
