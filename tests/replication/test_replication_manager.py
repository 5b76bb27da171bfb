"""Partitions as the controller's states make them, over files that fail: flushes, checkpoints, deletions."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemill.log.checkpoints import read_offsets
from tidemill.log.config import LogConfig
from tidemill.log.errors import DiskFull, storage_error
from tidemill.log.manager import LogManager
from tidemill.log.names import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from tidemill.model.clock import SystemClock
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, StorageError
from tidemill.model.slices import AT_ONCE_MAX
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.follows import Follows
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.topics import counters_of
from tidemill.replication.waiting import CommitCallback
from tidemill.testing.files import FaultyFiles

NODE = 1
DIRECTORIES = ("/disk/a", "/disk/b")
FLUSHED = LogConfig(flush_messages=1)


def made(count: int = 1) -> Batch:
    data = build_batch([(1_700_000_000_000, b"k", b"v" * 20, None)] * count)
    return parse_batch(data, 0, len(data))


class Stage:
    """A replica manager over files in memory."""

    def __init__(self, files: FaultyFiles | None = None) -> None:
        self.files = files or FaultyFiles()
        self.logs = LogManager(self.files, DIRECTORIES)
        self.logs.lock()
        self.logs.claim("cluster", NODE)
        self.logs.load(0, lambda topic: LogConfig())
        self.pool = ThreadPoolExecutor(2)
        self.replicas = ReplicaManager(
            NODE, self.logs, SystemClock(), asyncio.get_running_loop(), self.pool, self.pool
        )

    def topic(
        self, name: str, count: int = 1, config: LogConfig = FLUSHED, number: int = 1
    ) -> list[Partition]:
        states = [PartitionState(at, NODE, 0, (NODE,), (NODE,)) for at in range(count)]
        for at in range(count):
            self.logs.create(TopicPartition(name, at), bytes([number]) * 16, config, 0)
        self.replicas.put_topic(name, bytes([number]) * 16, False, states, config)
        return [self.partition(name, at) for at in range(count)]

    def partition(self, name: str, index: int = 0) -> Partition:
        found = self.replicas.find(name, index)
        assert found is not None
        return found

    async def append(self, partition: Partition) -> KafkaError | None:
        """Appends with acks=all; the error that its waiting ended with, None once it is committed."""
        future: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        result = partition.append([made()], -1, 0)
        end = result.last_offset + 1
        if partition.is_committed(end):
            return None
        partition.wait_committed(end, CommitCallback(future.set_result))
        return await asyncio.wait_for(future, 10)

    def close(self) -> None:
        self.pool.shutdown()


def staged(test: Callable[[Stage], Awaitable[None]], files: FaultyFiles | None = None) -> None:
    async def run() -> None:
        stage = Stage(files)
        try:
            await test(stage)
            await stage.replicas.stop()
        finally:
            stage.close()

    asyncio.run(run())


def clean_marks(files: FaultyFiles) -> list[str]:
    return [path for path in DIRECTORIES if files.exists(f"{path}/.kafka_cleanshutdown")]


def test_a_sync_that_fails_puts_the_directory_aside_and_no_other() -> None:
    async def test(stage: Stage) -> None:
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
            first.append([made()], -1, 0)
        assert await stage.append(second) is None
        # The next sync would succeed and promise what the system had dropped.
        assert stage.logs.close(0, stage.replicas.high_watermarks()) == []
        assert clean_marks(stage.files) == ["/disk/b"]

    staged(test)


def test_the_next_start_is_told_of_a_sync_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles()
    told: list[set[str]] = []

    async def before(stage: Stage) -> None:
        stage.logs.loss_heeded()
        stage.replicas.directory_distrusted = lambda: told.append(set(stage.logs.distrusted))
        (first,) = stage.topic("first")
        first.append([made()], 1, 0)
        files.fail("sync", "/disk/a/first-0", errno.EIO)
        files.fail("replace", "/disk/a/.tidemill-boot", errno.EROFS)
        files.fail("remove", "/disk/a/.tidemill-boot", errno.EROFS)
        while flushes := list(stage.replicas.flushing.under_way):
            await asyncio.wait(flushes)
        await stage.replicas.stop()
        assert "one of the marks of the failed sync could not be written" in caplog.text

    async def after(stage: Stage) -> None:
        assert [one.may_have_lost for one in stage.logs.directories] == [True, False]
        assert told == [stage.logs.distrusted]

    staged(before, files)
    files.heal()
    files.kill()
    staged(after, files)


def test_an_upkeep_sync_that_fails_puts_the_directory_aside_too() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first", config=LogConfig(flush_ms=0))
        assert await stage.append(first) is None
        stage.files.fail("sync", "/disk/a/first-0", errno.EIO)
        await stage.replicas.flushing.due()
        stage.files.heal()
        assert first.failed
        await stage.replicas.flushing.due()
        stage.logs.close(0, {})
        assert clean_marks(stage.files) == ["/disk/b"]

    staged(test)


def test_a_flush_without_descriptors_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.replication.flushing.FLUSH_AGAIN_S", 0.01)

    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first")
        stage.files.fail("sync", "/disk/a/first-0", errno.EMFILE, times=1_000_000)
        appended = asyncio.create_task(stage.append(first))
        await asyncio.sleep(0.05)
        assert not appended.done()
        stage.files.heal()
        assert await appended is None
        assert not first.failed

    staged(test)


def test_a_flush_that_waits_for_descriptors_goes_on_with_a_log_that_moves_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.replication.flushing.FLUSH_AGAIN_S", 0.2)

    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first")
        stage.files.fail("sync", "/disk/a/first-0", errno.EMFILE, times=1_000_000)
        appended = asyncio.create_task(stage.append(first))
        await asyncio.sleep(0)
        stage.replicas.mover.begin(TopicPartition("first", 0), "/disk/b")
        assert await appended is None
        assert first.log.directory == "/disk/b/first-0"
        assert await stage.append(first) is None

    staged(test)


def test_a_flush_of_what_is_cut_meanwhile_commits_nothing_of_it() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first")
        first.append([made(3)], 1, 0)
        await asyncio.sleep(0)
        first.truncate_to(0, 0)
        while flushes := list(stage.replicas.flushing.under_way):
            await asyncio.wait(flushes)
        assert first.high_watermark == first.log.recovery_point == first.log.end_offset == 0

    staged(test)


def test_what_is_cut_while_a_flush_is_under_way_is_on_the_disk_before_more_comes() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first", config=LogConfig())
        first.append([made(3)], 1, 0)
        first.truncate_to(0, 0)
        first.log.append([made(2)], 0, 0)
        await asyncio.sleep(0)
        first.truncate_to(0, 0)
        assert first.flush_under_way
        while flushes := list(stage.replicas.flushing.under_way):
            await asyncio.wait(flushes)
        stage.files.power_cut()
        assert stage.files.size(first.log.active.path) == 0

    staged(test)


def recovery_point(stage: Stage, partition: Partition) -> int:
    """What a start would find written down."""
    path = f"{stage.logs.directory_of(partition.log).path}/recovery-point-offset-checkpoint"
    return read_offsets(stage.files, path)[partition.log.topic_partition]


def test_a_start_does_not_trust_what_comes_in_the_place_of_what_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.replication.flushing.FLUSH_AGAIN_S", 0.01)

    async def test(stage: Stage) -> None:
        parts = stage.topic("t", 6, LogConfig())
        for one in parts:
            one.append([made(5)], 1, 0)
            one.log.flush(0)
        await stage.replicas.checkpoints.recovery_points()
        stage.files.fail("replace", "recovery-point-offset-checkpoint", errno.ENOSPC, times=3)
        stage.files.operations.clear()
        for one in parts:
            if one.index < 4:
                one.truncate_to(0, 0)
        while flushes := list(stage.replicas.flushing.under_way):
            for one in parts:
                assert one.flush_under_way or recovery_point(stage, one) == one.log.end_offset
            await asyncio.wait(flushes, timeout=0.001)
        assert [recovery_point(stage, one) for one in parts] == [0, 0, 0, 0, 5, 5]
        writes = [path for operation, path in stage.files.operations if operation == "replace"]
        assert len(writes) < 3 + 4, "one writing speaks for all of a directory that wait for it"

    staged(test)


def test_a_cut_that_cannot_be_written_down_puts_the_directory_aside() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("t", config=LogConfig())
        first.append([made(5)], 1, 0)
        first.log.flush(0)
        await stage.replicas.checkpoints.recovery_points()
        stage.files.fail("replace", "recovery-point-offset-checkpoint")
        first.truncate_to(0, 0)
        while flushes := list(stage.replicas.flushing.under_way):
            await asyncio.wait(flushes)
        assert first.failed

    staged(test)


def test_every_record_that_is_cut_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(stage: Stage) -> None:
        first, second = stage.topic("t", 2, LogConfig())
        for one in (first, second):
            one.append([made(5)], 1, 0)
            one.append([made(5)], 1, 0)
        stage.replicas.following = Leaders()
        stage.replicas.doubtful = {second.log.topic_partition: 0}
        caplog.clear()
        first.truncate_to(10, 0, "nothing is there")
        first.truncate_to(7, 0, "the leader has others")
        first.truncate_to(5, 0, "nothing is left there")
        first.begin_at(20, 0)
        first.begin_at(30, 0)
        first.truncate_to(25, 0, "there was no record")
        states = [PartitionState(1, 2, 1, (NODE, 2), (2,), 1)]
        stage.replicas.put_topic("t", bytes([1]) * 16, False, states, LogConfig())
        assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
            "t-0: the records of offsets 5 to 9 are cut: the leader has others",
            "t-0: the records of offsets 0 to 4 are cut: the leader's log starts at offset 20",
            "t-1: the records of offsets 0 to 9 are cut: they were not synced when the machine went down; "
            "they are fetched again from the leader",
        ]

    staged(test)


def test_records_that_the_leader_deleted_are_not_there_after_a_crash_of_a_follower_that_began_anew() -> None:
    """The leader's log may start within a batch, whose first records were deleted."""

    async def test(stage: Stage) -> None:
        (first,) = stage.topic("t", 1, LogConfig())
        first.begin_at(27, 0)
        assert first.is_settling, "the leader is told of the start before it would hold"
        data = build_batch([(1_700_000_000_000, b"k", b"v", None)] * 5)
        first.append_from_leader((24).to_bytes(8, "big") + data[8:], 29, 27, 0)
        assert (first.log.start_offset, first.log.end_offset) == (27, 29)
        while first.is_settling:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stage.files.kill()
        again = LogManager(stage.files, DIRECTORIES)
        again.lock()
        again.load(0, lambda topic: LogConfig())
        found = again.get(first.log.topic_partition)
        assert found is not None
        assert (found.start_offset, found.end_offset) == (27, 29)

    staged(test)


def test_a_follower_whose_records_were_all_deleted_takes_a_batch_within_which_the_leaders_log_starts() -> (
    None
):
    """A former leader cuts its log to the start of the next leader's, which lies within a batch."""

    async def test(stage: Stage) -> None:
        (first,) = stage.topic("t", 1, LogConfig())
        first.append_from_leader(build_batch([(1_700_000_000_000, b"k", b"v", None)] * 27), 20, 0, 0)
        data = build_batch([(1_700_000_000_000, b"k", b"v", None)] * 5)
        first.append_from_leader((24).to_bytes(8, "big") + data[8:], 29, 27, 0)
        assert (first.log.start_offset, first.log.end_offset, first.high_watermark) == (27, 29, 29)
        assert first.is_settling, "the leader is told of the start before it would hold"
        while first.is_settling:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    staged(test)


def test_of_a_follower_that_lags_no_offset_is_committed_that_it_has_not() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("t", 1, LogConfig())
        first.append_from_leader(build_batch([(1_700_000_000_000, b"k", b"v", None)] * 3), 100, 0, 0)
        assert (first.log.end_offset, first.high_watermark) == (3, 3)

    staged(test)


def test_a_batch_before_the_end_is_refused_where_records_of_it_are_left() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("t", 1, LogConfig())
        first.append_from_leader(build_batch([(1_700_000_000_000, b"k", b"v", None)] * 27), 20, 0, 0)
        data = build_batch([(1_700_000_000_000, b"k", b"v", None)] * 5)
        with pytest.raises(CorruptMessage, match="the leader sent offset 24, the log here ends at 27"):
            first.append_from_leader((24).to_bytes(8, "big") + data[8:], 29, 26, 0)
        assert (first.log.start_offset, first.log.end_offset) == (0, 27)

    staged(test)


def test_a_follower_goes_on_when_retention_moves_its_start_while_the_leaders_is_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("t", 1, LogConfig())
        writing, moved = threading.Event(), threading.Event()
        replace = stage.files.replace

        def slowly(path: str, data: bytes) -> None:
            writing.set()
            moved.wait(10)
            replace(path, data)

        monkeypatch.setattr(stage.files, "replace", slowly)
        data = build_batch([(1_700_000_000_000, b"k", b"v", None)] * 5)
        first.append_from_leader(data, 5, 2, 0)
        assert first.is_settling
        while not writing.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        first.advance_start(4)
        moved.set()
        async with asyncio.timeout(10):
            while first.is_settling:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert read_offsets(stage.files, first.log.directory.rpartition("/")[0] + "/" + LOG_STARTS) == {
            first.log.topic_partition: 4
        }

    staged(test)


def test_deleting_a_topic_while_it_is_flushed_fails_its_waiters_and_nothing_else() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first")
        (third,) = [stage.topic("second", number=2), stage.topic("third", number=3)][1]
        assert third.log.directory.startswith("/disk/a")
        appended = asyncio.create_task(stage.append(first))
        await asyncio.sleep(0)
        list(stage.replicas.removing("first", bytes([1]) * 16))
        error = await appended
        assert error is not None
        assert "was deleted" in str(error)
        await stage.replicas.stop()
        assert not third.failed
        assert [directory.failure for directory in stage.logs.directories] == ["", ""]

    staged(test)


def test_a_log_whose_files_are_half_exchanged_stops_whatever_the_reason() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first")
        problem = OSError(errno.EMFILE, "Too many open files", first.log.directory)
        failure = storage_error("exchange", first.log.directory, problem)
        stage.replicas.storage_failed(first.log, failure)
        assert "Too many open files" in first.failed

    staged(test)


def test_one_partition_that_cannot_be_renamed_keeps_no_other_from_its_deletion() -> None:
    async def test(stage: Stage) -> None:
        partitions = stage.topic("first", count=3)
        stage.files.fail("rename", "/disk/a/first-0", errno.EIO)
        with pytest.raises(StorageError, match="first-0"):
            list(stage.replicas.removing("first", bytes([1]) * 16))
        assert all(partition.deleted for partition in partitions)
        assert [key for key in stage.logs.logs if key.topic == "first"] == [TopicPartition("first", 0)]
        assert not stage.files.exists("/disk/b/first-1")
        list(stage.replicas.removing("first", bytes([1]) * 16))
        assert not stage.files.exists("/disk/a/first-0")

    staged(test)


def test_a_topic_made_anew_has_no_record_of_the_one_whose_directory_could_not_be_renamed_at_first() -> None:
    async def test(stage: Stage) -> None:
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

    staged(test)


def test_a_topic_can_be_deleted_whose_directory_somebody_has_removed() -> None:
    async def test(stage: Stage) -> None:
        stage.topic("first")
        stage.files.rename("/disk/a/first-0", "/elsewhere")
        stage.replicas.stop_replica("first", 0, delete=True)
        assert TopicPartition("first", 0) not in stage.logs.logs

    staged(test)


def test_a_log_that_could_not_be_deleted_is_synced_by_a_stop_in_order_and_found_by_the_next_start() -> None:
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

    staged(before, files)
    staged(after, files)


def test_a_deletion_that_a_stop_interrupted_leaves_the_name_free() -> None:
    files = FaultyFiles()

    async def before(stage: Stage) -> None:
        stage.topic("first", count=2)
        stage.logs.unlock()

    async def after(stage: Stage) -> None:
        assert len(stage.logs.logs) == 2
        list(stage.replicas.removing("first", bytes([1]) * 16))  # nobody has put it into the table
        (again, _) = stage.topic("first", count=2, number=9)
        assert again.log.topic_id == bytes([9]) * 16

    staged(before, files)
    staged(after, files)


def test_what_checkpoints_say_of_a_deleted_topic_does_not_count_for_the_next_of_its_name() -> None:
    files = FaultyFiles()

    async def before(stage: Stage) -> None:
        (old,) = stage.topic("first", config=LogConfig())
        for _ in range(10):
            await stage.append(old)
        old.log.advance_start(9)
        await stage.replicas.checkpoints.log_starts()
        list(stage.replicas.removing("first", bytes([1]) * 16))
        await stage.replicas.checkpoints.removals()
        (new,) = stage.topic("first", config=LogConfig(), number=2)
        for _ in range(3):
            await stage.append(new)
        stage.logs.unlock()

    async def after_a_crash(stage: Stage) -> None:
        log = stage.logs.logs[TopicPartition("first", 0)]
        assert (log.start_offset, log.end_offset) == (0, 3)

    staged(before, files)
    staged(after_a_crash, files)


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_no_checkpoint_on_the_disk_names_a_deleted_topic_once_its_removal_was_written(
    is_power_cut: bool,
) -> None:
    async def test(stage: Stage) -> None:
        (old,) = stage.topic("first", config=LogConfig())
        for _ in range(10):
            await stage.append(old)
        old.log.advance_start(9)
        old.log.flush(0)
        checkpoints = stage.replicas.checkpoints
        await checkpoints.high_watermarks()
        await checkpoints.recovery_points()
        await checkpoints.log_starts()
        key, names = TopicPartition("first", 0), (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS)
        files = [f"/disk/a/{name}" for name in names]
        assert [read_offsets(stage.files, one).get(key) for one in files] == [10, 9, 10]
        list(stage.replicas.removing("first", bytes([1]) * 16))
        await checkpoints.removals()
        if is_power_cut:
            stage.files.power_cut()
        assert [read_offsets(stage.files, one).get(key) for one in files] == [None, None, None]

    staged(test)


def test_checkpoints_are_written_in_a_thread_and_one_after_the_other() -> None:
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

    async def test(stage: Stage) -> None:
        stage.topic("first")
        threads.clear()
        await asyncio.gather(
            *(stage.replicas.checkpoints.log_starts() for _ in range(5)),
            stage.replicas.checkpoints.recovery_points(),
            stage.replicas.checkpoints.high_watermarks(),
        )
        assert threads
        assert threading.get_ident() not in threads

    staged(test, files)


def test_a_directory_whose_checkpoint_fails_does_not_cost_another_its_clean_stop() -> None:
    async def test(stage: Stage) -> None:
        stage.topic("first")
        stage.topic("second", number=2)
        stage.files.fail("replace", "/disk/b/recovery-point-offset-checkpoint", errno.EROFS)
        problems = stage.logs.close(0, {})
        assert len(problems) == 1
        assert "/disk/b" in problems[0]
        assert clean_marks(stage.files) == ["/disk/a"]

    staged(test)


def test_a_partition_that_may_lie_in_a_failed_directory_is_not_made_elsewhere() -> None:
    async def test(stage: Stage) -> None:
        stage.logs.fail_directory("/disk/a", "Input/output error")
        states = [PartitionState(0, NODE, 0, (NODE,), (NODE,))]
        with pytest.raises(StorageError, match="/disk/a"):
            stage.replicas.put_topic("known", b"k" * 16, False, states, LogConfig())
        known = stage.partition("known")
        for ask in (lambda: known.check_leader(-1), lambda: known.append([made()], -1, 0)):
            with pytest.raises(KafkaError, match="/disk/a") as caught:
                ask()
            assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        (new,) = stage.topic("new")
        assert new.log.directory == "/disk/b/new-0"

    staged(test)


def test_a_topic_made_anew_is_empty_where_the_end_of_the_one_before_was_not_heard_of() -> None:
    async def test(stage: Stage) -> None:
        (before,) = stage.topic("first")
        before.append([made(3)], 1, 0)
        state = PartitionState(0, NODE, 0, (NODE,), (NODE,))
        stage.replicas.put_topic("first", bytes([2]) * 16, False, [state], FLUSHED)
        after = stage.partition("first")
        assert (after.log.topic_id, int(after.log.end_offset)) == (bytes([2]) * 16, 0)
        assert after.append([made()], 1, 0).base_offset == 0
        with pytest.raises(KafkaError):
            before.append([made()], 1, 0)

    staged(test)


def test_a_topic_made_anew_is_written_back_from_its_beginning() -> None:
    async def test(stage: Stage) -> None:
        (old,) = stage.topic("first", config=LogConfig())
        for _ in range(20):
            await stage.append(old)
        stage.replicas.write_back_wanted(old)
        list(stage.replicas.removing("first", bytes([1]) * 16))
        (new,) = stage.topic("first", config=LogConfig(), number=2)
        await stage.append(new)
        stage.replicas.write_back_wanted(new)
        assert stage.replicas.write_back._unwritten_bytes >= 0
        assert stage.replicas.write_back._written_to[new.log.active.path] == new.log.active.size

    staged(test)


def test_a_batch_that_is_sent_again_does_not_wait_behind_later_ones() -> None:
    async def test(stage: Stage) -> None:
        states = [PartitionState(0, NODE, 0, (NODE, 2), (NODE, 2))]
        stage.logs.create(TopicPartition("two", 0), b"t" * 16, LogConfig(), 0)
        stage.replicas.put_topic("two", b"t" * 16, False, states, LogConfig())
        partition = stage.partition("two")
        partition.append([made(20)], -1, 0)
        ended: list[str] = []

        def waiter(name: str) -> CommitCallback:
            return CommitCallback(lambda error: ended.append(name))

        for name, end in (("first", 10), ("second", 20), ("first again", 10)):
            partition.wait_committed(end, waiter(name))
        partition._advance(10, 0)
        assert ended == ["first", "first again"]
        partition._advance(20, 0)
        assert ended == ["first", "first again", "second"]

    staged(test)


def test_every_partition_that_cannot_be_made_is_named() -> None:
    async def test(stage: Stage) -> None:
        for number in (1, 3, *range(10, 40)):
            stage.logs.create(TopicPartition("t", number), b"o" * 16, LogConfig(), 0)
        states = [PartitionState(at, NODE, 0, (NODE,), (NODE,)) for at in range(40)]
        with pytest.raises(StorageError) as told:
            stage.replicas.put_topic("t", b"n" * 16, False, states, LogConfig())
        named = ", ".join(map(str, (1, 3, *range(10, 28))))
        assert str(told.value).startswith(f"partitions {named} and 12 more of t have no log here; 1: /disk/")
        assert stage.partition("t", 2).failed == ""
        assert "another id" in stage.partition("t", 39).failed

    staged(test)


def test_a_log_without_an_id_is_served_from_a_full_disk_and_gets_the_id_at_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A power cut took the file, or Kafka 0.8.2 wrote the directory."""

    async def test(stage: Stage) -> None:
        found = stage.logs.create(TopicPartition("t", 0), ZERO_ID, LogConfig(), 0)
        found.append([made()], 0, 0)
        stage.files.fail("append", "partition.metadata", errno.ENOSPC)
        state = PartitionState(0, NODE, 0, (NODE,), (NODE,))
        stage.replicas.put_topic("t", b"n" * 16, False, [state], LogConfig())
        partition = stage.partition("t")
        assert not partition.failed
        assert partition.log is found
        assert (found.topic_id, int(found.end_offset)) == (b"n" * 16, 1)

    staged(test)
    (told,) = [one.getMessage() for one in caplog.records if "partition.metadata" in one.getMessage()]
    assert told.startswith("/disk/a/t-0 has no partition.metadata before the next start: cannot write ")


def test_a_leader_commits_nothing_by_less_than_its_topics_minimum_as_it_begins_to_lead() -> None:
    async def test(stage: Stage) -> None:
        found = stage.logs.create(TopicPartition("t", 0), bytes([1]) * 16, LogConfig(), 0)
        found.append([made()], 0, 0)
        state = PartitionState(0, NODE, 1, (NODE, 2), (NODE,), 1)
        stage.replicas.put_topic("t", bytes([1]) * 16, False, [state], LogConfig(min_insync_replicas=2))
        partition = stage.partition("t")
        assert (int(found.end_offset), int(partition.high_watermark)) == (1, 0)

    staged(test)


@pytest.mark.parametrize("known", ["reported_missing", "of_deleted_topics", ""])
def test_a_leader_begins_empty_over_the_log_of_a_former_topic_where_it_cannot_have_records(
    known: str,
) -> None:
    """Else the store may be an old one, and the log the right one."""

    async def test(stage: Stage) -> None:
        key = TopicPartition("t", 0)
        stage.replicas.following = Leaders()
        stage.logs.create(key, b"o" * 16, LogConfig(), 0).append([made()], 0, 0)
        if known:
            setattr(stage.logs, known, frozenset({key}))
        states = [PartitionState(0, NODE, 1, (NODE,), (NODE,), 1)]
        if known:
            stage.replicas.put_topic("t", b"n" * 16, False, states, LogConfig())
            log = stage.partition("t").log
            assert (log.topic_id, int(log.end_offset)) == (b"n" * 16, 0)
        else:
            with pytest.raises(StorageError, match="a topic of this name with another id"):
                stage.replicas.put_topic("t", b"n" * 16, False, states, LogConfig())

    staged(test)


def test_a_topic_that_is_deleted_takes_no_directory_of_another_with_it() -> None:
    async def test(stage: Stage) -> None:
        key = TopicPartition("t", 0)
        old = stage.logs.create(key, b"o" * 16, LogConfig(), 0)
        old.append([made()], 0, 0)
        state = PartitionState(0, NODE, 0, (NODE,), (NODE,))
        with pytest.raises(StorageError, match="a topic of this name with another id"):
            stage.replicas.put_topic("t", b"n" * 16, False, [state], LogConfig())
        list(stage.replicas.removing("t", b"n" * 16))
        assert stage.logs.get(key) is old
        assert stage.files.exists("/disk/a/t-0")
        list(stage.replicas.removing("t", b"o" * 16))
        assert stage.logs.get(key) is None

    staged(test)


def test_a_directory_that_somebody_removes_goes_offline_and_is_not_made_anew() -> None:
    async def test(stage: Stage) -> None:
        (first,) = stage.topic("first")
        (second,) = stage.topic("second", number=2)
        await stage.replicas.look_after_directories()
        assert not first.failed
        stage.files.remove("/disk/a/meta.properties")
        await stage.replicas.look_after_directories()
        assert "/disk/a or its meta.properties is gone" in first.failed
        assert not second.failed
        (third,) = stage.topic("third", number=3)
        assert third.log.directory.startswith("/disk/b")

    staged(test)


def test_a_full_disk_is_told_of_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def test(stage: Stage) -> None:
        (partition,) = stage.topic("first", config=LogConfig())
        stage.files.space_bytes = 0
        for _ in range(3):
            with pytest.raises(DiskFull) as full:
                partition.append([made()], 1, 0)
            stage.replicas.storage_trouble(partition, full.value)
        assert caplog.text.count("produces to /disk/a are refused") == 1
        assert list(stage.replicas.full) == ["/disk/a"]

    staged(test)


def test_what_was_not_known_to_be_committed_is_not_so_after_a_restart_either() -> None:
    files = FaultyFiles()
    together = [PartitionState(0, NODE, 0, (NODE, 2), (NODE, 2), 0)]

    async def before(stage: Stage) -> None:
        stage.replicas.put_topic("t", bytes([1]) * 16, False, together, LogConfig())
        partition = stage.partition("t")
        partition.append([made()], 1, 0)
        partition.append([made()], 1, 0)
        partition.fetched_by(2, 1, 0, 0)
        assert partition.high_watermark == 1
        await stage.replicas.checkpoints.high_watermarks()

    async def after(stage: Stage) -> None:
        stage.replicas.put_topic("t", bytes([1]) * 16, False, together, LogConfig())
        partition = stage.partition("t")
        assert (partition.high_watermark, partition.log.end_offset) == (1, 2)
        alone = [PartitionState(0, NODE, 1, (NODE, 2), (NODE,), 1)]
        stage.replicas.put_topic("t", bytes([1]) * 16, False, alone, LogConfig())
        assert partition.high_watermark == 2

    staged(before, files)
    files.kill()
    staged(after, files)


class Leaders(Follows):
    """Follows nobody, and notes from which offset it would."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def follow(self, partition: Partition) -> None:
        self.begun.append(int(partition.log.end_offset))

    def leave(self, partition: Partition) -> None:
        pass


def test_a_follower_whose_machine_went_down_fetches_anew_what_was_not_synced() -> None:
    async def test(stage: Stage) -> None:
        stage.replicas.following = leaders = Leaders()
        first, second = stage.topic("t", 2, LogConfig())
        for one in (first, second):
            one.append([made(3)], 1, 0)
            one.log.flush(0)
            one.append([made(2)], 1, 0)
        stage.replicas.doubtful = {first.log.topic_partition: 3}
        states = [PartitionState(at, 2, 1, (NODE, 2), (2,), 1) for at in range(2)]
        stage.replicas.put_topic("t", bytes([1]) * 16, False, states, LogConfig())
        assert leaders.begun == [3, 5], "of the second nothing is in doubt"
        again = [PartitionState(at, 3, 2, (NODE, 2, 3), (3,), 2) for at in range(2)]
        stage.replicas.put_topic("t", bytes([1]) * 16, False, again, LogConfig())
        assert leaders.begun == [3, 5, 3, 5], "what was fetched since is not in doubt"

    staged(test)


def test_a_leader_whose_machine_went_down_keeps_what_it_acknowledged_since_when_it_follows() -> None:
    async def test(stage: Stage) -> None:
        stage.replicas.following = leaders = Leaders()
        partition = stage.topic("t", 1, LogConfig())[0]
        partition.append([made(3)], 1, 0)
        partition.log.flush(0)
        stage.replicas.doubtful = {partition.log.topic_partition: 3}
        leads = PartitionState(0, NODE, 1, (NODE, 2), (NODE,), 1)
        stage.replicas.put_topic("t", bytes([1]) * 16, False, [leads], LogConfig())
        partition.append([made(2)], 1, 0)
        follows = PartitionState(0, 2, 2, (NODE, 2), (NODE, 2), 2)
        stage.replicas.put_topic("t", bytes([1]) * 16, False, [follows], LogConfig())
        assert leaders.begun == [5], "it is in sync, and may have to lead again"

    staged(test)


def test_a_later_version_that_says_the_same_ends_the_change_that_was_asked_for() -> None:
    async def test(stage: Stage) -> None:
        follower = NODE + 1
        wanted: list[tuple[tuple[int, ...], int]] = []
        stage.replicas.change_isr = lambda partition, isr, epoch: wanted.append((isr, epoch))

        def told(version: int) -> Partition:
            state = PartitionState(0, NODE, 0, (NODE, follower), (NODE,), version)
            stage.replicas.put_topic("t", b"1" * 16, False, [state], FLUSHED)
            return stage.partition("t")

        stage.logs.create(TopicPartition("t", 0), b"1" * 16, FLUSHED, 0)
        partition = told(3)
        partition.fetched_by(follower, 0, 0, 0)
        # Somebody has written the state meanwhile: the controller refuses what was asked for over version 3.
        told(4)
        partition.fetched_by(follower, 0, 0, 1)
        assert wanted == [((NODE, follower), 3), ((NODE, follower), 4)]

    staged(test)


@pytest.mark.parametrize("older", [(5, 2), (4, 9)], ids=["partition epoch", "leader epoch"])
def test_a_state_that_is_older_than_what_is_known_changes_nothing(older: tuple[int, int]) -> None:
    async def test(stage: Stage) -> None:
        follower = NODE + 1

        def put(leader: int, leader_epoch: int, partition_epoch: int) -> Partition:
            both = (NODE, follower)
            state = PartitionState(0, leader, leader_epoch, both, both, partition_epoch)
            stage.replicas.put_topic("t", b"1" * 16, False, [state], FLUSHED)
            return stage.partition("t")

        stage.logs.create(TopicPartition("t", 0), b"1" * 16, FLUSHED, 0)
        assert put(NODE, 5, 3).is_leader
        partition = put(follower, *older)
        known = (partition.leader, partition.leader_epoch, partition.partition_epoch)
        assert known == (NODE, 5, 3)

    staged(test)


def test_replicas_that_a_move_brings_in_are_not_missed() -> None:
    async def test(stage: Stage) -> None:
        def told(version: int, replicas: tuple[int, ...], isr: tuple[int, ...], *adding: int) -> Partition:
            state = PartitionState(0, NODE, version, replicas, isr, version, adding)
            stage.replicas.put_topic("t", b"1" * 16, False, [state], FLUSHED)
            return stage.partition("t")

        assert not told(0, (NODE, 2), (NODE, 2)).is_under_replicated
        partition = told(1, (NODE, 3, 2), (NODE, 2), 3)
        assert not partition.is_under_replicated
        assert PartitionState.of(partition).adding == (3,)
        assert told(2, (NODE, 3, 2), (NODE,), 3).is_under_replicated
        assert not told(3, (NODE, 3, 2), (NODE, 2, 3), 3).is_under_replicated
        assert (stage.replicas.isr_shrinks, stage.replicas.isr_expands) == (1, 1)
        assert not told(4, (NODE, 3), (NODE, 3)).is_under_replicated
        assert (stage.replicas.isr_shrinks, stage.replicas.isr_expands) == (1, 1), "broker 2 was moved away"
        told(5, (NODE, 3, 4), (NODE, 3))
        told(6, (NODE, 3, 4), (NODE, 4))
        assert (stage.replicas.isr_shrinks, stage.replicas.isr_expands) == (2, 2), "one came, and one left"

    staged(test)


def test_what_partitions_counted_that_were_moved_away_stays_with_their_topic() -> None:
    async def test(stage: Stage) -> None:
        first, second = stage.topic("t", 2)
        for one in (first, second):
            one.append([made(3)], 1, 0)
        entry = stage.replicas.topics.by_name[b"t"]
        stage.replicas.stop_replica("t", 0, delete=True)
        assert entry.counted_before == counters_of(first)
        assert entry.counted_before[:2] == (3, first.log.size_bytes)
        stage.replicas.stop_replica("t", 1, delete=True)
        assert not stage.replicas.topics.by_name

    staged(test)


def test_retention_over_many_partitions_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(stage: Stage) -> None:
        count = 2 * AT_ONCE_MAX + 1
        stage.topic("many", count)
        asked: list[int] = []
        retain = stage.logs.retain

        def noted(now_ms: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            asked.append(len(ends))
            return retain(now_ms, ends)

        monkeypatch.setattr(stage.logs, "retain", noted)
        work = asyncio.ensure_future(stage.replicas.retain())
        passes = 0
        while not work.done():
            passes += 1
            if passes == 2:
                for index in range(count):
                    stage.replicas.stop_replica("many", index, delete=True)
            await asyncio.sleep(0)
        await work
        assert passes >= 3
        assert asked == [AT_ONCE_MAX, 0, 0], "what was deleted meanwhile is left alone"

    staged(test)


def test_what_a_power_cut_left_in_doubt_is_fetched_anew_though_it_was_synced_before_a_leader_is_known() -> (
    None
):
    async def test(stage: Stage) -> None:
        stage.replicas.following = leaders = Leaders()
        partition = stage.topic("t", 1, LogConfig())[0]
        partition.append([made(3)], 1, 0)
        partition.log.flush(0)
        partition.append([made(2)], 1, 0)
        stage.replicas.doubtful = {partition.log.topic_partition: 3}
        partition.log.roll(0)
        await stage.replicas.flushing.due()
        states = [PartitionState(0, 2, 1, (NODE, 2), (2,), 1)]
        stage.replicas.put_topic("t", bytes([1]) * 16, False, states, LogConfig())
        assert leaders.begun == [3]

    staged(test)


@pytest.mark.parametrize("is_written_down", [False, True])
def test_a_deleted_topic_does_not_come_back_beside_one_that_was_made_anew_in_another_directory(
    is_written_down: bool,
) -> None:
    async def test(stage: Stage) -> None:
        await stage.replicas.checkpoints.removals()
        (first,) = stage.topic("t", config=LogConfig())
        first.append([made()], 1, 0)
        first.log.flush(0)
        assert first.log.directory == "/disk/a/t-0"
        list(stage.replicas.removing("t", bytes([1]) * 16))
        if is_written_down:
            await stage.replicas.checkpoints.removals()
            assert stage.logs.renamed == {}
        stage.topic("u", config=LogConfig(), number=2)
        (again,) = stage.topic("t", config=LogConfig(), number=3)
        assert again.log.directory == "/disk/b/t-0"
        again.append([made(2)], 1, 0)
        again.log.flush(0)
        stage.files.power_cut()
        logs = LogManager(stage.files, DIRECTORIES)
        logs.lock()
        logs.load(0, lambda topic: LogConfig())
        assert not any(one.failure for one in logs.directories)
        assert logs.logs[TopicPartition("t", 0)].topic_id == bytes([3]) * 16

    staged(test)
