"""Followers that fetch from a leader over a connection: sessions, commits, diverging logs."""

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

from default_limits import iter_records
from tidemill.broker.handlers.list_offsets import look_up
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits, ReplicaFetcher
from tidemill.wire.list_offset_timestamps import EARLIEST
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
    """Broker 2, a follower of the partitions of topic ``t``."""

    def __init__(self, bench: Bench, version: int = 18, epoch: int = 0, wait_ms: int = 0) -> None:
        self.bench = bench
        self.version = version
        self.client: Client = bench.client()
        self.fetcher = MessageFetcher(
            ReplicaFetcher(FOLLOWER, FetchLimits(wait_ms=wait_ms), node_epoch=1), version
        )
        broker = Broker(FOLLOWER, 3)
        self.partitions = broker.partitions
        for index, partition in enumerate(self.partitions):
            bench.partition("t", index).apply_state(
                NODE, epoch, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=0, now_ms=0
            )
            partition.apply_state(
                NODE, epoch, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=-1, now_ms=0
            )

    def start(self) -> None:
        for partition in self.partitions:
            self.fetcher.add_partition(IDS["t"], partition, 0)

    def send_fetch(self) -> int:
        """Sends a request. Returns the number of its partitions."""
        request = self.fetcher.build_request(0)
        assert request is not None
        named = sum(len(topic.partitions) for topic in request.topics)
        self.client.send(FETCH, self.version, request)
        return named

    def apply_response(self) -> int:
        """Applies the response. Returns the number of its partitions."""
        response = self.client.answer(FETCH, self.version)
        failures, out_of_range, _ = self.fetcher.handle_response(response, 0)
        assert not failures
        assert not out_of_range
        return sum(len(topic.partitions) for topic in response.responses)

    def round(self) -> None:
        self.send_fetch()
        self.apply_response()

    def values(self, index: int = 0) -> list[bytes]:
        return values_in(self.partitions[index])


def values_in(partition: Partition) -> list[bytes]:
    found = partition.log.read(0, 1 << 20, partition.log.end_offset, True)
    return [one.value or b"" for one in iter_records(found.read(), 0)] if found is not None else []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_of_a_follower_commits_records(bench: Bench, version: int) -> None:
    follower = Follower(bench, version)
    follower.start()
    writer = bench.client()
    writer.produce(9, {("t", 0): batch(b"a", b"b")})
    bench.until(lambda: bench.partition().log.end_offset == 2)
    follower.round()
    assert follower.values() == [b"a", b"b"]
    assert writer.is_silent()
    # The next fetch reports the log end, and its response has the high watermark at once.
    follower.round()
    assert writer.produced(9)[0].base_offset == 0
    assert follower.partitions[0].high_watermark == 2


def test_a_follower_waits_for_appends(bench: Bench) -> None:
    follower = Follower(bench, wait_ms=60_000)
    follower.start()
    follower.round()
    assert follower.send_fetch() == 0
    assert follower.client.is_silent()
    writer = bench.client()
    writer.produce(9, {("t", 2): batch(b"a")})
    assert follower.apply_response() == 1
    assert follower.values(2) == [b"a"]
    assert follower.send_fetch() == 1
    assert follower.apply_response() == 1
    assert writer.produced(9)[0].error_code == 0
    assert follower.partitions[2].high_watermark == 1


def test_a_session_request_names_changed_partitions(bench: Bench) -> None:
    follower = Follower(bench)
    follower.start()
    assert follower.send_fetch() == 3
    follower.apply_response()
    assert follower.send_fetch() == 0
    assert follower.apply_response() == 0


def follow_the_next_leader(follower: Follower, theirs: Partition) -> None:
    """Makes the broker the leader in epoch 2 with a record, and fetches once as the follower."""
    theirs.apply_state(NODE, 2, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=1, now_ms=0)
    theirs.append(built(b"2"), 1, 0)
    follower.partitions[0].apply_state(
        NODE, 2, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=-1, now_ms=0
    )
    follower.start()
    follower.round()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_diverging_log_is_truncated(bench: Bench, version: int) -> None:
    follower = Follower(bench, version)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    for partition in (mine, theirs):
        partition.apply_state(
            int(partition.node_id),
            1,
            (NODE, FOLLOWER),
            (int(partition.node_id),),
            partition_epoch=-1,
            now_ms=0,
        )
        partition.append(built(b"both"), 1, 0)
    mine.append(built(b"alone"), 1, 0)
    mine.append(built(b"alone"), 1, 0)
    follow_the_next_leader(follower, theirs)
    assert mine.log.end_offset == 1
    follower.round()
    assert follower.values() == [b"both", b"2"]
    follower.round()
    assert theirs.high_watermark == 2


def test_a_follower_with_a_log_that_diverges_from_its_start_commits_nothing(bench: Bench) -> None:
    """Its log end is above that of the leader, and no record is common: it is truncated fully first."""
    follower = Follower(bench)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    mine.apply_state(FOLLOWER, 1, (NODE, FOLLOWER), (FOLLOWER,), partition_epoch=-1, now_ms=0)
    for _ in range(3):
        mine.append(built(b"alone"), 1, 0)
    follow_the_next_leader(follower, theirs)
    assert (mine.log.end_offset, theirs.high_watermark) == (0, 0)
    follower.round()
    assert follower.values() == [b"2"]
    follower.round()
    assert theirs.high_watermark == 1


def built(value: bytes) -> Batch:
    data = batch(value)
    return parse_batch(data, 0, len(data))


def test_an_epoch_unknown_to_the_leader_is_out_of_range(bench: Bench) -> None:
    follower = Follower(bench)
    partition = follower.partitions[0]
    partition.apply_state(FOLLOWER, 9, (FOLLOWER,), (FOLLOWER,), partition_epoch=-1, now_ms=0)
    partition.append(built(b"x"), 1, 0)
    partition.apply_state(NODE, 0, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=-1, now_ms=0)
    follower.start()
    follower.send_fetch()
    response = follower.client.answer(FETCH, 18)
    _, out_of_range, _ = follower.fetcher.handle_response(response, 0)
    assert out_of_range == [partition]


@pytest.mark.parametrize(("replica", "epoch"), [(FOLLOWER, 3), (-1, 5)])
def test_an_empty_log_of_the_leader_returns_its_last_epoch(bench: Bench, replica: int, epoch: int) -> None:
    partition = bench.partition()
    partition.apply_state(NODE, 3, (NODE,), (NODE,), partition_epoch=0, now_ms=0)
    data = batch(b"a", b"b")
    partition.append(parse_batch(data, 0, len(data)), 1, 0)
    partition.log.advance_start(2)
    partition.apply_state(NODE, 5, (NODE,), (NODE,), partition_epoch=0, now_ms=0)
    wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=EARLIEST)
    answer = look_up(partition, wanted, ListOffsetsRequest(replica_id=replica), 9, None)
    assert (answer.offset, answer.leader_epoch) == (2, epoch)


def test_a_broker_without_a_replica_is_refused_as_a_follower(bench: Bench) -> None:
    follower = Follower(bench)
    follower.start()
    bench.partition("t", 0).apply_state(NODE, 0, (NODE, 3), (NODE, 3), partition_epoch=1, now_ms=0)
    follower.send_fetch()
    response = follower.client.answer(FETCH, 18)
    codes = {
        part.partition_index: part.error_code for topic in response.responses for part in topic.partitions
    }
    assert codes[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert codes[1] == 0


def test_the_logs_of_all_partitions_converge(bench: Bench) -> None:
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
def test_a_new_leader_returns_no_log_end_before_its_high_watermark_is_known(
    bench: Bench, version: int, code: ErrorCode
) -> None:
    partition = bench.partition()
    partition.apply_state(NODE, 3, (NODE, FOLLOWER), (NODE,), partition_epoch=0, now_ms=0)
    partition.append(built(b"a"), 1, 0)
    partition.append(built(b"b"), 1, 0)
    partition.high_watermark = 1  # the high watermark that it had as a follower
    partition.apply_state(NODE, 4, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=1, now_ms=0)

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


def test_consumers_of_a_new_leader_wait_for_its_high_watermark(bench: Bench) -> None:
    partition = bench.partition()
    partition.apply_state(NODE, 3, (NODE, FOLLOWER), (NODE,), partition_epoch=0, now_ms=0)
    for value in (b"a", b"b"):
        partition.append(built(value), 1, 0)
    partition.high_watermark = 1  # the high watermark that it had as a follower
    partition.apply_state(NODE, 4, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=1, now_ms=0)
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
def test_committed_records_are_readable_while_a_new_leader_is_below_min_insync(
    bench: Bench, version: int
) -> None:
    partition = bench.partition()
    partition.apply_state(NODE, 3, (NODE, FOLLOWER), (NODE,), partition_epoch=0, now_ms=0)
    for value in (b"a", b"b"):
        partition.append(built(value), 1, 0)
    partition.high_watermark = 1  # the high watermark that it had as a follower
    partition.set_min_insync_replicas(2, 0)
    partition.apply_state(NODE, 4, (NODE, FOLLOWER), (NODE,), partition_epoch=1, now_ms=0)
    reader = bench.client()
    part = parts_of(reader.ask(FETCH, version, fetch_request(version, {("t", 0): 0})))["t", 0]
    assert (part.error_code, part.high_watermark) == (0, -1)
    assert values_of(part) == [b"a"]


def fetched(
    bench: Bench, client: Client, session: int, epoch: int, offsets: dict[tuple[str, int], int]
) -> int:
    """Fetches from ``offsets`` on. Returns the session id."""
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


def test_delayed_produces_of_one_connection_complete_in_order(
    bench: Bench,
) -> None:
    for index in range(2):
        bench.partition("t", index).apply_state(
            NODE, 0, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=0, now_ms=0
        )
    writer, follower = bench.client(), bench.client()
    first, second = bench.partition("t", 0), bench.partition("t", 1)
    # Pipelined: partition 0, partition 1, both, and partition 0 again.
    numbers = [
        writer.produce(9, {("t", index): batch(b"%d" % number) for index in indexes})
        for number, indexes in enumerate(([0], [1], [0, 1], [0]))
    ]
    # All are appended before the first commit.
    bench.until(lambda: (first.log.end_offset, second.log.end_offset) == (3, 2))
    assert first.high_watermark == second.high_watermark == 0
    session = fetched(bench, follower, 0, 0, {("t", 0): 0, ("t", 1): 0})
    # The second request is committed first, but its response keeps its position.
    fetched(bench, follower, session, 1, {("t", 1): 1})
    assert second.high_watermark == 1
    assert writer.is_silent()
    fetched(bench, follower, session, 2, {("t", 0): 1})
    assert [part.base_offset for part in writer.produced(9, numbers[0])] == [0]
    assert [part.base_offset for part in writer.produced(9, numbers[1])] == [0]
    # The third has one committed partition; the response to the fourth does not precede it.
    fetched(bench, follower, session, 3, {("t", 0): 3})
    assert first.high_watermark == 3
    assert writer.is_silent()
    fetched(bench, follower, session, 4, {("t", 1): 2})
    assert [part.base_offset for part in writer.produced(9, numbers[2])] == [1, 1]
    assert [part.base_offset for part in writer.produced(9, numbers[3])] == [2]


def test_a_delayed_produce_delays_later_responses_until_its_timeout(
    bench: Bench,
) -> None:
    for index in range(2):
        bench.partition("t", index).apply_state(
            NODE, 0, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=0, now_ms=0
        )
    writer, follower = bench.client(), bench.client()
    slow = writer.produce(9, {("t", 0): batch(b"a")}, timeout_ms=200)
    quick = writer.produce(9, {("t", 1): batch(b"b")})
    bench.until(lambda: bench.partition("t", 1).log.end_offset == 1)
    fetched(bench, follower, 0, 0, {("t", 1): 1})
    assert bench.partition("t", 1).high_watermark == 1
    assert writer.produced(9, slow)[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert writer.produced(9, quick)[0].error_code == 0


def test_a_truncated_follower_gets_the_high_watermark(bench: Bench) -> None:
    follower = Follower(bench)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    for partition in (mine, theirs):
        partition.apply_state(
            int(partition.node_id),
            1,
            (NODE, FOLLOWER),
            (int(partition.node_id),),
            partition_epoch=-1,
            now_ms=0,
        )
        partition.append(built(b"both"), 1, 0)
    mine.append(built(b"alone"), 1, 0)
    theirs.apply_state(NODE, 2, (NODE, FOLLOWER), (NODE,), partition_epoch=1, now_ms=0)
    mine.apply_state(NODE, 2, (NODE, FOLLOWER), (NODE,), partition_epoch=-1, now_ms=0)
    mine.high_watermark = 0
    follower.start()
    follower.round()
    assert (mine.log.end_offset, mine.high_watermark) == (1, 0)
    # Without further appends the high watermark is the only change.
    follower.round()
    assert mine.high_watermark == 1


def test_an_unapplied_high_watermark_and_log_start_are_sent_again(
    bench: Bench,
) -> None:
    follower = Follower(bench)
    mine, theirs = follower.partitions[0], bench.partition("t", 0)
    follower.start()
    theirs.append(built(b"a"), -1, 0)
    theirs.append(built(b"b"), -1, 0)
    follower.round()
    theirs.advance_start(1)
    follower.send_fetch()
    bench.until(lambda: theirs.high_watermark == 2)
    for partition in (theirs, mine):
        partition.apply_state(NODE, 1, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=1, now_ms=0)
    follower.fetcher.add_partition(IDS["t"], mine, 0)
    follower.apply_response()
    assert (mine.high_watermark, mine.log.start_offset) == (0, 0)
    # Without further events the state in that response is the only change.
    follower.round()
    assert (mine.high_watermark, mine.log.start_offset) == (2, 1)


def test_a_former_leader_refuses_fetches(bench: Bench) -> None:
    partition = bench.partition()
    partition.apply_state(NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=0, now_ms=0)
    partition.append(built(b"a"), 1, 0)
    partition.apply_state(-1, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=0, now_ms=0)
    reader = bench.client()
    part = parts_of(reader.ask(FETCH, 12, fetch_request(12, {("t", 0): 0})))["t", 0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
