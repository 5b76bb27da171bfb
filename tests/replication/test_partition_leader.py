"""A leader with followers: commits, delayed operations, and changes of the in-sync set."""

from __future__ import annotations

from random import Random

import pytest
from replica_stage import ALL, LAG_MS, Broker, batch_of, content, led

from default_limits import iter_records
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.delayed_operations import FetchWaiter, OffsetCallback, WatchedPartition
from tidemill.replication.partition import Partition


class Reader(FetchWaiter):
    """Counts the notifications and their bytes."""

    def __init__(self) -> None:
        self.notified: list[int] = []

    def on_readable(self, partition: WatchedPartition, added_bytes: int) -> None:
        self.notified.append(int(added_bytes))


def wait(partition: Partition, end_offset: int) -> list[KafkaError | None]:
    """Records the result of a produce with acks=all."""
    outcomes: list[KafkaError | None] = []
    partition.delayed.wait_committed(end_offset, OffsetCallback(outcomes.append))
    return outcomes


def test_a_message_is_committed_when_all_in_sync_replicas_have_it() -> None:
    broker, partition = led()
    broker.write(0, b"a", b"b")
    outcomes = wait(partition, 2)
    assert partition.high_watermark == 0
    partition.fetched_by(2, 2, 0, 1)
    partition.fetched_by(3, 1, 0, 1)
    assert partition.high_watermark == 1
    assert outcomes == []
    partition.fetched_by(3, 2, 0, 2)
    assert partition.high_watermark == 2
    assert outcomes == [None]


def test_followers_wait_for_appends_and_consumers_for_commits() -> None:
    broker, partition = led((1, 2))
    follower, consumer = Reader(), Reader()
    partition.delayed.wait_readable(follower, 2)
    partition.delayed.wait_readable(consumer)
    broker.write(0, b"a")
    size = int(partition.log.active.size)
    assert follower.notified == [size]
    assert consumer.notified == []
    partition.fetched_by(2, 1, 0, 1)
    assert consumer.notified == [size]
    partition.delayed.stop_waiting(follower)
    partition.delayed.stop_waiting(consumer)
    broker.write(0, b"b")
    assert len(follower.notified) == 1


def test_followers_outside_the_isr_are_notified_of_appends() -> None:
    broker, partition = led((1,))
    follower = Reader()
    partition.delayed.wait_readable(follower, 2)
    broker.write(0, b"a")
    assert partition.high_watermark == 1
    assert len(follower.notified) == 1


def test_bytes_committed_in_parts_are_summed() -> None:
    broker, partition = led((1, 2))
    consumer = Reader()
    partition.delayed.wait_readable(consumer)
    broker.write(0, b"a", b"b", b"c")
    for offset in (1, 2, 3):
        partition.fetched_by(2, offset, 0, offset)
    assert sum(consumer.notified) == partition.log.active.size
    assert len(consumer.notified) == 3


def test_a_caught_up_follower_is_requested_for_the_isr() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, 1)
    partition.fetched_by(3, 0, 0, 1)
    assert broker.events.wanted == []
    partition.fetched_by(3, 1, 0, 2)
    assert broker.events.wanted == [((1, 2, 3), 7)]
    # Until the controller has written it, commits wait for both sets, and no other change is requested.
    broker.write(0, b"b")
    partition.fetched_by(2, 2, 0, 3)
    assert partition.high_watermark == 1
    partition.fetched_by(3, 2, 0, 3)
    assert partition.high_watermark == 2
    assert len(broker.events.wanted) == 1
    partition.apply_state(1, 5, ALL, (1, 2, 3), partition_epoch=8, now_ms=4)
    assert partition.isr == ALL
    assert partition.partition_epoch == 8
    assert partition.isr_state.pending is None


@pytest.mark.parametrize("asks", [False, True])
def test_a_caught_up_follower_outside_the_isr_is_not_waited_for_after_its_broker_stops(
    asks: bool,
) -> None:
    broker, partition = led((1, 2))
    partition.fetched_by(3, 0, 0, 1)  # It is caught up, and is requested for the set.
    if not asks:
        partition.isr_refused(1)
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.fetched_by(2, 1, 0, 2)
    assert outcomes == []
    partition.follower_gone(3, 3)
    if asks:
        assert outcomes == [], "the controller may have added it to the set"
        partition.isr_refused(3)
    assert outcomes == [None]
    # An in-sync replica is waited for until the controller has removed it.
    broker.write(0, b"b")
    outcomes = wait(partition, 2)
    partition.follower_gone(2, 4)
    partition.follower_gone(9, 4)
    assert outcomes == []
    partition.apply_state(1, 5, ALL, (1,), partition_epoch=8, now_ms=5)
    assert outcomes == [None]


def test_the_leader_requests_an_isr_without_a_lagging_follower() -> None:
    broker, partition = led()
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, LAG_MS)
    partition.maybe_shrink_isr(LAG_MS)
    assert broker.events.wanted == []
    partition.maybe_shrink_isr(LAG_MS + 1)
    assert broker.events.wanted == [((1, 2), 7)]
    assert partition.high_watermark == 0
    partition.apply_state(1, 5, ALL, (1, 2), partition_epoch=8, now_ms=LAG_MS + 2)
    assert partition.high_watermark == 1


def test_a_rejected_isr_change_keeps_the_isr() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, 1)
    partition.fetched_by(3, 1, 0, 1)
    broker.write(0, b"b")
    partition.fetched_by(2, 2, 0, 2)
    assert partition.high_watermark == 1
    partition.isr_refused(2 * LAG_MS)
    assert partition.isr == (1, 2)
    assert partition.high_watermark == 2


def test_commits_wait_for_a_follower_whose_removal_the_controller_rejects() -> None:
    broker, partition = led()
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.fetched_by(2, 1, 0, LAG_MS)
    partition.maybe_shrink_isr(LAG_MS + 1)
    assert broker.events.wanted == [((1, 2), 7)]
    assert partition.isr == ALL, "the store has the former ISR"
    partition.isr_refused(LAG_MS + 2)
    partition.fetched_by(2, 1, 0, LAG_MS + 3)
    assert partition.high_watermark == 0
    assert outcomes == []
    partition.fetched_by(3, 1, 0, LAG_MS + 4)
    assert outcomes == [None]


def test_the_last_in_sync_replica_commits_alone() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.apply_state(1, 5, ALL, (1,), partition_epoch=8, now_ms=1)
    assert outcomes == [None]
    broker.write(0, b"b")
    assert partition.high_watermark == 2


def test_a_leader_waits_for_a_requested_isr_member_before_the_response() -> None:
    broker, partition = led((1,))
    partition.fetched_by(2, 0, 0, 1)
    assert broker.events.wanted == [((1, 2), 7)]
    # The controller may have written the change, and may elect broker 2 next.
    broker.write(0, b"a")
    assert partition.high_watermark == 0
    assert partition.must_delay_response(-1, 1)
    partition.fetched_by(2, 1, 0, 2)
    assert partition.high_watermark == 1
    broker.write(0, b"b")
    partition.isr_refused(3)
    assert partition.high_watermark == 2
    broker.write(0, b"c")
    assert partition.high_watermark == 3


def test_a_follower_rejoins_a_sole_leader_under_continuous_writes() -> None:
    broker, partition = led((1,))
    broker.write(0, b"a")
    requested, now_ms = 0, 0
    while not broker.events.wanted:
        assert now_ms < 10, "each fetch ends before the current log end offset"
        now_ms += 1
        partition.fetched_by(2, requested, 0, now_ms)
        requested = int(partition.log.end_offset)
        broker.write(0, b"meanwhile")
    assert broker.events.wanted == [((1, 2), 7)]


@pytest.mark.parametrize("how", ["it ends", "it stalls"])
def test_a_sole_leader_does_not_wait_for_an_absent_follower(how: str) -> None:
    broker, partition = led((1,))
    broker.write(0, b"a")
    partition.fetched_by(2, 0, 0, 1)
    broker.write(0, b"b")
    partition.fetched_by(2, 1, 0, 2)
    broker.write(0, b"c")
    assert partition.high_watermark == 2, "broker 2 gets in sync with its next fetch"
    assert not partition.is_isolated(1000), "no other replica is eligible"
    if how == "it ends":
        partition.follower_gone(2, 3)
    else:
        partition.maybe_shrink_isr(LAG_MS)
    assert partition.high_watermark == 3
    broker.write(0, b"d")
    assert partition.high_watermark == 4


def test_a_deposed_leader_rejects_requests() -> None:
    broker, partition = led()
    broker.write(0, b"a")
    follower = Reader()
    partition.delayed.wait_readable(follower, 2)
    outcomes = wait(partition, 1)
    partition.apply_state(2, 6, ALL, (2, 3), partition_epoch=8, now_ms=1)
    (error,) = outcomes
    assert error is not None
    assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert follower.notified == [0]
    assert not partition.fetched_by(2, 1, 0, 2)


def test_an_unassigned_broker_has_no_replica() -> None:
    _, partition = led()
    assert not partition.fetched_by(4, 0, 0, 0)


def test_a_leader_epoch_starts_at_the_log_end_offset_of_the_leader() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a", b"b")
    partition.apply_state(1, 6, ALL, (1,), partition_epoch=8, now_ms=1)
    assert partition.epoch_start == 2
    assert partition.log.leader_epochs.end_offset(6, 2) == (6, 2)
    # A follower below the start of the epoch may hold different records there.
    partition.fetched_by(2, 1, 0, 2)
    assert broker.events.wanted == []
    partition.fetched_by(2, 2, 0, 2)
    assert broker.events.wanted == [((1, 2), 8)]


def test_a_leader_counts_its_synced_records() -> None:
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, 1)
    assert partition.high_watermark == 0
    assert broker.events.flushes == [partition]
    partition.log.flush(0)
    partition.flushed(1, 1)
    assert partition.high_watermark == 1


def test_a_leader_with_a_failed_disk_commits_nothing_after_its_last_sync() -> None:
    """Records were appended during the sync. Then the disk failed, and none of them was synced."""
    broker, partition = led((1,), LogConfig(flush_messages=1))
    broker.write(0, b"a")
    outcomes = wait(partition, 2)
    broker.write(0, b"b")
    partition.mark_offline("the disk is broken")
    partition.flushed(1, 1)
    assert partition.high_watermark == 1
    (error,) = outcomes
    assert error is not None
    assert error.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_flush_does_not_wait_for_a_follower_past_the_maximum_lag() -> None:
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    partition.fetched_by(3, 0, 0, 1)
    partition.isr_refused(1)
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.fetched_by(2, 1, 0, 1 + LAG_MS + 1)
    partition.log.flush(0)
    partition.flushed(1, 1 + LAG_MS + 1)
    assert outcomes == [None]


def test_an_offset_synced_before_a_truncation_does_not_count_after_it() -> None:
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    broker.write(0, b"a", b"b")
    partition.log.flush(0)
    partition.flushed(2, 0)
    partition.apply_state(2, 6, ALL, (1, 2), partition_epoch=-1, now_ms=0)
    partition.truncate_to(0, 0)
    partition.apply_state(1, 7, ALL, (1, 2), partition_epoch=8, now_ms=0)
    partition.flushed(0, 0)
    broker.write(0, b"c")
    partition.fetched_by(2, 1, 0, 1)
    assert partition.high_watermark == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_new_leader_appends_nothing_before_its_truncation_is_synced(is_emptied: bool, acks: int) -> None:
    """The recovery point on the disk precedes the truncation. A start searches for gaps only after it."""
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    broker.write(0, b"a", b"b")
    partition.flushed(2, 0)
    partition.apply_state(2, 6, ALL, (1, 2), partition_epoch=-1, now_ms=0)
    if is_emptied:
        partition.restart_at(5, 0)
    else:
        partition.truncate_to(1, 0)
    partition.apply_state(1, 7, ALL, (1, 2), partition_epoch=8, now_ms=0)
    batch = batch_of(b"c")
    with pytest.raises(KafkaError, match=r"which is not synced yet\. Try again") as refused:
        partition.append(batch, acks, 0)
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    end = int(partition.log.end_offset)
    partition.flushed(end, 0)
    assert partition.append(batch, acks, 0).base_offset == end


def test_acks_all_requires_min_insync_replicas() -> None:
    _, partition = led((1,))
    partition.set_min_insync_replicas(2, 0)
    with pytest.raises(KafkaError, match=r"1 in-sync replicas, min\.insync\.replicas is 2"):
        partition.append(batch_of(b"v"), -1, 0)


@pytest.mark.parametrize("seed", range(12))
def test_truncated_records_do_not_reappear_among_later_records_after_a_power_cut(seed: int) -> None:
    broker = Broker(2)
    (partition,) = broker.partitions
    partition.apply_state(2, 0, (2,), (2,), partition_epoch=-1, now_ms=0)
    broker.write(0, b"0", b"old 1", b"old 2")
    partition.log.flush(0)
    partition.apply_state(1, 1, (1, 2), (1,), partition_epoch=-1, now_ms=0)
    partition.truncate_to(1, 0)
    assert broker.events.flushes == [partition]
    new = [b"new 1", b"new 2"]
    for offset, value in enumerate(new, 1):
        batch = batch_of(value, base_offset=offset, leader_epoch=1)
        partition.append_from_leader(batch.to_bytes(), 0, 0, 0)
    broker.files.power_cut(Random(seed))
    again = LogManager(broker.files, ["/d"])
    again.load(0, lambda topic: LogConfig())
    log = again.logs[partition.log.topic_partition]
    values = [record.value for record in iter_records(content(log))]
    assert values == [b"0", *new][: len(values)]
