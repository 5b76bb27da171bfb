"""Following a leader: sessions, appends, logs that diverged, and partitions that go wrong."""

from __future__ import annotations

import random

import pytest
from message_fetcher import MessageFetcher
from replica_stage import FOLLOWER, LEADER, TOPIC, Broker, Leader, Quiet, content

from tidemill.log.config import LogConfig
from tidemill.model.errors import ErrorCode, ProtocolError, StorageError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.fetcher import FLUSH_LOOK_MS, FetchLimits, LeaderFetcher
from tidemill.replication.partition import Partition
from tidemill.replication.throttle import RateLimit, Throttle
from tidemill.wire.messages.fetch import (
    FetchResponse,
)
from tidemill.wire.schema import encode

BACKOFF_MS = 50


class Pair:
    """A leader and a follower of all its partitions."""

    def __init__(self, count: int = 1, config: LogConfig | None = None) -> None:
        self.one = Broker(LEADER, count, config)
        self.two = Broker(FOLLOWER, count, config)
        self.leader = Leader(self.one)
        self.fetcher = MessageFetcher(LeaderFetcher(FOLLOWER, 7, FetchLimits(backoff_ms=BACKOFF_MS)))
        self.now_ms = 0

    def start(self, epoch: int = 0) -> None:
        self.one.become(LEADER, epoch)
        self.two.become(LEADER, epoch)
        for partition in self.two.partitions:
            self.fetcher.follow(TOPIC, partition, self.now_ms)

    def round(self) -> None:
        """One request and its answer; nothing may go wrong."""
        request = self.fetcher.request(self.now_ms)
        assert request is not None
        troubles, out_of_range, _ = self.fetcher.answer(self.leader.answer(request), self.now_ms)
        assert not troubles
        assert not out_of_range

    def same(self) -> None:
        for mine, theirs in zip(self.two.partitions, self.one.partitions, strict=True):
            assert content(mine.log) == content(theirs.log)


def test_a_follower_has_what_its_leader_has() -> None:
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


def test_a_throttled_partition_rests_until_it_has_kept_to_the_rate_and_others_go_on() -> None:
    pair = Pair(3)
    throttle = Throttle(FOLLOWER, RateLimit(100))
    limits = FetchLimits(backoff_ms=BACKOFF_MS, partition_bytes_max=300)
    pair.fetcher = MessageFetcher(LeaderFetcher(FOLLOWER, 7, limits, throttle))
    pair.one.become(LEADER, 0, (LEADER,))
    for index in range(3):
        pair.one.write(index, b"a" * 200)
        pair.one.write(index, b"b" * 200)
    throttle.set_topic("t", ["0:2", "1:2", "2:1"])
    pair.now_ms = 50_000
    pair.start()
    pair.two.partitions[1].become(LEADER, 0, (LEADER, FOLLOWER), (LEADER, FOLLOWER))
    for index in (0, 2):
        pair.two.partitions[index].become(LEADER, 0, (LEADER, FOLLOWER), (LEADER,))
    for _ in range(2):
        pair.round()
    ends = [int(partition.log.end_offset) for partition in pair.two.partitions]
    assert ends == [1, 2, 2], "in sync, or not throttled: those are not held back"
    assert 0 < pair.fetcher.rest_ms(pair.now_ms) <= 1000, "the rate is looked at again"
    throttle.limit.bytes_per_second = 1_000_000
    pair.now_ms += 1001
    pair.round()
    pair.same()
    throttle.limit.bytes_per_second = 1
    pair.one.write(0, b"c")
    pair.round()
    pair.same()
    assert throttle.limit.is_exceeded(pair.now_ms / 1000), "who has all that is committed may come back"


def test_a_request_names_only_what_changed() -> None:
    pair = Pair(3)
    pair.start()
    pair.round()
    assert pair.leader.asked[-1] == {0: 0, 1: 0, 2: 0}
    pair.one.write(1, b"a")
    pair.round()
    assert pair.leader.asked[-1] == {}
    pair.round()
    assert pair.leader.asked[-1] == {1: 1}
    pair.round()
    assert pair.leader.asked[-1] == {}


def test_a_partition_that_is_left_is_forgotten_by_the_session() -> None:
    pair = Pair(2)
    pair.start()
    pair.round()
    pair.fetcher.leave(TOPIC, 0)
    pair.one.write(0, b"a")
    pair.round()
    assert pair.leader.forgotten[-1] == [0]
    assert pair.two.partitions[0].log.end_offset == 0
    pair.fetcher.follow(TOPIC, pair.two.partitions[0], 0)
    pair.round()
    pair.same()


def test_a_session_that_is_lost_begins_anew() -> None:
    pair = Pair(2)
    pair.start()
    pair.round()
    pair.leader.epoch += 1
    pair.one.write(0, b"a")
    pair.round()
    assert pair.two.partitions[0].log.end_offset == 0
    pair.round()
    assert pair.leader.asked[-1] == {0: 0, 1: 0}
    pair.same()
    # A connection that breaks may have lost an answer.
    pair.one.write(1, b"b")
    request = pair.fetcher.request(0)
    assert request is not None
    pair.leader.answer(request)
    pair.fetcher.lost()
    pair.round()
    pair.same()


def test_a_partition_with_an_error_rests_and_holds_up_no_other() -> None:
    pair = Pair(2)
    pair.start()
    pair.leader.errors[0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    request = pair.fetcher.request(0)
    assert request is not None
    troubles, _, _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    assert [trouble.text for trouble in troubles] == ["the leader answers NOT_LEADER_OR_FOLLOWER"]
    pair.leader.errors.clear()
    pair.one.write(0, b"a")
    pair.one.write(1, b"b")
    pair.round()
    assert pair.leader.forgotten[-1] == [0]
    assert [partition.log.end_offset for partition in pair.two.partitions] == [0, 1]
    pair.now_ms = BACKOFF_MS
    pair.round()
    pair.same()


def test_when_all_rest_there_is_nothing_to_ask() -> None:
    pair = Pair()
    assert pair.fetcher.request(0) is None
    pair.start()
    pair.leader.errors[0] = ErrorCode.UNKNOWN_LEADER_EPOCH
    request = pair.fetcher.request(0)
    assert request is not None
    pair.fetcher.answer(pair.leader.answer(request), 0)
    assert pair.fetcher.request(BACKOFF_MS - 1) is None
    assert pair.fetcher.request(BACKOFF_MS) is not None


def test_an_answer_to_what_was_asked_before_a_change_is_left_out() -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a")
    request = pair.fetcher.request(0)
    assert request is not None
    response = pair.leader.answer(request)
    pair.two.become(LEADER, 1)
    pair.fetcher.answer(response, 0)
    assert pair.two.partitions[0].log.end_offset == 0


def test_logs_that_diverged_are_cut_where_they_last_agreed() -> None:
    """KIP-101: epochs 0 and 1 were written by both, the follower then led an epoch that nobody else saw."""
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


def test_an_epoch_that_was_led_without_a_record_is_forgotten() -> None:
    """As Kafka's ``UnifiedLog.truncateTo``: nothing has to be cut, but the leader does not know the epoch."""
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
    assert pair.two.events.cuts == [], "it had no record"


def test_whatever_two_logs_hold_the_follower_ends_with_the_leaders() -> None:
    for seed in range(60):
        choice = random.Random(seed)
        pair = Pair()
        epoch = 0
        for _ in range(choice.randint(1, 6)):
            both = choice.random() < 0.5
            brokers = (pair.one, pair.two) if both else (choice.choice((pair.one, pair.two)),)
            if len({int(one.partitions[0].log.end_offset) for one in brokers}) > 1:
                continue  # what both wrote in one epoch lies at the same offsets
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
            request = pair.fetcher.request(pair.now_ms)
            if request is None:
                break
            _, out_of_range, _ = pair.fetcher.answer(pair.leader.answer(request), pair.now_ms)
            for partition in out_of_range:
                log = pair.one.partitions[0].log
                pair.fetcher.found(partition, TOPIC, int(log.start_offset), int(log.end_offset), 0)
            pair.now_ms += BACKOFF_MS
        pair.same()


def test_a_former_leader_keeps_nothing_before_the_start_of_its_leader() -> None:
    """What it appended alone lies where the leader has deleted: its producers are not known by that."""
    pair = Pair()
    alone = build_batch(
        [(1_700_000_000_000, b"k", b"v", None)] * 3, producer_id=9, producer_epoch=0, base_sequence=0
    )
    batch = parse_batch(alone, 0, len(alone))
    pair.two.become(FOLLOWER, 0, (FOLLOWER,))
    former = pair.two.partitions[0]
    former.append([batch], 1, 0)
    pair.two.write(0, b"alone", b"alone")
    pair.one.become(LEADER, 1, (LEADER,))
    pair.one.write(0, b"1", b"1", b"1", b"1")
    pair.one.become(LEADER, 2, (LEADER,))
    pair.one.partitions[0].log.advance_start(4)
    pair.one.write(0, b"2")
    pair.start(2)
    request = pair.fetcher.request(0)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    pair.fetcher.found(partition, TOPIC, 4, 5, 0, first_epoch=2)
    pair.round()
    pair.same()
    assert (former.log.start_offset, former.log.end_offset) == (4, 5)
    pair.two.become(FOLLOWER, 3, (FOLLOWER,))
    assert former.append([batch], 1, 0).base_offset == 5


def test_a_follower_behind_the_start_of_its_leader_begins_anew() -> None:
    pair = Pair()
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, *(b"%d" % number for number in range(10)))
    pair.start()
    pair.one.partitions[0].log.advance_start(6)
    request = pair.fetcher.request(0)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    pair.fetcher.found(partition, TOPIC, 6, 10, 0)
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


def test_a_new_follower_of_an_emptied_log_knows_the_epoch_of_its_last_record() -> None:
    pair = emptied_leader(4)
    request = pair.fetcher.request(0)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    assert last_epoch(pair.one.partitions[0]) == 1
    pair.fetcher.found(partition, TOPIC, 10, 10, 0, first_epoch=1)
    pair.now_ms = BACKOFF_MS
    pair.round()
    assert (partition.log.start_offset, partition.log.end_offset, last_epoch(partition)) == (10, 10, 1)
    pair.one.write(0, b"next")
    pair.round()
    pair.same()
    assert partition.log.leader_epochs.epochs == [1, 4]


def test_a_follower_that_begins_anew_for_another_reason_asks_for_that_epoch() -> None:
    """Its own records of epoch 2 are not the leader's, and what is left lies before the leader's start."""
    pair = emptied_leader(4)
    pair.two.become(FOLLOWER, 0, (FOLLOWER,))
    pair.two.write(0, b"0", b"1")
    pair.two.become(FOLLOWER, 2, (FOLLOWER,))
    pair.two.write(0, b"other")
    pair.start(4)
    request = pair.fetcher.request(0)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    assert (partition.log.start_offset, partition.log.end_offset) == (10, 10)
    assert pair.fetcher.request(0) is None, "it waits for the answer"
    pair.fetcher.found(partition, TOPIC, 10, 10, 0, first_epoch=1)
    assert last_epoch(partition) == 1
    pair.round()
    pair.one.write(0, b"next")
    pair.round()
    pair.same()


def test_a_follower_of_a_log_with_records_learns_its_epochs_from_them() -> None:
    pair = emptied_leader(4)
    pair.one.write(0, b"next")
    request = pair.fetcher.request(0)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    pair.fetcher.found(partition, TOPIC, 10, 11, 0, first_epoch=4)
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
        data = build_batch([(1_700_000_000_000, b"k", b"v", None)] * values)
        pair.one.partitions[0].append([parse_batch(data, 0, len(data))], 1, 0)
    leader = pair.one.partitions[0]
    start = int(leader.log.end_offset) - 8
    leader.advance_start(start)
    pair.start(2)
    request = pair.fetcher.request(0)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    pair.fetcher.found(partition, TOPIC, start, int(leader.log.end_offset), 0)
    pair.now_ms = BACKOFF_MS
    pair.round()
    assert (partition.log.start_offset, partition.log.end_offset) == (start, leader.log.end_offset)
    pair.same()
    pair.one.write(0, b"z")
    pair.round()
    pair.same()


def test_a_follower_moves_its_start_with_its_leaders() -> None:
    pair = Pair()
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, b"a", b"b", b"c")
    pair.start()
    pair.round()
    pair.one.partitions[0].log.advance_start(2)
    pair.one.write(0, b"d")
    pair.round()
    assert pair.two.partitions[0].log.start_offset == 2


def test_a_disk_that_fails_is_told_and_rests() -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a")
    request = pair.fetcher.request(0)
    assert request is not None
    pair.two.files.fail("append", "/d/t-0")
    (trouble,), _, _ = pair.fetcher.answer(pair.leader.answer(request), 0)
    assert isinstance(trouble.storage, StorageError)
    assert pair.fetcher.request(0) is None


def test_damaged_records_are_refused_and_asked_for_again() -> None:
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a", b"b")
    request = pair.fetcher.request(0)
    assert request is not None
    response = pair.leader.answer(request)
    data = response.responses[0].partitions[0]
    assert data.records is not None
    data.records = data.records[:-1] + bytes([data.records[-1] ^ 1])
    (trouble,), _, _ = pair.fetcher.answer(response, 0)
    assert "CRC" in trouble.text or "checksum" in trouble.text
    assert pair.two.partitions[0].log.end_offset == 1
    pair.now_ms = BACKOFF_MS
    pair.round()
    pair.same()


def test_what_a_follower_counts_as_its_own_is_on_its_disk() -> None:
    """With flush.messages=1 the offset of the next fetch acknowledges what was appended."""
    pair = Pair(config=LogConfig(flush_messages=1))
    pair.start()
    pair.one.write(0, b"a")
    pair.round()
    (partition,) = pair.two.events.flushes
    assert partition.log.end_offset == 1
    assert pair.fetcher.request(0) is None
    partition.log.flush(0)
    partition.flushed(1, 0)
    pair.round()
    assert pair.leader.asked[-1] == {0: 1}


def test_what_waits_for_its_sync_is_no_news_for_the_leader() -> None:
    pair = Pair(config=LogConfig(flush_messages=1))
    pair.start()
    pair.one.write(0, b"a")
    pair.round()
    assert not pair.fetcher.fetcher.has_news
    (partition,) = pair.two.events.flushes
    partition.log.flush(0)
    partition.flushed(1, 0)
    assert pair.fetcher.request(0) is not None


def refused(pair: Pair) -> Partition:
    """Has the leader say that the follower's log lies outside of its own."""
    request = pair.fetcher.request(pair.now_ms)
    assert request is not None
    _, (partition,), _ = pair.fetcher.answer(pair.leader.answer(request), pair.now_ms)
    return partition


def refused_at_two() -> Pair:
    """A follower with two records, whom the leader has refused, and whose second one the leader lacks."""
    pair = Pair()
    pair.start()
    pair.one.write(0, b"a", b"b")
    pair.round()
    pair.leader.errors = {0: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert refused(pair) is pair.two.partitions[0]
    pair.leader.errors = {}
    return pair


def test_a_late_word_of_where_the_leaders_log_ends_cuts_nothing_that_was_fetched_meanwhile() -> None:
    pair = refused_at_two()
    (partition,) = pair.two.partitions
    pair.now_ms += 100_000  # the answer is late
    pair.one.write(0, b"c", b"d")
    pair.round()
    assert partition.log.end_offset == 4
    pair.fetcher.found(partition, TOPIC, 0, 2, pair.now_ms)
    assert partition.log.end_offset == 4
    pair.fetcher.found(partition, TOPIC, 6, 8, pair.now_ms)
    assert partition.log.end_offset == 4
    pair.one.write(0, b"e")
    pair.round()
    pair.same()


def test_a_word_of_where_the_log_of_a_former_leader_ended_cuts_nothing() -> None:
    pair = refused_at_two()
    (partition,) = pair.two.partitions
    pair.two.become(LEADER, 1)
    pair.fetcher.found(partition, TOPIC, 0, 1, pair.now_ms)
    assert partition.log.end_offset == 2
    pair.one.become(LEADER, 1)
    pair.fetcher.follow(TOPIC, partition, pair.now_ms)
    pair.fetcher.found(partition, TOPIC, 0, 1, pair.now_ms)
    assert partition.log.end_offset == 2
    pair.one.write(0, b"c")
    pair.round()
    pair.same()


def test_a_word_of_where_the_leaders_log_begins_empties_no_log_that_has_changed() -> None:
    pair = refused_at_two()
    (partition,) = pair.two.partitions
    partition.truncate_to(1, 0)
    pair.fetcher.found(partition, TOPIC, 2, 4, pair.now_ms)
    assert (partition.log.start_offset, partition.log.end_offset) == (0, 1)


def test_a_follower_with_an_epoch_that_its_leader_does_not_know_rests_before_it_asks_again() -> None:
    pair = Pair()
    pair.start(1)
    pair.one.write(0, b"a", b"b")
    pair.round()
    (partition,) = pair.two.partitions
    pair.one.partitions[0].log.leader_epochs.truncate_end(0)
    for _ in range(3):
        refused(pair)
        pair.fetcher.found(partition, TOPIC, 0, 2, pair.now_ms)
        assert pair.fetcher.request(pair.now_ms) is None
        assert pair.fetcher.rest_ms(pair.now_ms) == BACKOFF_MS
        pair.now_ms += BACKOFF_MS
    assert partition.log.end_offset == 2
    pair.one.become(LEADER, 2)
    pair.two.become(LEADER, 2)
    pair.one.write(0, b"c")
    pair.fetcher.follow(TOPIC, partition, pair.now_ms)
    for _ in range(3):
        pair.round()
    pair.same()


@pytest.mark.parametrize("how", ["the leader does not say", "the connection breaks"])
def test_a_leader_that_does_not_say_where_its_log_ends_is_asked_again_soon(how: str) -> None:
    pair = refused_at_two()
    assert pair.fetcher.request(BACKOFF_MS) is None, "the answer is waited for"
    if how == "the leader does not say":
        pair.fetcher.not_found(pair.two.partitions[0], TOPIC, 0)
        assert pair.fetcher.request(BACKOFF_MS - 1) is None
    else:
        pair.fetcher.lost()
    pair.now_ms = BACKOFF_MS
    pair.one.write(0, b"c")
    pair.round()
    pair.same()


@pytest.mark.parametrize("how", ["begins anew", "is cut before it follows"])
def test_nothing_is_fetched_in_the_place_of_what_was_cut_before_that_is_on_the_disk(how: str) -> None:
    pair = Pair(config=LogConfig(flush_messages=1))
    pair.one.become(LEADER, 0, (LEADER,))
    pair.one.write(0, *(b"%d" % number for number in range(10)))
    (partition,) = pair.two.partitions
    if how == "begins anew":
        pair.one.partitions[0].log.advance_start(6)
        pair.start()
        refused(pair)
        pair.fetcher.found(partition, TOPIC, 6, 10, 0)
    else:
        partition.append_from_leader(content(pair.one.partitions[0].log), 0, 0, 0)
        partition.log.leader_epochs.truncate_end(0)
        pair.start()
    assert partition.flush_under_way
    assert pair.fetcher.request(0) is None
    partition.log.flush(0)
    partition.flushed(int(partition.log.end_offset), 0)
    assert pair.fetcher.request(0) is not None


@pytest.mark.parametrize("is_new_session", [False, True])
def test_a_start_that_moves_between_two_fetches_is_not_told_before_it_is_written_down(
    is_new_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(2)
    pair.start()
    for index in (0, 1):
        pair.one.write(index, b"a", b"b")
    pair.round()
    partition = pair.two.partitions[0]
    moved: list[Partition] = []
    monkeypatch.setattr(Quiet, "start_moved", lambda _, partition: moved.append(partition))
    partition.advance_start(1)
    partition.save_start()
    if is_new_session:
        pair.fetcher.lost()
    pair.round()
    assert list(pair.leader.asked[-1]) == [1]
    assert moved == [partition]
    partition.start_saved(1)
    pair.round()
    assert 0 in pair.leader.asked[-1]


def test_others_are_asked_for_shortly_while_one_waits_for_its_flush() -> None:
    pair = Pair(count=2, config=LogConfig(flush_messages=1))
    pair.start()
    pair.round()
    pair.one.write(0, b"a")
    pair.round()
    request = pair.fetcher.request(0)
    assert request is not None
    assert request.max_wait_ms == FLUSH_LOOK_MS
    pair.two.partitions[0].log.flush(0)
    pair.two.partitions[0].flushed(1, 0)
    pair.fetcher.lost()
    request = pair.fetcher.request(0)
    assert request is not None
    assert request.max_wait_ms == pair.fetcher.limits.wait_ms


@pytest.mark.parametrize("wraps", [False, True])
def test_the_epoch_of_a_session_goes_around(wraps: bool) -> None:
    pair = Pair()
    pair.start()
    pair.round()
    if wraps:
        pair.fetcher.fetcher._session_epoch = 0x7FFFFFFF
        request = pair.fetcher.request(0)
        assert request is not None
        pair.fetcher.answer(FetchResponse(session_id=1), 0)
    request = pair.fetcher.request(0)
    assert request is not None
    assert request.session_epoch == 1


def test_a_request_that_is_made_while_another_is_under_way_tells_what_is_new() -> None:
    """What the leader reads for it, of a partition that the answer before brought forward, is left alone."""
    pair = Pair(2)
    pair.one.become(LEADER, 0)
    pair.two.become(LEADER, 0)
    mine = pair.two.partitions
    pair.fetcher.follow(TOPIC, mine[0], 0)
    pair.round()
    pair.one.write(0, b"a")
    pair.one.write(1, b"b")
    first = pair.fetcher.request(0)
    assert first is not None
    pair.fetcher.follow(TOPIC, mine[1], 0)
    second = pair.fetcher.request(0)
    assert second is not None
    assert [one.session_epoch for one in (first, second)] == [1, 2]
    assert [part.partition for topic in second.topics for part in topic.partitions] == [1]
    answers = [pair.leader.answer(request) for request in (first, second)]
    for answer in answers:
        assert pair.fetcher.answer(answer, 0) == ([], [], 0)
    pair.same()
    pair.round()
    assert pair.leader.asked[-1] == {0: 1, 1: 1}


def test_an_answer_does_not_speak_for_a_partition_that_its_request_did_not_know() -> None:
    pair = Pair(1)
    pair.start()
    pair.round()
    pair.one.write(0, b"a")
    first = pair.fetcher.request(0)
    assert first is not None
    late = pair.leader.answer(first)
    pair.fetcher.leave(TOPIC, 0)
    pair.fetcher.follow(TOPIC, pair.two.partitions[0], 0)
    second = pair.fetcher.request(0)
    assert second is not None
    pair.fetcher.answer(late, 0)
    assert pair.two.partitions[0].log.end_offset == 0
    pair.fetcher.answer(pair.leader.answer(second), 0)
    pair.same()


@pytest.mark.parametrize("cut", [1, 12, 40, 60])
def test_an_answer_that_is_cut_short_is_refused(cut: int) -> None:
    pair = Pair(1)
    pair.start()
    pair.one.write(0, b"a")
    request = pair.fetcher.request(0)
    assert request is not None
    data = encode(pair.leader.answer(request), 18)
    with pytest.raises(ProtocolError):
        pair.fetcher.fetcher.answer(data, 0, len(data) - cut, 0, 0)
    assert pair.two.partitions[0].log.end_offset == 0
