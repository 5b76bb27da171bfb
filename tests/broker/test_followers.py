"""Followers that fetch from a leader over a connection: sessions, commits, logs that diverged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from message_fetcher import MessageFetcher
from paths_bench import (
    FETCH,
    IDS,
    NODE,
    Bench,
    Client,
    batch,
    bench_in,
    fetch_request,
    parts_of,
    values_of,
)
from replica_stage import Broker

from tidemill.broker.handlers.list_offsets import EARLIEST, look_up
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.reader import iter_records
from tidemill.replication.fetcher import FetchLimits, LeaderFetcher
from tidemill.replication.partition import Partition
from tidemill.wire.messages.fetch import ReplicaState
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest

VERSIONS = range(15, 19)
FOLLOWER = 2


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """The leader."""
    with bench_in(tmp_path) as one:
        yield one


class Follower:
    """Broker 2, which follows the partitions of topic ``t``."""

    def __init__(self, bench: Bench, version: int = 18, epoch: int = 0, wait_ms: int = 0) -> None:
        self.bench = bench
        self.version = version
        self.client: Client = bench.client()
        self.fetcher = MessageFetcher(LeaderFetcher(FOLLOWER, 1, FetchLimits(wait_ms=wait_ms)), version)
        broker = Broker(FOLLOWER, 3)
        self.partitions = broker.partitions
        for index, partition in enumerate(self.partitions):
            bench.partition("t", index).become(NODE, epoch, (NODE, FOLLOWER), (NODE, FOLLOWER), 0, 0)
            partition.become(NODE, epoch, (NODE, FOLLOWER), (NODE, FOLLOWER))

    def start(self) -> None:
        for partition in self.partitions:
            self.fetcher.follow(IDS["t"], partition, 0)

    def ask(self) -> int:
        """Sends a request; how many partitions it names."""
        request = self.fetcher.request(0)
        assert request is not None
        named = sum(len(topic.partitions) for topic in request.topics)
        self.client.send(FETCH, self.version, request)
        return named

    def take(self) -> int:
        """Takes the answer; how many partitions it tells of."""
        response = self.client.answer(FETCH, self.version)
        troubles, out_of_range, _ = self.fetcher.answer(response, 0)
        assert not troubles
        assert not out_of_range
        return sum(len(topic.partitions) for topic in response.responses)

    def round(self) -> None:
        self.ask()
        self.take()

    def values(self, index: int = 0) -> list[bytes]:
        return values_in(self.partitions[index])


def values_in(partition: Partition) -> list[bytes]:
    found = partition.log.read(0, 1 << 20, partition.log.end_offset, True)
    return [one.value or b"" for one in iter_records(found.read(), 0)] if found is not None else []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_makes_commits(bench: Bench, version: int) -> None:
    follower = Follower(bench, version)
    follower.start()
    writer = bench.client()
    writer.produce(9, {("t", 0): batch(b"a", b"b")})
    bench.until(lambda: bench.partition().log.end_offset == 2)
    follower.round()
    assert follower.values() == [b"a", b"b"]
    assert writer.is_silent()
    # The next fetch says what it has, and is told at once that this is committed.
    follower.round()
    assert writer.produced(9)[0].base_offset == 0
    assert follower.partitions[0].high_watermark == 2


def test_a_follower_waits_for_appends(bench: Bench) -> None:
    follower = Follower(bench, wait_ms=60_000)
    follower.start()
    follower.round()
    assert follower.ask() == 0
    assert follower.client.is_silent()
    writer = bench.client()
    writer.produce(9, {("t", 2): batch(b"a")})
    assert follower.take() == 1
    assert follower.values(2) == [b"a"]
    assert follower.ask() == 1
    assert follower.take() == 1
    assert writer.produced(9)[0].error_code == 0
    assert follower.partitions[2].high_watermark == 1


def test_a_request_of_a_session_names_what_changed(bench: Bench) -> None:
    follower = Follower(bench)
    follower.start()
    assert follower.ask() == 3
    follower.take()
    assert follower.ask() == 0
    assert follower.take() == 0


def follow_the_next_leader(follower: Follower, theirs: Partition) -> None:
    """The broker leads in epoch 2 and has a record of it; the follower fetches once."""
    theirs.become(NODE, 2, (NODE, FOLLOWER), (NODE, FOLLOWER), 1, 0)
    theirs.append([built(b"2")], 1, 0)
    follower.partitions[0].become(NODE, 2, (NODE, FOLLOWER), (NODE, FOLLOWER))
    follower.start()
    follower.round()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_that_diverged_is_cut(bench: Bench, version: int) -> None:
    follower = Follower(bench, version)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    for partition in (mine, theirs):
        partition.become(int(partition.node_id), 1, (NODE, FOLLOWER), (int(partition.node_id),))
        partition.append([built(b"both")], 1, 0)
    mine.append([built(b"alone")], 1, 0)
    mine.append([built(b"alone")], 1, 0)
    follow_the_next_leader(follower, theirs)
    assert mine.log.end_offset == 1
    follower.round()
    assert follower.values() == [b"both", b"2"]
    follower.round()
    assert theirs.high_watermark == 2


def test_what_a_follower_has_of_another_log_from_its_first_record_on_commits_nothing(bench: Bench) -> None:
    """Its log ends behind the leader's records, and has none of them: it is cut to nothing first."""
    follower = Follower(bench)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    mine.become(FOLLOWER, 1, (NODE, FOLLOWER), (FOLLOWER,))
    for _ in range(3):
        mine.append([built(b"alone")], 1, 0)
    follow_the_next_leader(follower, theirs)
    assert (mine.log.end_offset, theirs.high_watermark) == (0, 0)
    follower.round()
    assert follower.values() == [b"2"]
    follower.round()
    assert theirs.high_watermark == 1


def built(value: bytes) -> Batch:
    data = batch(value)
    return parse_batch(data, 0, len(data))


def test_an_epoch_that_the_leader_never_saw_is_out_of_range(bench: Bench) -> None:
    follower = Follower(bench)
    partition = follower.partitions[0]
    partition.become(FOLLOWER, 9, (FOLLOWER,), (FOLLOWER,))
    partition.append([built(b"x")], 1, 0)
    partition.become(NODE, 0, (NODE, FOLLOWER), (NODE, FOLLOWER))
    follower.start()
    follower.ask()
    response = follower.client.answer(FETCH, 18)
    _, out_of_range, _ = follower.fetcher.answer(response, 0)
    assert out_of_range == [partition]


@pytest.mark.parametrize(("replica", "epoch"), [(FOLLOWER, 3), (-1, 5)])
def test_a_follower_is_told_the_epoch_of_the_last_record_of_an_emptied_log(
    bench: Bench, replica: int, epoch: int
) -> None:
    partition = bench.partition()
    partition.become(NODE, 3, (NODE,), (NODE,), 0, 0)
    data = batch(b"a", b"b")
    partition.append([parse_batch(data, 0, len(data))], 1, 0)
    partition.log.advance_start(2)
    partition.become(NODE, 5, (NODE,), (NODE,), 0, 0)
    wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=EARLIEST)
    answer = look_up(partition, wanted, ListOffsetsRequest(replica_id=replica), 9, None)
    assert (answer.offset, answer.leader_epoch) == (2, epoch)


def test_a_broker_without_a_replica_is_no_follower(bench: Bench) -> None:
    follower = Follower(bench)
    follower.start()
    bench.partition("t", 0).become(NODE, 0, (NODE, 3), (NODE, 3), 1, 0)
    follower.ask()
    response = follower.client.answer(FETCH, 18)
    codes = {
        part.partition_index: part.error_code for topic in response.responses for part in topic.partitions
    }
    assert codes[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert codes[1] == 0


def test_the_logs_of_all_partitions_are_the_same_in_the_end(bench: Bench) -> None:
    follower = Follower(bench)
    follower.start()
    writer = bench.client()
    for number in range(30):
        writer.produce(9, {("t", number % 3): batch(b"%d" % number)}, acks=1)
        writer.produced(9)
        follower.round()
    follower.round()
    for index in range(3):
        leader = bench.partition("t", index)
        assert follower.values(index) == values_in(leader)
        assert leader.high_watermark == 10
        assert TopicPartition("t", index) == leader.log.topic_partition


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_new_leader_tells_no_end_before_it_knows_it(bench: Bench, version: int, code: ErrorCode) -> None:
    partition = bench.partition()
    partition.become(NODE, 3, (NODE, FOLLOWER), (NODE,), 0, 0)
    partition.append([built(b"a")], 1, 0)
    partition.append([built(b"b")], 1, 0)
    partition.high_watermark = 1  # what it knew when it followed
    partition.become(NODE, 4, (NODE, FOLLOWER), (NODE, FOLLOWER), 1, 0)

    def end(replica_id: int = -1) -> int:
        request = ListOffsetsRequest(replica_id=replica_id)
        wanted = ListOffsetsPartition(timestamp=-1, current_leader_epoch=-1)
        offset: int = look_up(partition, wanted, request, version, None).offset
        return offset

    with pytest.raises(KafkaError) as refused:
        end()
    assert refused.value.code == code
    assert end(FOLLOWER) == 2
    partition.fetched_by(FOLLOWER, 2, 0, 1)
    assert end() == 2


def test_a_new_leader_lets_consumers_wait_until_it_knows_how_far_it_is_committed(bench: Bench) -> None:
    partition = bench.partition()
    partition.become(NODE, 3, (NODE, FOLLOWER), (NODE,), 0, 0)
    for value in (b"a", b"b"):
        partition.append([built(value)], 1, 0)
    partition.high_watermark = 1  # what it knew when it followed
    partition.become(NODE, 4, (NODE, FOLLOWER), (NODE, FOLLOWER), 1, 0)
    reader = bench.client()
    part = parts_of(reader.ask(FETCH, 12, fetch_request(12, {("t", 0): 1})))["t", 0]
    assert (part.error_code, part.high_watermark, part.records or b"") == (0, -1, b"")
    reader.fetch(12, {("t", 0): 1}, max_wait_ms=60_000)
    assert reader.is_silent()
    partition.fetched_by(FOLLOWER, 2, 0, 1)
    part = parts_of(reader.fetched(12))["t", 0]
    assert (part.error_code, part.high_watermark) == (0, 2)
    assert values_of(part) == [b"b"]


@pytest.mark.parametrize("version", [3, 12])
def test_what_is_known_to_be_committed_is_read_however_long_a_new_leader_has_too_few_in_sync(
    bench: Bench, version: int
) -> None:
    partition = bench.partition()
    partition.become(NODE, 3, (NODE, FOLLOWER), (NODE,), 0, 0)
    for value in (b"a", b"b"):
        partition.append([built(value)], 1, 0)
    partition.high_watermark = 1  # what it knew when it followed
    partition.set_min_insync(2, 0)
    partition.become(NODE, 4, (NODE, FOLLOWER), (NODE,), 1, 0)
    reader = bench.client()
    part = parts_of(reader.ask(FETCH, version, fetch_request(version, {("t", 0): 0})))["t", 0]
    assert (part.error_code, part.high_watermark) == (0, -1)
    assert values_of(part) == [b"a"]


def fetched(
    bench: Bench, client: Client, session: int, epoch: int, offsets: dict[tuple[str, int], int]
) -> int:
    """The follower asks from ``offsets`` on; the session that it asks in."""
    client.fetch(
        18,
        offsets,
        session_id=session,
        session_epoch=epoch,
        replica_state=ReplicaState(replica_id=FOLLOWER, replica_epoch=1),
    )
    response = client.fetched(18)
    assert response.error_code == 0
    number: int = response.session_id
    return number


def test_produces_of_one_connection_wait_for_replicas_together_and_are_answered_in_order(
    bench: Bench,
) -> None:
    for index in range(2):
        bench.partition("t", index).become(NODE, 0, (NODE, FOLLOWER), (NODE, FOLLOWER), 0, 0)
    writer, follower = bench.client(), bench.client()
    first, second = bench.partition("t", 0), bench.partition("t", 1)
    # Sent without waiting for answers: partition 0, partition 1, both, and partition 0 again.
    numbers = [
        writer.produce(9, {("t", index): batch(b"%d" % number) for index in indexes})
        for number, indexes in enumerate(([0], [1], [0, 1], [0]))
    ]
    # All are appended before one is committed.
    bench.until(lambda: (first.log.end_offset, second.log.end_offset) == (3, 2))
    assert first.high_watermark == second.high_watermark == 0
    session = fetched(bench, follower, 0, 0, {("t", 0): 0, ("t", 1): 0})
    # What is committed first was sent second: its answer keeps its place.
    fetched(bench, follower, session, 1, {("t", 1): 1})
    assert second.high_watermark == 1
    assert writer.is_silent()
    fetched(bench, follower, session, 2, {("t", 0): 1})
    assert [part.base_offset for part in writer.produced(9, numbers[0])] == [0]
    assert [part.base_offset for part in writer.produced(9, numbers[1])] == [0]
    # Of the third one partition is there, and not the other; the fourth does not overtake it.
    fetched(bench, follower, session, 3, {("t", 0): 3})
    assert first.high_watermark == 3
    assert writer.is_silent()
    fetched(bench, follower, session, 4, {("t", 1): 2})
    assert [part.base_offset for part in writer.produced(9, numbers[2])] == [1, 1]
    assert [part.base_offset for part in writer.produced(9, numbers[3])] == [2]


def test_a_produce_whose_replicas_do_not_come_holds_up_those_behind_it_until_its_timeout(
    bench: Bench,
) -> None:
    for index in range(2):
        bench.partition("t", index).become(NODE, 0, (NODE, FOLLOWER), (NODE, FOLLOWER), 0, 0)
    writer, follower = bench.client(), bench.client()
    slow = writer.produce(9, {("t", 0): batch(b"a")}, timeout_ms=200)
    quick = writer.produce(9, {("t", 1): batch(b"b")})
    bench.until(lambda: bench.partition("t", 1).log.end_offset == 1)
    fetched(bench, follower, 0, 0, {("t", 1): 1})
    assert bench.partition("t", 1).high_watermark == 1
    assert writer.produced(9, slow)[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert writer.produced(9, quick)[0].error_code == 0


def test_a_follower_that_had_to_cut_its_log_learns_what_is_committed(bench: Bench) -> None:
    follower = Follower(bench)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    for partition in (mine, theirs):
        partition.become(int(partition.node_id), 1, (NODE, FOLLOWER), (int(partition.node_id),))
        partition.append([built(b"both")], 1, 0)
    mine.append([built(b"alone")], 1, 0)
    theirs.become(NODE, 2, (NODE, FOLLOWER), (NODE,), 1, 0)
    mine.become(NODE, 2, (NODE, FOLLOWER), (NODE,))
    mine.high_watermark = 0
    follower.start()
    follower.round()
    assert (mine.log.end_offset, mine.high_watermark) == (1, 0)
    # Nothing is written any more: what is committed is all the news that there is.
    follower.round()
    assert mine.high_watermark == 1


def test_a_follower_that_could_not_heed_an_answer_is_told_anew_what_is_committed_and_where_the_log_starts(
    bench: Bench,
) -> None:
    follower = Follower(bench)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    follower.start()
    theirs.append([built(b"a"), built(b"b")], -1, 0)
    follower.round()
    theirs.advance_start(1)
    follower.ask()
    bench.until(lambda: theirs.high_watermark == 2)
    for partition in (theirs, mine):
        partition.become(NODE, 1, (NODE, FOLLOWER), (NODE, FOLLOWER), 1, 0)
    follower.fetcher.follow(IDS["t"], mine, 0)
    follower.take()
    assert (mine.high_watermark, mine.log.start_offset) == (0, 0)
    # Nothing happens any more: what that answer told is all the news that there is.
    follower.round()
    assert (mine.high_watermark, mine.log.start_offset) == (2, 1)


def test_who_has_stepped_down_is_not_read_from(bench: Bench) -> None:
    partition = bench.partition()
    partition.become(NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), 0, 0)
    partition.append([built(b"a")], 1, 0)
    partition.become(-1, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), 0, 0)
    reader = bench.client()
    part = parts_of(reader.ask(FETCH, 12, fetch_request(12, {("t", 0): 0})))["t", 0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
