"""The checkpoint files of a data directory: their contents, and their cost by the number of changes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from faulty_files import FaultyFiles
from log_stage import MakeBatch, copy_all

from log_start import NOW, start_logs
from tidemill.log.checkpoint_files import read_offsets
from tidemill.log.delayed_file_removal import remove_path
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import begin_move
from tidemill.log.log_manager import LogManager
from tidemill.log.offset_checkpoint import OffsetCheckpoint, write_checkpoints
from tidemill.model.errors import StorageError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, run_at_once
from tidemill.model.types import TopicPartition

TOPIC_ID = bytes(range(16))
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
STARTS = "log-start-offset-checkpoint"
WATERMARKS = "replication-offset-checkpoint"

Append = Callable[[Log], None]


@pytest.fixture
def append(batch: MakeBatch) -> Append:
    """Appends three records."""
    return lambda log: void(log.append(batch(3), 0, NOW))


def void(result: object) -> None:
    """Discards a result."""


def started(files: FaultyFiles, *paths: str) -> LogManager:
    """A broker's start on these data directories, or on ``/data``."""
    return start_logs(files, paths or ["/data"])


def made(manager: LogManager, partition: int) -> Log:
    return manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)


def filled(manager: LogManager, partition: int, append: Append, start_offset: int = 0) -> Log:
    """A log with three synced and committed records, which starts at this offset."""
    log = made(manager, partition)
    append(log)
    log.flush(NOW)
    log.advance_start(start_offset)
    manager.set_high_watermark(log.topic_partition, 3)
    return log


def write(manager: LogManager) -> None:
    """Writes all checkpoints with changes."""
    assert write_checkpoints(manager.log_checkpoints(manager.dirs.all)) == []
    assert write_checkpoints(manager.high_watermark_checkpoints({})) == []


def said(files: FaultyFiles, name: str, path: str = "/data") -> dict[str, int]:
    """Returns the contents of a file by partition."""
    return {str(key): offset for key, offset in read_offsets(files, f"{path}/{name}").items()}


def replaced(files: FaultyFiles) -> list[str]:
    """Returns the names of the files that were replaced since the last call."""
    found = [path for operation, path in files.operations if operation == "replace"]
    files.operations.clear()
    return found


class Counted(dict[TopicPartition, Log]):
    """Logs that count the accesses to one log, without iteration over all of them."""

    def __init__(self, logs: dict[TopicPartition, Log]) -> None:
        super().__init__(logs)
        self.accesses: set[TopicPartition] = set()

    def get(self, key: TopicPartition, default: Any = None) -> Any:
        self.accesses.add(key)
        return super().get(key, default)

    def _refuse(self, *arguments: Any) -> Any:
        raise AssertionError("a checkpoint goes over all logs")

    __iter__ = keys = values = items = __or__ = __ror__ = copy = _refuse  # type: ignore[assignment]


def test_a_checkpoint_after_one_change_reads_one_log_of_2000(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    logs = [made(manager, partition) for partition in range(2000)]
    for log in logs:
        manager.set_high_watermark(log.topic_partition, 1)
    append(logs[1234])
    write(manager)
    (directory,) = manager.dirs.all
    directory.logs = counted = Counted(directory.logs)
    files.operations.clear()
    write(manager)
    assert replaced(files) == []
    assert counted.accesses == set()

    changed = logs[1234]
    changed.flush(NOW)
    changed.advance_start(2)
    manager.set_high_watermark(changed.topic_partition, 3)
    assert {one.path for one in manager.log_checkpoints([directory])} == {
        f"/data/{RECOVERY_POINTS}",
        f"/data/{STARTS}",
        f"/data/{WATERMARKS}",
    }
    write(manager)
    assert counted.accesses == {changed.topic_partition}
    write(manager)
    assert len(replaced(files)) == 3, "each file once"
    directory.mark_changed(changed.topic_partition)
    write(manager)
    assert replaced(files) == [], "it has its former contents"
    recovery_points = said(files, RECOVERY_POINTS)
    assert len(recovery_points) == 2000
    assert {key: offset for key, offset in recovery_points.items() if offset} == {"t-1234": 3}
    assert said(files, STARTS) == {"t-1234": 2}
    watermarks = said(files, WATERMARKS)
    assert len(watermarks) == 2000
    assert {key: offset for key, offset in watermarks.items() if offset != 1} == {"t-1234": 3}


def test_every_kind_of_log_change_is_in_the_next_checkpoint(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = made(manager, 0)
    note = log.on_offset_change
    reported = [(0, 0)]

    def tell(key: TopicPartition) -> None:
        assert note is not None
        note(key)
        reported.append((int(log.recovery_point), int(log.start_offset)))

    log.on_offset_change = tell

    def offsets() -> tuple[int, int]:
        assert reported[-1] == (log.recovery_point, log.start_offset), "later changes are written, too"
        write(manager)
        written = said(files, RECOVERY_POINTS)["t-0"], said(files, STARTS).get("t-0", 0)
        assert written == (log.recovery_point, log.start_offset)
        return written

    for _ in range(4):
        append(log)
        log.roll(NOW)
    assert offsets() == (0, 0)
    log.flush(NOW)
    assert offsets() == (12, 0)
    log.advance_start(5)
    assert offsets() == (12, 5)
    log.delete_old_segments(3, NOW)
    assert offsets() == (12, 9)
    log.truncate_to(10, NOW)
    assert offsets() == (9, 9)
    log.truncate_fully_and_start_at(20, NOW)
    assert offsets() == (9, 20)
    log.begin_at_batch(18, NOW)
    assert offsets() == (9, 20)
    log.truncate_fully_and_start_at(4, NOW)
    assert offsets() == (4, 4)


def test_deleted_logs_and_logs_set_aside_are_removed_from_the_checkpoints(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    for partition in range(3):
        filled(manager, partition, append, 1)
    write(manager)
    manager.delete(TopicPartition("t", 0), NOW)
    manager.set_aside(TopicPartition("t", 1), NOW)
    write(manager)
    for name, offset in ((RECOVERY_POINTS, 3), (STARTS, 1), (WATERMARKS, 3)):
        assert said(files, name) == {"t-2": offset}


def test_a_recreated_log_does_not_inherit_checkpointed_offsets(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    former = made(manager, 0)
    for _ in range(3):
        append(former)
    former.flush(NOW)
    former.advance_start(4)
    write(manager)
    manager.set_aside(TopicPartition("t", 0), NOW)
    log = made(manager, 0)
    append(log)
    files.kill()
    again = started(files).logs[TopicPartition("t", 0)]
    assert (again.start_offset, again.end_offset, again.recovery_point) == (0, 3, 0)


def test_a_moved_log_is_in_the_checkpoints_of_its_new_directory_only(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files, "/a", "/b")
    key = TopicPartition("t", 0)
    source = made(manager, 0)
    append(source)
    append(source)
    source.flush(NOW)
    source.advance_start(2)
    manager.set_high_watermark(key, 6)
    write(manager)
    move = begin_move(manager, key, "/b", NOW)
    assert move is not None
    copy_all(move)
    write(manager)
    assert said(files, RECOVERY_POINTS, "/b") == {"t-0": 0}
    assert said(files, STARTS, "/b") == {"t-0": 2}
    assert said(files, WATERMARKS, "/b") == {}
    move.replace_current(NOW, False)
    move.delete_replaced(NOW)
    write(manager)
    for name, offset in ((RECOVERY_POINTS, 6), (STARTS, 2), (WATERMARKS, 6)):
        assert said(files, name, "/a") == {}
        assert said(files, name, "/b") == {"t-0": offset}
    moved = manager.logs[key]
    append(moved)
    moved.flush(NOW)
    write(manager)
    assert said(files, RECOVERY_POINTS, "/b") == {"t-0": 9}
    back = begin_move(manager, key, "/a", NOW)
    assert back is not None
    manager.delete(key, NOW)
    write(manager)
    assert said(files, RECOVERY_POINTS, "/a") == said(files, RECOVERY_POINTS, "/b") == {}


def test_the_checkpoints_of_a_failed_directory_are_unchanged(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files, "/a", "/b")
    for partition in range(2):
        filled(manager, partition, append, 1)
    write(manager)
    failed, other = manager.dirs.all
    gone = manager.logs[TopicPartition("t", 0)]
    gone.advance_start(2)
    manager.dirs.fail_directory("/a", "the disk broke")
    manager.logs[TopicPartition("t", 1)].advance_start(3)
    write(manager)
    assert write_checkpoints(manager.start_offset_checkpoints([failed, other])) == []
    assert said(files, STARTS, "/a") == {"t-0": 1}
    assert said(files, STARTS, "/b") == {"t-1": 3}
    assert said(files, RECOVERY_POINTS, "/a") == {"t-0": 3}
    assert said(files, WATERMARKS, "/a") == {"t-0": 3}


def test_a_directory_that_fails_during_a_checkpoint_keeps_its_last_checkpoint(
    append: Append,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = filled(manager, 0, append, 2)
    write(manager)
    log.advance_start(3)
    taking = manager.log_checkpoints_in_slices(manager.dirs.all)
    next(taking)
    manager.dirs.fail_directory("/data", "the disk broke")
    assert write_checkpoints(run_at_once(taking)) == []
    assert said(files, STARTS) == {"t-0": 2}
    assert said(files, RECOVERY_POINTS) == said(files, WATERMARKS) == {"t-0": 3}


def test_the_first_checkpoint_after_a_start_writes_changed_offsets(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    for partition in range(3):
        filled(manager, partition, append)
    write(manager)
    append(manager.logs[TopicPartition("t", 0)])
    files.kill()
    remove_path(files, "/data/t-1")
    manager = started(files)
    files.operations.clear()
    write(manager)
    assert said(files, RECOVERY_POINTS) == said(files, WATERMARKS) == {"t-0": 3, "t-2": 3}
    files.kill()
    manager = started(files)
    files.operations.clear()
    write(manager)
    assert f"/data/{RECOVERY_POINTS}" not in replaced(files), "it has these contents already"


def test_a_damaged_checkpoint_is_replaced_without_a_log_change(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    append(made(manager, 0))
    assert manager.close(NOW, {}) == []
    files.replace(f"/data/{STARTS}", b"damaged")
    manager = started(files)
    assert any(STARTS in warning for warning in manager.dirs.warnings)
    write(manager)
    assert files.read(f"/data/{STARTS}") == b"0\n0\n"


def write_changed(checkpoint: OffsetCheckpoint, key: TopicPartition) -> list[StorageError]:
    """Writes the file after a change of this offset; returns the problems."""
    checkpoint.mark_changed(key)
    assert checkpoint.collect()
    return write_checkpoints([checkpoint])


def test_possible_contents_after_failed_writes_are_tracked_until_a_write_succeeds() -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    offset = 5
    checkpoint = OffsetCheckpoint(files, "/data/c", lambda key: offset)
    files.make_directory("/data")

    assert write_changed(checkpoint, key) == []
    files.fail("replace", "/data/c", errno.EIO, times=2)
    offset = 10
    (problem,) = write_changed(checkpoint, key)
    assert isinstance(problem, StorageError)
    assert checkpoint.max_offset(key) == 10
    offset = 7
    (problem,) = write_changed(checkpoint, key)
    assert isinstance(problem, StorageError)
    assert checkpoint.max_offset(key) == 10, "a crash may leave the first of the two"
    assert checkpoint.collect(), "the next checkpoint retries, although nothing changed"
    checkpoint.write()
    assert read_offsets(files, "/data/c") == {key: 7}
    assert checkpoint.max_offset(key) == 7
    assert not checkpoint.collect()


def test_a_checkpoint_replaced_by_a_failed_write_is_written_again() -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    offset = 5
    checkpoint = OffsetCheckpoint(files, "/data/c", lambda key: offset)
    files.make_directory("/data")

    assert write_changed(checkpoint, key) == []
    files.fail("sync_directory", "/data", errno.EMFILE)
    offset = 10
    assert write_changed(checkpoint, key)
    assert read_offsets(files, "/data/c") == {key: 10}
    offset = 5
    assert write_changed(checkpoint, key) == []
    assert read_offsets(files, "/data/c") == {key: 5}, "the file had the former offset before that"


def test_an_unsynced_checkpoint_does_not_affect_the_next_topic_of_the_name(
    append: Append,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    former = made(manager, 0)
    for _ in range(3):
        append(former)
    former.flush(NOW)
    write(manager)
    former.advance_start(6)
    files.fail("sync_directory", "/data", errno.EMFILE)
    assert write_checkpoints(manager.start_offset_checkpoints())
    assert said(files, STARTS) == {"t-0": 6}
    manager.delete(TopicPartition("t", 0), NOW)
    write(manager)
    log = made(manager, 0)
    append(log)
    files.kill()
    again = started(files).logs[TopicPartition("t", 0)]
    assert (again.start_offset, again.end_offset) == (0, 3), "acknowledged records are lost"


def test_offsets_of_thousands_of_logs_are_collected_in_parts_without_loss() -> None:
    files = FaultyFiles()
    offsets = {TopicPartition("t", number): number for number in range(3 * ITEMS_PER_SLICE)}
    checkpoint = OffsetCheckpoint(files, "/data/c", lambda key: offsets[key])
    files.make_directory("/data")
    first = TopicPartition("t", 0)
    for key in offsets:
        checkpoint.mark_changed(key)
    taking = checkpoint.collect_in_slices()
    next(taking)
    # A collected one changes meanwhile, and so does a later one.
    for key in (first, TopicPartition("t", 3 * ITEMS_PER_SLICE - 1)):
        offsets[key] = 10_000
        checkpoint.mark_changed(key)
    assert len(list(taking)) == 2
    checkpoint.write()
    assert read_offsets(files, "/data/c") == {**offsets, first: 0}
    assert checkpoint.collect(), "a change after its collection is left for the next time"
    checkpoint.write()
    assert read_offsets(files, "/data/c") == offsets
