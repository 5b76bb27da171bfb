"""Partitions under the controller's states, over failing files: flushes, checkpoints, deletions."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from faulty_files import FaultyFiles
from replica_stage import batch_of

from broker_listeners import IgnoringReplicaManagerListener
from log_start import start_logs
from tidemill.log.checkpoint_files import read_offsets
from tidemill.log.errors import DiskFull, storage_error
from tidemill.log.file_names import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from tidemill.log.log_config import LogConfig
from tidemill.log.producer_state_manager import ProducerEntry
from tidemill.model.clock import SystemClock
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, StorageError
from tidemill.model.event_loop_slices import ITEMS_AT_ONCE_MAX, ITEMS_PER_SLICE, run_at_once
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import Batch
from tidemill.replication.abstract_fetcher_manager import AbstractFetcherManager
from tidemill.replication.delayed_operations import OffsetCallback
from tidemill.replication.hosted_topics import counters_of
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

NODE = 1
DIRECTORIES = ("/disk/a", "/disk/b")
FLUSHED = LogConfig(flush_messages=1)
ALONE = PartitionState(0, NODE, 0, (NODE,), (NODE,))


def made(count: int = 1) -> Batch:
    return batch_of(*[b"v" * 20] * count)


class Stage:
    """A replica manager over files in memory."""

    def __init__(self, files: FaultyFiles | None = None) -> None:
        self.files = files or FaultyFiles()
        self.logs = start_logs(self.files, DIRECTORIES, now_ms=0, node=NODE)
        self.pool = ThreadPoolExecutor(2)
        self.replicas = ReplicaManager(
            NODE,
            self.logs,
            SystemClock(),
            asyncio.get_running_loop(),
            self.pool,
            self.pool,
            IgnoringReplicaManagerListener(),
        )

    def topic(
        self, name: str, count: int = 1, config: LogConfig = FLUSHED, number: int = 1
    ) -> list[Partition]:
        states = [PartitionState(at, NODE, 0, (NODE,), (NODE,)) for at in range(count)]
        for at in range(count):
            self.logs.create(TopicPartition(name, at), bytes([number]) * 16, config, 0)
        run_at_once(self.replicas.put_topic_in_slices(name, bytes([number]) * 16, False, states, config))
        return [self.partition(name, at) for at in range(count)]

    def put(
        self, name: str, topic_id: bytes, *states: PartitionState, config: LogConfig | None = None
    ) -> None:
        """Applies the states of a topic's partitions, as the controller sends them."""
        run_at_once(
            self.replicas.put_topic_in_slices(name, topic_id, False, list(states), config or LogConfig())
        )

    def partition(self, name: str, index: int = 0) -> Partition:
        found = self.replicas.find(name, index)
        assert found is not None
        return found

    async def append(self, partition: Partition) -> KafkaError | None:
        """Appends with acks=all; returns the error of the delayed produce, None after its commit."""
        future: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        result = partition.append(made(), -1, 0)
        end = result.last_offset + 1
        if partition.is_committed(end):
            return None
        partition.delayed.wait_committed(end, OffsetCallback(future.set_result))
        return await asyncio.wait_for(future, 10)

    async def flushed(self) -> None:
        """Waits until no sync is in progress."""
        while flushes := list(self.replicas.log_flusher.under_way):
            await asyncio.wait(flushes)

    async def stored(self, partition: Partition) -> None:
        """Waits until no truncation or log start offset of the partition waits to be stored."""
        async with asyncio.timeout(10):
            while partition.has_pending_sync:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self.pool.shutdown()


@asynccontextmanager
async def staged(files: FaultyFiles | None = None) -> AsyncIterator[Stage]:
    stage = Stage(files)
    try:
        yield stage
        await stage.replicas.stop()
    finally:
        stage.close()


def run_staged(test: Callable[[Stage], Awaitable[None]], files: FaultyFiles) -> None:
    """Runs one of several processes of a test, each in an event loop of its own."""

    async def run() -> None:
        async with staged(files) as stage:
            await test(stage)

    asyncio.run(run())


def clean_marks(files: FaultyFiles) -> list[str]:
    return [path for path in DIRECTORIES if files.exists(f"{path}/.kafka_cleanshutdown")]


async def test_a_failed_sync_takes_only_its_directory_offline() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first")
        (second,) = stage.topic("second", number=2)
        assert first.log.directory.startswith("/disk/a")
        assert second.log.directory.startswith("/disk/b")
        assert await stage.append(first) is None
        stage.files.fail("sync", "/disk/a/first-0", errno.EIO)
        error = await stage.append(first)
        assert isinstance(error, KafkaError)
        assert "Input/output error" in str(error)
        stage.files.heal()
        with pytest.raises(KafkaError, match="Input/output error"):
            first.append(made(), -1, 0)
        assert await stage.append(second) is None
        # The next sync would succeed and acknowledge records that the system had dropped.
        assert stage.logs.close(0, stage.replicas.high_watermarks()) == []
        assert clean_marks(stage.files) == ["/disk/b"]


def test_a_failed_sync_is_recorded_for_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles()
    told: list[set[str]] = []

    async def before(stage: Stage) -> None:
        stage.logs.dirs.mark_losses_handled()
        stage.replicas.listener.directory_distrusted = lambda: told.append(set(stage.logs.dirs.distrusted))
        (first,) = stage.topic("first")
        first.append(made(), 1, 0)
        files.fail("sync", "/disk/a/first-0", errno.EIO)
        files.fail("replace", "/disk/a/.tidemill-boot", errno.EROFS)
        files.fail("remove", "/disk/a/.tidemill-boot", errno.EROFS)
        await stage.flushed()
        await stage.replicas.stop()
        assert "could not write a mark of the failed sync" in caplog.text

    async def after(stage: Stage) -> None:
        assert [one.may_have_lost for one in stage.logs.dirs.all] == [True, False]
        assert told == [stage.logs.dirs.distrusted]

    run_staged(before, files)
    files.heal()
    files.kill()
    run_staged(after, files)


async def test_a_failed_background_sync_takes_its_directory_offline() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first", config=LogConfig(flush_ms=0))
        assert await stage.append(first) is None
        stage.files.fail("sync", "/disk/a/first-0", errno.EIO)
        await stage.replicas.log_flusher.flush_due()
        stage.files.heal()
        assert first.is_offline
        await stage.replicas.log_flusher.flush_due()
        stage.logs.close(0, {})
        assert clean_marks(stage.files) == ["/disk/b"]


async def test_a_flush_without_descriptors_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.replication.log_flusher.RETRY_S", 0.01)

    async with staged() as stage:
        (first,) = stage.topic("first")
        stage.files.fail("sync", "/disk/a/first-0", errno.EMFILE, times=1_000_000)
        appended = asyncio.create_task(stage.append(first))
        await asyncio.sleep(0.05)
        assert not appended.done()
        stage.files.heal()
        assert await appended is None
        assert not first.is_offline


async def test_a_flush_waiting_for_descriptors_continues_with_a_moved_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.replication.log_flusher.RETRY_S", 0.2)

    async with staged() as stage:
        (first,) = stage.topic("first")
        stage.files.fail("sync", "/disk/a/first-0", errno.EMFILE, times=1_000_000)
        appended = asyncio.create_task(stage.append(first))
        await asyncio.sleep(0)
        stage.replicas.replica_alter_log_dirs.begin(TopicPartition("first", 0), "/disk/b")
        assert await appended is None
        assert first.log.directory == "/disk/b/first-0"
        assert await stage.append(first) is None


async def test_a_flush_commits_no_record_truncated_during_it() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first")
        first.append(made(3), 1, 0)
        await asyncio.sleep(0)
        first.truncate_to(0, 0)
        await stage.flushed()
        assert first.high_watermark == first.log.recovery_point == first.log.end_offset == 0


async def test_a_truncation_during_a_flush_is_synced_before_the_next_append() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first", config=LogConfig())
        first.append(made(3), 1, 0)
        first.truncate_to(0, 0)
        first.log.append(made(2), 0, 0)
        await asyncio.sleep(0)
        first.truncate_to(0, 0)
        assert first.flush_under_way
        await stage.flushed()
        stage.files.power_cut()
        assert stage.files.size(first.log.active.path) == 0


def recovery_point(stage: Stage, partition: Partition) -> int:
    """Returns the state that a start would read."""
    path = f"{stage.logs.dirs.directory_of(partition.log).path}/recovery-point-offset-checkpoint"
    return read_offsets(stage.files, path)[partition.log.topic_partition]


async def test_a_start_does_not_trust_records_that_replace_truncated_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.replication.log_flusher.RETRY_S", 0.01)

    async with staged() as stage:
        parts = stage.topic("t", 6, LogConfig())
        for one in parts:
            one.append(made(5), 1, 0)
            one.log.flush(0)
        await stage.replicas.checkpoints.write_recovery_points()
        stage.files.fail("replace", "recovery-point-offset-checkpoint", errno.ENOSPC, times=3)
        stage.files.operations.clear()
        for one in parts:
            if one.index < 4:
                one.truncate_to(0, 0)
        while flushes := list(stage.replicas.log_flusher.under_way):
            for one in parts:
                assert one.flush_under_way or recovery_point(stage, one) == one.log.end_offset
            await asyncio.wait(flushes, timeout=0.001)
        assert [recovery_point(stage, one) for one in parts] == [0, 0, 0, 0, 5, 5]
        writes = [path for operation, path in stage.files.operations if operation == "replace"]
        assert len(writes) < 3 + 4, "one write covers all waiters of a directory"


async def test_a_truncation_that_cannot_be_stored_takes_the_directory_offline() -> None:
    async with staged() as stage:
        (first,) = stage.topic("t", config=LogConfig())
        first.append(made(5), 1, 0)
        first.log.flush(0)
        await stage.replicas.checkpoints.write_recovery_points()
        stage.files.fail("replace", "recovery-point-offset-checkpoint")
        first.truncate_to(0, 0)
        await stage.flushed()
        assert first.is_offline


async def test_every_truncated_record_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with staged() as stage:
        first, second = stage.topic("t", 2, LogConfig())
        for one in (first, second):
            one.append(made(5), 1, 0)
            one.append(made(5), 1, 0)
        stage.replicas.replica_fetcher_manager = Leaders()
        stage.replicas.unsynced_logs = {second.log.topic_partition: 0}
        caplog.clear()
        first.truncate_to(10, 0, "nothing is there")
        first.truncate_to(7, 0, "the leader has other records")
        first.truncate_to(5, 0, "nothing is left there")
        first.restart_at(20, 0)
        first.restart_at(30, 0)
        first.truncate_to(25, 0, "there was no record")
        stage.put("t", bytes([1]) * 16, PartitionState(1, 2, 1, (NODE, 2), (2,), 1))
        assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
            "t-0: truncated the records of offsets 5 to 9: the leader has other records",
            "t-0: truncated the records of offsets 0 to 4: the leader's log starts at offset 20",
            "t-1: truncated the records of offsets 0 to 9: they were not synced before the power failure; "
            "they are fetched again from the leader",
        ]


async def test_a_restarted_follower_has_no_deleted_records_after_a_crash() -> None:
    """The leader's log may start within a batch with deleted first records."""

    async with staged() as stage:
        (first,) = stage.topic("t", 1, LogConfig())
        first.restart_at(27, 0)
        assert first.has_pending_sync, "the leader would get the start before it is stored"
        data = batch_of(*[b"v"] * 5).to_bytes()
        first.append_from_leader((24).to_bytes(8, "big") + data[8:], 29, 27, 0)
        assert (first.log.start_offset, first.log.end_offset) == (27, 29)
        await stage.stored(first)
        stage.files.kill()
        again = start_logs(stage.files, DIRECTORIES, now_ms=0)
        found = again.get(first.log.topic_partition)
        assert found is not None
        assert (found.start_offset, found.end_offset) == (27, 29)


async def test_an_emptied_follower_appends_a_batch_that_contains_the_leader_log_start_offset() -> None:
    """A former leader truncates its log to the log start offset of the next leader, within a batch."""

    async with staged() as stage:
        (first,) = stage.topic("t", 1, LogConfig())
        first.append_from_leader(batch_of(*[b"v"] * 27).to_bytes(), 20, 0, 0)
        data = batch_of(*[b"v"] * 5).to_bytes()
        first.append_from_leader((24).to_bytes(8, "big") + data[8:], 29, 27, 0)
        assert (first.log.start_offset, first.log.end_offset, first.high_watermark) == (27, 29, 29)
        assert first.has_pending_sync, "the leader would get the start before it is stored"
        await stage.stored(first)


async def test_no_offset_missing_in_a_lagging_follower_is_committed() -> None:
    async with staged() as stage:
        (first,) = stage.topic("t", 1, LogConfig())
        first.append_from_leader(batch_of(*[b"v"] * 3).to_bytes(), 100, 0, 0)
        assert (first.log.end_offset, first.high_watermark) == (3, 3)


async def test_a_batch_before_the_log_end_offset_is_rejected_if_it_overlaps_records() -> None:
    async with staged() as stage:
        (first,) = stage.topic("t", 1, LogConfig())
        first.append_from_leader(batch_of(*[b"v"] * 27).to_bytes(), 20, 0, 0)
        data = batch_of(*[b"v"] * 5).to_bytes()
        with pytest.raises(CorruptMessage, match="the leader sent offset 24, but the log ends at 27"):
            first.append_from_leader((24).to_bytes(8, "big") + data[8:], 29, 26, 0)
        assert (first.log.start_offset, first.log.end_offset) == (0, 27)


async def test_a_follower_continues_when_retention_advances_its_start_during_an_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged() as stage:
        (first,) = stage.topic("t", 1, LogConfig())
        writing, moved = threading.Event(), threading.Event()
        replace = stage.files.replace

        def slowly(path: str, data: bytes) -> None:
            writing.set()
            moved.wait(10)
            replace(path, data)

        monkeypatch.setattr(stage.files, "replace", slowly)
        data = batch_of(*[b"v"] * 5).to_bytes()
        first.append_from_leader(data, 5, 2, 0)
        assert first.has_pending_sync
        while not writing.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        first.advance_start(4)
        moved.set()
        await stage.stored(first)
        assert read_offsets(stage.files, first.log.directory.rpartition("/")[0] + "/" + LOG_STARTS) == {
            first.log.topic_partition: 4
        }


async def test_deleting_a_topic_during_a_flush_fails_only_its_delayed_operations() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first")
        (third,) = [stage.topic("second", number=2), stage.topic("third", number=3)][1]
        assert third.log.directory.startswith("/disk/a")
        appended = asyncio.create_task(stage.append(first))
        await asyncio.sleep(0)
        list(stage.replicas.deleting("first", bytes([1]) * 16))
        error = await appended
        assert error is not None
        assert "was deleted" in str(error)
        await stage.replicas.stop()
        assert not third.is_offline
        assert [directory.offline_reason for directory in stage.logs.dirs.all] == ["", ""]


async def test_a_log_with_partially_swapped_files_goes_offline_after_any_error() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first")
        problem = OSError(errno.EMFILE, "Too many open files", first.log.directory)
        failure = storage_error("exchange", first.log.directory, problem)
        stage.replicas.storage_failed(first.log, failure)
        assert "Too many open files" in first.offline_reason


async def test_a_partition_that_cannot_be_renamed_does_not_prevent_other_deletions() -> None:
    async with staged() as stage:
        partitions = stage.topic("first", count=3)
        stage.files.fail("rename", "/disk/a/first-0", errno.EIO)
        with pytest.raises(StorageError, match="first-0"):
            list(stage.replicas.deleting("first", bytes([1]) * 16))
        assert all(partition.deleted for partition in partitions)
        assert [key for key in stage.logs.logs if key.topic == "first"] == [TopicPartition("first", 0)]
        assert not stage.files.exists("/disk/b/first-1")
        list(stage.replicas.deleting("first", bytes([1]) * 16))
        assert not stage.files.exists("/disk/a/first-0")


async def test_a_recreated_topic_has_no_record_of_a_topic_with_a_failed_rename() -> None:
    async with staged() as stage:
        (old,) = stage.topic("first")
        assert await stage.append(old) is None
        for number in (errno.ENOSPC, errno.EIO):
            stage.files.fail("rename", "/disk/a/first-0", number)
            with pytest.raises(StorageError, match="first-0"):
                stage.replicas.stop_replica("first", 0, delete=True)
        assert stage.files.exists("/disk/a/first-0")
        stage.replicas.stop_replica("first", 0, delete=True)
        assert not stage.files.exists("/disk/a/first-0")
        (new,) = stage.topic("first", number=2)
        assert (new.log.topic_id, new.log.end_offset) == (bytes([2]) * 16, 0)


async def test_a_topic_with_a_removed_directory_can_be_deleted() -> None:
    async with staged() as stage:
        stage.topic("first")
        stage.files.rename("/disk/a/first-0", "/elsewhere")
        stage.replicas.stop_replica("first", 0, delete=True)
        assert TopicPartition("first", 0) not in stage.logs.logs


def test_an_undeletable_log_is_synced_at_shutdown_and_loaded_by_the_next_start() -> None:
    files = FaultyFiles()

    async def before(stage: Stage) -> None:
        (first,) = stage.topic("first", config=LogConfig())
        await stage.append(first)
        files.fail("rename", "/disk/a/first-0", errno.ENOSPC)
        with pytest.raises(StorageError):
            stage.replicas.stop_replica("first", 0, delete=True)
        assert stage.logs.close(0, stage.replicas.high_watermarks()) == []
        files.power_cut()

    async def after(stage: Stage) -> None:
        assert stage.logs.logs[TopicPartition("first", 0)].end_offset == 1
        stage.replicas.stop_replica("first", 0, delete=True)
        assert not files.exists("/disk/a/first-0")

    run_staged(before, files)
    run_staged(after, files)


def test_a_deletion_interrupted_by_a_shutdown_frees_the_name() -> None:
    files = FaultyFiles()

    async def before(stage: Stage) -> None:
        stage.topic("first", count=2)
        stage.logs.dirs.unlock()

    async def after(stage: Stage) -> None:
        assert len(stage.logs.logs) == 2
        list(stage.replicas.deleting("first", bytes([1]) * 16))  # the partition is not in the table
        (again, _) = stage.topic("first", count=2, number=9)
        assert again.log.topic_id == bytes([9]) * 16

    run_staged(before, files)
    run_staged(after, files)


def test_checkpoints_of_a_deleted_topic_do_not_apply_to_a_recreated_topic() -> None:
    files = FaultyFiles()

    async def before(stage: Stage) -> None:
        (old,) = stage.topic("first", config=LogConfig())
        for _ in range(10):
            await stage.append(old)
        old.log.advance_start(9)
        await stage.replicas.checkpoints.write_log_starts()
        list(stage.replicas.deleting("first", bytes([1]) * 16))
        await stage.replicas.checkpoints.write_removals()
        (new,) = stage.topic("first", config=LogConfig(), number=2)
        for _ in range(3):
            await stage.append(new)
        stage.logs.dirs.unlock()

    async def after_a_crash(stage: Stage) -> None:
        log = stage.logs.logs[TopicPartition("first", 0)]
        assert (log.start_offset, log.end_offset) == (0, 3)

    run_staged(before, files)
    run_staged(after_a_crash, files)


@pytest.mark.parametrize("is_power_cut", [False, True])
async def test_no_checkpoint_contains_a_deleted_topic_after_its_removal_is_stored(
    is_power_cut: bool,
) -> None:
    async with staged() as stage:
        (old,) = stage.topic("first", config=LogConfig())
        for _ in range(10):
            await stage.append(old)
        old.log.advance_start(9)
        old.log.flush(0)
        checkpoints = stage.replicas.checkpoints
        await checkpoints.write_high_watermarks()
        await checkpoints.write_recovery_points()
        await checkpoints.write_log_starts()
        key, names = TopicPartition("first", 0), (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
        files = [f"/disk/a/{name}" for name in names]
        assert [read_offsets(stage.files, one).get(key) for one in files] == [10, 9, 10]
        list(stage.replicas.deleting("first", bytes([1]) * 16))
        await checkpoints.write_removals()
        if is_power_cut:
            stage.files.power_cut()
        assert [read_offsets(stage.files, one).get(key) for one in files] == [None, None, None]


async def test_checkpoints_are_written_sequentially_in_a_thread() -> None:
    threads: set[int] = set()
    at_once: list[int] = []

    class Watched(FaultyFiles):
        def replace(self, path: str, data: bytes) -> None:
            threads.add(threading.get_ident())
            at_once.append(1)
            assert len(at_once) == 1
            super().replace(path, data)
            at_once.pop()

    files = Watched()

    async with staged(files) as stage:
        stage.topic("first")
        threads.clear()
        await asyncio.gather(
            *(stage.replicas.checkpoints.write_log_starts() for _ in range(5)),
            stage.replicas.checkpoints.write_recovery_points(),
            stage.replicas.checkpoints.write_high_watermarks(),
        )
        assert threads
        assert threading.get_ident() not in threads


async def test_a_failed_checkpoint_does_not_prevent_a_clean_shutdown_of_other_directories() -> None:
    async with staged() as stage:
        stage.topic("first")
        stage.topic("second", number=2)
        stage.files.fail("replace", "/disk/b/recovery-point-offset-checkpoint", errno.EROFS)
        problems = stage.logs.close(0, {})
        assert len(problems) == 1
        assert "/disk/b" in problems[0]
        assert clean_marks(stage.files) == ["/disk/a"]


async def test_a_partition_possibly_in_a_failed_directory_is_not_created_elsewhere() -> None:
    async with staged() as stage:
        stage.logs.dirs.fail_directory("/disk/a", "Input/output error")
        with pytest.raises(StorageError, match="/disk/a"):
            stage.put("known", b"k" * 16, ALONE)
        known = stage.partition("known")
        for ask in (lambda: known.check_leader(-1), lambda: known.append(made(), -1, 0)):
            with pytest.raises(KafkaError, match="/disk/a") as caught:
                ask()
            assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        (new,) = stage.topic("new")
        assert new.log.directory == "/disk/b/new-0"


async def test_a_recreated_topic_is_empty_after_a_missed_deletion() -> None:
    async with staged() as stage:
        (before,) = stage.topic("first")
        before.append(made(3), 1, 0)
        stage.put("first", bytes([2]) * 16, ALONE, config=FLUSHED)
        after = stage.partition("first")
        assert (after.log.topic_id, int(after.log.end_offset)) == (bytes([2]) * 16, 0)
        assert after.append(made(), 1, 0).base_offset == 0
        with pytest.raises(KafkaError):
            before.append(made(), 1, 0)


async def test_a_recreated_topic_is_written_back_from_its_start() -> None:
    async with staged() as stage:
        (old,) = stage.topic("first", config=LogConfig())
        for _ in range(20):
            await stage.append(old)
        stage.replicas.write_back_requested(old)
        list(stage.replicas.deleting("first", bytes([1]) * 16))
        (new,) = stage.topic("first", config=LogConfig(), number=2)
        await stage.append(new)
        stage.replicas.write_back_requested(new)
        assert stage.replicas.write_back._unwritten_bytes >= 0
        assert stage.replicas.write_back._written_to[new.log.active.path] == new.log.active.size


async def test_a_retried_batch_does_not_wait_for_later_batches() -> None:
    async with staged() as stage:
        stage.logs.create(TopicPartition("two", 0), b"t" * 16, LogConfig(), 0)
        stage.put("two", b"t" * 16, PartitionState(0, NODE, 0, (NODE, 2), (NODE, 2)))
        partition = stage.partition("two")
        partition.append(made(20), -1, 0)
        ended: list[str] = []

        def waiter(name: str) -> OffsetCallback:
            return OffsetCallback(lambda error: ended.append(name))

        for name, end in (("first", 10), ("second", 20), ("first again", 10)):
            partition.delayed.wait_committed(end, waiter(name))
        partition._advance(10, 0)
        assert ended == ["first", "first again"]
        partition._advance(20, 0)
        assert ended == ["first", "first again", "second"]


async def test_every_partition_that_cannot_be_created_is_reported() -> None:
    async with staged() as stage:
        for number in (1, 3, *range(10, 40)):
            stage.logs.create(TopicPartition("t", number), b"o" * 16, LogConfig(), 0)
        states = [PartitionState(at, NODE, 0, (NODE,), (NODE,)) for at in range(40)]
        with pytest.raises(StorageError) as told:
            stage.put("t", b"n" * 16, *states)
        named = ", ".join(map(str, (1, 3, *range(10, 28))))
        assert str(told.value).startswith(f"partitions {named} and 12 more of t have no log here; 1: /disk/")
        assert stage.partition("t", 2).offline_reason == ""
        assert "another id" in stage.partition("t", 39).offline_reason


async def test_a_log_without_a_topic_id_is_served_from_a_full_disk_and_gets_its_id_at_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A power cut removed the file, or Kafka 0.8.2 wrote the directory."""

    async with staged() as stage:
        found = stage.logs.create(TopicPartition("t", 0), ZERO_ID, LogConfig(), 0)
        found.append(made(), 0, 0)
        stage.files.fail("append", "partition.metadata", errno.ENOSPC)
        stage.put("t", b"n" * 16, ALONE)
        partition = stage.partition("t")
        assert not partition.is_offline
        assert partition.log is found
        assert (found.topic_id, int(found.end_offset)) == (b"n" * 16, 1)
    (told,) = [one.getMessage() for one in caplog.records if "partition.metadata" in one.getMessage()]
    assert told.startswith("/disk/a/t-0 has no partition.metadata before the next start: cannot write ")


async def test_a_new_leader_applies_min_insync_replicas_before_it_commits() -> None:
    async with staged() as stage:
        found = stage.logs.create(TopicPartition("t", 0), bytes([1]) * 16, LogConfig(), 0)
        found.append(made(), 0, 0)
        stage.put(
            "t",
            bytes([1]) * 16,
            PartitionState(0, NODE, 1, (NODE, 2), (NODE,), 1),
            config=LogConfig(min_insync_replicas=2),
        )
        partition = stage.partition("t")
        assert (int(found.end_offset), int(partition.high_watermark)) == (1, 0)


@pytest.mark.parametrize("known", ["reported_missing", "of_deleted_topics", ""])
async def test_a_leader_replaces_the_log_of_a_former_topic_with_an_empty_log(
    known: str,
) -> None:
    """Otherwise the metadata store may be an old one and the log valid."""

    async with staged() as stage:
        key = TopicPartition("t", 0)
        stage.replicas.replica_fetcher_manager = Leaders()
        stage.logs.create(key, b"o" * 16, LogConfig(), 0).append(made(), 0, 0)
        if known:
            setattr(stage.logs.dirs, known, frozenset({key}))
        states = [PartitionState(0, NODE, 1, (NODE,), (NODE,), 1)]
        if known:
            stage.put("t", b"n" * 16, *states)
            log = stage.partition("t").log
            assert (log.topic_id, int(log.end_offset)) == (b"n" * 16, 0)
        else:
            with pytest.raises(StorageError, match="a topic of this name with another id"):
                stage.put("t", b"n" * 16, *states)


async def test_deleting_a_topic_deletes_no_directory_of_another_topic() -> None:
    async with staged() as stage:
        key = TopicPartition("t", 0)
        old = stage.logs.create(key, b"o" * 16, LogConfig(), 0)
        old.append(made(), 0, 0)
        with pytest.raises(StorageError, match="a topic of this name with another id"):
            stage.put("t", b"n" * 16, ALONE)
        list(stage.replicas.deleting("t", b"n" * 16))
        assert stage.logs.get(key) is old
        assert stage.files.exists("/disk/a/t-0")
        list(stage.replicas.deleting("t", b"o" * 16))
        assert stage.logs.get(key) is None


async def test_a_removed_directory_goes_offline_and_is_not_created_again() -> None:
    async with staged() as stage:
        (first,) = stage.topic("first")
        (second,) = stage.topic("second", number=2)
        await stage.replicas.check_directories()
        assert not first.is_offline
        stage.files.remove("/disk/a/meta.properties")
        await stage.replicas.check_directories()
        assert "/disk/a or its meta.properties does not exist" in first.offline_reason
        assert not second.is_offline
        (third,) = stage.topic("third", number=3)
        assert third.log.directory.startswith("/disk/b")


async def test_a_full_disk_is_logged_periodically(caplog: pytest.LogCaptureFixture) -> None:
    async with staged() as stage:
        (partition,) = stage.topic("first", config=LogConfig())
        stage.files.space_bytes = 0
        for _ in range(3):
            with pytest.raises(DiskFull) as full:
                partition.append(made(), 1, 0)
            stage.replicas.on_storage_error(partition, full.value)
        assert caplog.text.count("produce requests to /disk/a are rejected") == 1
        assert list(stage.replicas.full_directories) == ["/disk/a"]


def test_the_high_watermark_is_not_above_its_former_value_after_a_restart() -> None:
    files = FaultyFiles()
    together = [PartitionState(0, NODE, 0, (NODE, 2), (NODE, 2), 0)]

    async def before(stage: Stage) -> None:
        stage.put("t", bytes([1]) * 16, *together)
        partition = stage.partition("t")
        partition.append(made(), 1, 0)
        partition.append(made(), 1, 0)
        partition.fetched_by(2, 1, 0, 0)
        assert partition.high_watermark == 1
        await stage.replicas.checkpoints.write_high_watermarks()

    async def after(stage: Stage) -> None:
        stage.put("t", bytes([1]) * 16, *together)
        partition = stage.partition("t")
        assert (partition.high_watermark, partition.log.end_offset) == (1, 2)
        stage.put("t", bytes([1]) * 16, PartitionState(0, NODE, 1, (NODE, 2), (NODE,), 1))
        assert partition.high_watermark == 2

    run_staged(before, files)
    files.kill()
    run_staged(after, files)


class Leaders(AbstractFetcherManager):
    """Starts no fetches and records their fetch offsets."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def add_partition(self, partition: Partition) -> None:
        self.begun.append(int(partition.log.end_offset))

    def remove_partition(self, partition: Partition) -> None:
        pass


async def test_a_follower_fetches_unsynced_records_again_after_a_power_cut() -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = leaders = Leaders()
        first, second = stage.topic("t", 2, LogConfig())
        for one in (first, second):
            one.append(made(3), 1, 0)
            one.log.flush(0)
            one.append(made(2), 1, 0)
        stage.replicas.unsynced_logs = {first.log.topic_partition: 3}
        stage.put("t", bytes([1]) * 16, *(PartitionState(at, 2, 1, (NODE, 2), (2,), 1) for at in range(2)))
        assert leaders.begun == [3, 5], "no record of the second one is unsynced"
        stage.put("t", bytes([1]) * 16, *(PartitionState(at, 3, 2, (NODE, 2, 3), (3,), 2) for at in range(2)))
        assert leaders.begun == [3, 5, 3, 5], "fetched records are not in doubt"


async def test_a_former_leader_keeps_acknowledged_records_after_a_power_cut() -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = leaders = Leaders()
        partition = stage.topic("t", 1, LogConfig())[0]
        partition.append(made(3), 1, 0)
        partition.log.flush(0)
        stage.replicas.unsynced_logs = {partition.log.topic_partition: 3}
        stage.put("t", bytes([1]) * 16, PartitionState(0, NODE, 1, (NODE, 2), (NODE,), 1))
        partition.append(made(2), 1, 0)
        stage.put("t", bytes([1]) * 16, PartitionState(0, 2, 2, (NODE, 2), (NODE, 2), 2))
        assert leaders.begun == [5], "it is in sync, and may become leader again"


async def test_a_later_partition_epoch_with_an_equal_state_ends_a_pending_isr_change() -> None:
    async with staged() as stage:
        follower = NODE + 1
        wanted: list[tuple[tuple[int, ...], int]] = []
        stage.replicas.listener.alter_isr = lambda partition, isr, epoch: wanted.append((isr, epoch))

        def apply_state(version: int) -> Partition:
            stage.put(
                "t", b"1" * 16, PartitionState(0, NODE, 0, (NODE, follower), (NODE,), version), config=FLUSHED
            )
            return stage.partition("t")

        stage.logs.create(TopicPartition("t", 0), b"1" * 16, FLUSHED, 0)
        partition = apply_state(3)
        partition.fetched_by(follower, 0, 0, 0)
        # Another client has written the state: the controller rejects a request for version 3.
        apply_state(4)
        partition.fetched_by(follower, 0, 0, 1)
        assert wanted == [((NODE, follower), 3), ((NODE, follower), 4)]


@pytest.mark.parametrize("older", [(5, 2), (4, 9)], ids=["partition epoch", "leader epoch"])
async def test_a_state_with_an_older_epoch_is_ignored(older: tuple[int, int]) -> None:
    async with staged() as stage:
        follower = NODE + 1

        def put(leader: int, leader_epoch: int, partition_epoch: int) -> Partition:
            both = (NODE, follower)
            stage.put(
                "t",
                b"1" * 16,
                PartitionState(0, leader, leader_epoch, both, both, partition_epoch),
                config=FLUSHED,
            )
            return stage.partition("t")

        stage.logs.create(TopicPartition("t", 0), b"1" * 16, FLUSHED, 0)
        assert put(NODE, 5, 3).is_leader
        partition = put(follower, *older)
        known = (partition.leader, partition.leader_epoch, partition.partition_epoch)
        assert known == (NODE, 5, 3)


async def test_adding_replicas_do_not_make_a_partition_under_replicated() -> None:
    async with staged() as stage:

        def apply_state(
            version: int, replicas: tuple[int, ...], isr: tuple[int, ...], *adding: int
        ) -> Partition:
            stage.put(
                "t",
                b"1" * 16,
                PartitionState(0, NODE, version, replicas, isr, version, adding),
                config=FLUSHED,
            )
            return stage.partition("t")

        assert not apply_state(0, (NODE, 2), (NODE, 2)).is_under_replicated
        partition = apply_state(1, (NODE, 3, 2), (NODE, 2), 3)
        assert not partition.is_under_replicated
        assert PartitionState.of(partition).adding == (3,)
        assert apply_state(2, (NODE, 3, 2), (NODE,), 3).is_under_replicated
        assert not apply_state(3, (NODE, 3, 2), (NODE, 2, 3), 3).is_under_replicated
        assert (stage.replicas.isr_shrinks, stage.replicas.isr_expands) == (1, 1)
        assert not apply_state(4, (NODE, 3), (NODE, 3)).is_under_replicated
        assert (stage.replicas.isr_shrinks, stage.replicas.isr_expands) == (1, 1), "broker 2 was moved away"
        apply_state(5, (NODE, 3, 4), (NODE, 3))
        apply_state(6, (NODE, 3, 4), (NODE, 4))
        assert (stage.replicas.isr_shrinks, stage.replicas.isr_expands) == (2, 2), (
            "one replica was added, and one removed"
        )


async def test_counters_of_removed_partitions_are_kept_in_their_topic() -> None:
    async with staged() as stage:
        first, second = stage.topic("t", 2)
        for one in (first, second):
            one.append(made(3), 1, 0)
        entry = stage.replicas.topics.by_name[b"t"]
        stage.replicas.stop_replica("t", 0, delete=True)
        assert entry.counted_before == counters_of(first)
        assert entry.counted_before[:2] == (3, first.log.size_bytes)
        stage.replicas.stop_replica("t", 1, delete=True)
        assert not stage.replicas.topics.by_name


async def test_retention_of_many_partitions_does_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged() as stage:
        count = 2 * ITEMS_AT_ONCE_MAX + 1
        stage.topic("many", count)
        requested: list[int] = []
        cleanup_logs = stage.logs.cleanup_logs

        def noted(now_ms: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            requested.append(len(ends))
            return cleanup_logs(now_ms, ends)

        monkeypatch.setattr(stage.logs, "cleanup_logs", noted)
        work = asyncio.ensure_future(stage.replicas.cleanup_logs())
        passes = 0
        while not work.done():
            passes += 1
            if passes == 2:
                for index in range(count):
                    stage.replicas.stop_replica("many", index, delete=True)
            await asyncio.sleep(0)
        await work
        assert passes >= 3
        assert requested == [ITEMS_AT_ONCE_MAX, 0, 0], "partitions deleted meanwhile are ignored"


async def test_isr_checks_of_many_partitions_do_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged() as stage:
        count = 2 * ITEMS_AT_ONCE_MAX + 1
        checked: list[int] = []
        partitions = [
            SimpleNamespace(
                is_leader=True,
                is_offline=False,
                deleted=False,
                replication=object(),
                maybe_shrink_isr=lambda now_ms, index=index: checked.append(index),
            )
            for index in range(count)
        ]
        monkeypatch.setattr(stage.replicas, "all", lambda: iter(partitions))
        work = asyncio.ensure_future(stage.replicas.maybe_shrink_isr())
        await asyncio.sleep(0)
        assert len(checked) == ITEMS_AT_ONCE_MAX
        partitions[-1].deleted = True
        await work
        assert checked == list(range(count - 1)), "a partition deleted meanwhile is ignored"


async def test_expired_producers_are_removed_in_slices() -> None:
    async with staged() as stage:
        (partition,) = stage.topic("t", 1)
        entries = partition.log.producer_state.entries
        for producer_id in range(2 * ITEMS_PER_SLICE + 1):
            entries[producer_id] = ProducerEntry(producer_id, 0)
        work = asyncio.ensure_future(stage.replicas.cleanup_logs())
        counts = []
        while not work.done():
            await asyncio.sleep(0)
            counts.append(len(entries))
        await work
        assert {ITEMS_PER_SLICE + 1, 1, 0} <= set(counts)


async def test_doubtful_records_after_a_power_cut_are_fetched_again_even_if_synced() -> None:
    async with staged() as stage:
        stage.replicas.replica_fetcher_manager = leaders = Leaders()
        partition = stage.topic("t", 1, LogConfig())[0]
        partition.append(made(3), 1, 0)
        partition.log.flush(0)
        partition.append(made(2), 1, 0)
        stage.replicas.unsynced_logs = {partition.log.topic_partition: 3}
        partition.log.roll(0)
        await stage.replicas.log_flusher.flush_due()
        stage.put("t", bytes([1]) * 16, PartitionState(0, 2, 1, (NODE, 2), (2,), 1))
        assert leaders.begun == [3]


@pytest.mark.parametrize("is_written_down", [False, True])
async def test_a_deleted_topic_does_not_reappear_beside_a_recreated_one_in_another_directory(
    is_written_down: bool,
) -> None:
    async with staged() as stage:
        await stage.replicas.checkpoints.write_removals()
        (first,) = stage.topic("t", config=LogConfig())
        first.append(made(), 1, 0)
        first.log.flush(0)
        assert first.log.directory == "/disk/a/t-0"
        list(stage.replicas.deleting("t", bytes([1]) * 16))
        if is_written_down:
            await stage.replicas.checkpoints.write_removals()
            assert stage.logs.dirs.renamed == {}
        stage.topic("u", config=LogConfig(), number=2)
        (again,) = stage.topic("t", config=LogConfig(), number=3)
        assert again.log.directory == "/disk/b/t-0"
        again.append(made(2), 1, 0)
        again.log.flush(0)
        stage.files.power_cut()
        logs = start_logs(stage.files, DIRECTORIES, now_ms=0)
        assert not any(one.is_offline for one in logs.dirs.all)
        assert logs.logs[TopicPartition("t", 0)].topic_id == bytes([3]) * 16


async def test_leadership_listeners_are_notified_of_each_epoch_of_a_leader() -> None:
    """Another broker may have led the partition in between, of which this broker was not notified."""
    async with staged() as stage:
        epochs: list[tuple[int, bool]] = []
        stage.replicas.leadership_listeners.append(
            lambda partition, leads: epochs.append((int(partition.leader_epoch), leads))
        )
        for leader, epoch, isr in (
            (NODE, 1, (NODE, 2)),
            (NODE, 1, (NODE,)),
            (NODE, 3, (NODE,)),
            (2, 4, (2,)),
        ):
            stage.put(
                "t", b"n" * 16, PartitionState(0, leader, epoch, (NODE, 2), isr, 2 * epoch + 2 - len(isr))
            )
        assert epochs == [(1, True), (3, True), (4, False)]
