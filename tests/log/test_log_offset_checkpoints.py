"""The checkpoint files of a data directory: they say what the logs say, and cost what has changed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.log.checkpoints import read_offsets
from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.moves import begin_move
from tidemill.log.offset_checkpoint import OffsetCheckpoint, write_checkpoints
from tidemill.model.errors import StorageError
from tidemill.model.slices import ITEMS_A_PAUSE, in_one_go
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
STARTS = "log-start-offset-checkpoint"
WATERMARKS = "replication-offset-checkpoint"

Append = Callable[[Log], None]


@pytest.fixture
def append(batch: Callable[..., Batch]) -> Append:
    """Appends three records."""
    return lambda log: void(log.append([batch(3)], 0, NOW))


def void(result: object) -> None:
    """Leaves a result out."""


def started(files: FaultyFiles, *paths: str) -> LogManager:
    """A broker's start on these data directories, or on ``/data``."""
    manager = LogManager(files, paths or ["/data"])
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: LogConfig())
    return manager


def made(manager: LogManager, partition: int) -> Log:
    return manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)


def write(manager: LogManager) -> None:
    """All checkpoints, of what has changed."""
    assert write_checkpoints(manager.log_checkpoints(manager.directories)) == []
    assert write_checkpoints(manager.high_watermark_checkpoints({})) == []


def said(files: FaultyFiles, name: str, path: str = "/data") -> dict[str, int]:
    """What a file says, by partition."""
    return {str(key): offset for key, offset in read_offsets(files, f"{path}/{name}").items()}


def replaced(files: FaultyFiles) -> list[str]:
    """The names of the files that were replaced since the last call."""
    found = [path for operation, path in files.operations if operation == "replace"]
    files.operations.clear()
    return found


class Counted(dict[TopicPartition, Log]):
    """Logs that count how often one is looked at. Nobody goes over all of them."""

    def __init__(self, logs: dict[TopicPartition, Log]) -> None:
        super().__init__(logs)
        self.looks: set[TopicPartition] = set()

    def get(self, key: TopicPartition, default: Any = None) -> Any:
        self.looks.add(key)
        return super().get(key, default)

    def _refuse(self, *arguments: Any) -> Any:
        raise AssertionError("a checkpoint goes over all logs")

    __iter__ = keys = values = items = __or__ = __ror__ = copy = _refuse  # type: ignore[assignment]


def test_a_checkpoint_after_one_change_looks_at_one_log_of_2000(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    logs = [made(manager, partition) for partition in range(2000)]
    for log in logs:
        manager.set_high_watermark(log.topic_partition, 1)
    append(logs[1234])
    write(manager)
    (directory,) = manager.directories
    directory.logs = counted = Counted(directory.logs)
    files.operations.clear()
    write(manager)
    assert replaced(files) == []
    assert counted.looks == set()

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
    assert counted.looks == {changed.topic_partition}
    write(manager)
    assert len(replaced(files)) == 3, "each file once"
    directory.note(changed.topic_partition)
    write(manager)
    assert replaced(files) == [], "it has what it had"
    recovery_points = said(files, RECOVERY_POINTS)
    assert len(recovery_points) == 2000
    assert {key: offset for key, offset in recovery_points.items() if offset} == {"t-1234": 3}
    assert said(files, STARTS) == {"t-1234": 2}
    watermarks = said(files, WATERMARKS)
    assert len(watermarks) == 2000
    assert {key: offset for key, offset in watermarks.items() if offset != 1} == {"t-1234": 3}


def test_every_way_in_which_a_log_changes_is_in_the_next_checkpoint(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = made(manager, 0)
    note = log.on_moved
    told = [(0, 0)]

    def tell(key: TopicPartition) -> None:
        assert note is not None
        note(key)
        told.append((int(log.recovery_point), int(log.start_offset)))

    log.on_moved = tell

    def offsets() -> tuple[int, int]:
        assert told[-1] == (log.recovery_point, log.start_offset), "what comes after it is told, too"
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
    log.remove_segments(3, NOW)
    assert offsets() == (12, 9)
    log.truncate_to(10, NOW)
    assert offsets() == (9, 9)
    log.truncate_fully(20, NOW)
    assert offsets() == (9, 20)
    log.begin_within(18, NOW)
    assert offsets() == (9, 20)
    log.truncate_fully(4, NOW)
    assert offsets() == (4, 4)


def test_logs_that_were_deleted_or_set_aside_leave_the_checkpoints(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    for partition in range(3):
        log = made(manager, partition)
        append(log)
        log.flush(NOW)
        log.advance_start(1)
        manager.set_high_watermark(log.topic_partition, 3)
    write(manager)
    manager.delete(TopicPartition("t", 0), NOW)
    manager.set_aside(TopicPartition("t", 1), NOW)
    write(manager)
    for name, offset in ((RECOVERY_POINTS, 3), (STARTS, 1), (WATERMARKS, 3)):
        assert said(files, name) == {"t-2": offset}


def test_a_log_made_in_the_place_of_another_does_not_begin_with_its_offsets(append: Append) -> None:
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


def test_a_log_that_moved_is_in_the_checkpoints_of_its_new_directory_alone(append: Append) -> None:
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
    while (piece := move.next_piece(1 << 20, NOW)) is not None:
        move.store(piece, NOW)
    write(manager)
    assert said(files, RECOVERY_POINTS, "/b") == {"t-0": 0}
    assert said(files, STARTS, "/b") == {"t-0": 2}
    assert said(files, WATERMARKS, "/b") == {}
    move.swap(NOW, False)
    move.retire(NOW)
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


def test_the_checkpoints_of_a_failed_directory_stay_as_they_are(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files, "/a", "/b")
    for partition in range(2):
        log = made(manager, partition)
        append(log)
        log.flush(NOW)
        log.advance_start(1)
        manager.set_high_watermark(log.topic_partition, 3)
    write(manager)
    failed, other = manager.directories
    gone = manager.logs[TopicPartition("t", 0)]
    gone.advance_start(2)
    manager.fail_directory("/a", "the disk broke")
    manager.logs[TopicPartition("t", 1)].advance_start(3)
    write(manager)
    assert write_checkpoints(manager.start_offset_checkpoints([failed, other])) == []
    assert said(files, STARTS, "/a") == {"t-0": 1}
    assert said(files, STARTS, "/b") == {"t-1": 3}
    assert said(files, RECOVERY_POINTS, "/a") == {"t-0": 3}
    assert said(files, WATERMARKS, "/a") == {"t-0": 3}


def test_a_directory_that_fails_while_its_offsets_are_taken_keeps_those_that_were_written(
    append: Append,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = made(manager, 0)
    append(log)
    log.flush(NOW)
    log.advance_start(2)
    manager.set_high_watermark(log.topic_partition, 3)
    write(manager)
    log.advance_start(3)
    taking = manager.taking_log_checkpoints(manager.directories)
    next(taking)
    manager.fail_directory("/data", "the disk broke")
    assert write_checkpoints(in_one_go(taking)) == []
    assert said(files, STARTS) == {"t-0": 2}
    assert said(files, RECOVERY_POINTS) == said(files, WATERMARKS) == {"t-0": 3}


def test_the_first_checkpoint_after_a_start_writes_what_the_files_do_not_say(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    for partition in range(3):
        log = made(manager, partition)
        append(log)
        log.flush(NOW)
        manager.set_high_watermark(log.topic_partition, 3)
    write(manager)
    append(manager.logs[TopicPartition("t", 0)])
    files.kill()
    for name in files.list("/data/t-1"):
        files.remove(f"/data/t-1/{name}")
    files.remove("/data/t-1")
    manager = started(files)
    files.operations.clear()
    write(manager)
    assert said(files, RECOVERY_POINTS) == said(files, WATERMARKS) == {"t-0": 3, "t-2": 3}
    files.kill()
    manager = started(files)
    files.operations.clear()
    write(manager)
    assert f"/data/{RECOVERY_POINTS}" not in replaced(files), "it says all this already"


def test_a_damaged_checkpoint_is_replaced_although_no_log_changes(append: Append) -> None:
    files = FaultyFiles()
    manager = started(files)
    append(made(manager, 0))
    assert manager.close(NOW, {}) == []
    files.replace(f"/data/{STARTS}", b"damaged")
    manager = started(files)
    assert any(STARTS in warning for warning in manager.warnings)
    write(manager)
    assert files.read(f"/data/{STARTS}") == b"0\n0\n"


def test_what_a_file_may_say_after_writings_that_failed_counts_until_one_succeeds() -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    offset = 5
    checkpoint = OffsetCheckpoint(files, "/data/c", lambda key: offset)
    files.make_directory("/data")

    def wrote() -> bool:
        checkpoint.note(key)
        assert checkpoint.take()
        problems = write_checkpoints([checkpoint])
        assert all(isinstance(problem, StorageError) for problem in problems)
        return not problems

    assert wrote()
    files.fail("replace", "/data/c", errno.EIO, times=2)
    offset = 10
    assert not wrote()
    assert checkpoint.said(key) == 10
    offset = 7
    assert not wrote()
    assert checkpoint.said(key) == 10, "the first of the two may be there after a crash"
    assert checkpoint.take(), "the next checkpoint tries again, although nothing changed"
    checkpoint.write()
    assert read_offsets(files, "/data/c") == {key: 7}
    assert checkpoint.said(key) == 7
    assert not checkpoint.take()


def test_a_file_that_was_replaced_by_a_writing_that_failed_is_written_again() -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    offset = 5
    checkpoint = OffsetCheckpoint(files, "/data/c", lambda key: offset)
    files.make_directory("/data")

    def write_now() -> list[StorageError]:
        checkpoint.note(key)
        assert checkpoint.take()
        return write_checkpoints([checkpoint])

    assert not write_now()
    files.fail("sync_directory", "/data", errno.EMFILE)
    offset = 10
    assert write_now()
    assert read_offsets(files, "/data/c") == {key: 10}
    offset = 5
    assert not write_now()
    assert read_offsets(files, "/data/c") == {key: 5}, "the file had the former offset before that"


def test_a_start_in_a_file_whose_name_could_not_be_synced_takes_nothing_of_the_next_topic(
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
    assert (again.start_offset, again.end_offset) == (0, 3), "acknowledged records are gone"


def test_the_offsets_of_thousands_of_logs_are_taken_a_part_at_a_time_and_none_is_lost() -> None:
    files = FaultyFiles()
    offsets = {TopicPartition("t", number): number for number in range(3 * ITEMS_A_PAUSE)}
    checkpoint = OffsetCheckpoint(files, "/data/c", lambda key: offsets[key])
    files.make_directory("/data")
    first = TopicPartition("t", 0)
    for key in offsets:
        checkpoint.note(key)
    taking = checkpoint.taking()
    next(taking)
    # One that was taken moves on meanwhile, and one of those to come.
    for key in (first, TopicPartition("t", 3 * ITEMS_A_PAUSE - 1)):
        offsets[key] = 10_000
        checkpoint.note(key)
    assert len(list(taking)) == 2
    checkpoint.write()
    assert read_offsets(files, "/data/c") == {**offsets, first: 0}
    assert checkpoint.take(), "what moved after it was taken is left for the next time"
    checkpoint.write()
    assert read_offsets(files, "/data/c") == offsets
