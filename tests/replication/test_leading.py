"""A leader with followers: what is committed, who waits for it, and changes of the in-sync set."""

from __future__ import annotations

from random import Random

import pytest
from replica_stage import Broker

from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.records.reader import iter_records
from tidemill.replication.partition import Partition
from tidemill.replication.waiting import Awaited, CommitCallback, FetchWaiter

ALL = (1, 2, 3)
LAG_MS = 1000


def led(isr: tuple[int, ...] = ALL, config: LogConfig | None = None) -> tuple[Broker, Partition]:
    """Broker 1 with the partition that it leads in epoch 5, whose state has version 7."""
    broker = Broker(1, 1, config)
    (partition,) = broker.partitions
    partition.lag_ms_max = LAG_MS
    partition.become(1, 5, ALL, isr, 7, 0)
    return broker, partition


class Reader(FetchWaiter):
    """Counts how often it is told, and of how many bytes."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def on_readable(self, partition: Awaited, added_bytes: int) -> None:
        self.told.append(int(added_bytes))


def wait(partition: Partition, end_offset: int) -> list[KafkaError | None]:
    """What a produce with acks=all is told once it knows."""
    outcomes: list[KafkaError | None] = []
    partition.wait_committed(end_offset, CommitCallback(outcomes.append))
    return outcomes


def test_a_message_is_committed_once_all_in_sync_have_it() -> None:
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
    partition.wait_readable(follower, 2)
    partition.wait_readable(consumer)
    broker.write(0, b"a")
    size = int(partition.log.active.size)
    assert follower.told == [size]
    assert consumer.told == []
    partition.fetched_by(2, 1, 0, 1)
    assert consumer.told == [size]
    partition.stop_waiting(follower)
    partition.stop_waiting(consumer)
    broker.write(0, b"b")
    assert len(follower.told) == 1


def test_followers_outside_of_the_set_are_told_of_appends_as_well() -> None:
    broker, partition = led((1,))
    follower = Reader()
    partition.wait_readable(follower, 2)
    broker.write(0, b"a")
    assert partition.high_watermark == 1
    assert len(follower.told) == 1


def test_bytes_that_become_committed_in_parts_add_up() -> None:
    broker, partition = led((1, 2))
    consumer = Reader()
    partition.wait_readable(consumer)
    broker.write(0, b"a", b"b", b"c")
    for offset in (1, 2, 3):
        partition.fetched_by(2, offset, 0, offset)
    assert sum(consumer.told) == partition.log.active.size
    assert len(consumer.told) == 3


def test_a_follower_that_is_back_asks_for_its_place() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, 1)
    partition.fetched_by(3, 0, 0, 1)
    assert broker.events.wanted == []
    partition.fetched_by(3, 1, 0, 2)
    assert broker.events.wanted == [((1, 2, 3), 7)]
    # Until the controller has written it, what is committed waits for both sets, and nothing else is asked.
    broker.write(0, b"b")
    partition.fetched_by(2, 2, 0, 3)
    assert partition.high_watermark == 1
    partition.fetched_by(3, 2, 0, 3)
    assert partition.high_watermark == 2
    assert len(broker.events.wanted) == 1
    partition.become(1, 5, ALL, (1, 2, 3), 8, 4)
    assert partition.isr == ALL
    assert partition.replication is not None
    assert partition.replication.partition_epoch == 8


@pytest.mark.parametrize("asks", [False, True])
def test_a_follower_that_was_about_to_come_back_is_not_waited_for_once_its_broker_has_ended(
    asks: bool,
) -> None:
    broker, partition = led((1, 2))
    partition.fetched_by(3, 0, 0, 1)  # It has everything, and asks for its place.
    if not asks:
        partition.isr_refused(1)
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.fetched_by(2, 1, 0, 2)
    assert outcomes == []
    partition.follower_gone(3, 3)
    if asks:
        assert outcomes == [], "the controller may have taken it into the set"
        partition.isr_refused(3)
    assert outcomes == [None]
    # A member of the set is waited for until the controller has taken it out.
    broker.write(0, b"b")
    outcomes = wait(partition, 2)
    partition.follower_gone(2, 4)
    partition.follower_gone(9, 4)
    assert outcomes == []
    partition.become(1, 5, ALL, (1,), 8, 5)
    assert outcomes == [None]


def test_a_follower_that_lags_is_asked_to_be_taken_out() -> None:
    broker, partition = led()
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, LAG_MS)
    partition.drop_lagging(LAG_MS)
    assert broker.events.wanted == []
    partition.drop_lagging(LAG_MS + 1)
    assert broker.events.wanted == [((1, 2), 7)]
    assert partition.high_watermark == 0
    partition.become(1, 5, ALL, (1, 2), 8, LAG_MS + 2)
    assert partition.high_watermark == 1


def test_a_change_that_is_refused_leaves_the_set() -> None:
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


def test_the_last_one_in_sync_commits_alone() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.become(1, 5, ALL, (1,), 8, 1)
    assert outcomes == [None]
    broker.write(0, b"b")
    assert partition.high_watermark == 2


def test_who_asked_for_a_larger_set_waits_for_its_new_member_before_the_answer() -> None:
    broker, partition = led((1,))
    partition.fetched_by(2, 0, 0, 1)
    assert broker.events.wanted == [((1, 2), 7)]
    # The controller may have written it by now, and elect broker 2 next.
    broker.write(0, b"a")
    assert partition.high_watermark == 0
    assert partition.holds_back(-1, 1)
    partition.fetched_by(2, 1, 0, 2)
    assert partition.high_watermark == 1
    broker.write(0, b"b")
    partition.isr_refused(3)
    assert partition.high_watermark == 2
    broker.write(0, b"c")
    assert partition.high_watermark == 3


def test_a_follower_comes_back_to_a_leader_that_is_alone_and_written_without_pause() -> None:
    broker, partition = led((1,))
    broker.write(0, b"a")
    asked, now_ms = 0, 0
    while not broker.events.wanted:
        assert now_ms < 10, "each fetch finds less than there is by then"
        now_ms += 1
        partition.fetched_by(2, asked, 0, now_ms)
        asked = int(partition.log.end_offset)
        broker.write(0, b"meanwhile")
    assert broker.events.wanted == [((1, 2), 7)]


@pytest.mark.parametrize("how", ["it ends", "it stalls"])
def test_a_leader_that_is_alone_does_not_wait_for_a_follower_that_does_not_come_back(how: str) -> None:
    broker, partition = led((1,))
    broker.write(0, b"a")
    partition.fetched_by(2, 0, 0, 1)
    broker.write(0, b"b")
    partition.fetched_by(2, 1, 0, 2)
    broker.write(0, b"c")
    assert partition.high_watermark == 2, "broker 2 gets in sync with its next fetch"
    assert not partition.is_deserted(1000), "nobody else can be elected"
    if how == "it ends":
        partition.follower_gone(2, 3)
    else:
        partition.drop_lagging(LAG_MS)
    assert partition.high_watermark == 3
    broker.write(0, b"d")
    assert partition.high_watermark == 4


def test_who_leads_no_more_says_so() -> None:
    broker, partition = led()
    broker.write(0, b"a")
    follower = Reader()
    partition.wait_readable(follower, 2)
    outcomes = wait(partition, 1)
    partition.become(2, 6, ALL, (2, 3), 8, 1)
    (error,) = outcomes
    assert error is not None
    assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert follower.told == [0]
    assert not partition.fetched_by(2, 1, 0, 2)


def test_a_stranger_has_no_replica() -> None:
    _, partition = led()
    assert not partition.fetched_by(4, 0, 0, 0)


def test_an_epoch_begins_where_the_leader_found_the_log() -> None:
    broker, partition = led((1, 2))
    broker.write(0, b"a", b"b")
    partition.become(1, 6, ALL, (1,), 8, 1)
    assert partition.epoch_start == 2
    assert partition.log.leader_epochs.end_offset(6, 2) == (6, 2)
    # A follower below the start of the epoch may hold something else there.
    partition.fetched_by(2, 1, 0, 2)
    assert broker.events.wanted == []
    partition.fetched_by(2, 2, 0, 2)
    assert broker.events.wanted == [((1, 2), 8)]


def test_a_leader_counts_what_it_has_on_its_disk() -> None:
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    broker.write(0, b"a")
    partition.fetched_by(2, 1, 0, 1)
    assert partition.high_watermark == 0
    assert broker.events.flushes == [partition]
    partition.log.flush(0)
    partition.flushed(1, 1)
    assert partition.high_watermark == 1


def test_a_leader_whose_disk_failed_commits_nothing_more_than_its_last_sync() -> None:
    """Records came while the sync ran, and then the disk failed: none of them was synced."""
    broker, partition = led((1,), LogConfig(flush_messages=1))
    broker.write(0, b"a")
    outcomes = wait(partition, 2)
    broker.write(0, b"b")
    partition.fail("the disk is broken")
    partition.flushed(1, 1)
    assert partition.high_watermark == 1
    (error,) = outcomes
    assert error is not None
    assert error.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_after_a_flush_nobody_is_waited_for_who_was_caught_up_too_long_ago() -> None:
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    partition.fetched_by(3, 0, 0, 1)
    partition.isr_refused(1)
    broker.write(0, b"a")
    outcomes = wait(partition, 1)
    partition.fetched_by(2, 1, 0, 1 + LAG_MS + 1)
    partition.log.flush(0)
    partition.flushed(1, 1 + LAG_MS + 1)
    assert outcomes == [None]


def test_what_was_on_its_disk_before_a_cut_does_not_count_after_it() -> None:
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    broker.write(0, b"a", b"b")
    partition.log.flush(0)
    partition.flushed(2, 0)
    partition.become(2, 6, ALL, (1, 2))
    partition.truncate_to(0, 0)
    partition.become(1, 7, ALL, (1, 2), 8, 0)
    partition.flushed(0, 0)
    broker.write(0, b"c")
    partition.fetched_by(2, 1, 0, 1)
    assert partition.high_watermark == 0


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_leader_takes_nothing_before_the_disk_has_what_was_cut_while_it_followed(
    is_emptied: bool, acks: int
) -> None:
    """The recovery point on the disk is from before the cut: a start looks for holes only behind that."""
    broker, partition = led((1, 2), LogConfig(flush_messages=1))
    broker.write(0, b"a", b"b")
    partition.flushed(2, 0)
    partition.become(2, 6, ALL, (1, 2))
    if is_emptied:
        partition.begin_at(5, 0)
    else:
        partition.truncate_to(1, 0)
    partition.become(1, 7, ALL, (1, 2), 8, 0)
    data = build_batch([(1, b"k", b"c", None)])
    with pytest.raises(KafkaError, match="the disk does not have that yet: try again") as refused:
        partition.append([parse_batch(data, 0, len(data))], acks, 0)
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    end = int(partition.log.end_offset)
    partition.flushed(end, 0)
    assert partition.append([parse_batch(data, 0, len(data))], acks, 0).base_offset == end


def test_acks_all_wants_enough_replicas_in_sync() -> None:
    _, partition = led((1,))
    partition.min_insync_replicas = 2
    data = build_batch([(1, b"k", b"v", None)])
    with pytest.raises(KafkaError, match=r"1 in-sync replicas, min\.insync\.replicas is 2"):
        partition.append([parse_batch(data, 0, len(data))], -1, 0)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_cut_does_not_come_back_with_a_power_cut_among_what_came_after_it(seed: int) -> None:
    broker = Broker(2)
    (partition,) = broker.partitions
    partition.become(2, 0, (2,), (2,))
    broker.write(0, b"0", b"old 1", b"old 2")
    partition.log.flush(0)
    partition.become(1, 1, (1, 2), (1,))
    partition.truncate_to(1, 0)
    assert broker.events.flushes == [partition]
    new = [b"new 1", b"new 2"]
    for offset, value in enumerate(new, 1):
        data = build_batch([(1_700_000_000_000, b"k", value, None)], base_offset=offset, leader_epoch=1)
        partition.append_from_leader(data, 0, 0, 0)
    broker.files.power_cut(Random(seed))
    again = LogManager(broker.files, ["/d"])
    again.load(0, lambda topic: LogConfig())
    log = again.logs[partition.log.topic_partition]
    found = log.read(0, 1 << 20, log.end_offset, True)
    assert found is not None
    values = [record.value for record in iter_records(found.read())]
    assert values == [b"0", *new][: len(values)]
