"""Fetching from a leader: sessions, appends, diverged logs, and partitions with errors."""

from __future__ import annotations

import random

import pytest
from message_fetcher import MessageFetcher
from replica_stage import BACKOFF_MS, FOLLOWER, LEADER, TOPIC, Pair, Quiet, batch_of, content

from tidemill.log.log_config import LogConfig
from tidemill.model.errors import ErrorCode, ProtocolError, StorageError
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import PENDING_SYNC_WAIT_MS, FetchLimits, ReplicaFetcher
from tidemill.replication.replication_quota import RateLimit, ReplicationQuota
from tidemill.wire.codec import encode
from tidemill.wire.messages.fetch import (
    FetchResponse,
)


def test_a_follower_copies_the_log_of_its_leader() -> None:
    pair = Pair(3)
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, b"a", b"b")
    pair.one.write(2, b"c")
    pair.start()
    pair.round()
    pair.same()
    pair.one.write(0, b"d")
    pair.round()
    pair.same()
    assert pair.two.partitions[0].high_watermark == 2


def test_a_throttled_partition_is_delayed_and_others_continue() -> None:
    pair = Pair(3)
    throttle = ReplicationQuota(FOLLOWER, RateLimit(100))
    limits = FetchLimits(backoff_ms=BACKOFF_MS, partition_bytes_max=300)
    pair.fetcher = MessageFetcher(ReplicaFetcher(FOLLOWER, limits, throttle, node_epoch=7))
    pair.one.become(LEADER, 0, (LEADER,))
    for index in range(3):
        pair.one.write(index, b"a" * 200)
        pair.one.write(index, b"b" * 200)
    throttle.set_topic("t", ["0:2", "1:2", "2:1"])
    pair.now_ms = 50_000
    pair.start()
    pair.two.partitions[1].apply_state(
        LEADER, 0, (LEADER, FOLLOWER), (LEADER, FOLLOWER), partition_epoch=-1, now_ms=0
    )
    for index in (0, 2):
        pair.two.partitions[index].apply_state(
            LEADER, 0, (LEADER, FOLLOWER), (LEADER,), partition_epoch=-1, now_ms=0
        )
    for _ in range(2):
        pair.round()
    ends = [int(partition.log.end_offset) for partition in pair.two.partitions]
    assert ends == [1, 2, 2], "in sync or not throttled: these are not delayed"
    assert 0 < pair.fetcher.retry_delay_ms(pair.now_ms) <= 1000, "the rate is checked again"
    throttle.limit.bytes_per_second = 1_000_000
    pair.now_ms += 1001
    pair.round()
    pair.same()
    throttle.limit.bytes_per_second = 1
    pair.one.write(0, b"c")
    pair.round()
    pair.same()
    assert throttle.limit.is_exceeded(pair.now_ms / 1000), "a replica at the high watermark may rejoin"


def test_a_fetch_request_contains_only_changed_partitions() -> None:
    pair = Pair(3)
    pair.start()
    pair.round()
    assert pair.leader.requested[-1] == {0: 0, 1: 0, 2: 0}
    pair.one.write(1, b"a")
    pair.round()
    assert pair.leader.requested[-1] == {}
    pair.round()
    assert pair.leader.requested[-1] == {1: 1}
    pair.round()
    assert pair.leader.requested[-1] == {}


def test_a_removed_partition_is_forgotten_by_the_fetch_session() -> None:
    pair = Pair(2)
    pair.start()
    pair.round()
    pair.fetcher.remove_partition(TOPIC, 0)
    pair.one.write(0, b"a")
    pair.round()
    assert pair.leader.forgotten[-1] == [0]
    assert pair.two.partitions[0].log.end_offset == 0
    pair.fetcher.add_partition(TOPIC, pair.two.partitions[0], 0)
    pair.round()
    pair.same()


def test_a_lost_fetch_session_is_restarted() -> None:
    pair = Pair(2)
    pair.start()
    pair.round()
    pair.leader.epoch += 1
    pair.one.write(0, b"a")
    pair.round()
    assert pair.two.partitions[0].log.end_offset == 0
    pair.round()
    assert pair.leader.requested[-1] == {0: 0, 1: 0}
    pair.same()
    # A broken connection may have lost a response.
    pair.one.write(1, b"b")
    pair.leader.answer(pair.request())
    pair.fetcher.on_disconnect()
    pair.round()
    pair.same()


def test_a_partition_with_an_error_is_delayed_and_others_continue() -> None:
    pair = Pair(2)
    pair.start()
    pair.leader.errors[0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    failures, _, _ = pair.fetch()
    assert [failure.text for failure in failures] == ["the leader returned NOT_LEADER_OR_FOLLOWER"]
    pair.leader.errors.clear()
    pair.one.write(0, b"a")
    pair.one.write(1, b"b")
    pair.round()
    assert pair.leader.forgotten[-1] == [0]
    assert [partition.log.end_offset for partition in pair.two.partitions] == [0, 1]
    pair.now_ms = BACKOFF_MS
    pair.round()
    pair.same()


def test_no_request_is_built_while_all_partitions_are_delayed() -> None:
    pair = Pair()
    assert pair.fetcher.build_request(0) is None
    pair.start()
    pair.leader.errors[0] = ErrorCode.UNKNOWN_LEADER_EPOCH
    pair.fetch()
    assert pair.fetcher.build_request(BACKOFF_MS - 1) is None
    assert pair.fetcher.build_request(BACKOFF_MS) is not None


def test_a_response_to_a_request_before_a_change_is_ignored() -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a")
    response = pair.leader.answer(pair.request())
    pair.two.become(LEADER, 1)
    pair.fetcher.handle_response(response, 0)
    assert pair.two.partitions[0].log.end_offset == 0


def test_diverged_logs_are_truncated_to_their_last_common_offset() -> None:
    """KIP-101: both brokers wrote epochs 0 and 1.

    The follower then led an epoch that no other replica has.
    """
    pair = Pair()
    for broker in (pair.one, pair.two):
        broker.become(broker.node, 0, (broker.node,))
        broker.write(0, b"0", b"0")
        broker.become(broker.node, 1, (broker.node,))
        broker.write(0, b"1")
    pair.two.write(0, b"1 alone", b"1 alone")
    pair.two.become(FOLLOWER, 2, (FOLLOWER,))
    pair.two.write(0, b"2 alone")
    pair.one.become(LEADER, 3, (LEADER,))
    pair.one.write(0, b"3", b"3", b"3", b"3", b"3")
    pair.start(3)
    for _ in range(4):
        pair.round()
    pair.same()
    assert pair.two.partitions[0].log.leader_epochs.epochs == [0, 1, 3]
    cuts = pair.two.events.cuts
    assert all("on the leader, broker 1, leader epoch" in reason for _, _, reason in cuts)
    assert [first for first, _, _ in cuts] == [last + 1 for _, last, _ in cuts[1:]] + [cuts[-1][0]]


def test_a_leader_epoch_without_records_is_removed() -> None:
    """As Kafka's ``UnifiedLog.truncateTo``: no record is truncated, but the leader lacks the epoch."""
    pair = Pair()
    for broker in (pair.one, pair.two):
        broker.become(broker.node, 0, (broker.node,))
        broker.write(0, b"0")
    pair.two.become(FOLLOWER, 1, (FOLLOWER,))
    pair.one.become(LEADER, 2, (LEADER,))
    pair.one.write(0, b"2")
    pair.start(2)
    pair.round()
    pair.round()
    pair.same()
    assert pair.two.partitions[0].log.leader_epochs.epochs == [0, 2]
    assert pair.two.events.cuts == [], "the epoch had no record"


def test_a_follower_ends_with_the_log_of_its_leader_for_any_two_logs() -> None:
    for seed in range(60):
        choice = random.Random(seed)
        pair = Pair()
        epoch = 0
        for _ in range(choice.randint(1, 6)):
            both = choice.random() < 0.5
            brokers = (pair.one, pair.two) if both else (choice.choice((pair.one, pair.two)),)
            if len({int(one.partitions[0].log.end_offset) for one in brokers}) > 1:
                continue  # common records of one epoch have the same offset
            if both and content(pair.one.partitions[0].log) != content(pair.two.partitions[0].log):
                continue
            for broker in brokers:
                broker.become(broker.node, epoch, (broker.node,))
            for number in range(choice.randint(1, 3)):
                for broker in brokers:
                    broker.write(0, b"%d.%d" % (epoch, number))
            epoch += 1
        pair.one.become(LEADER, epoch, (LEADER,))
        for number in range(choice.randint(0, 3)):
            pair.one.write(0, b"last %d" % number)
        pair.start(epoch)
        for _ in range(12):
            request = pair.fetcher.build_request(pair.now_ms)
            if request is None:
                break
            _, out_of_range, _ = pair.fetcher.handle_response(pair.leader.answer(request), pair.now_ms)
            for partition in out_of_range:
                log = pair.one.partitions[0].log
                pair.fetcher.apply_leader_offsets(
                    partition, TOPIC, int(log.start_offset), int(log.end_offset), 0
                )
            pair.now_ms += BACKOFF_MS
        pair.same()


def test_a_former_leader_keeps_no_record_before_the_log_start_offset_of_its_leader() -> None:
    """Its own records are below the leader's log start offset, so their producers are removed."""
    pair = Pair()
    batch = batch_of(*[b"v"] * 3, producer_id=9, producer_epoch=0, base_sequence=0)
    pair.two.become(FOLLOWER, 0, (FOLLOWER,))
    former = pair.two.partitions[0]
    former.append(batch, 1, 0)
    pair.two.write(0, b"alone", b"alone")
    pair.one.become(LEADER, 1, (LEADER,))
    pair.one.write(0, b"1", b"1", b"1", b"1")
    pair.one.become(LEADER, 2, (LEADER,))
    pair.one.partitions[0].log.advance_start(4)
    pair.one.write(0, b"2")
    pair.start(2)
    partition = pair.refused()
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 4, 5, 0, first_epoch=2)
    pair.round()
    pair.same()
    assert (former.log.start_offset, former.log.end_offset) == (4, 5)
    pair.two.become(FOLLOWER, 3, (FOLLOWER,))
    assert former.append(batch, 1, 0).base_offset == 5


def test_a_follower_behind_the_log_start_offset_of_its_leader_restarts() -> None:
    pair = Pair()
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, *(b"%d" % number for number in range(10)))
    pair.start()
    pair.one.partitions[0].log.advance_start(6)
    partition = pair.refused()
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 6, 10, 0)
    pair.now_ms = BACKOFF_MS
    pair.round()
    assert (partition.log.start_offset, partition.log.end_offset) == (6, 10)
    assert partition.high_watermark == 10


def emptied_leader(epoch: int) -> Pair:
    """The leader has deleted ten records, the last of them of epoch 1, and leads in ``epoch``."""
    pair = Pair()
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, *(b"%d" % number for number in range(6)))
    pair.one.become(LEADER, 1, (LEADER,))
    pair.one.write(0, *(b"%d" % number for number in range(4)))
    pair.one.partitions[0].log.advance_start(10)
    pair.start(epoch)
    return pair


def last_epoch(partition: Partition) -> int:
    return int(partition.log.leader_epochs.epoch_of(int(partition.log.end_offset) - 1))


def test_a_new_follower_of_an_emptied_log_gets_the_epoch_of_the_last_record() -> None:
    pair = emptied_leader(4)
    partition = pair.refused()
    assert last_epoch(pair.one.partitions[0]) == 1
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 10, 10, 0, first_epoch=1)
    pair.now_ms = BACKOFF_MS
    pair.round()
    assert (partition.log.start_offset, partition.log.end_offset, last_epoch(partition)) == (10, 10, 1)
    pair.one.write(0, b"next")
    pair.round()
    pair.same()
    assert partition.log.leader_epochs.epochs == [1, 4]


def test_a_restarting_follower_requests_the_last_epoch() -> None:
    """Its records of epoch 2 differ from the leader's, and the rest precedes the leader's start."""
    pair = emptied_leader(4)
    pair.two.become(FOLLOWER, 0, (FOLLOWER,))
    pair.two.write(0, b"0", b"1")
    pair.two.become(FOLLOWER, 2, (FOLLOWER,))
    pair.two.write(0, b"other")
    pair.start(4)
    partition = pair.refused()
    assert (partition.log.start_offset, partition.log.end_offset) == (10, 10)
    assert pair.fetcher.build_request(0) is None, "it waits for the response"
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 10, 10, 0, first_epoch=1)
    assert last_epoch(partition) == 1
    pair.round()
    pair.one.write(0, b"next")
    pair.round()
    pair.same()


def test_a_follower_gets_the_leader_epochs_from_the_records() -> None:
    pair = emptied_leader(4)
    pair.one.write(0, b"next")
    partition = pair.refused()
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 10, 11, 0, first_epoch=4)
    pair.now_ms = BACKOFF_MS
    pair.round()
    assert (partition.log.leader_epochs.epochs, partition.log.leader_epochs.starts) == ([4], [10])


@pytest.mark.parametrize("was_behind", [False, True])
def test_a_follower_of_a_log_that_starts_within_a_batch_gets_in_sync(was_behind: bool) -> None:
    pair = Pair()
    pair.one.become(LEADER, 0, (LEADER,))
    if was_behind:
        pair.one.write(0, b"a", b"b")
        pair.start()
        pair.round()
        pair.one.become(LEADER, 1, (LEADER,))
    for values in (5, 5, 5):
        pair.one.partitions[0].append(batch_of(*[b"v"] * values), 1, 0)
    leader = pair.one.partitions[0]
    start = int(leader.log.end_offset) - 8
    leader.advance_start(start)
    pair.start(2)
    partition = pair.refused()
    pair.fetcher.apply_leader_offsets(partition, TOPIC, start, int(leader.log.end_offset), 0)
    pair.now_ms = BACKOFF_MS
    pair.round()
    assert (partition.log.start_offset, partition.log.end_offset) == (start, leader.log.end_offset)
    pair.same()
    pair.one.write(0, b"z")
    pair.round()
    pair.same()


def test_a_follower_advances_its_log_start_offset_with_its_leader() -> None:
    pair = Pair()
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, b"a", b"b", b"c")
    pair.start()
    pair.round()
    pair.one.partitions[0].log.advance_start(2)
    pair.one.write(0, b"d")
    pair.round()
    assert pair.two.partitions[0].log.start_offset == 2


def test_a_disk_failure_is_reported_and_the_partition_is_delayed() -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a")
    pair.two.files.fail("append", "/d/t-0")
    (failure,), _, _ = pair.fetch()
    assert isinstance(failure.storage_error, StorageError)
    assert pair.fetcher.build_request(0) is None


def test_damaged_records_are_rejected_and_fetched_again() -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a", b"b")
    response = pair.leader.answer(pair.request())
    data = response.responses[0].partitions[0]
    assert data.records is not None
    data.records = data.records[:-1] + bytes([data.records[-1] ^ 1])
    (failure,), _, _ = pair.fetcher.handle_response(response, 0)
    assert "CRC" in failure.text or "checksum" in failure.text
    assert pair.two.partitions[0].log.end_offset == 1
    pair.now_ms = BACKOFF_MS
    pair.round()
    pair.same()


def test_a_follower_reports_only_synced_records() -> None:
    """With flush.messages=1 the offset of the next fetch acknowledges the appended records."""
    pair = Pair(config=LogConfig(flush_messages=1))
    pair.start()
    pair.one.write(0, b"a")
    pair.round()
    (partition,) = pair.two.events.flushes
    assert partition.log.end_offset == 1
    assert not pair.fetcher.fetcher.has_changes
    assert pair.fetcher.build_request(0) is None
    partition.log.flush(0)
    partition.flushed(1, 0)
    pair.round()
    assert pair.leader.requested[-1] == {0: 1}


def refused_at_two() -> Pair:
    """A follower with two records after a rejected fetch. Its leader lacks the second record."""
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a", b"b")
    pair.round()
    pair.leader.errors = {0: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert pair.refused() is pair.two.partitions[0]
    pair.leader.errors = {}
    return pair


def test_a_late_leader_end_offset_does_not_truncate_newer_records() -> None:
    pair = refused_at_two()
    (partition,) = pair.two.partitions
    pair.now_ms += 100_000  # the response is late
    pair.one.write(0, b"c", b"d")
    pair.round()
    assert partition.log.end_offset == 4
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 0, 2, pair.now_ms)
    assert partition.log.end_offset == 4
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 6, 8, pair.now_ms)
    assert partition.log.end_offset == 4
    pair.one.write(0, b"e")
    pair.round()
    pair.same()


def test_an_end_offset_of_a_former_leader_truncates_nothing() -> None:
    pair = refused_at_two()
    (partition,) = pair.two.partitions
    pair.two.become(LEADER, 1)
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 0, 1, pair.now_ms)
    assert partition.log.end_offset == 2
    pair.one.become(LEADER, 1)
    pair.fetcher.add_partition(TOPIC, partition, pair.now_ms)
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 0, 1, pair.now_ms)
    assert partition.log.end_offset == 2
    pair.one.write(0, b"c")
    pair.round()
    pair.same()


def test_a_leader_start_offset_does_not_empty_a_changed_log() -> None:
    pair = refused_at_two()
    (partition,) = pair.two.partitions
    partition.truncate_to(1, 0)
    pair.fetcher.apply_leader_offsets(partition, TOPIC, 2, 4, pair.now_ms)
    assert (partition.log.start_offset, partition.log.end_offset) == (0, 1)


def test_a_follower_with_an_epoch_unknown_to_its_leader_waits_before_a_retry() -> None:
    pair = Pair()
    pair.start(1)
    pair.one.write(0, b"a", b"b")
    pair.round()
    (partition,) = pair.two.partitions
    pair.one.partitions[0].log.leader_epochs.truncate_from_end(0)
    for _ in range(3):
        pair.refused()
        pair.fetcher.apply_leader_offsets(partition, TOPIC, 0, 2, pair.now_ms)
        assert pair.fetcher.build_request(pair.now_ms) is None
        assert pair.fetcher.retry_delay_ms(pair.now_ms) == BACKOFF_MS
        pair.now_ms += BACKOFF_MS
    assert partition.log.end_offset == 2
    pair.one.become(LEADER, 2)
    pair.two.become(LEADER, 2)
    pair.one.write(0, b"c")
    pair.fetcher.add_partition(TOPIC, partition, pair.now_ms)
    for _ in range(3):
        pair.round()
    pair.same()


@pytest.mark.parametrize("how", ["the leader does not say", "the connection breaks"])
def test_an_end_offset_request_without_result_is_retried_soon(how: str) -> None:
    pair = refused_at_two()
    assert pair.fetcher.build_request(BACKOFF_MS) is None, "the response is pending"
    if how == "the leader does not say":
        pair.fetcher.leader_offsets_failed(pair.two.partitions[0], TOPIC, 0)
        assert pair.fetcher.build_request(BACKOFF_MS - 1) is None
    else:
        pair.fetcher.on_disconnect()
    pair.now_ms = BACKOFF_MS
    pair.one.write(0, b"c")
    pair.round()
    pair.same()


@pytest.mark.parametrize("how", ["begins anew", "is cut before it follows"])
def test_no_record_is_fetched_over_truncated_ones_before_the_truncation_is_synced(how: str) -> None:
    pair = Pair(config=LogConfig(flush_messages=1))
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, *(b"%d" % number for number in range(10)))
    (partition,) = pair.two.partitions
    if how == "begins anew":
        pair.one.partitions[0].log.advance_start(6)
        pair.start()
        pair.refused()
        pair.fetcher.apply_leader_offsets(partition, TOPIC, 6, 10, 0)
    else:
        partition.append_from_leader(content(pair.one.partitions[0].log), 0, 0, 0)
        partition.log.leader_epochs.truncate_from_end(0)
        pair.start()
    assert partition.flush_under_way
    assert pair.fetcher.build_request(0) is None
    partition.log.flush(0)
    partition.flushed(int(partition.log.end_offset), 0)
    assert pair.fetcher.build_request(0) is not None


@pytest.mark.parametrize("is_new_session", [False, True])
def test_a_changed_log_start_offset_is_not_reported_before_it_is_stored(
    is_new_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(2)
    pair.start()
    for index in (0, 1):
        pair.one.write(index, b"a", b"b")
    pair.round()
    partition = pair.two.partitions[0]
    moved: list[Partition] = []
    monkeypatch.setattr(Quiet, "log_start_offset_moved", lambda _, partition: moved.append(partition))
    partition.advance_start(1)
    partition.save_log_start_offset()
    if is_new_session:
        pair.fetcher.on_disconnect()
    pair.round()
    assert list(pair.leader.requested[-1]) == [1]
    assert moved == [partition]
    partition.log_start_offset_saved(1)
    pair.round()
    assert 0 in pair.leader.requested[-1]


def test_other_partitions_are_fetched_with_a_short_wait_during_a_flush() -> None:
    pair = Pair(count=2, config=LogConfig(flush_messages=1))
    pair.start()
    pair.round()
    pair.one.write(0, b"a")
    pair.round()
    assert pair.request().max_wait_ms == PENDING_SYNC_WAIT_MS
    pair.two.partitions[0].log.flush(0)
    pair.two.partitions[0].flushed(1, 0)
    pair.fetcher.on_disconnect()
    assert pair.request().max_wait_ms == pair.fetcher.limits.wait_ms


@pytest.mark.parametrize("wraps", [False, True])
def test_the_session_epoch_wraps_around(wraps: bool) -> None:
    pair = Pair()
    pair.start()
    pair.round()
    if wraps:
        pair.fetcher.fetcher._session_epoch = 0x7FFFFFFF
        pair.request()
        pair.fetcher.handle_response(FetchResponse(session_id=1), 0)
    assert pair.request().session_epoch == 1


def test_a_request_built_during_another_contains_new_partitions() -> None:
    """The leader's data is ignored for a partition that the previous response advanced."""
    pair = Pair(2)
    pair.one.become(LEADER, 0)
    pair.two.become(LEADER, 0)
    mine = pair.two.partitions
    pair.fetcher.add_partition(TOPIC, mine[0], 0)
    pair.round()
    pair.one.write(0, b"a")
    pair.one.write(1, b"b")
    first = pair.request()
    pair.fetcher.add_partition(TOPIC, mine[1], 0)
    second = pair.request()
    assert [one.session_epoch for one in (first, second)] == [1, 2]
    assert [part.partition for topic in second.topics for part in topic.partitions] == [1]
    answers = [pair.leader.answer(request) for request in (first, second)]
    for answer in answers:
        assert pair.fetcher.handle_response(answer, 0) == ([], [], None)
    pair.same()
    pair.round()
    assert pair.leader.requested[-1] == {0: 1, 1: 1}


def test_a_response_does_not_affect_a_partition_missing_in_its_request() -> None:
    pair = Pair(1)
    pair.start()
    pair.round()
    pair.one.write(0, b"a")
    late = pair.leader.answer(pair.request())
    pair.fetcher.remove_partition(TOPIC, 0)
    pair.fetcher.add_partition(TOPIC, pair.two.partitions[0], 0)
    second = pair.request()
    pair.fetcher.handle_response(late, 0)
    assert pair.two.partitions[0].log.end_offset == 0
    pair.fetcher.handle_response(pair.leader.answer(second), 0)
    pair.same()


@pytest.mark.parametrize("cut", [1, 12, 40, 60])
def test_a_truncated_response_is_rejected(cut: int) -> None:
    pair = Pair(1)
    pair.start()
    pair.one.write(0, b"a")
    data = encode(pair.leader.answer(pair.request()), 18)
    with pytest.raises(ProtocolError):
        pair.fetcher.fetcher.handle_response(data, 0, len(data) - cut, 0, 0)
    assert pair.two.partitions[0].log.end_offset == 0
