"""Power cuts, full disks and failing disks, on a file system that keeps only synced data."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable, Iterator
from random import Random

import pytest
from compaction_stage import MortalFiles
from faulty_files import FaultyFiles, Killed
from log_stage import MakeBatch, batches

from log_start import NOW, start_logs
from tidemill.log.errors import DiskFull
from tidemill.log.file_names import START
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.model.errors import ErrorCode, StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.record_reader import iter_stored

KEY = TopicPartition("t", 0)


def config(**settings: object) -> LogConfig:
    small = {"segment_bytes": 4000, "index_interval_bytes": 200, "segment_index_bytes": 4096}
    return LogConfig(**{**small, **settings})  # type: ignore[arg-type]


def started(files: FaultyFiles, **settings: object) -> LogManager:
    return start_logs(files, ["/var/data"], config(**settings))


def values(log: Log) -> list[bytes]:
    """Returns the records that a consumer gets from the start, with valid checksums."""
    found: list[bytes] = []
    for batch in batches(log):
        assert batch.base_offset == log.start_offset + len(found)
        found.append(batch.to_bytes()[-9:-1])
    return found


def all_batches(log: Log) -> Iterator[Batch]:
    """Returns all records of a segment, with any gaps."""
    for segment in log.segments:
        for batch in iter_stored(log.segment_list.files.read(segment.path)):
            assert isinstance(batch, Batch)
            yield batch


def append(log: Log, batch: MakeBatch, number: int, epoch: int = 3, **options: object) -> bytes:
    value = b"%08d" % number
    log.append(batch(1, value=value, timestamp=NOW + number, **options), epoch, NOW)
    return value


def fill(log: Log, batch: MakeBatch, written: list[bytes]) -> None:
    """Appends until an append fails."""
    while len(written) < 10_000:
        written.append(append(log, batch, len(written)))


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_loses_no_acknowledged_record_with_flush_messages_1(batch: MakeBatch, seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles()
    log = started(files, flush_messages=1).create(KEY, bytes(16), config(flush_messages=1), NOW)
    acknowledged: list[bytes] = []
    for life in range(4):
        for number in range(random.randrange(5, 80)):
            value = append(log, batch, number + life * 1000)
            assert log.needs_flush
            if random.random() < 0.05:
                break  # the power fails between the write and its sync
            log.flush(NOW)
            acknowledged.append(value)
        files.power_cut(random if seed % 2 else None)
        manager = started(files, flush_messages=1)
        if manager.get(KEY) is None:
            assert acknowledged == []
        log = manager.create(KEY, bytes(16), config(flush_messages=1), NOW)
        stored = values(log)
        assert stored[: len(acknowledged)] == acknowledged
        assert len(stored) <= len(acknowledged) + 1
        acknowledged = stored


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_leaves_a_prefix_with_all_flushed_records(batch: MakeBatch, seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, bytes(range(16)), config(), NOW)
    written: list[bytes] = []
    flushed = 0
    for number in range(random.randrange(10, 200)):
        written.append(append(log, batch, number, producer_id=9, producer_epoch=0, base_sequence=number))
        if random.random() < 0.03:
            log.flush(NOW)
            flushed = len(written)
        if random.random() < 0.03:
            for one, job in manager.flushes_due(NOW):
                job.run()
                one.finish_flush(job, NOW)
            flushed = max(flushed, int(log.recovery_point))
        if random.random() < 0.02:
            manager.checkpoint_recovery_points()
    files.power_cut(random)
    again = started(files).get(KEY)
    if again is None:
        assert flushed == 0
        return
    stored = values(again)
    assert stored == written[: len(stored)]
    assert len(stored) >= flushed
    entry = again.producer_state.entries.get(9)
    assert (entry.last_sequence if entry is not None else -1) == len(stored) - 1
    assert again.leader_epochs.epochs == ([3] if stored else [])
    append(again, batch, 7777)


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_loses_no_record(batch: MakeBatch, seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    written: list[bytes] = []
    for life in range(4):
        for number in range(random.randrange(1, 60)):
            written.append(append(log, batch, number + 1000 * life))
        files.kill()
        log = started(files).logs[KEY]
        assert values(log) == written


@pytest.mark.parametrize("is_killed", [False, True])
def test_truncated_records_do_not_reappear_before_a_segment_at_the_truncation_offset(
    batch: MakeBatch, is_killed: bool
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    log = manager.create(KEY, bytes(16), config(), NOW)
    written = [append(log, batch, number) for number in range(8)]
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    log.truncate_to(5, NOW)
    if is_killed:
        files.kill()
        manager = started(files)
        log = manager.logs[KEY]
    log.roll(NOW)
    written[5:] = [append(log, batch, number) for number in range(10, 14)]
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    files.power_cut()
    assert values(started(files).logs[KEY]) == written


def deaths(
    prepare: Callable[[MortalFiles], Callable[[], object]], steps_min: int
) -> Iterator[tuple[MortalFiles, bool]]:
    """Ends the process before each file operation of the prepared step in turn, and at last not at all.

    Yields the files, and whether the process ended. The step has at least ``steps_min`` operations.
    """
    for step in itertools.count():
        files = MortalFiles()
        run = prepare(files)
        files.left = step
        died = True
        with contextlib.suppress(Killed):
            run()
            died = False
        files.left = -1
        yield files, died
        if not died:
            assert step >= steps_min
            return


def in_segments(log: Log, batch: MakeBatch, count: int) -> list[bytes]:
    """Appends records, four to a segment; returns them."""
    written: list[bytes] = []
    for number in range(count):
        written.append(append(log, batch, number))
        if number % 4 == 3:
            log.roll(NOW)
    return written


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_in_the_first_sync_after_a_truncation_duplicates_no_record(
    batch: MakeBatch, seed: int
) -> None:
    def prepare(files: MortalFiles) -> Callable[[], object]:
        manager = started(files)
        manager.dirs.mark_losses_handled()
        log = manager.create(KEY, bytes(16), config(), NOW)
        for number in range(8):
            append(log, batch, number)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        log.truncate_to(5, NOW)
        log.roll(NOW)
        for number in range(10, 16):
            append(log, batch, number)
        return lambda: log.flush(NOW)

    for files, _ in deaths(prepare, 5):
        files.power_cut(Random(seed))
        log = started(files).logs[KEY]
        assert [one.base_offset for one in all_batches(log)] == list(range(int(log.end_offset)))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("end", [0, 5])
def test_records_truncated_by_a_killed_process_do_not_reappear_after_a_clean_shutdown(
    batch: MakeBatch, end: int, seed: int
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    log = manager.create(KEY, bytes(16), config(), NOW)
    for number in range(end):
        append(log, batch, number)
    if end:
        log.roll(NOW)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
    append(log, batch, end)
    log.truncate_to(end, NOW)
    files.kill()
    manager = started(files)
    assert manager.get(KEY) is not None
    manager.close(NOW, {})
    files.power_cut(Random(seed))
    log = started(files).logs[KEY]
    assert log.end_offset == len(list(all_batches(log))) == end


@pytest.mark.parametrize(
    ("is_truncated", "end", "steps_min"),
    [
        pytest.param(False, FaultyFiles.kill, 10, id="a kill during the truncation"),
        pytest.param(True, FaultyFiles.power_cut, 3, id="a power cut while the truncated log is synced"),
    ],
)
def test_an_interrupted_truncation_leaves_no_gap(
    batch: MakeBatch, is_truncated: bool, end: Callable[[FaultyFiles], None], steps_min: int
) -> None:
    written: list[bytes] = []

    def prepare(files: MortalFiles) -> Callable[[], object]:
        manager = started(files)
        log = manager.create(KEY, bytes(16), config(), NOW)
        written[:] = in_segments(log, batch, 16)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        if is_truncated:
            log.truncate_to(6, NOW)
            return lambda: log.flush(NOW)
        return lambda: log.truncate_to(6, NOW)

    for files, died in deaths(prepare, steps_min):
        end(files)
        stored = values(started(files).logs[KEY])
        assert stored == written[: len(stored)]
        assert 6 <= len(stored) <= 16 if died else len(stored) == 6


def test_a_kill_during_a_roll_keeps_the_time_index_of_the_old_segment(batch: MakeBatch) -> None:
    def prepare(files: MortalFiles) -> Callable[[], object]:
        manager = started(files)
        manager.dirs.mark_losses_handled()
        log = manager.create(KEY, bytes(16), config(index_interval_bytes=4096), NOW)
        for number in range(16):
            append(log, batch, number)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        return lambda: log.roll(NOW)

    for files, _ in deaths(prepare, 5):
        files.kill()
        again = started(files).logs[KEY]
        assert again.end_offset == 16
        assert again.segments[0].max_timestamp() == NOW + 15
        assert again.offset_for_timestamp(NOW + 15) == (NOW + 15, 15)


def test_a_kill_during_recovery_of_a_damaged_log_leaves_no_gap(batch: MakeBatch) -> None:
    written: list[bytes] = []

    def prepare(files: MortalFiles) -> Callable[[], object]:
        log = started(files).create(KEY, bytes(16), config(), NOW)
        written[:] = in_segments(log, batch, 16)
        first = f"{log.directory}/{4:020d}.log"
        files.kill()
        files.open(first).write_at(int(files.size(first)) // 2 + 70, b"damage")
        return lambda: started(files)

    for files, _ in deaths(prepare, 50):
        files.kill()
        assert values(started(files).logs[KEY]) == written[:6]


def test_a_power_cut_after_recovery_of_a_damaged_log_leaves_no_gap(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    written = in_segments(log, batch, 16)
    log.flush(NOW)
    second = f"{log.directory}/{4:020d}.log"
    files.kill()
    files.open(second).write_at(int(files.size(second)) // 2 + 70, b"damage")
    files.open(second).sync()
    assert values(started(files).logs[KEY]) == written[:6]
    files.power_cut()
    assert values(started(files).logs[KEY]) == written[:6]


def test_a_power_cut_after_a_truncation_during_a_sync_leaves_no_gap(batch: MakeBatch) -> None:
    """The sync after a roll writes the previous segment to the disk, which may have been truncated."""
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    log = manager.create(KEY, bytes(16), config(), NOW)
    written = in_segments(log, batch, 8)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    for number in range(8, 12):
        written.append(append(log, batch, number))
    job = log.begin_flush()
    log.truncate_to(6, NOW)
    job.run()
    files.power_cut()
    assert values(started(files).logs[KEY]) == written[:6]


def test_records_that_replace_truncated_records_during_a_sync_are_synced(
    batch: MakeBatch,
) -> None:
    """Otherwise they would be acknowledged without a sync in spite of flush.messages."""
    log = started(FaultyFiles()).create(KEY, bytes(16), config(flush_messages=1), NOW)
    for number in range(8):
        append(log, batch, number)
    job = log.begin_flush()
    log.truncate_to(5, NOW)
    job.run()
    log.finish_flush(job, NOW)
    append(log, batch, 9)
    assert log.needs_flush
    log.flush(NOW)
    assert not log.needs_flush


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_power_cut_that_loses_the_end_of_a_segment_leaves_no_gap(
    batch: MakeBatch, left: int, more: int, policy: str
) -> None:
    """Compaction also leaves gaps, but only in the part that a start knows to be synced."""
    again, written, left_over = after_a_cut_segment(FaultyFiles(), batch, left, more, policy)
    assert values(again) == written[: 1 + left]
    assert left_over == again.end_offset
    assert append(again, batch, 9) == values(again)[-1]


def test_a_gap_possibly_left_by_kafkas_compaction_is_kept(batch: MakeBatch) -> None:
    """It also cleans after the recovery point. Its directory was never used by another broker."""
    again, written, _ = after_a_cut_segment(FaultyFiles(), batch, 1, 2, "compact", used=False)
    assert [part.to_bytes()[-9:-1] for part in all_batches(again)] == [*written[:2], *written[4:]]


def test_no_gap_remains_in_a_directory_that_was_too_full_for_its_in_use_marker(batch: MakeBatch) -> None:
    again, written, left_over = after_a_cut_segment(
        FaultyFiles(), batch, 1, 2, "compact", used=False, started_before=True
    )
    assert values(again) == written[:2]
    assert left_over == again.end_offset


def after_a_cut_segment(
    files: FaultyFiles,
    batch: MakeBatch,
    left: int,
    more: int,
    policy: str,
    *,
    used: bool = True,
    started_before: bool = False,
) -> tuple[Log, list[bytes], int]:
    """A log of three segments after a power cut that left ``left`` of the second one's records."""
    manager = started(files)
    if used:
        manager.dirs.mark_losses_handled()
    if started_before:
        files.replace(manager.dirs.all[0].file(START), b"1")
    log = manager.create(KEY, bytes(16), config(cleanup_policy=(policy,)), NOW)
    written = [append(log, batch, 0)]
    log.flush(NOW)
    log.roll(NOW)
    size = 0
    for number in (1, 2, 3):
        written.append(append(log, batch, number))
        size = int(log.active.size) if number == left else size
    path = log.active.path
    log.roll(NOW)
    for number in range(4, 4 + more):
        written.append(append(log, batch, number))
    # The system writes names and records in any order.
    for name in files.list(log.directory):
        files.open(f"{log.directory}/{name}").sync()
    files.sync_directory(log.directory)
    files.open(path).truncate(size)
    files.open(path).sync()
    files.power_cut()
    return started(files, cleanup_policy=(policy,)).logs[KEY], written, 1 + left


def test_a_file_name_is_lost_without_a_directory_sync() -> None:
    files = FaultyFiles()
    files.make_directory("/d")
    files.sync_directory("/")
    files.open("/d/old", create=True).append([b"x"])
    files.open("/d/old").sync()
    files.sync_directory("/d")
    files.rename("/d/old", "/d/new")
    files.power_cut()
    assert files.list("/d") == ["old"]
    files.rename("/d/old", "/d/new")
    files.sync_directory("/d")
    files.power_cut()
    assert (files.list("/d"), files.read("/d/new")) == (["new"], b"x")


def test_a_flush_syncs_the_file_name_of_a_rolled_segment(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1)
    log.flush(NOW)
    log.roll(NOW)
    append(log, batch, 2)
    log.flush(NOW)
    files.power_cut()
    assert values(started(files).logs[KEY]) == [b"00000001", b"00000002"]


def test_a_second_flush_does_not_sync_the_directory_again(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1)
    log.flush(NOW)
    append(log, batch, 2)
    files.operations.clear()
    log.flush(NOW)
    assert [operation for operation, _ in files.operations] == ["sync"]


def test_the_next_flush_covers_a_failed_flush(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1)
    files.fail("sync_directory", "t-0")
    with pytest.raises(
        StorageError, match=r"cannot sync .*t-0: Input/output error; check the kernel's log for disk faults"
    ):
        log.flush(NOW)
    assert log.recovery_point == 0
    log.flush(NOW)
    files.power_cut()
    assert values(started(files).logs[KEY]) == [b"00000001"]


def test_a_full_disk_rejects_writes_serves_reads_and_recovers(batch: MakeBatch) -> None:
    files = FaultyFiles(space_bytes=60_000)
    manager = started(files)
    log = manager.create(KEY, bytes(16), config(), NOW)
    written: list[bytes] = []
    with pytest.raises(DiskFull, match="No space left on device; free or add space; a running") as caught:
        fill(log, batch, written)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert values(log) == written
    for _ in range(3):
        with pytest.raises(DiskFull):
            fill(log, batch, written)
    assert values(log) == written
    files.space_bytes = 300_000
    for number in range(200):
        written.append(append(log, batch, 50_000 + number))
    assert values(log) == written
    files.kill()
    assert values(started(files).logs[KEY]) == written


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_disk_that_is_full_at_startup_serves_reads_and_deletions(is_clean: bool, batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    log = manager.create(KEY, bytes(16), config(), NOW)
    written = [append(log, batch, number) for number in range(200)]
    assert len(log.segments) > 3
    log.flush(NOW)
    if is_clean:
        assert manager.close(NOW, {}) == []
    files.power_cut()
    files.space_bytes = 0
    files.space_bytes = -int(files.free_bytes("/"))
    assert files.free_bytes("/") == 0
    manager = started(files)
    assert [one.offline_reason for one in manager.dirs.all] == [""]
    log = manager.logs[KEY]
    assert values(log) == written
    log.set_config(config(retention_bytes=1))
    manager.cleanup_logs(NOW, {KEY: int(log.end_offset)})
    assert manager.remove_paths(manager.removals.pop_due(NOW + log.config.file_delete_delay_ms)) == []
    assert files.free_bytes("/") > 0


def test_a_failed_write_leaves_no_trace_in_the_producer_state(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1, producer_id=4, producer_epoch=0, base_sequence=0)
    files.fail("append", ".log")
    with pytest.raises(StorageError, match=r"cannot append to /var/data/t-0/0+\.log: Input/output error"):
        append(log, batch, 2, producer_id=4, producer_epoch=0, base_sequence=1)
    result = log.append(batch(1, producer_id=4, producer_epoch=0, base_sequence=1), 3, NOW)
    assert (result.duplicate, result.base_offset) == (False, 1)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("operation", ["open", "truncate", "append", "rename"])
def test_a_failed_roll_leaves_the_old_segment_active(
    batch: MakeBatch, operation: str, undo: bool, clean: bool
) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, bytes(16), config(), NOW)
    written = [append(log, batch, number) for number in range(5)]
    files.fail(operation, "00005.", errno.ENOSPC)
    if not undo:
        files.fail("remove", "00005.", times=3)
    with pytest.raises(DiskFull):
        log.roll(NOW)
    files.heal()
    written.append(append(log, batch, 5))
    assert len(log.segments) == 1
    again = restarted(files, manager, clean)
    assert values(again) == written
    again.roll(NOW)
    written.append(append(again, batch, 6))
    assert values(again) == written
    files.kill()
    assert values(started(files).logs[KEY]) == written


@pytest.mark.parametrize(
    ("fully", "epoch"), [(False, 3), (True, 3), pytest.param(True, -1, id="without a leader epoch, as v1")]
)
def test_a_clean_shutdown_syncs_different_records_with_the_same_end_offset(
    batch: MakeBatch, fully: bool, epoch: int
) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, bytes(16), config(), NOW)
    written = [append(log, batch, number) for number in range(20)]
    assert manager.close(NOW, {}) == []
    manager = started(files)
    log = manager.logs[KEY]
    if fully:
        log.truncate_fully_and_start_at(18, NOW)
    else:
        log.truncate_to(18, NOW)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    written[18:] = [append(log, batch, number, epoch) for number in (100, 101)]
    assert manager.close(NOW, {}) == []
    files.power_cut()
    assert values(started(files).logs[KEY]) == (written[18:] if fully else written)


def restarted(files: FaultyFiles, manager: LogManager, clean: bool) -> Log:
    """Returns the partition's log after a clean or an unclean shutdown."""
    if clean:
        assert manager.close(NOW, {}) == []
    files.kill()
    return started(files).logs[KEY]


def test_an_unreadable_directory_goes_offline_and_the_others_serve(batch: MakeBatch) -> None:
    files = FaultyFiles()

    manager = start_logs(files, ["/a", "/b"], config())
    for partition in range(4):
        append(manager.create(TopicPartition("t", partition), bytes(16), config(), NOW), batch, partition)
    files.kill()
    files.fail("read_at", "/a/t-", times=99)
    again = start_logs(files, ["/a", "/b"], config())
    assert sorted(log.directory[:3] for log in again.logs.values()) == ["/b/", "/b/"]
    assert again.dirs.all[0].offline_reason.startswith("cannot open /a/t-")
    files.heal()
