"""What a leader concludes from the fetches of its followers."""

from __future__ import annotations

from tidemill.replication.replicas import UNKNOWN, Replicas

LAG_MS = 100


def led(isr: tuple[int, ...] = (1, 2, 3), now_ms: int = 0) -> Replicas:
    return Replicas(1, (1, 2, 3), isr, 7, now_ms, LAG_MS)


def test_the_high_watermark_is_the_least_of_those_in_sync() -> None:
    replicas = led()
    assert replicas.high_watermark(10, 0) == UNKNOWN
    assert replicas.fetched(2, 8, 0, 10, 1)
    assert replicas.high_watermark(10, 1) == UNKNOWN
    assert replicas.fetched(3, 5, 0, 10, 1)
    assert replicas.high_watermark(10, 1) == 5
    assert replicas.fetched(3, 10, 0, 10, 2)
    assert replicas.high_watermark(10, 2) == 8
    # A leader that counts only what it has synced.
    assert replicas.high_watermark(6, 2) == 6


def test_who_lags_outside_of_the_set_is_not_waited_for() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 4, 0, 10, 0)
    assert replicas.high_watermark(10, 0) == 10


def test_who_is_about_to_come_back_is_waited_for() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 10, 0, 10, 0)
    replicas.fetched(2, 20, 0, 20, 1)
    assert replicas.high_watermark(20, 1) == 10
    assert replicas.high_watermark(20, LAG_MS + 1) == 20


def test_who_the_set_will_have_is_waited_for() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 4, 0, 10, 0)
    replicas.pending = (1, 2, 3)
    assert replicas.high_watermark(10, 0) == 4
    replicas.change((1, 2, 3), (1, 2, 3), 8)
    assert replicas.pending == ()
    assert replicas.partition_epoch == 8
    assert replicas.high_watermark(10, 0) == 4


def test_a_follower_that_was_taken_out_holds_nothing_up() -> None:
    replicas = led()
    replicas.fetched(2, 10, 0, 10, 0)
    replicas.fetched(3, 10, 0, 10, 0)
    assert replicas.high_watermark(11, 1) == 10
    replicas.change((1, 2, 3), (1, 2), 8)
    replicas.fetched(2, 11, 0, 11, 2)
    assert replicas.high_watermark(11, 2) == 11


def test_a_follower_lags_when_it_was_not_caught_up_for_long() -> None:
    replicas = led()
    replicas.fetched(2, 10, 0, 10, LAG_MS)
    assert replicas.without_lagging(10, LAG_MS) == (1, 2, 3)
    assert replicas.without_lagging(10, LAG_MS + 1) == (1, 2)
    assert replicas.without_lagging(11, 2 * LAG_MS) == (1, 2)
    assert replicas.without_lagging(11, 2 * LAG_MS + 1) == (1,)
    # Who has everything does not lag, however long ago that was.
    assert replicas.without_lagging(10, 10 * LAG_MS) == (1, 2)


def test_fetches_of_a_former_life_tell_nothing() -> None:
    replicas = led(isr=(1, 2))
    assert replicas.epoch_of(3) == UNKNOWN
    assert replicas.fetched(3, 10, 0, 10, 1, 5)
    assert replicas.may_join(3, 10, 0, 0)
    assert replicas.fetched(3, 4, 0, 10, 2, 9)
    assert not replicas.fetched(3, 10, 0, 10, 3, 5)
    replicas.asked_again(3, 3, 5)
    follower = replicas.followers[3]
    assert (follower.end_offset, follower.caught_up_ms, replicas.epoch_of(3)) == (4, UNKNOWN, 9)
    assert not replicas.may_join(3, 10, 0, 0)
    # It may register anew while its process lives; and one without an epoch is taken at its word.
    assert replicas.fetched(3, 10, 0, 10, 4, 11)
    assert replicas.fetched(3, 9, 0, 10, 5)
    assert replicas.epoch_of(3) == UNKNOWN
    assert (replicas.epoch_of(1), replicas.epoch_of(9)) == (UNKNOWN, UNKNOWN)


def test_who_comes_back_with_less_is_not_waited_for_as_if_it_had_been_caught_up() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 0, 10, 0, 4)
    replicas.fetched(3, 10, 0, 10, 0, 5)
    assert replicas.comes_back(3, 10, 1)
    replicas.fetched(3, 0, 0, 10, 1, 9)
    assert not replicas.comes_back(3, 10, 1)
    assert replicas.high_watermark(10, 1) == 10
    # A member of the set is waited for, and keeps its time to show that it follows.
    replicas.fetched(2, 0, 0, 10, 1, 9)
    assert replicas.high_watermark(10, 1) == 0
    assert replicas.without_lagging(10, LAG_MS) == (1, 2)


def test_who_is_taken_out_is_still_known_by_its_epoch() -> None:
    replicas = led()
    replicas.fetched(3, 10, 0, 10, 0, 9)
    replicas.change((1, 2, 3), (1, 2), 8)
    assert replicas.followers[3].end_offset == UNKNOWN
    assert not replicas.fetched(3, 10, 0, 10, 1, 5)
    replicas.fetched(3, 10, 0, 10, 1, 9)
    assert replicas.gone(3)
    assert not replicas.fetched(3, 10, 0, 10, 2, 5)


def test_a_follower_of_a_log_that_never_rests_is_caught_up_with_the_fetch_before() -> None:
    replicas = led()
    for step in range(1, 5):
        now_ms = step * 60
        replicas.fetched(2, (step - 1) * 10, 0, step * 10, now_ms)
        replicas.fetched(3, 0, 0, step * 10, now_ms)
    assert replicas.without_lagging(50, 250) == (1, 2)


def test_only_one_change_is_under_way() -> None:
    replicas = led()
    replicas.pending = (1, 2)
    assert replicas.without_lagging(10, 100 * LAG_MS) == (1, 2, 3)
    assert not replicas.may_join(3, 0, 0, 0)


def test_who_has_all_that_is_committed_in_this_epoch_may_join() -> None:
    replicas = led(isr=(1,))
    assert not replicas.may_join(2, 0, 0, 0)
    replicas.fetched(2, 9, 0, 10, 0)
    assert not replicas.may_join(2, 10, 0, 0)
    assert replicas.may_join(2, 9, 9, 0)
    # It may hold records of an older epoch that this leader does not have.
    assert not replicas.may_join(2, 9, 10, 0)
    assert replicas.with_joined(2) == (1, 2)
    assert not replicas.may_join(4, 0, 0, 0)


def test_who_has_records_that_the_leader_deleted_may_not_join() -> None:
    """Should it lead, they would be there again."""
    replicas = led(isr=(1,))
    replicas.fetched(2, 9, 4, 10, 0)
    assert not replicas.may_join(2, 9, 0, 5)
    assert replicas.may_join(2, 9, 0, 4)
    replicas.fetched(2, 9, 5, 10, 1)
    assert replicas.may_join(2, 9, 0, 5)


def test_replicas_come_and_go() -> None:
    replicas = led()
    replicas.change((1, 3, 4), (1, 3), 9)
    assert sorted(replicas.followers) == [3, 4]
    assert not replicas.fetched(2, 10, 0, 10, 0)
    assert replicas.fetched(4, 10, 0, 10, 0)


def test_the_start_is_the_least_of_all_live_replicas() -> None:
    replicas = led(isr=(1, 2))
    assert replicas.start_offset(5, {1, 2, 3}.__contains__) == UNKNOWN
    replicas.fetched(2, 10, 3, 10, 0)
    assert replicas.start_offset(5, {1, 2, 3}.__contains__) == UNKNOWN
    assert replicas.start_offset(5, {1, 2}.__contains__) == 3
    replicas.fetched(3, 10, 2, 10, 0)
    assert replicas.start_offset(5, {1, 2, 3}.__contains__) == 2
    assert replicas.start_offset(5, {1, 2}.__contains__) == 3


def test_the_start_of_a_replica_in_sync_counts_before_the_leader_knows_that_it_lives() -> None:
    replicas = led(isr=(1, 2))
    replicas.fetched(2, 10, 3, 10, 0)
    replicas.fetched(3, 10, 2, 10, 0)
    assert replicas.start_offset(5, {1}.__contains__) == 3
    replicas.pending = (1, 2, 3)
    assert replicas.start_offset(5, {1}.__contains__) == 2
    replicas.change((1, 2, 3), (1,), 9)
    assert replicas.start_offset(5, {1}.__contains__) == 5
