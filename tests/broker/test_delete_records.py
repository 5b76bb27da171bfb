"""DeleteRecords of partitions with followers: waits, responses, and the log start after a failover."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
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

from broker_listeners import IgnoringReplicaManagerListener
from tidemill.broker.handlers.delete_records import handle
from tidemill.broker.replica_fetcher_manager import ReplicaFetcherManager
from tidemill.broker.request_context import RequestContext
from tidemill.log.log_config import LogConfig
from tidemill.log.log_directories import DataDirectory
from tidemill.log.log_manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition
from tidemill.net.peer import Listener, Peer
from tidemill.records.batch import parse_batch
from tidemill.records.mirrored_batch import as_mirrored
from tidemill.replication import log_start_checkpoint
from tidemill.replication.delayed_operations import OffsetCallback
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
"""The maximum wait of a follower's fetch."""
THIRD = 3


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A leader with six records in each partition, and a follower that has them."""
    with bench_in(tmp_path) as bench:
        one = Stage(bench)
        limits = FetchLimits(wait_ms=FETCH_WAIT_MS, backoff_ms=20)
        one.following = ReplicaFetcherManager(FOLLOWER, limits, one.connect, SystemClock(), node_epoch=1)
        fill(bench)
        yield one
        one.run(one.following.stop)


def fill(bench: Bench) -> None:
    data = batch(*[b"%d" % number for number in range(6)])
    for index in range(3):
        bench.partition("t", index).append(parse_batch(data, 0, len(data)), 1, 0)


def follow(stage: Stage) -> None:
    stage.run(lambda: follow_all(stage))
    stage.bench.until(lambda: all(one.high_watermark == 6 for one in stage.partitions))


def delete(
    bench: Bench, offset: int, index: int = 0, timeout_ms: int = 10_000, listener: str = "PLAINTEXT"
) -> asyncio.Task[Any]:
    """Sends the request; returns the task of its response. PLAINTEXT is the inter-broker listener."""
    broker: Any = SimpleNamespace(
        partition=bench.partition,
        replica_manager=bench.manager,
        log_manager=bench.logs,
        clock=SystemClock(),
        config=BrokerConfig.of(),
    )
    peer = Peer(Listener(listener, "localhost", 9092), "User:x", "10.0.0.7", 1)
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


def test_records_are_deleted_on_every_live_replica_before_the_response(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    follow(stage)
    caplog.set_level(logging.INFO, "tidemill.admin")
    began = time.monotonic()
    assert answered(stage.bench, delete(stage.bench, 4)) == (0, 4)
    assert time.monotonic() - began < FETCH_WAIT_MS / 1000 / 4, "the delayed fetch is answered at once"
    assert stage.partitions[0].log.start_offset == 4
    assert [one.log.start_offset for one in stage.partitions[1:]] == [0, 0]
    assert answered(stage.bench, delete(stage.bench, -1)) == (0, 6)
    assert answered(stage.bench, delete(stage.bench, 2)) == (0, 6), "the smallest log start"
    assert caplog.messages[0] == "records deleted: t-0 below 4 (by User:x, client 'cleaner', from 10.0.0.7)"


def test_a_log_start_advanced_by_retention_is_not_returned_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench_in(tmp_path) as bench:
        fill(bench)
        partition = bench.partition("t", 0)
        checkpoints = bench.manager.checkpoints
        write = checkpoints.write_log_starts_in

        async def write_during_retention(directories: list[DataDirectory]) -> list[StorageError]:
            problems = await write(directories)
            partition.advance_start(5)
            return problems

        monkeypatch.setattr(checkpoints, "write_log_starts_in", write_during_retention)
        assert answered(bench, delete(bench, 4)) == (0, 4)
        assert partition.low_watermark() == 5
        monkeypatch.undo()
        assert answered(bench, delete(bench, 4)) == (0, 5)


def test_a_fetch_just_after_a_deletion_has_the_new_log_start_at_once(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        follower = Follower(bench, wait_ms=FETCH_WAIT_MS)
        fill(bench)
        follower.start()
        for _ in range(2):
            follower.round()
        bench.partition("t", 0).advance_start(4)
        follower.round()
        assert follower.partitions[0].log.start_offset == 4


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["failed disk", "full disk"])
def test_a_deletion_that_the_leader_cannot_store_is_not_acknowledged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A crash of the leader, which is elected again, would undo it."""

    def fail(path: str, data: bytes) -> None:
        raise OSError(number, os.strerror(number), path)

    follow(stage)
    (directory,) = stage.bench.logs.dirs.all
    monkeypatch.setattr(directory.start_offsets, "files", SimpleNamespace(replace=fail))
    error, _ = answered(stage.bench, delete(stage.bench, 4))
    assert error == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert answered(stage.bench, delete(stage.bench, 4, timeout_ms=1000)) == (0, 4)


def test_a_deletion_is_not_acknowledged_if_the_directory_fails_before_it_is_stored(
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


def test_a_replica_that_does_not_respond_in_time_is_a_timeout(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    task = delete(stage.bench, 4, timeout_ms=100)
    assert is_waiting(stage.bench, task)
    assert answered(stage.bench, task) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    partition.fetched_by(FOLLOWER, 6, 1, 0)
    assert answered(stage.bench, delete(stage.bench, 4, timeout_ms=0)) == (ErrorCode.REQUEST_TIMED_OUT, 1)
    assert partition.delayed.delete_records == [], "no request waits"


@pytest.mark.parametrize(
    ("version", "outcome"), [(4, (ErrorCode.REQUEST_TIMED_OUT, -1)), (5, (ErrorCode.NONE, 1))]
)
def test_a_deletion_waits_for_followers_whose_fetch_version_has_no_log_start(
    stage: Stage, version: int, outcome: tuple[int, int]
) -> None:
    stage.bench.partition("t", 0).high_watermark = 6
    follower = stage.bench.client()
    part = FetchPartition(fetch_offset=6, log_start_offset=1, partition_max_bytes=1 << 20)
    follower.fetch(version, {("t", 0): part}, replica_id=FOLLOWER)
    assert parts_of(follower.fetched(version))["t", 0].error_code == 0
    assert answered(stage.bench, delete(stage.bench, 1, timeout_ms=0)) == outcome


@pytest.mark.parametrize("offset", [5, 6, 7, -2])
def test_uncommitted_records_are_not_deleted(stage: Stage, offset: int) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 4
    task = delete(stage.bench, offset, timeout_ms=0)
    assert answered(stage.bench, task) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert partition.log.start_offset == 0


@pytest.mark.parametrize(("offset", "start"), [(4, 4), (-1, 4), (3, 3), (0, 0)])
def test_records_up_to_the_high_watermark_are_deleted(stage: Stage, offset: int, start: int) -> None:
    partition = stage.bench.partition("t", 0)
    partition.apply_state(NODE, 0, (NODE,), (NODE,), partition_epoch=-1, now_ms=0)
    partition.high_watermark = 4
    assert answered(stage.bench, delete(stage.bench, offset)) == (0, start)
    assert (partition.log.start_offset, partition.log.end_offset) == (start, 6)


SOURCE_START = 5_000_000_000


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_mirror_continues_at_the_log_start_of_its_source(stage: Stage, policy: str) -> None:
    mirror = stage.bench.partition("t", 0)
    mirror.set_mirror_state("active")
    mirror.log.set_config(LogConfig(cleanup_policy=(policy,)))
    task = delete(stage.bench, SOURCE_START)
    assert is_waiting(stage.bench, task), "for the follower"
    mirror.fetched_by(FOLLOWER, SOURCE_START, SOURCE_START, 0)
    assert answered(stage.bench, task) == (0, SOURCE_START)
    assert (mirror.log.start_offset, mirror.log.end_offset) == (SOURCE_START, SOURCE_START)
    assert mirror.high_watermark == SOURCE_START
    assert mirror.log.leader_epochs.latest == mirror.leader_epoch, "a follower asks for it"
    data = as_mirrored(batch(b"a", b"b", base_offset=SOURCE_START - 1), 0)
    data += as_mirrored(batch(b"c", base_offset=SOURCE_START + 4), 3)
    mirror.append_mirrored(data, 0, len(data), -1, 0)
    mirror.fetched_by(FOLLOWER, SOURCE_START + 5, SOURCE_START, 0)
    assert mirror.high_watermark == SOURCE_START + 5
    task = delete(stage.bench, SOURCE_START + 1)
    mirror.fetched_by(FOLLOWER, SOURCE_START + 5, SOURCE_START + 1, 0)
    assert answered(stage.bench, task) == (0, SOURCE_START + 1)


def test_a_produce_that_waits_for_its_commit_succeeds_if_the_source_has_deleted_the_records(
    stage: Stage,
) -> None:
    mirror = stage.bench.partition("t", 0)
    mirror.set_mirror_state("active")
    done: list[KafkaError | None] = []
    mirror.delayed.wait_committed(6, OffsetCallback(done.append))
    delete(stage.bench, SOURCE_START)
    stage.bench.turn(0.05)
    assert done == [None]


@pytest.mark.parametrize(
    ("state", "listener", "offset"),
    [
        ("none", "PLAINTEXT", SOURCE_START),
        ("active", "CLIENTS", SOURCE_START),
        ("active", "PLAINTEXT", 6),
        ("active", "PLAINTEXT", (1 << 63) - 1),
    ],
)
def test_no_other_log_ends_above_its_records(stage: Stage, state: str, listener: str, offset: int) -> None:
    partition = stage.bench.partition("t", 0)
    partition.set_mirror_state(state)
    partition.high_watermark = 4
    task = delete(stage.bench, offset, timeout_ms=0, listener=listener)
    assert answered(stage.bench, task) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert (partition.log.start_offset, partition.log.end_offset) == (0, 6)


@pytest.mark.parametrize("offset", [SOURCE_START, 2, -1])
def test_the_end_of_a_mirror_is_not_deleted_before_its_promotion_has_ended(stage: Stage, offset: int) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    partition.set_mirror_state("promoting")
    task = delete(stage.bench, offset, timeout_ms=0)
    assert answered(stage.bench, task) == (ErrorCode.POLICY_VIOLATION, -1)
    assert (partition.log.start_offset, partition.log.end_offset) == (0, 6)


def test_a_mirror_that_cannot_be_restarted_reports_its_disk(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = stage.bench.partition("t", 0)
    partition.set_mirror_state("active")
    reported: list[StorageError] = []
    monkeypatch.setattr(partition.events, "on_storage_error", lambda one, problem: reported.append(problem))

    directory = Path(partition.log.directory)
    gone = directory.rename(directory.with_name("gone"))
    task = delete(stage.bench, SOURCE_START)
    assert answered(stage.bench, task) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    gone.rename(directory)
    assert len(reported) == 1


def test_a_deletion_does_not_wait_for_a_failed_replica_outside_the_isr(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    living = {NODE, FOLLOWER}
    stage.bench.manager.listener.is_registered = living.__contains__
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    living.discard(FOLLOWER)
    partition.follower_gone(FOLLOWER, 0)
    assert is_waiting(stage.bench, task), "it is eligible until the controller removes it from the ISR"
    partition.apply_state(NODE, int(partition.leader_epoch), REPLICAS, (NODE,), partition_epoch=1, now_ms=0)
    assert answered(stage.bench, task) == (0, 4)
    assert answered(stage.bench, delete(stage.bench, 5)) == (0, 5)


@pytest.mark.parametrize("is_minimum_lowered", [False, True])
def test_a_deletion_below_min_insync_replicas_is_not_acknowledged(
    stage: Stage, *, is_minimum_lowered: bool
) -> None:
    """The missing replica is eligible: if it became the leader, the records would exist again."""
    partition = stage.bench.partition("t", 0)
    partition.set_min_insync_replicas(2, 0)
    partition.apply_state(NODE, 1, REPLICAS, (NODE,), partition_epoch=1, now_ms=0)
    partition.high_watermark = 6
    living = {NODE}
    stage.bench.manager.listener.is_registered = living.__contains__
    assert answered(stage.bench, delete(stage.bench, 3, timeout_ms=50)) == (ErrorCode.REQUEST_TIMED_OUT, 3)
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    if is_minimum_lowered:
        partition.set_min_insync_replicas(1, 0)
    else:
        living.add(FOLLOWER)
        partition.fetched_by(FOLLOWER, 6, 4, 0)
        assert is_waiting(stage.bench, task), "until the controller has stored the ISR"
        partition.apply_state(NODE, 1, REPLICAS, REPLICAS, partition_epoch=2, now_ms=0)
    assert answered(stage.bench, task) == (0, 4)


def test_a_deletion_does_not_wait_for_a_replica_that_was_reassigned(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    partition.apply_state(NODE, 0, (NODE, THIRD), (NODE,), partition_epoch=1, now_ms=0)
    assert is_waiting(stage.bench, task), "for the new one"
    partition.fetched_by(THIRD, 6, 4, 0)
    assert answered(stage.bench, task) == (0, 4)


def test_a_former_leader_returns_not_leader_or_follower(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.high_watermark = 6
    task = delete(stage.bench, 4)
    assert is_waiting(stage.bench, task)
    partition.apply_state(FOLLOWER, 1, REPLICAS, REPLICAS, partition_epoch=1, now_ms=0)
    assert answered(stage.bench, task) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_replica_joins_the_isr_only_after_it_deleted_the_records(stage: Stage) -> None:
    partition = stage.bench.partition("t", 0)
    partition.apply_state(NODE, 1, REPLICAS, (NODE,), partition_epoch=1, now_ms=0)
    wanted: list[tuple[int, ...]] = []
    stage.bench.manager.listener.alter_isr = lambda one, isr, epoch: wanted.append(isr)
    partition.advance_start(4)
    partition.fetched_by(FOLLOWER, 6, 0, 0)
    assert wanted == []
    partition.fetched_by(FOLLOWER, 6, 4, 0)
    assert wanted == [REPLICAS]


class Managed:
    """The logs of broker 2; the test decides when their checkpoints are written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, files: FaultyFiles, disk: Executor) -> None:
        self.logs = LogManager(files, ["/d"])
        self.logs.dirs.lock()
        self.logs.dirs.claim("c" * 22, FOLLOWER)
        self.logs.load(0, lambda topic: LogConfig())
        self.manager = ReplicaManager(
            FOLLOWER, self.logs, SystemClock(), loop, disk, disk, IgnoringReplicaManagerListener()
        )
        states = [PartitionState(index, NODE, 0, REPLICAS, REPLICAS) for index in range(3)]
        run_at_once(self.manager.put_topic_in_slices("t", IDS["t"], False, states, LogConfig()))


def test_a_follower_that_crashes_after_the_response_keeps_the_log_start(stage: Stage) -> None:
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


def test_a_log_start_advanced_by_retention_is_reported_once_it_is_stored(stage: Stage) -> None:
    files, disk = FaultyFiles(), HeldExecutor()
    managed = Managed(stage.bench.loop, files, disk)
    stage.partitions = list(managed.manager.all())
    follow(stage)
    partition = stage.partitions[0]
    partition.log.flush(0)
    managed.manager.reconfigure("t", LogConfig(retention_ms=0))
    retention = stage.bench.loop.create_task(managed.manager.cleanup_logs())
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


def test_a_log_start_that_a_killed_process_did_not_store_is_reported_once_it_is_stored(stage: Stage) -> None:
    files, disk = FaultyFiles(), HeldExecutor()
    managed = Managed(stage.bench.loop, files, disk)
    stage.partitions = list(managed.manager.all())
    follow(stage)
    log = stage.partitions[0].log
    log.flush(0)
    log.delete_old_segments(1, 0)
    stage.run(stage.following.stop)
    files.kill()
    managed = Managed(stage.bench.loop, files, disk)
    limits = FetchLimits(wait_ms=FETCH_WAIT_MS, backoff_ms=20)
    stage.following = ReplicaFetcherManager(FOLLOWER, limits, stage.connect, SystemClock(), node_epoch=2)
    managed.manager.replica_fetcher_manager = stage.following
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
    """Makes every write fail for lack of space until ``heal``."""
    for operation in ("append", "replace"):
        files.fail(operation, "/d/", errno.ENOSPC, times=1 << 30)


def test_a_follower_with_a_full_disk_does_not_restore_deleted_records(
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
