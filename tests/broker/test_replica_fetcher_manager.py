"""Replica fetchers over connections that may break."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths_bench import NODE, Bench, batch, bench_in
from replica_stage import Broker as Logs
from test_followers import values_in

from tidemill.broker.replica_fetcher_manager import (
    EARLIEST,
    LeaderEndPoint,
    ReplicaFetcherManager,
    ReplicaFetcherTask,
)
from tidemill.log.log_config import LogConfig
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, StorageError
from tidemill.model.system_interfaces import Clock
from tidemill.net.connection import Connection
from tidemill.net.link import Link, LinkError, LinkRefused, ResponseHandler
from tidemill.net.peer import Listener, Peer
from tidemill.records.batch import parse_batch
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import (
    TRANSIENT,
    FetchLimits,
    FetchOutcome,
    PartitionFailure,
    ReplicaFetcher,
)
from tidemill.wire.apis import ApiKey
from tidemill.wire.codec import encode
from tidemill.wire.messages.fetch import FetchResponse
from tidemill.wire.messages.list_offsets import ListOffsetsPartitionResponse

FOLLOWER = 2
REPLICAS = (NODE, FOLLOWER)
PATIENCE_MS = 60_000
"""Longer than any wait of a test."""


class Stage:
    """The leader on a bench, and broker 2 with a replica fetcher."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.links: list[Link] = []
        self.refused = 0
        self.refuse = False
        self.fault: Exception | None = None
        self.strange: list[Any] = []
        self.logs = Logs(FOLLOWER, 3)
        self.partitions = self.logs.partitions
        limits = FetchLimits(wait_ms=50, backoff_ms=20)
        self.following = ReplicaFetcherManager(FOLLOWER, limits, self.connect, SystemClock(), node_epoch=1)
        for index, partition in enumerate(self.partitions):
            bench.partition("t", index).apply_state(NODE, 0, REPLICAS, REPLICAS, partition_epoch=0, now_ms=0)
            partition.apply_state(NODE, 0, REPLICAS, REPLICAS, partition_epoch=-1, now_ms=0)
            partition.log.topic_id = bench.partition("t", index).log.topic_id

    async def connect(self, leader: int) -> Link:
        assert leader == NODE
        if self.refuse:
            self.refused += 1
            raise LinkRefused("connection refused")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if self.strange:
            strange: Link = self.strange.pop(0)
            return strange
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        peer = Peer(Listener("PLAINTEXT", "localhost", 9092), "User:ANONYMOUS", "127.0.0.1", 1)
        Connection(self.bench.loop, theirs, self.bench.requests, 100 << 20, peer).start()
        link = Link("the leader", ours, "follower")
        link.versions = {ApiKey.FETCH: (4, 18)}
        self.links.append(link)
        return link

    def run(self, what: Callable[[], Any]) -> None:
        async def call() -> None:
            result = what()
            if asyncio.iscoroutine(result):
                await result

        self.bench.loop.run_until_complete(call())

    def same(self) -> bool:
        return all(
            values_in(mine) == values_in(self.bench.partition("t", index))
            for index, mine in enumerate(self.partitions)
        )


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with bench_in(tmp_path) as bench:
        one = Stage(bench)
        yield one
        one.run(one.following.stop)


def follow_all(stage: Stage) -> None:
    for partition in stage.partitions:
        stage.following.add_partition(partition)


def test_appended_records_are_replicated_and_committed(stage: Stage) -> None:
    stage.run(lambda: follow_all(stage))
    client = stage.bench.client()
    for number in range(12):
        client.append(b"%d" % number, index=number % 3)
    assert stage.same()
    stage.bench.until(lambda: all(one.high_watermark == 4 for one in stage.partitions))
    assert len(stage.links) == 1


def test_the_fetch_timeout_is_request_timeout_plus_max_wait(stage: Stage) -> None:
    limits = FetchLimits(wait_ms=500, socket_timeout_ms=30_000)
    timeouts: list[float] = []
    link: Any = SimpleNamespace(
        version_of=lambda key, first, last: last,
        send=lambda key, version, body, handler, timeout_s: timeouts.append(timeout_s),
    )
    fetcher: Any = SimpleNamespace(limits=limits, build_request=lambda now_ms, version: b"")
    assert LeaderEndPoint(link, fetcher, SystemClock()).send_fetch()
    assert timeouts == [30.5]


def test_the_next_fetch_has_the_broker_epoch_of_a_new_registration(stage: Stage) -> None:
    stage.run(lambda: follow_all(stage))

    def broker_epochs() -> set[int]:
        known = [stage.bench.partition("t", index).replication for index in range(3)]
        return {int(one.epoch_of(FOLLOWER)) for one in known if one is not None}

    stage.bench.until(lambda: broker_epochs() == {1})
    stage.run(lambda: stage.following.registered(7))
    stage.bench.until(lambda: broker_epochs() == {7})
    assert len(stage.links) == 1


def test_a_partition_is_fetched_again_after_its_flush(stage: Stage) -> None:
    """With flush.messages=1 the next fetch has the flushed offset, and does not wait for a backoff."""
    limits = FetchLimits(wait_ms=PATIENCE_MS, backoff_ms=PATIENCE_MS)
    stage.following = ReplicaFetcherManager(FOLLOWER, limits, stage.connect, SystemClock(), node_epoch=1)
    partition = stage.partitions[0]
    partition.log.set_config(LogConfig(flush_messages=1))
    stage.run(lambda: stage.following.add_partition(partition))
    client = stage.bench.client()
    client.produce(9, {("t", 0): batch(b"a")}, timeout_ms=PATIENCE_MS)
    stage.bench.until(lambda: len(stage.logs.events.flushes) == 1)
    assert client.is_silent()
    partition.log.flush(0)
    partition.flushed(1, 0)
    assert client.produced(9)[0].error_code == 0


def test_new_partitions_complete_a_delayed_fetch(stage: Stage) -> None:
    """The leader completes the delayed fetch on the next request: nothing else would for a minute."""
    limits = FetchLimits(wait_ms=PATIENCE_MS, backoff_ms=PATIENCE_MS)
    stage.following = ReplicaFetcherManager(FOLLOWER, limits, stage.connect, SystemClock(), node_epoch=1)
    stage.run(lambda: stage.following.add_partition(stage.partitions[0]))
    client = stage.bench.client()
    client.append(b"a")
    for index in (1, 2):
        stage.bench.until(lambda: stage.bench.fetches.waiting == 1)
        stage.run(lambda number=index: stage.following.add_partition(stage.partitions[number]))
        client.append(b"b", index=index)
        client.append(b"c")
        stage.bench.until(stage.same)
    assert len(stage.links) == 1


def test_truncated_segments_of_a_follower_stay_for_file_delete_delay_ms(stage: Stage) -> None:
    """Until then readers of the range are served. The log uses the wall clock, backoffs the monotonic one."""
    clock = SystemClock()
    mine = stage.partitions[0]
    a, b, c = (parse_batch(one, 0, len(one)) for one in (batch(b"a"), batch(b"b"), batch(b"c")))
    stage.bench.partition("t", 0).append(a, 1, clock.wall_ms())
    for one in (a, b, c):
        mine.log.append(one, 0, clock.wall_ms())
        mine.log.roll(clock.wall_ms())
    stage.bench.partition("t", 0).apply_state(NODE, 1, REPLICAS, REPLICAS, partition_epoch=1, now_ms=0)
    mine.apply_state(NODE, 1, REPLICAS, REPLICAS, partition_epoch=-1, now_ms=0)
    stage.run(lambda: stage.following.add_partition(mine))
    stage.bench.until(lambda: mine.log.end_offset == 1)
    assert stage.logs.logs.removals.pop_due(clock.wall_ms()) == []
    assert stage.logs.logs.removals.pop_due(clock.wall_ms() + stage.logs.config.file_delete_delay_ms)


def test_a_broken_connection_is_opened_again(stage: Stage) -> None:
    stage.run(lambda: follow_all(stage))
    client = stage.bench.client()
    client.append(b"a")
    stage.refuse = True
    stage.run(lambda: stage.links[0].close("cut"))
    client.produce(9, {("t", 0): batch(b"b")})
    stage.bench.until(lambda: stage.refused >= 2)
    stage.refuse = False
    assert client.produced(9)[0].base_offset == 1
    assert stage.same()
    assert len(stage.links) == 2


def test_removed_partitions_are_not_fetched_and_a_fetcher_without_partitions_ends(stage: Stage) -> None:
    stage.run(lambda: follow_all(stage))
    client = stage.bench.client()
    client.append(b"a", index=1)
    stage.run(lambda: stage.following.remove_partition(stage.partitions[0]))
    client.produce(9, {("t", 0): batch(b"b")}, acks=1)
    client.produced(9)
    client.append(b"c", index=1)
    assert stage.partitions[0].log.end_offset == 0
    stage.run(lambda: [stage.following.remove_partition(one) for one in stage.partitions])
    stage.bench.until(lambda: bool(stage.links[0].is_closed))


def test_a_failed_write_is_logged_and_retried_without_effect_on_other_partitions(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.logs.files.fail("append", "/d/t-0")
    stage.run(lambda: follow_all(stage))
    client = stage.bench.client()
    client.produce(9, {("t", 0): batch(b"a")}, acks=1)
    client.produced(9)
    client.append(b"b", index=1)
    stage.bench.until(stage.same)
    assert len(stage.logs.events.failures) == 1
    assert caplog.text.count("fetching t-0 failed") == 1


def test_an_unexpected_error_does_not_end_the_fetcher(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.fault = KeyError("no such broker")
    stage.run(lambda: follow_all(stage))
    stage.bench.client().append(b"a")
    assert stage.same()
    assert "fetching from leader 1 failed and is retried" in caplog.text


class Refusing:
    """A link to a leader that returns an error for every fetch."""

    def __init__(self) -> None:
        self.requests = 0
        self.closed = ""

    def version_of(self, *versions: int) -> int:
        return 18

    def send(self, key: int, version: int, body: bytes, handler: ResponseHandler, timeout_s: float) -> None:
        self.requests += 1
        answer = encode(FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), version)
        asyncio.get_running_loop().call_soon(handler.on_response, answer, 0, len(answer))

    def close(self, reason: str) -> None:
        self.closed = reason


def test_error_responses_are_followed_by_a_backoff(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    refusing = [Refusing() for _ in range(3)]
    stage.strange = list(refusing)
    stage.run(lambda: follow_all(stage))
    stage.bench.client().append(b"a")
    assert stage.same()
    assert [one.requests for one in refusing] == [1, 1, 1]
    assert all(one.closed for one in refusing)
    assert caplog.text.count("it returned CLUSTER_AUTHORIZATION_FAILED to a fetch") == 1


def test_missing_offsets_of_the_leader_are_requested_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    timestamps: list[int] = []

    async def unknown_at_first(
        loop: ReplicaFetcherTask, link: Link, which: Any, timestamp: int
    ) -> dict[Any, Any]:
        timestamps.append(timestamp)
        said = ListOffsetsPartitionResponse(offset=1 if timestamp == EARLIEST else 2)
        return {("t", 0): said} if len(timestamps) > 2 else {}

    monkeypatch.setattr(ReplicaFetcherTask, "_list_offsets", unknown_at_first)
    leader = stage.bench.partition("t", 0)
    for value in (b"a", b"b"):
        data = batch(value)
        leader.append(parse_batch(data, 0, len(data)), 1, 0)
    leader.log.advance_start(1)
    stage.run(lambda: follow_all(stage))
    stage.bench.until(lambda: stage.partitions[0].log.end_offset == 2)
    assert stage.partitions[0].log.start_offset == 1
    assert len(timestamps) == 4
    (line,) = [one for one in caplog.records if "it continues at 1" in one.getMessage()]
    assert line.levelname == "INFO", "a new replica has lost nothing"


def test_a_log_that_cannot_be_truncated_is_not_fetched_and_others_are(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = stage.partitions[:2]

    begin = ReplicaFetcherTask.add_partition

    def follow(loop: ReplicaFetcherTask, partition: Partition) -> None:
        if partition is broken:
            raise StorageError("the disk is full")
        begin(loop, partition)

    monkeypatch.setattr(ReplicaFetcherTask, "add_partition", follow)

    def come_and_go() -> None:
        with pytest.raises(StorageError, match="the disk is full"):
            stage.following.add_partition(broken)
        stage.following.add_partition(other)
        stage.following.remove_partition(other)
        stage.following.remove_partition(broken)

    stage.run(come_and_go)
    stage.run(lambda: stage.following.add_partition(other))
    stage.bench.client().append(b"a", index=1)
    stage.bench.until(lambda: other.high_watermark == 1)


class EndPointOf:
    """An endpoint with the given outcomes, whose link then breaks."""

    def __init__(self, outcomes: list[FetchOutcome]) -> None:
        self._outcomes = outcomes

    def send_fetch(self) -> bool:
        return True

    async def next_results(self) -> list[FetchOutcome]:
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes:
            raise LinkError("the link is closed")
        return outcomes


@pytest.mark.parametrize(
    "has_session_error",
    [True, False],
    ids=["session error", "link broken while the offsets of the leader are requested"],
)
def test_a_storage_error_is_reported_if_another_response_ends_the_link(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, has_session_error: bool
) -> None:
    partition = stage.partitions[0]
    cause = FetchOutcome(out_of_range=[stage.partitions[1]])
    if has_session_error:
        cause = FetchOutcome(session_error=ErrorCode.UNKNOWN_SERVER_ERROR)
    failed = FetchOutcome([PartitionFailure(partition, "disk", StorageError("disk"))])
    end_point = EndPointOf([cause, failed])
    monkeypatch.setattr(
        "tidemill.broker.replica_fetcher_manager.LeaderEndPoint", lambda *arguments: end_point
    )

    async def broken(task: ReplicaFetcherTask, link: Link, partitions: Any, timestamp: int) -> Any:
        raise LinkError("the link is closed")

    monkeypatch.setattr(ReplicaFetcherTask, "_list_offsets", broken)

    async def fetch() -> None:
        limits = FetchLimits(wait_ms=50, backoff_ms=20)
        fetcher = ReplicaFetcher(FOLLOWER, limits, None, node_epoch=1)
        task = ReplicaFetcherTask(NODE, fetcher, stage.connect, SystemClock())
        link: Any = None
        with pytest.raises(LinkError):
            await task._fetch_over(link)
        await task.stop()

    stage.run(fetch)
    assert len(stage.logs.events.failures) == 1


def test_results_that_arrived_before_the_link_was_closed_are_returned() -> None:
    outcome = FetchOutcome(session_error=ErrorCode.UNKNOWN_SERVER_ERROR)
    link: Any = SimpleNamespace(name="the leader", version_of=lambda key, first, last: last)
    fetcher: Any = SimpleNamespace(limits=FetchLimits(), handle_response=lambda *arguments: outcome)

    async def scenario() -> None:
        end_point = LeaderEndPoint(link, fetcher, SystemClock())
        end_point.on_response(b"", 0, 0)
        end_point.on_link_closed("reset by peer")
        assert await end_point.next_results() == [outcome]
        with pytest.raises(LinkError, match="reset by peer"):
            await end_point.next_results()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH]
)
def test_transient_errors_cause_a_warning_only_if_they_last(
    stage: Stage, caplog: pytest.LogCaptureFixture, code: ErrorCode
) -> None:
    clock = ManualClock()
    stage.following = ReplicaFetcherManager(FOLLOWER, FetchLimits(), stage.connect, clock, node_epoch=1)
    stage.run(lambda: stage.following.add_partition(stage.partitions[0]))
    loop: ReplicaFetcherTask = next(iter(stage.following._fetcher_tasks.values()))
    failure = PartitionFailure(
        stage.partitions[0], f"the leader returned {code.name}", None, code in TRANSIENT
    )
    for _ in range(3):
        loop._handle_error(failure)
        clock.now += 1.0
    assert "fetching t-0 failed" not in caplog.text
    clock.now += 60.0
    loop._handle_error(failure)
    assert "fetching t-0 failed" not in caplog.text, "that is another change"
    for _ in range(6):
        clock.now += 1.0
        loop._handle_error(failure)
    assert caplog.text.count(f"fetching t-0 failed and is retried: the leader returned {code.name}") == 1
    stage.run(stage.following.stop)


def test_transient_errors_of_successive_epochs_cause_no_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A reassignment raises the leader epoch every few seconds; one or two fetches precede each change."""
    clock = ManualClock()
    stage.following = ReplicaFetcherManager(FOLLOWER, FetchLimits(), stage.connect, clock, node_epoch=1)
    partition = stage.partitions[0]
    for _ in range(10):
        stage.run(lambda: stage.following.add_partition(partition))
        (loop,) = stage.following._fetcher_tasks.values()
        loop._handle_error(
            PartitionFailure(partition, "the leader returned UNKNOWN_LEADER_EPOCH", None, True)
        )
        clock.now += 1.5
    assert caplog.text == ""
    stage.run(stage.following.stop)


class ManualClock(Clock):
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now
