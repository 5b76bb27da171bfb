"""DeleteRecords where followers are: what it waits for, what it answers, and what holds after a failover."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_files import FaultyFiles
from paths_bench import IDS, NODE, AtOnceExecutor, Bench, HeldExecutor, batch, bench_in, parts_of
from test_followers import Follower
from test_replica_fetcher_manager import FOLLOWER, REPLICAS, Stage, follow_all

from tidemill.broker.handlers.delete_records import handle
from tidemill.broker.replica_fetcher_manager import ReplicaFetcherManager
from tidemill.broker.request_context import RequestContext
from tidemill.log.log_config import LogConfig
from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, StorageError
from tidemill.model.types import TopicPartition
from tidemill.net.peer import Listener, Peer
from tidemill.records.batch import parse_batch
from tidemill.replication import log_start_checkpoint
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_fetcher import FetchLimits
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.fetch import FetchPartition

FETCH_WAIT_MS = 60_000
"""So long a fetch of a follower may wait for more."""
THIRD = 3


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A leader with six records in each partition, and a follower that has them."""
    with bench_in(tmp_path) as bench:
        one = Stage(bench)
        limits = FetchLimits(wait_ms=FETCH_WAIT_MS, backoff_ms=20)
        one.following = ReplicaFetcherManager(
            FOLLOWER, 1, limits, one.connect, SystemClock(), one.storage_failed
        )
        fill(bench)
        yield one
        one.run(one.following.stop)


def fill(bench: Bench) -> None:
    data = batch(*[b"%d" % number for number in range(6)])
    for index in range(3):
        bench.partition("t", index).append([parse_batch(data, 0, len(data))], 1, 0)


def follow(stage: Stage) -> None:
    stage.run(lambda: follow_all(stage))
    stage.bench.until(lambda: all(one.high_watermark == 6 for one in stage.partitions))


def delete(bench: Bench, offset: int, index: int = 0, timeout_ms: int = 10_000) -> asyncio.Task[Any]:
    """Sends the request; its answer is to come."""
    broker: Any = SimpleNamespace(
        partition=bench.partition, partitions=bench.manager, logs=bench.logs, clock=SystemClock()
    )
    peer = Peer(Listener("PLAINTEXT", "localhost", 9092), "default", "User:x", "10.0.0.7", 1)
    context = RequestContext(peer, "cleaner", ApiKey.DELETE_RECORDS, 2, 1)
    wanted = DeleteRecordsPartition(partition_index=index, offset=offset)
    topic = DeleteRecordsTopic(name="t", partitions=[wanted])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
    return bench.loop.create_task(handle(broker, context, request))


def answered(bench: Bench, task: asyncio.Task[Any]) -> tuple[int, int]:
    """The error and the low watermark of the only partition."""
    bench.until(task.done)
    result: DeleteRecordsPartitionResult = task.result().topics[0].partitions[0]
    return result.error_code, result.low_watermark


def is_waiting(bench: Bench, task: asyncio.Task[Any]) -> bool:
    bench.turn(0.05)
    return not task.done()


def test_records_are_deleted_on_every_live_replica_when_the_answer_comes(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    follow(stage)
    caplog.set_level(logging.INFO, "tidemill.admin")
    began = time.monotonic()
    assert answered(stage.bench, delete(stage.bench, 4)) == (0, 4)
    assert time.monotonic() - began < FETCH_WAIT_MS / 1000 / 4, "the fetch that waits is answered at once"
    assert stage.partitions[0].log.start_offset == 4
    assert [one.log.start_offset for one in stage.partitions[1:]] == [0, 0]
    assert answered(stage.bench, delete(stage.bench, -1)) == (0, 6)
    assert answered(stage.bench, delete(stage.bench, 2)) == (0, 6), "the least start there is"
    assert caplog.messages[0] == "records deleted: t-0 below 4 (by User:x, client 'cleaner', from 10.0.0.7)"


def test_no_start_is_told_that_retention_has_moved_meanwhile_and_that_is_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench_in(tmp_path) as bench:
        fill(bench)
        partition = bench.partition("t", 0)
        checkpoints = bench.manager.checkpoints
        write = checkpoints.log_starts_in

        async def write_while_retention_goes_on(directories: list[DataDirectory]) -> list[StorageError]:
            problems = await write(directories)
            partition.advance_start(5)
            return problems

        monkeypatch.setattr(checkpoints, "log_starts_in", write_while_retention_goes_on)
        assert answered(bench, delete(bench, 4)) == (0, 4)
        assert partition.low_watermark() == 5
        monkeypatch.undo()
        assert answered(bench, delete(bench, 4)) == (0, 5)


def test_a_follower_whose_fetch_comes_just_after_the_deletion_is_told_at_once(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        follower = Follower(bench, wait_ms=FETCH_WAIT_MS)
        fill(bench)
        follower.start()
        for _ in range(2):
            follower.round()
        bench.partition("t", 0).advance_start(4)
        follower.round()
        assert follower.partitions[0].log.start_offset == 4


def test_a_deletion_that_the_leader_cannot_write_down_is_not_acknowledged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be undone by a crash of the leader, which leads again."""

    def fail(path: str, data: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    follow(stage)
    (directory,) = stage.bench.logs.dirs.all
    monkeypatch.setattr(directory.start_offsets, "files", SimpleNamespace(replace=fail))
    error, _ = answered(stage.bench, delete(stage.bench, 4))
    assert error == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert answered(stage.bench, delete(stage.bench, 4)) == (0, 4)


def test_a_deletion_is_not_acknowledged_where_the_directory_failed_before_it_was_written_down(
    tmp_path: Path,
) -> None:
    with bench_in(tmp_path) as bench:
        fill(bench)
        partition = bench.partition("t", 0)
        writing = bench.manager.checkpoints._writing
        bench.loop.run_until_complete(writing.acquire())
        task = delete(bench, 4)
        assert is_waiting(bench, task)
        assert partition.log.start_offset == 4
        bench.manager.storage_failed(partition.log, StorageError("the disk is gone"))
        writing.release()
        error, _ = answered(bench, task)
        (directory,) = bench.logs.dirs.all
        assert directory.start_offsets.written(TopicPartition("t", 0)) == 0
        assert error == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_that_does_not_answer_in_time_is_told_of(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    task = delete(stage.bench, 4, timeout_ms=100)
    assert is_waiting(stage.bench, task)
    assert answered(stage.bench, task) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    partition.fetched_by(FOLLOWER, 6, 1, 0)
    assert answered(stage.bench, delete(stage.bench, 4, timeout_ms=0)) == (ErrorCode.REQUEST_TIMED_OUT, 1)
    assert partition.delayed.deletions == [], "nobody waits any more"


@pytest.mark.parametrize(
    ("version", "outcome"), [(4, (ErrorCode.REQUEST_TIMED_OUT, -1)), (5, (ErrorCode.NONE, 1))]
)
def test_a_follower_whose_version_of_fetch_tells_no_log_start_is_waited_for(
    stage: Stage, version: int, outcome: tuple[int, int]
) -> None:
    stage.bench.partition("t", 0).high_watermark = 6
    follower = stage.bench.client()
    part = FetchPartition(fetch_offset=6, log_start_offset=1, partition_max_bytes=1 << 20)
    follower.fetch(version, {("t", 0): part}, replica_id=FOLLOWER)
    assert parts_of(follower.fetched(version))["t", 0].error_code == 0
    assert answered(stage.bench, delete(stage.bench, 1, timeout_ms=0)) == outcome


@pytest.mark.parametrize("offset", [5, 6, 7, -2])
def test_records_that_are_not_committed_are_not_deleted(stage: Stage, offset: int) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 4
    task = delete(stage.bench, offset, timeout_ms=0)
    assert answered(stage.bench, task) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert partition.log.start_offset == 0


@pytest.mark.parametrize(("offset", "start"), [(4, 4), (-1, 4), (3, 3), (0, 0)])
def test_records_up_to_the_high_watermark_are_deleted(stage: Stage, offset: int, start: int) -> None:
    partition = stage.bench.partition("t", 0)
    partition.become(NODE, 0, (NODE,), (NODE,))
    partition.high_watermark = 4
    assert answered(stage.bench, delete(stage.bench, offset)) == (0, start)
    assert (partition.log.start_offset, partition.log.end_offset) == (start, 6)


def test_a_replica_whose_broker_is_dead_is_not_waited_for_once_it_is_not_in_sync(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    living = {NODE, FOLLOWER}
    stage.bench.manager.is_registered = living.__contains__
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    living.discard(FOLLOWER)
    partition.follower_gone(FOLLOWER, 0)
    assert is_waiting(stage.bench, task), "back before the controller has noticed, it could lead"
    partition.become(NODE, int(partition.leader_epoch), REPLICAS, (NODE,), 1, 0)
    assert answered(stage.bench, task) == (0, 4)
    assert answered(stage.bench, delete(stage.bench, 5)) == (0, 5)


@pytest.mark.parametrize("is_minimum_lowered", [False, True])
def test_a_deletion_below_min_insync_replicas_is_not_acknowledged(
    stage: Stage, *, is_minimum_lowered: bool
) -> None:
    """The replica that is away is eligible: should it lead next, the records would be there again."""
    partition = stage.bench.partition("t", 0)
    partition.set_min_insync(2, 0)
    partition.become(NODE, 1, REPLICAS, (NODE,), 1, 0)
    partition.high_watermark = 6
    living = {NODE}
    stage.bench.manager.is_registered = living.__contains__
    assert answered(stage.bench, delete(stage.bench, 3, timeout_ms=50)) == (ErrorCode.REQUEST_TIMED_OUT, 3)
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    if is_minimum_lowered:
        partition.set_min_insync(1, 0)
    else:
        living.add(FOLLOWER)
        partition.fetched_by(FOLLOWER, 6, 4, 0)
        assert is_waiting(stage.bench, task), "until the controller has written it"
        partition.become(NODE, 1, REPLICAS, REPLICAS, 2, 0)
    assert answered(stage.bench, task) == (0, 4)


def test_a_replica_that_was_moved_away_meanwhile_is_waited_for_no_longer(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    partition.become(NODE, 0, (NODE, THIRD), (NODE,), 1, 0)
    assert is_waiting(stage.bench, task), "for the new one"
    partition.fetched_by(THIRD, 6, 4, 0)
    assert answered(stage.bench, task) == (0, 4)


def test_a_leader_that_is_one_no_longer_sends_the_client_to_the_next(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    partition.become(FOLLOWER, 1, REPLICAS, REPLICAS, 1, 0)
    assert answered(stage.bench, task) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_replica_gets_in_sync_only_with_the_records_deleted(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.become(NODE, 1, REPLICAS, (NODE,), 1, 0)
    wanted: list[tuple[int, ...]] = []
    stage.bench.manager.change_isr = lambda one, isr, epoch: wanted.append(isr)
    partition.advance_start(4)
    partition.fetched_by(FOLLOWER, 6, 0, 0)
    assert wanted == []
    partition.fetched_by(FOLLOWER, 6, 4, 0)
    assert wanted == [REPLICAS]


class Managed:
    """The logs of broker 2, whose checkpoints are written when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, files: FaultyFiles, disk: Executor) -> None:
        self.logs = LogManager(files, ["/d"])
        self.logs.dirs.lock()
        self.logs.dirs.claim("c" * 22, FOLLOWER)
        self.logs.load(0, lambda topic: LogConfig())
        self.manager = ReplicaManager(FOLLOWER, self.logs, SystemClock(), loop, disk, disk)
        states = [PartitionState(index, NODE, 0, REPLICAS, REPLICAS) for index in range(3)]
        self.manager.put_topic("t", IDS["t"], False, states, LogConfig())


def test_a_follower_that_crashes_after_the_answer_starts_where_the_records_were_deleted(stage: Stage) -> None:
    files, disk = FaultyFiles(), HeldExecutor()
    managed = Managed(stage.bench.loop, files, disk)
    stage.partitions = list(managed.manager.all())
    follow(stage)
    task = delete(stage.bench, 4)
    stage.bench.until(lambda: stage.partitions[0].log.start_offset == 4)
    stage.bench.until(lambda: len(disk.jobs) == 1)
    assert is_waiting(stage.bench, task), "it would start at 0 again after a crash"
    disk.run()
    assert answered(stage.bench, task) == (0, 4)
    managed.logs.dirs.unlock()
    again = Managed(stage.bench.loop, files, disk)
    log = again.logs.get(TopicPartition("t", 0))
    assert log is not None
    assert log.start_offset == 4


def test_a_start_that_retention_moved_is_told_once_it_would_hold(stage: Stage) -> None:
    files, disk = FaultyFiles(), HeldExecutor()
    managed = Managed(stage.bench.loop, files, disk)
    stage.partitions = list(managed.manager.all())
    follow(stage)
    partition = stage.partitions[0]
    partition.log.flush(0)
    managed.manager.reconfigure("t", LogConfig(retention_ms=0))
    retention = stage.bench.loop.create_task(managed.manager.retain())
    stage.bench.until(lambda: partition.log.start_offset == 6)
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task), "it would start at 0 again after a power cut"
    while not retention.done():
        disk.run()
        stage.bench.turn(0.01)
    assert answered(stage.bench, task) == (0, 4)
    files.power_cut()
    log = Managed(stage.bench.loop, files, disk).logs.get(TopicPartition("t", 0))
    assert log is not None
    assert log.start_offset == 6


def test_a_start_that_a_killed_process_did_not_write_down_is_told_once_it_would_hold(stage: Stage) -> None:
    files, disk = FaultyFiles(), HeldExecutor()
    managed = Managed(stage.bench.loop, files, disk)
    stage.partitions = list(managed.manager.all())
    follow(stage)
    log = stage.partitions[0].log
    log.flush(0)
    log.remove_segments(1, 0)
    stage.run(stage.following.stop)
    files.kill()
    managed = Managed(stage.bench.loop, files, disk)
    limits = FetchLimits(wait_ms=FETCH_WAIT_MS, backoff_ms=20)
    stage.following = ReplicaFetcherManager(
        FOLLOWER, 2, limits, stage.connect, SystemClock(), stage.storage_failed
    )
    managed.manager.following = stage.following
    partition = next(managed.manager.all())
    assert partition.log.start_offset == 6
    stage.run(lambda: managed.manager.follow(partition))
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task), "it would start at 0 again after a power cut"
    disk.run()
    assert answered(stage.bench, task) == (0, 4)
    files.power_cut()
    log = Managed(stage.bench.loop, files, disk).logs.logs[TopicPartition("t", 0)]
    assert log.start_offset == 6


def fill_disk(files: FaultyFiles) -> None:
    """No room for any file until ``heal``."""
    for operation in ("append", "replace"):
        files.fail(operation, "/d/", errno.ENOSPC, times=1 << 30)


def test_a_follower_with_a_full_disk_does_not_bring_records_back_that_were_deleted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_start_checkpoint, "RETRY_S", 0.01)
    files, disk = FaultyFiles(), AtOnceExecutor()
    managed = Managed(stage.bench.loop, files, disk)
    stage.partitions = list(managed.manager.all())
    follow(stage)
    fill_disk(files)
    task = delete(stage.bench, 4)
    stage.bench.until(lambda: stage.partitions[0].log.start_offset == 4)
    assert is_waiting(stage.bench, task), "it would start at 0 again after a crash"
    files.heal()
    assert answered(stage.bench, task) == (0, 4)
    files.kill()
    log = Managed(stage.bench.loop, files, disk).logs.get(TopicPartition("t", 0))
    assert log is not None
    assert (log.start_offset, log.leader_epochs.starts) == (4, [3])


def test_a_deletion_that_a_full_disk_refused_is_answered_when_it_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    follow(stage)
    (directory,) = stage.bench.logs.dirs.all
    full = SimpleNamespace(replace=fail)
    monkeypatch.setattr(directory.start_offsets, "files", full)
    error, _ = answered(stage.bench, delete(stage.bench, 4))
    assert error == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert answered(stage.bench, delete(stage.bench, 4, timeout_ms=1000)) == (0, 4)
