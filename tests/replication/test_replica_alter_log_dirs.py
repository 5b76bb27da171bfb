"""Moves of partitions between data directories, during writes and through a stop at any operation."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from faulty_files import FaultyFiles, Killed
from replica_stage import batch_of, content

from broker_listeners import IgnoringReplicaManagerListener
from default_limits import iter_records
from log_start import start_logs
from record_builders import build_batch
from tidemill.broker.fetch_reader import find_diverging_epoch
from tidemill.log.aborted_transactions import AbortedTransactions
from tidemill.log.file_names import LEADER_EPOCHS, MOVED_TO, TRANSACTION_INDEX
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import LogDirMove, begin_move
from tidemill.log.log_manager import LogManager
from tidemill.log.log_segment import LogRange
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition
from tidemill.records.builder import build_end_marker
from tidemill.replication.abstract_fetcher_manager import AbstractFetcherManager
from tidemill.replication.delayed_operations import CONSUMER
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.read_limits import READ_COMMITTED
from tidemill.replication.replica_alter_log_dirs import ReplicaAlterLogDirs
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.fetch_layout import RequestedPartition

NODE = 1
A, B, C = "/disk/a", "/disk/b", "/disk/c"
KEY = TopicPartition("t", 0)
ID = b"t" * 16
CONFIG = LogConfig(
    segment_bytes=2000, index_interval_bytes=200, segment_index_bytes=4000, file_delete_delay_ms=0
)
PATIENCE_S = 20.0


class Mortal(FaultyFiles):
    """The process ends at the ``last``-th file operation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.last = 1 << 60

    def check(self, operation: str, path: str) -> None:
        self.count += 1
        if self.count >= self.last:
            raise Killed
        super().check(operation, path)


class Stage:
    """A broker's partitions over files in memory; ``t-0`` is in ``/disk/a``."""

    def __init__(self, files: FaultyFiles, directories: tuple[str, ...] = (A, B, C)) -> None:
        self.files = files
        self.logs = start_logs(files, directories, CONFIG, now_ms=0, node=NODE, recovery_threads=2)
        self.pool = ThreadPoolExecutor(2)
        loop = asyncio.get_running_loop()
        self.replicas = ReplicaManager(
            NODE, self.logs, SystemClock(), loop, self.pool, self.pool, IgnoringReplicaManagerListener()
        )
        states = [PartitionState(0, NODE, 0, (NODE,), (NODE,))]
        run_at_once(self.replicas.put_topic_in_slices("t", ID, False, states, CONFIG))
        self.replicas.replica_alter_log_dirs.resume()
        self.mover = self.replicas.replica_alter_log_dirs

    @property
    def partition(self) -> Partition:
        found = self.replicas.find("t", 0)
        assert found is not None
        return found

    @property
    def log(self) -> Log:
        return self.partition.log

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.partition.append(batch_of(b"%d" % self.log.end_offset), 1, 0)

    async def moved(self) -> None:
        """Waits until no move is in progress."""
        async with asyncio.timeout(PATIENCE_S):
            while tasks := list(self.mover._tasks):
                await asyncio.wait(tasks)

    async def lies_in(self, path: str) -> None:
        """Waits until the partition is in a data directory."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.log.directory == f"{path}/t-0":
                    return
                await asyncio.sleep(0.001)

    async def full(self) -> None:
        """Waits until a directory is full."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.replicas.full_disks.since:
                    return
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        await self.replicas.stop()
        self.pool.shutdown()
        assert self.logs.close(0, {}) == []


@asynccontextmanager
async def staged(count: int = 0, files: FaultyFiles | None = None) -> AsyncIterator[Stage]:
    """A partition with ``count`` records."""
    stage = Stage(files or FaultyFiles())
    stage.append(count)
    yield stage


def values(log: Log) -> list[int]:
    """Returns the value of every record. It is its offset unless records were lost or reordered."""
    return [int(record.value or b"") for record in iter_records(content(log))]


def check_whole(stage: Stage, where: str, count: int) -> None:
    assert stage.log.directory == f"{where}/t-0"
    assert values(stage.log) == list(range(int(stage.log.start_offset), count))
    names = {path: stage.files.list(path) for path in (A, B, C)}
    assert [path for path in (A, B, C) if "t-0" in names[path]] == [where]
    assert not any(name.endswith("-future") for path in names for name in names[path])
    assert MOVED_TO not in stage.files.list(f"{where}/t-0")


async def test_a_partition_moves_during_writes_and_reads() -> None:
    async with staged(100) as stage:
        assert stage.log.directory == f"{A}/t-0"
        piece = stage.log.read(7, 1, 100, True)
        stage.mover.begin(KEY, B)
        async with asyncio.timeout(PATIENCE_S):
            while stage.log.directory != f"{B}/t-0":
                stage.append()
                await asyncio.sleep(0.001)
        stage.append(5)
        await stage.moved()
        assert piece is not None
        assert piece.read()[:8] == (7).to_bytes(8, "big")
        count = int(stage.log.end_offset)
        assert count > 105
        check_whole(stage, B, count)
        assert [path for path in stage.logs.removals.pop_due(1 << 62) if path.startswith(f"{A}/t-0.")]
        await stage.stop()
        again = Stage(stage.files)
        assert again.logs.recovered_bytes == 0
        check_whole(again, B, count)
        again.append()
        await again.stop()


@pytest.mark.parametrize("has_transaction", [False, True])
async def test_followers_and_consumers_read_to_the_ends_of_the_moved_log(has_transaction: bool) -> None:
    async with staged(10) as stage:
        stage.mover.begin(KEY, B)
        await stage.lies_in(B)
        await stage.moved()
        if has_transaction:
            data = build_batch(
                [(0, b"k", b"10", None)],
                producer_id=1,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
                base_offset=10,
            )
            stage.log.append_copied(data, 0)
        stage.append(5)
        limits, end = stage.partition.read_limits, 15 + has_transaction
        assert stage.partition.has_transactions() is has_transaction
        assert limits.limit_offset(NODE + 1, 0) == end
        assert limits.limit_offset(CONSUMER, 0) == end
        assert limits.limit_offset(CONSUMER, READ_COMMITTED) == (10 if has_transaction else end)
        await stage.stop()


async def test_deleted_records_stay_deleted_and_the_topic_may_be_deleted_during_a_move() -> None:
    async with staged(60) as stage:
        stage.log.advance_start(33)
        stage.mover.begin(KEY, C)
        await stage.moved()
        assert stage.log.start_offset == 33
        check_whole(stage, C, 60)
        stage.files.kill()
        again = Stage(stage.files)
        assert again.log.start_offset == 33
        check_whole(again, C, 60)
        again.mover.begin(KEY, A)
        list(again.replicas.deleting("t", again.log.topic_id))
        await again.moved()
        for path in (A, B, C):
            assert not [name for name in again.files.list(path) if name in ("t-0", "-future")]
        await again.stop()


@pytest.mark.parametrize("step", ["sync_target", "delete_replaced"])
async def test_records_deleted_before_the_replacement_stay_deleted_after_a_kill(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = ReplicaAlterLogDirs._prepare

    async with staged() as stage:
        replicas = stage.replicas

        async def prepare_and_delete(mover: ReplicaAlterLogDirs, move: LogDirMove) -> None:
            await prepare(mover, move)
            partition = replicas.find("t", 0)
            assert partition is not None
            if partition.log.start_offset == 0:
                partition.advance_start(33)
                directory = replicas.logs.dirs.directory_of(move.current_log)
                assert await replicas.checkpoints.write_log_starts_in([directory]) == []

        stage.append(60)
        with monkeypatch.context() as patched:
            patched.setattr(ReplicaAlterLogDirs, "_prepare", prepare_and_delete)
            await move_with_failing_step(stage, monkeypatch, step)
        assert stage.log.directory == f"{B}/t-0"
        assert stage.log.start_offset == 33
        stage.files.kill()
        again = Stage(stage.files)
        assert again.log.start_offset == 33
        check_whole(again, B, 60)
        await again.stop()


async def test_deleted_records_stay_deleted_when_a_power_cut_reverts_the_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged(60) as stage:
        stage.log.flush(0)
        stage.partition.advance_start(33)
        await stage.replicas.checkpoints.write_log_starts()
        sync_target = LogDirMove.sync_target

        def fail(move: LogDirMove) -> None:
            stage.files.fail("sync_directory", B, errno.EIO, times=1000)
            sync_target(move)

        monkeypatch.setattr(LogDirMove, "sync_target", fail)
        stage.mover.begin(KEY, B)
        await stage.moved()
        target = stage.logs.dirs.at_path(B)
        assert target is not None
        assert target.offline_reason
        await stage.replicas.checkpoints.write_removals()
        stage.files.power_cut()
        stage.files.heal()
        again = Stage(stage.files)
        assert again.log.directory == f"{A}/t-0"
        assert again.log.start_offset == 33
        assert again.log.end_offset == 60
        await again.stop()


@pytest.mark.parametrize("new_id", [ID, b"n" * 16])
async def test_a_partition_recreated_in_the_source_directory_is_not_removed_by_a_completing_move(
    new_id: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(FaultyFiles(), (A, B))
    stage.append(60)
    sync_target = ReplicaAlterLogDirs._sync_target

    async def recreate(mover: ReplicaAlterLogDirs, move: LogDirMove) -> None:
        await sync_target(mover, move)
        list(stage.replicas.deleting("t", ID))
        await stage.replicas.checkpoints.write_removals()
        stage.logs.set_preferred_directory(KEY, A)
        stage.logs.create(KEY, new_id, CONFIG, 0)
        states = [PartitionState(0, NODE, 0, (NODE,), (NODE,))]
        run_at_once(stage.replicas.put_topic_in_slices("t", new_id, False, states, CONFIG))
        stage.append(5)

    monkeypatch.setattr(ReplicaAlterLogDirs, "_sync_target", recreate)
    stage.mover.begin(KEY, B)
    await stage.moved()
    assert stage.log.directory == f"{A}/t-0"
    assert values(stage.log) == list(range(5))
    stage.append(5)
    await stage.replicas.remove_due()
    stage.files.kill()
    again = LogManager(stage.files, (A, B))
    again.load(0, lambda topic: CONFIG)
    assert (again.logs[KEY].topic_id, again.logs[KEY].end_offset) == (new_id, 10)


@pytest.mark.parametrize("loss", ["log", "directory"])
async def test_an_unhandled_loss_before_a_move_is_reported_by_the_next_start(loss: str) -> None:
    async with staged(60) as stage:
        if loss == "log":
            stage.logs.dirs.damaged.add(KEY)
        else:
            stage.logs.dirs.directory_of(stage.log).may_have_lost = True
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{B}/t-0"
        stage.files.kill()
        again = Stage(stage.files)
        assert again.logs.dirs.damaged == {KEY}
        again.logs.dirs.mark_losses_handled()
        again.files.kill()
        assert Stage(stage.files).logs.dirs.damaged == set()


async def test_a_log_truncated_during_its_move_is_copied_again() -> None:
    async with staged(80) as stage:
        stage.mover.begin(KEY, B)
        while stage.mover.moves[KEY].future_log.end_offset == 0:
            stage.append()
            await asyncio.sleep(0)
        stage.log.truncate_to(10, 0)
        stage.append(3)
        await stage.moved()
        check_whole(stage, B, 13)
        await stage.stop()


async def test_a_move_to_another_directory_cancels_the_first() -> None:
    async with staged(80) as stage:
        stage.mover.begin(KEY, B)
        stage.mover.begin(KEY, B)
        await asyncio.sleep(0)
        stage.mover.begin(KEY, C)
        await stage.moved()
        check_whole(stage, C, 80)
        stage.mover.begin(KEY, B)
        await asyncio.sleep(0)
        stage.mover.begin(KEY, C)
        await stage.moved()
        check_whole(stage, C, 80)
        await stage.stop()


async def test_a_cancelled_move_keeps_the_move_marker_of_the_next_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks, goes_on, ends = threading.Event(), threading.Event(), threading.Event()
    mark = LogDirMove.mark_moved

    def mark_late(move: LogDirMove) -> None:
        if move.target.path == B:
            marks.set()
            assert goes_on.wait(PATIENCE_S)
        mark(move)

    def sync_late(move: LogDirMove) -> None:
        assert ends.wait(PATIENCE_S)

    monkeypatch.setattr(LogDirMove, "mark_moved", mark_late)
    monkeypatch.setattr(LogDirMove, "sync_target", sync_late)

    async with staged(80) as stage:
        stage.mover.begin(KEY, B)
        await asyncio.get_running_loop().run_in_executor(None, marks.wait, PATIENCE_S)
        stage.mover.begin(KEY, C)
        await asyncio.sleep(0.2)
        goes_on.set()
        await asyncio.sleep(0.1)
        await stage.lies_in(C)
        stage.append(5)
        stage.files.kill()
        again = Stage(stage.files)
        assert values(again.log) == list(range(85))
        await again.stop()
        ends.set()


async def test_impossible_moves_are_rejected_with_kafkas_error_codes() -> None:
    async with staged() as stage:
        for key, path, code in (
            (KEY, "/disk/unknown", ErrorCode.LOG_DIR_NOT_FOUND),
            (TopicPartition("t", 7), B, ErrorCode.REPLICA_NOT_AVAILABLE),
            (TopicPartition("x" * 220, 0), B, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ):
            with pytest.raises(KafkaError) as caught:
                stage.mover.begin(key, path)
            assert caught.value.code == code
        # A new partition is created in the requested directory.
        assert stage.logs.create(TopicPartition("t", 7), ID, CONFIG, 0).directory == f"{B}/t-7"
        stage.logs.dirs.fail_directory(B, "Input/output error")
        with pytest.raises(KafkaError) as caught:
            stage.mover.begin(KEY, B)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        await stage.stop()


async def test_a_throttled_move_continues_when_the_rate_changes() -> None:
    async with staged(80) as stage:
        stage.mover.set_bytes_per_second(1)
        stage.mover.begin(KEY, B)
        await asyncio.sleep(0.05)
        assert stage.mover.moves[KEY].future_log.end_offset == 0
        stage.mover.set_bytes_per_second(1_000_000)
        await stage.moved()
        check_whole(stage, B, 80)
        await stage.stop()


async def test_a_failed_destination_leaves_the_partition_in_its_directory() -> None:
    async with staged(80) as stage:
        stage.files.fail("append", f"{B}/t-0", errno.EIO, after=3)
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{A}/t-0"
        stage.append()
        stage.files.heal()
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 81)
        await stage.stop()


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("append", f"{B}/t-0"),
        ("sync", f"{B}/t-0"),
        ("replace", f"{B}/recovery-point"),
        ("replace", f"{A}/t-0/moved-to"),
        ("rename", f"{B}/t-0"),
    ],
)
async def test_a_move_continues_when_space_is_available_again(operation: str, path: str) -> None:
    async with staged() as stage:
        stage.mover.full_retry_s = 0.01
        stage.append(80)
        stage.mover.begin(KEY, B)
        stage.files.fail(operation, path, errno.ENOSPC, times=1 << 30)
        await stage.full()
        assert list(stage.replicas.full_disks.since) == [path[: len(B)]]
        stage.append()
        assert stage.log.directory == f"{A}/t-0"
        assert MOVED_TO not in stage.files.list(f"{A}/t-0")
        # Another move runs meanwhile.
        assert not stage.mover._places.locked()
        stage.files.heal()
        await stage.moved()
        check_whole(stage, B, 81)
        await stage.stop()
        assert start_warnings(stage.files) == []


async def test_a_move_without_disk_space_can_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async with staged() as stage:
        stage.mover.full_retry_s = 0.01
        stage.append(80)
        stage.mover.begin(KEY, B)
        stage.files.fail("append", f"{B}/t-0", errno.ENOSPC, times=1 << 30)
        await stage.full()
        stage.mover.begin(KEY, C)
        await stage.moved()
        check_whole(stage, C, 80)
        await stage.stop()
    assert f"the move of {KEY} waits for disk space: cannot write {B}/t-0." in caplog.text


async def test_aborted_and_open_transactions_are_moved() -> None:
    async with staged() as stage:

        def put(producer: int, *, committed: bool | None = None) -> None:
            end = int(stage.log.end_offset)
            if committed is None:
                options: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
                data = build_batch(
                    [(0, b"k", bytes(100), None)], base_offset=end, transactional=True, **options
                )
            else:
                data = build_end_marker(committed, 0, producer, 0, 3, base_offset=end)
            stage.log.append_copied(data, 0)

        for number in range(40):
            put(number)
            put(100 + number)
            put(number, committed=bool(number % 2))
            stage.log.producer_state.entries.pop(number)
        stage.append(20)
        assert len(stage.log.segments) > 2

        def state() -> tuple[list[tuple[int, int]], dict[str, bytes], int]:
            piece = stage.log.read(0, 100, stage.log.end_offset, True)
            assert piece is not None
            found = AbortedTransactions(stage.files)(stage.log, 0, piece)
            names = [
                name for name in stage.files.list(stage.log.directory) if name.endswith(TRANSACTION_INDEX)
            ]
            data = {name: stage.files.read(f"{stage.log.directory}/{name}") for name in names}
            return found, data, int(stage.log.last_stable_offset(stage.log.end_offset))

        before = state()
        assert len(before[0]) == 20
        assert before[2] == 1
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{B}/t-0"
        assert state()[::2] == before[::2]
        assert b"".join(state()[1].values()) == b"".join(before[1].values())
        await stage.stop()
        assert start_warnings(stage.files) == []


def start_warnings(files: FaultyFiles) -> list[str]:
    """Returns the log lines of a start."""
    logs = LogManager(files, (A, B, C))
    logs.load(0, lambda topic: CONFIG)
    return logs.dirs.warnings


def refuse(*arguments: object) -> None:
    raise StorageError("Input/output error")


async def move_with_failing_step(stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Moves the partition to ``/disk/b``; the method ``step`` of the move raises an error."""
    with monkeypatch.context() as patched:
        patched.setattr(LogDirMove, step, refuse)
        stage.mover.begin(KEY, B)
        await stage.moved()


async def check_start_without_destination(stage: Stage, count: int) -> None:
    """After a stop and without the destination, the partition is in its directory with all its records."""
    await stage.stop()
    stage.files.fail("list", B, errno.EIO)
    again = Stage(stage.files)
    assert again.logs.dirs.at_path(B).offline_reason
    assert values(again.log) == list(range(count))
    again.files.heal()
    await again.stop()


async def test_a_destination_that_fails_at_the_end_leaves_no_move_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged(80) as stage:
        await move_with_failing_step(stage, monkeypatch, "replace_current")
        assert stage.log.directory == f"{A}/t-0"
        assert MOVED_TO not in stage.files.list(f"{A}/t-0")
        stage.append()
        await check_start_without_destination(stage, 81)


async def test_a_move_cancelled_at_its_decision_leaves_no_move_marker() -> None:
    async with staged(80) as stage:
        move = begin_move(stage.logs, KEY, B, 0)
        assert move is not None
        move.mark_moved()
        assert begin_move(stage.logs, KEY, C, 0) is not None
        assert move.is_cancelled()
        assert MOVED_TO not in stage.files.list(f"{A}/t-0")
        await check_start_without_destination(stage, 80)


async def test_a_source_directory_that_cannot_be_deleted_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(80) as stage:
        await move_with_failing_step(stage, monkeypatch, "delete_replaced")
        assert stage.log.directory == f"{B}/t-0"
        assert MOVED_TO in stage.files.list(f"{A}/t-0")
        assert f"{KEY} was moved, but {A}/t-0 stays until the next start" in caplog.text
        await stage.stop()
        again = Stage(stage.files)
        check_whole(again, B, 80)
        await again.stop()


async def test_the_source_of_a_first_move_does_not_reappear_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged(80) as stage:
        await move_with_failing_step(stage, monkeypatch, "delete_replaced")
        stage.append(5)
        stage.mover.begin(KEY, C)
        await stage.moved()
        stage.append(5)
        await stage.stop()
        again = Stage(stage.files)
        check_whole(again, C, 90)
        await again.stop()


class Nobody(AbstractFetcherManager):
    """Starts no fetches."""

    def add_partition(self, partition: Partition) -> None:
        pass

    def remove_partition(self, partition: Partition) -> None:
        pass


@pytest.mark.parametrize("in_cluster", [False, True])
async def test_a_topic_recreated_while_a_former_move_completes_keeps_its_records(
    monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    goes_on = threading.Event()

    def sync_late(move: LogDirMove) -> None:
        assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(LogDirMove, "sync_target", sync_late)

    async with staged() as stage:
        if in_cluster:
            stage.replicas.replica_fetcher_manager = Nobody()
        stage.append(80)
        stage.mover.begin(KEY, B)
        await stage.lies_in(B)
        list(stage.replicas.deleting("t", ID))
        states = [PartitionState(0, NODE, 0, (NODE,), (NODE,), 0)]
        run_at_once(stage.replicas.put_topic_in_slices("t", b"u" * 16, False, states, CONFIG))
        stage.append(5)
        goes_on.set()
        await stage.moved()
        await stage.replicas.remove_due()
        await stage.stop()
        again = start_logs(stage.files, (A, B, C), CONFIG, now_ms=0)
        assert list(again.logs) == [KEY]
        assert values(again.logs[KEY]) == [0, 1, 2, 3, 4]


async def test_a_log_truncated_before_the_last_slice_is_not_copied_in_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, store = ReplicaAlterLogDirs._prepare, LogDirMove.copy_range
    threads: list[int] = []

    async with staged(200) as stage:

        async def cut_after(mover: ReplicaAlterLogDirs, move: LogDirMove) -> None:
            await prepare(mover, move)
            stage.log.truncate_to(150, 0)

        def noted(move: LogDirMove, piece: LogRange, now_ms: int) -> int:
            threads.append(threading.get_ident())
            return store(move, piece, now_ms)

        monkeypatch.setattr(ReplicaAlterLogDirs, "_prepare", cut_after)
        monkeypatch.setattr(LogDirMove, "copy_range", noted)
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 150)
        await stage.stop()
    assert threads
    assert threading.get_ident() not in threads


async def test_no_record_is_copied_over_truncated_ones_before_the_truncation_is_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = LogDirMove.copy_range
    stored_from: list[int] = []

    async with staged(60) as stage:

        def cut_after(move: LogDirMove, piece: LogRange, now_ms: int) -> int:
            assert not move.needs_sync
            stored_from.append(int(move.future_log.end_offset))
            size = store(move, piece, now_ms)
            if len(stored_from) == 1:
                move.current_log.truncate_to(20, now_ms)
                for at in range(20, 200):
                    move.current_log.append(batch_of(b"%d" % at), 2, now_ms)
            return size

        monkeypatch.setattr(LogDirMove, "copy_range", cut_after)
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 200)
        await stage.stop()
    assert stored_from[:2] == [0, 20]


async def test_records_truncated_during_the_last_copy_do_not_reappear_after_a_power_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, store, sync_target = (
        ReplicaAlterLogDirs._prepare,
        LogDirMove.copy_range,
        ReplicaAlterLogDirs._sync_target,
    )

    async with staged(60) as stage:
        prepared = False

        async def fall_behind_after(mover: ReplicaAlterLogDirs, move: LogDirMove) -> None:
            nonlocal prepared
            await prepare(mover, move)
            if not prepared:
                prepared = True
                stage.append(200)

        def cut_after(move: LogDirMove, piece: LogRange, now_ms: int) -> int:
            size = store(move, piece, now_ms)
            if prepared and move.current_log.end_offset > 60:
                move.current_log.truncate_to(30, now_ms)
                move.current_log.flush(now_ms)
            return size

        async def fail_after(mover: ReplicaAlterLogDirs, move: LogDirMove) -> None:
            await sync_target(mover, move)
            stage.files.power_cut()
            raise Killed

        monkeypatch.setattr(ReplicaAlterLogDirs, "_prepare", fall_behind_after)
        monkeypatch.setattr(LogDirMove, "copy_range", cut_after)
        monkeypatch.setattr(ReplicaAlterLogDirs, "_sync_target", fail_after)
        stage.mover.begin(KEY, B)
        with contextlib.suppress(Killed):
            await asyncio.gather(*stage.mover._tasks)
        again = Stage(stage.files)
        assert again.log.directory == f"{B}/t-0"
        assert values(again.log) == list(range(30))
        await again.stop()


async def test_a_moved_leader_reports_the_start_of_its_epoch_to_followers() -> None:
    async with staged() as stage:
        stage.partition.apply_state(NODE, 5, (NODE,), (NODE,), partition_epoch=-1, now_ms=0)
        stage.append(3)
        stage.partition.apply_state(NODE, 7, (NODE,), (NODE,), partition_epoch=-1, now_ms=0)
        requested = RequestedPartition(key=ID, index=0, offset=3, last_fetched_epoch=6)
        stage.files.fail("rename", f"{B}/t-0/{LEADER_EPOCHS}", errno.ENOSPC)
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 3)
        stage.files.heal()
        diverging = find_diverging_epoch(requested, stage.partition)
        assert diverging is not None
        assert (diverging.epoch, diverging.end_offset) == (5, 3)
        stage.append()
        assert stage.files.read(f"{B}/t-0/{LEADER_EPOCHS}") == b"0\n2\n5 0\n7 3\n"
        await stage.stop()


async def killed_at(files: Mortal, last: int) -> tuple[int, int, bool]:
    """Moves and stops at an operation; returns the flushed records, and whether the move completed."""
    stage = Stage(files)
    stage.append(40)
    stage.log.flush(0)
    flushed = int(stage.log.recovery_point)
    files.count = 0
    files.last = last
    appended = 40
    try:
        stage.mover.begin(KEY, B)
        while stage.mover._tasks:
            for task in stage.mover._tasks:
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
            stage.append()
            appended += 1
            await asyncio.sleep(0.0005)
        ended = files.count < last
    except Killed:
        ended = False
    files.last = 1 << 60
    stage.pool.shutdown()
    return appended, flushed, ended


@pytest.mark.parametrize("power", [False, True])
def test_a_stop_at_any_operation_loses_no_record_and_the_move_completes_afterwards(power: bool) -> None:
    last = 1
    outcomes = set()
    ended = False
    while not ended:
        files = Mortal()
        appended, flushed, ended = asyncio.run(killed_at(files, last))
        if power:
            files.power_cut(Random(last))
        else:
            files.kill()
        outcomes.add(asyncio.run(go_on(files, flushed if power else appended)))
        last += 1
    assert outcomes == {f"{A}/t-0", f"{B}/t-0"}


async def go_on(files: FaultyFiles, least: int) -> str:
    """The next start, which completes the move, and the location of the partition before it."""
    stage = Stage(files)
    where = str(stage.log.directory)
    count = int(stage.log.end_offset)
    assert count >= least
    assert values(stage.log) == list(range(count))
    stage.append(3)
    await stage.moved()
    if stage.log.directory == f"{A}/t-0":
        # The move had not started, or its start was not synced.
        stage.mover.begin(KEY, B)
        await stage.moved()
    check_whole(stage, B, count + 3)
    await stage.stop()
    return where
