"""Log compaction: with a worker in this process, and with the cleaner process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker_listeners import IgnoringReplicaManagerListener
from default_limits import iter_records, read_records
from record_builders import build_batch
from tidemill.broker.cleaner_process_client import PROCESS_EXITED, CleanerProcess, ReplaceSegments
from tidemill.broker.log_cleaner import PROCESS_EXITS_MAX, LogCleaner
from tidemill.log.clean_batch import BatchCleaner
from tidemill.log.cleaner import Cleaner
from tidemill.log.cleaner_messages import DAMAGED, CleanCounts, CleanedGroup, CleanJob, Failure
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import LogDirMove, begin_move, interrupted_moves
from tidemill.log.log_manager import LogManager
from tidemill.log.log_segment import LogRange
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.log.offset_map import OffsetMap
from tidemill.log.system_files import SystemFiles
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import parse_batch
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

NOW = 1_700_000_000_000
COMPACTED_AT_ONCE = LogConfig(
    cleanup_policy=("compact",),
    file_delete_delay_ms=0,
    delete_retention_ms=0,
    min_cleanable_dirty_ratio=0.0,
)
SETTINGS = LogConfig(cleanup_policy=("compact",), file_delete_delay_ms=0)


class Replicas:
    """Replicas that are all served and committed up to the log end."""

    def __init__(self, logs: LogManager) -> None:
        self.logs = logs
        self.failures: list[str] = []

    def high_watermark_of(self, key: TopicPartition) -> int | None:
        log = self.logs.logs.get(key)
        return None if log is None else int(log.end_offset)

    def storage_failed(self, one: Log, problem: StorageError) -> None:
        self.failures.append(str(problem))


class InlineWorker:
    """A worker in this process. It calls ``before`` before each replacement of segments."""

    def __init__(self) -> None:
        self.before: Callable[[CleanedGroup], None] = lambda group: None
        self.answers: list[Failure] = []

    async def clean(self, job: CleanJob, replace: ReplaceSegments) -> CleanCounts | Failure | None:
        if self.answers:
            return self.answers.pop(0)
        cleaner = Cleaner(SystemFiles(), job, lambda count: None)
        run = cleaner.run()
        try:
            for group in run:
                self.before(group)
                if not await replace(group):
                    return None
        except KafkaError as problem:
            return Failure(DAMAGED, str(problem))
        finally:
            run.close()
        return cleaner.counts

    def set_bytes_per_second(self, bytes_per_second: float) -> None:
        """Ignores the limit."""

    async def release(self) -> None:
        """Has no resources."""


class Stage:
    """A log manager with compacted topics, and a log cleaner."""

    def __init__(self, directory: Path, worker: Any = None, *others: Path) -> None:
        self.path = directory
        self.executor = ThreadPoolExecutor(1)
        self.logs = LogManager(SystemFiles(), [str(one) for one in (directory, *others)])
        self.logs.dirs.lock()
        self.logs.load(NOW, lambda topic: SETTINGS)
        self.replicas = Replicas(self.logs)
        self.worker = worker or InlineWorker()
        self.compaction = LogCleaner(
            self.logs,
            self.replicas,
            SystemClock(),
            self.executor,
            self.worker,
            lambda: BrokerConfig.of(),
            self.write_recovery_points,
        )
        self.compaction.load_checkpoints()

    def log(self, topic: str = "t", count: int = 40) -> Log:
        """Creates a log of ``count`` updates of three keys."""
        log = self.logs.create(TopicPartition(topic, 0), bytes(16), SETTINGS, NOW)
        self.write(log, count)
        return log

    def write(self, log: Log, count: int = 40, padding: bytes = b"") -> None:
        for number in range(count):
            data = build_batch([(NOW, b"k%d" % (number % 3), b"v%d" % number + padding, None)])
            log.append(parse_batch(data, 0, len(data)), 0, NOW)
            if number % 10 == 9:
                log.roll(NOW)
        log.flush(NOW)

    async def write_recovery_points(self) -> None:
        for problem in write_checkpoints(self.logs.recovery_point_checkpoints()):
            logging.getLogger("tidemill.replication").error("%s", problem)

    def clean(self) -> bool:
        return asyncio.run(self.compaction.clean_dirtiest())

    def close(self) -> None:
        self.logs.close(NOW, {})
        self.executor.shutdown()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def offsets(log: Log) -> list[int]:
    found: list[int] = []
    offset = int(log.start_offset)
    while offset < log.end_offset:
        part = log.read(offset, 1 << 20, log.end_offset, True)
        if part is None:
            break
        found += [record.offset for record in iter_records(part.read())]
        offset = found[-1] + 1
    return found


def leftovers(stage: Stage) -> list[str]:
    return [one.name for one in stage.path.rglob("*") if one.suffix in (".cleaned", ".swap")]


def test_the_checkpoint_of_a_cleaned_log_is_read_at_the_next_start(stage: Stage, tmp_path: Path) -> None:
    log = stage.log()
    assert stage.clean()
    assert offsets(log) == [37, 38, 39]
    assert not log.cleaning
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 40\n"
    assert not stage.clean()
    assert stage.compaction.totals.records_removed == 37
    stage.close()
    again = Stage(tmp_path)
    assert again.logs.logs[TopicPartition("t", 0)].clean_end == 40
    assert not again.clean()
    stage.write(again.logs.logs[TopicPartition("t", 0)])
    again.close()


def keys_of(log: Log) -> set[bytes]:
    """The keys with a value for a reader from the log start."""
    found: dict[bytes, bytes | None] = {}
    offset = int(log.start_offset)
    while offset < log.end_offset:
        part = log.read(offset, 1, log.end_offset, True)
        if part is None:
            break
        for record in read_records(batch := parse_batch(part.read(), 0, part.size)):
            found[record.key or b""] = record.value
        offset = int(batch.next_offset)
    return {key for key, value in found.items() if value is not None}


@pytest.mark.parametrize("is_left", [False, True])
def test_a_deleted_key_stays_deleted_after_an_interrupted_move(tmp_path: Path, is_left: bool) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        path.mkdir()
    stage = Stage(paths[0], None, paths[1])
    log = stage.log(count=0)
    log.set_config(COMPACTED_AT_ONCE)

    def write(key: bytes, value: bytes | None) -> None:
        data = build_batch([(NOW, key, value, None)])
        log.append(parse_batch(data, 0, len(data)), 0, NOW)
        log.roll(NOW)
        log.flush(NOW)

    def copy(pieces: int) -> None:
        while pieces and (piece := move.next_range(1 << 20, NOW)) is not None:
            move.copy_range(piece, NOW)
            pieces -= 1

    write(b"deleted", b"x")
    write(b"kept", b"x")
    target = next(str(path) for path in paths if not log.directory.startswith(str(path)))
    move = begin_move(stage.logs, log.topic_partition, target, NOW)
    assert move is not None
    copy(1)
    write(b"deleted", None)
    for _ in range(3):
        write(b"kept", b"x")
        stage.clean()
    assert keys_of(log) == {b"kept"}
    if is_left:
        move.abandon()
        move = begin_move(stage.logs, log.topic_partition, target, NOW)
        assert move is not None
    copy(1 << 20)
    move.replace_current(NOW, False)
    moved = stage.logs.logs[log.topic_partition]
    assert moved is not log
    assert keys_of(moved) == {b"kept"}
    log = moved
    for _ in range(3):
        write(b"kept", b"x")
        assert stage.clean()
    assert keys_of(moved) == {b"kept"}
    assert len(offsets(moved)) == 1
    stage.close()


def test_a_deleted_key_stays_deleted_after_a_move_from_an_offline_directory(tmp_path: Path) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        path.mkdir()
    stage = Stage(paths[0], None, paths[1])
    log = stage.log(count=0)
    log.set_config(
        LogConfig(cleanup_policy=("compact",), delete_retention_ms=0, min_cleanable_dirty_ratio=0.0)
    )

    def write(key: bytes, value: bytes | None) -> None:
        data = build_batch([(NOW, key, value, None)])
        log.append(parse_batch(data, 0, len(data)), 0, NOW)
        log.roll(NOW)
        log.flush(NOW)

    write(b"deleted", b"x")
    write(b"stays", b"x")
    target = next(str(path) for path in paths if not log.directory.startswith(str(path)))
    move = begin_move(stage.logs, log.topic_partition, target, NOW)
    assert move is not None
    while (piece := move.next_range(1 << 20, NOW)) is not None:
        move.copy_range(piece, NOW)
    stage.logs.dirs.fail_directory(target, "the disk is gone")
    write(b"deleted", None)
    for _ in range(3):
        write(b"kept", b"x")
        stage.clean()
    assert keys_of(log) == {b"stays", b"kept"}
    assert len(offsets(log)) < 4
    stage.close()
    again = Stage(paths[0], None, paths[1])
    (move,) = interrupted_moves(again.logs)
    while (piece := move.next_range(1 << 20, NOW)) is not None:
        move.copy_range(piece, NOW)
    move.replace_current(NOW, False)
    assert keys_of(again.logs.logs[log.topic_partition]) == {b"stays", b"kept"}
    again.close()


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_deleted_key_stays_deleted_after_a_concurrent_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chosen: bool
) -> None:
    """``is_chosen``: the move begins between the selection of the log and its cleaning."""
    cleaned = threading.Event()
    store = LogDirMove.copy_range

    def store_slowly(move: LogDirMove, piece: LogRange, now_ms: int) -> int:
        size = store(move, piece, now_ms)
        cleaned.wait(20)
        return size

    monkeypatch.setattr(LogDirMove, "copy_range", store_slowly)
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        path.mkdir()

    async def run() -> None:
        stage = Stage(paths[0], None, paths[1])
        log = stage.log(count=0)
        log.set_config(COMPACTED_AT_ONCE)
        # As a follower fetches them: the value before, and the tombstone after the cleaning of the leader.
        for key, value in ((b"deleted", b"x"), (b"deleted", None), (b"kept", b"x"), (b"kept", b"x")):
            data = bytearray(build_batch([(NOW, key, value, None)]))
            data[:8] = int(log.end_offset).to_bytes(8, "big")
            leader = BatchCleaner(OffsetMap(1000, 0.9, 0), NOW, 0, UNPACKED_BYTES_MAX)
            log.append_copied(leader.clean(parse_batch(bytes(data), 0, len(data)), False, False), NOW)
            log.roll(NOW)
            log.flush(NOW)
        target = next(str(path) for path in paths if not log.directory.startswith(str(path)))
        loop = asyncio.get_running_loop()
        replicas = ReplicaManager(
            1,
            stage.logs,
            SystemClock(),
            loop,
            stage.executor,
            stage.executor,
            IgnoringReplicaManagerListener(),
        )
        states = [PartitionState(0, 1, 0, (1,), (1,))]
        run_at_once(replicas.put_topic_in_slices("t", bytes(16), False, states, COMPACTED_AT_ONCE))

        async def begin() -> None:
            replicas.replica_alter_log_dirs.piece_bytes = 1
            replicas.replica_alter_log_dirs.begin(log.topic_partition, target)
            await asyncio.sleep(0.2)
            await stage.write_recovery_points()

        if is_chosen:
            stage.compaction.write_recovery_points = begin
        else:
            clean = stage.worker.clean

            async def clean_slowly(job: CleanJob, replace: ReplaceSegments) -> CleanCounts | Failure | None:
                async def late(group: CleanedGroup) -> bool:
                    await begin()
                    return await replace(group)

                return await clean(job, late)

            stage.worker.clean = clean_slowly
        await stage.compaction.clean_dirtiest()
        cleaned.set()
        while tasks := list(replicas.replica_alter_log_dirs._tasks):
            await asyncio.wait(tasks)
        moved = stage.logs.logs[log.topic_partition]
        assert moved is not log
        assert keys_of(moved) == {b"kept"}
        await replicas.stop()
        stage.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_stop_handles_a_concurrent_failed_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun = threading.Event()
    sync_directory = SystemFiles.sync_directory

    def fail(files: SystemFiles, path: str) -> None:
        if not path.endswith("/t-0"):
            return sync_directory(files, path)
        has_begun.set()
        time.sleep(0.05)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    async def run() -> None:
        cleaning = asyncio.create_task(stage.compaction.clean_dirtiest())
        await asyncio.get_running_loop().run_in_executor(None, has_begun.wait, 20)
        cleaning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cleaning
        assert "cannot replace compacted segments of" in stage.replicas.failures[0]

    stage = Stage(tmp_path)
    stage.log()
    with monkeypatch.context() as patched:
        patched.setattr(SystemFiles, "sync_directory", fail)
        asyncio.run(run())
    stage.executor.shutdown()
    stage.logs.dirs.unlock()


def test_old_segments_are_renamed_and_removed_after_file_delete_delay_ms(stage: Stage) -> None:
    stage.log()
    assert stage.clean()
    paths = stage.logs.removals.pop_due(2 * SystemClock().wall_ms())
    assert sorted({Path(path).name.partition(".")[2] for path in paths}) == [
        "index.deleted",
        "log.deleted",
        "snapshot.deleted",
        "timeindex.deleted",
    ]
    assert stage.logs.remove_paths(paths) == []
    assert len(list(stage.path.glob("t-0/*.log"))) == 2


def test_a_log_that_is_truncated_during_its_cleaning_is_unchanged(stage: Stage) -> None:
    log = stage.log()
    stage.worker.before = lambda group: log.truncate_to(25, NOW) or None
    assert not stage.clean()
    assert offsets(log) == list(range(25))
    assert leftovers(stage) == []
    assert not stage.compaction.uncleanable
    stage.worker.before = lambda group: None
    assert stage.clean()
    assert offsets(log) == [17, 18, 19, *range(20, 25)]


def test_records_appended_after_a_truncation_during_the_cleaning_are_kept(stage: Stage) -> None:
    """The new segments may have the base offsets of the cleaned ones."""
    log = stage.log()

    def replace(group: CleanedGroup) -> None:
        log.truncate_to(25, NOW)
        stage.write(log, 5)
        log.roll(NOW)
        stage.write(log, 10)
        assert [*group.old, 40] == [one.base_offset for one in log.segments]

    stage.worker.before = replace
    assert not stage.clean()
    assert offsets(log) == list(range(40))
    assert leftovers(stage) == []


@pytest.mark.parametrize("is_cut_first", [False, True])
def test_a_log_that_is_truncated_before_its_cleaning_is_cleaned_later(
    stage: Stage, caplog: pytest.LogCaptureFixture, is_cut_first: bool
) -> None:
    log = stage.log()
    written = stage.compaction.write_recovery_points

    async def write_and_cut() -> None:
        stage.compaction.write_recovery_points = written
        if not is_cut_first:
            await written()
        log.truncate_to(25, NOW)
        if is_cut_first:
            await written()
        stage.write(log, 10)

    stage.compaction.write_recovery_points = write_and_cut
    assert not stage.clean()
    assert offsets(log) == list(range(35))
    assert "is not compacted" not in caplog.text, "nothing is wrong with the checkpoint"
    assert stage.clean()
    assert offsets(log) == [32, 33, 34]


def test_the_recovery_point_is_beyond_the_cleaned_segments(stage: Stage) -> None:
    """After a power failure it distinguishes records that compaction removed from lost records."""
    log = stage.log()
    known: list[int] = []
    points = stage.path / "recovery-point-offset-checkpoint"
    stage.worker.before = lambda group: known.append(int(points.read_text().split()[-1]))
    assert stage.clean()
    assert known == [log.end_offset]


def test_a_log_is_not_cleaned_if_its_recovery_point_cannot_be_written(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    log = stage.log()
    points = stage.path / "recovery-point-offset-checkpoint"
    points.unlink(missing_ok=True)
    points.mkdir()
    assert not stage.clean()
    assert offsets(log) == list(range(40))
    assert f"t-0 is not compacted: {points} cannot be written" in caplog.text
    points.rmdir()


def test_a_topic_that_is_recreated_during_the_cleaning_is_unchanged(stage: Stage) -> None:
    stage.log()

    def replace(group: CleanedGroup) -> None:
        stage.logs.delete(TopicPartition("t", 0), NOW)
        stage.log()

    stage.worker.before = replace
    assert not stage.clean()
    assert offsets(stage.logs.logs[TopicPartition("t", 0)]) == list(range(40))


def test_an_uncleanable_log_does_not_stop_the_cleaning_of_others(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = stage.log("bad", 80), stage.log("good")
    path = Path(bad.segments[0].path)
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    bad.set_config(bad.config._replace(min_cleanable_dirty_ratio=0.0))
    good.clean_end = 10
    assert not stage.clean()
    assert "bad-0 is uncleanable until the broker restarts" in caplog.text
    reason = stage.compaction.uncleanable[TopicPartition("bad", 0)]
    assert reason.startswith(f"{path}: ")
    assert "has checksum" in reason
    assert "(at byte " in reason
    assert offsets(good) == list(range(40))
    assert stage.clean()
    assert offsets(good)[-3:] == [37, 38, 39]
    stage.logs.delete(TopicPartition("bad", 0), NOW)
    stage.clean()
    assert stage.compaction.uncleanable == {}


def test_a_recreated_topic_is_compacted_although_the_former_was_uncleanable(stage: Stage) -> None:
    bad = stage.log("t")
    path = Path(bad.segments[0].path)
    path.write_bytes(path.read_bytes()[:-2] + b"??")
    assert not stage.clean()
    assert stage.compaction.uncleanable
    stage.logs.delete(TopicPartition("t", 0), NOW)
    good = stage.log("t")
    assert stage.clean()
    assert offsets(good)[-3:] == [37, 38, 39]
    assert not stage.compaction.uncleanable


def test_a_log_is_retried_with_more_memory(stage: Stage) -> None:
    log = stage.logs.create(TopicPartition("t", 0), bytes(16), SETTINGS, NOW)
    data = build_batch([(NOW, b"%d" % number, b"v", None) for number in range(2000)])
    log.append(parse_batch(data, 0, len(data)), 0, NOW)
    log.roll(NOW)
    log.flush(NOW)
    stage.compaction.config = lambda: BrokerConfig.of(log_cleaner_dedupe_buffer_size="1")
    stage.compaction.reconfigured()
    assert not stage.clean()
    assert "increase log.cleaner.dedupe.buffer.size" in stage.compaction.uncleanable[TopicPartition("t", 0)]
    stage.compaction.reconfigured()
    assert stage.compaction.uncleanable
    stage.compaction.config = lambda: BrokerConfig.of()
    stage.compaction.reconfigured()
    assert stage.clean()


@pytest.mark.parametrize(
    "setting",
    [
        {"log_cleaner_backoff_ms": "1234"},
        {"log_cleaner_min_cleanable_ratio": "0.4"},
        {"log_cleaner_delete_retention_ms": "5"},
        {"log_cleaner_io_max_bytes_per_second": "1e9"},
    ],
)
def test_uncleanable_logs_are_retried_after_a_change_of_a_cleaner_setting(
    stage: Stage, setting: dict[str, str]
) -> None:
    stage.compaction.uncleanable[TopicPartition("t", 0)] = "damaged"
    stage.compaction.config = lambda: BrokerConfig.of(num_partitions="3")
    stage.compaction.reconfigured()
    assert stage.compaction.uncleanable
    stage.compaction.config = lambda: BrokerConfig.of(**setting)
    stage.compaction.reconfigured()
    assert not stage.compaction.uncleanable


def test_a_log_is_uncleanable_after_several_exits_of_the_worker(stage: Stage) -> None:
    stage.log()
    stage.worker.answers = [Failure(PROCESS_EXITED, "by signal 9")] * PROCESS_EXITS_MAX
    for _ in range(PROCESS_EXITS_MAX):
        assert not stage.compaction.uncleanable
        assert not stage.clean()
    assert stage.compaction.uncleanable == {TopicPartition("t", 0): "by signal 9"}


def test_a_storage_error_is_retried_later(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.log()
    stage.worker.answers = [Failure("storage", "cannot compact: No space left on device")]
    assert not stage.clean()
    assert "No space left on device; the next attempt is in 60 s" in caplog.text
    assert not stage.clean()
    assert not stage.compaction.uncleanable


def test_a_log_whose_files_cannot_be_opened_for_the_swap_is_retried_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = stage.log()
    tried: list[CleanedGroup] = []
    opened = os.open

    def refuse(path: str, *arguments: Any, **others: Any) -> int:
        if tried and str(path).endswith(".log"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opened(path, *arguments, **others)

    def before(group: CleanedGroup) -> None:
        log.close_handlers()
        tried.append(group)

    stage.worker.before = before
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        for _ in range(3):
            assert not stage.clean()
    assert len(tried) == 1
    assert "cannot open for compaction the segments of" in caplog.text
    assert "the next attempt is in 60 s" in caplog.text
    assert leftovers(stage) == []


def test_failed_renames_take_the_directory_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.replace

    def fail(old: str, new: str) -> None:
        if old.endswith(".log") and new.endswith(".deleted"):
            raise OSError(5, "Input/output error", old)
        rename(old, new)

    stage = Stage(tmp_path)
    stage.log()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        assert not stage.clean()
    assert "cannot replace compacted segments of" in stage.replicas.failures[0]
    stage.executor.shutdown()
    stage.logs.dirs.unlock()


def test_a_swap_without_a_free_descriptor_for_its_last_sync_closes_a_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stage.log()
    failures = [OSError(errno.EMFILE, "Too many open files", log.directory)]
    system_open = os.open

    def fail_once(path: Any, flags: int, mode: int = 0o777) -> int:
        if path == log.directory and failures:
            raise failures.pop()
        return system_open(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail_once)
        assert stage.clean()
    assert failures == []
    assert stage.replicas.failures == []
    assert offsets(log) == [37, 38, 39]


def test_retention_skips_a_log_during_its_cleaning(stage: Stage) -> None:
    log = stage.log()
    log.advance_start(20)
    log.cleaning = True
    ends = {log.topic_partition: int(log.end_offset)}
    assert stage.logs.cleanup_logs(NOW, ends) == {}
    log.cleaning = False
    stage.logs.cleanup_logs(NOW, ends)
    assert log.segments[0].base_offset == 20


def pid_of(worker: CleanerProcess) -> int:
    """Returns the id of the running process."""
    assert worker._process is not None
    return worker._process.pid


def test_the_cleaner_process_cleans_and_is_ended(tmp_path: Path) -> None:
    async def test() -> None:
        worker = CleanerProcess()
        stage = Stage(tmp_path, worker=worker)
        log = stage.log()
        assert await stage.compaction.clean_dirtiest()
        assert offsets(log) == [37, 38, 39]
        pid = pid_of(worker)
        await worker.release()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        stage.write(log)
        stage.write(log)
        assert await stage.compaction.clean_dirtiest()
        assert pid_of(worker) != pid
        await worker.release()
        stage.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_killed_cleaner_process_is_restarted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        worker = CleanerProcess()
        stage = Stage(tmp_path, worker=worker)
        log = stage.log()
        replace = stage.compaction._replace_segments

        async def kill(*arguments: Any) -> bool:
            os.kill(pid_of(worker), signal.SIGKILL)
            return True

        stage.compaction._replace_segments = kill  # type: ignore[method-assign]
        assert not await stage.compaction.clean_dirtiest()
        assert "the cleaner process ended by signal 9 during a job" in caplog.text
        assert leftovers(stage) == []
        assert offsets(log) == list(range(40))
        stage.compaction._replace_segments = replace  # type: ignore[method-assign]
        assert await stage.compaction.clean_dirtiest()
        assert offsets(log) == [37, 38, 39]
        await worker.release()
        stage.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_cleaner_process_that_cannot_be_started_makes_no_log_uncleanable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path, worker=CleanerProcess())
    stage.log()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    assert not stage.clean()
    assert "the cleaner process could not be started" in caplog.text
    assert not stage.compaction.uncleanable
    stage.close()


class Watched(CleanerProcess):
    """Sets an event when a job was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work = asyncio.Event()

    async def _send(self, process: asyncio.subprocess.Process, message: Any) -> None:
        await super()._send(process, message)
        self.at_work.set()


SLOW = BrokerConfig.of(log_cleaner_io_max_bytes_per_second="1000")


def test_a_broker_stop_ends_a_slow_cleaning(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched()
        stage = Stage(tmp_path, worker=worker)
        stage.write(stage.log(), padding=bytes(20_000))
        stage.compaction.config = lambda: SLOW
        task = asyncio.create_task(stage.compaction.run())
        await worker.at_work.wait()
        pid = pid_of(worker)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        stage.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_changed_io_limit_applies_to_the_running_cleaning(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched()
        stage = Stage(tmp_path, worker=worker)
        stage.write(stage.log(), padding=bytes(20_000))
        stage.compaction.config = lambda: SLOW
        cleaning = asyncio.create_task(stage.compaction.clean_dirtiest())
        await worker.at_work.wait()
        # At the old limit this would take ten minutes.
        stage.compaction.config = lambda: BrokerConfig.of()
        stage.compaction.reconfigured()
        assert await cleaning
        await worker.release()
        stage.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_changed_settings_end_the_backoff(stage: Stage) -> None:
    async def test() -> None:
        task = asyncio.create_task(stage.compaction.run())
        looked = asyncio.Event()
        stage.worker.before = lambda group: looked.set()
        await asyncio.sleep(0)  # now it waits for 15 s
        began = asyncio.get_running_loop().time()
        stage.log()
        stage.compaction.reconfigured()
        await looked.wait()
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 10

    asyncio.run(asyncio.wait_for(test(), 12))


@pytest.mark.parametrize("turns", range(4))
async def test_a_stop_at_the_time_of_a_settings_change_is_not_lost(stage: Stage, turns: int) -> None:
    """The cancelled wait has ended ``turns`` turns of the loop before."""

    task = asyncio.create_task(stage.compaction.run())
    await asyncio.sleep(0.05)
    stage.compaction.reconfigured()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=1.0)
    is_done = task in done
    task.cancel()
    assert is_done


def test_the_cleaner_process_ends_with_its_broker(tmp_path: Path) -> None:
    """The cleaner process of a killed broker must end before the next one cleans the same log."""
    program = (
        "import asyncio\n"
        "from tidemill.broker.cleaner_process_client import CleanerProcess\n"
        "async def main():\n"
        "    process = await CleanerProcess()._running()\n"
        "    print(process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    broker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    pid = int(broker.stdout.readline())
    cleaner = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    broker.kill()
    broker.wait()
    broker.stdout.close()
    if cleaner >= 0:
        ended = select.poll()  # select() takes no descriptor above 1023
        ended.register(cleaner, select.POLLIN)
        assert ended.poll(30_000)
        os.close(cleaner)


def test_the_offset_of_a_deleted_log_is_removed_from_the_checkpoint(tmp_path: Path) -> None:
    first = Stage(tmp_path)
    first.log("gone")
    first.log("kept")
    assert first.clean()
    assert first.clean()
    first.close()
    second = Stage(tmp_path)
    second.logs.delete(TopicPartition("gone", 0), NOW)
    second.clean()
    second.close()
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n1\nkept 0 40\n"


def test_a_damaged_cleaned_segment_replaces_nothing(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    log = stage.log()

    def cut(group: CleanedGroup) -> None:
        os.truncate(log.segments[0].path + ".cleaned", 10)

    stage.worker.before = cut
    assert not stage.clean()
    assert "has 10 bytes" in caplog.text
    assert "the segments are unchanged; the next attempt is in 60 s" in caplog.text
    assert "changed during its compaction" not in caplog.text
    assert offsets(log) == list(range(40))
    assert leftovers(stage) == []
    stage.worker.before = lambda group: None
    assert not stage.clean()
    stage.compaction._retry_ms.clear()  # the retry is due
    assert stage.clean()
    assert offsets(log) == [37, 38, 39]


def test_a_log_truncated_below_its_clean_end_is_dirty_from_there(tmp_path: Path) -> None:
    """As after a crash that lost compacted records."""
    first = Stage(tmp_path)
    log = first.log(count=20)
    assert first.clean()
    assert log.clean_end == log.end_offset == 20
    log.truncate_to(10, NOW)
    first.close()
    again = Stage(tmp_path)
    (one,) = again.logs.logs.values()
    (directory,) = again.logs.dirs.all
    assert one.clean_end == one.end_offset < 20
    assert directory.cleaner_offsets.load() == {one.topic_partition: one.end_offset}
    again.close()
