"""Power cuts, full disks and failing disks, through a file system that keeps only what was promised."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tidemill.log.config import LogConfig
from tidemill.log.errors import DiskFull
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.names import START
from tidemill.model.errors import ErrorCode, StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, check_crc
from tidemill.records.reader import iter_batches
from tidemill.testing.files import FaultyFiles, Killed

NOW = 1_700_000_000_000
KEY = TopicPartition("t", 0)
MakeBatch = Callable[..., Batch]


def config(**settings: object) -> LogConfig:
    small = {"segment_bytes": 4000, "index_interval_bytes": 200, "segment_index_bytes": 4096}
    return LogConfig(**{**small, **settings})  # type: ignore[arg-type]


def started(files: FaultyFiles, **settings: object) -> LogManager:
    manager = LogManager(files, ["/var/data"])
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: config(**settings))
    return manager


def values(log: Log) -> list[bytes]:
    """What a consumer from the start gets: every batch's checksum holds."""
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        part = log.read(offset, 1 << 20, log.end_offset, True)
        assert part is not None
        for batch in iter_batches(part.read()):
            check_crc(batch)
            assert batch.base_offset == offset
            found.append(batch.to_bytes()[-9:-1])
            offset = int(batch.last_offset) + 1
    return found


def batches(log: Log) -> Iterator[Batch]:
    """All that a segment holds, whatever is missing between."""
    for segment in log.segments:
        yield from iter_batches(log.files.read(segment.path))


def append(log: Log, batch: MakeBatch, number: int, epoch: int = 3, **options: object) -> bytes:
    value = b"%08d" % number
    log.append([batch(1, value=value, timestamp=NOW + number, **options)], epoch, NOW)
    return value


def fill(log: Log, batch: MakeBatch, written: list[bytes]) -> None:
    """Appends until that fails."""
    while len(written) < 10_000:
        written.append(append(log, batch, len(written)))


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_takes_nothing_acknowledged_with_flush_messages_1(batch: MakeBatch, seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles()
    log = started(files, flush_messages=1).create(KEY, bytes(16), config(flush_messages=1), NOW)
    acknowledged: list[bytes] = []
    for life in range(4):
        for number in range(random.randrange(5, 80)):
            value = append(log, batch, number + life * 1000)
            assert log.needs_flush
            if random.random() < 0.05:
                break  # the power goes between the write and its sync
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
def test_a_power_cut_leaves_a_prefix_that_holds_all_that_was_flushed(batch: MakeBatch, seed: int) -> None:
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
def test_a_kill_takes_nothing(batch: MakeBatch, seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    written: list[bytes] = []
    for life in range(4):
        for number in range(random.randrange(1, 60)):
            written.append(append(log, batch, number + 1000 * life))
        files.kill()
        found = started(files).get(KEY)
        assert found is not None
        log = found
        assert values(log) == written


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_cut_does_not_come_back_before_a_segment_that_begins_there(
    batch: MakeBatch, is_killed: bool
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
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


class DyingFiles(FaultyFiles):
    """Lets the process be killed before one of its calls."""

    dies_in = -1

    def check(self, operation: str, path: str) -> None:
        if self.dies_in == 0:
            raise Killed(f"before {operation} of {path}")
        self.dies_in -= 1
        super().check(operation, path)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_in_the_first_sync_after_a_cut_leaves_no_record_twice(
    batch: MakeBatch, seed: int
) -> None:
    step = 0
    died = True
    while died:
        files = DyingFiles()
        manager = started(files)
        manager.loss_heeded()
        log = manager.create(KEY, bytes(16), config(), NOW)
        for number in range(8):
            append(log, batch, number)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        log.truncate_to(5, NOW)
        log.roll(NOW)
        for number in range(10, 16):
            append(log, batch, number)
        files.dies_in = step
        try:
            log.flush(NOW)
            died = False
        except Killed:
            died = True
        files.dies_in = -1
        files.power_cut(Random(seed))
        log = started(files).logs[KEY]
        assert [one.base_offset for one in batches(log)] == list(range(int(log.end_offset)))
        step += 1
    assert step > 5


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("end", [0, 5])
def test_what_a_killed_process_has_cut_does_not_come_back_after_a_clean_stop(
    batch: MakeBatch, end: int, seed: int
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
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
    assert log.end_offset == len(list(batches(log))) == end


def test_a_kill_while_the_log_is_cut_leaves_no_hole(batch: MakeBatch) -> None:
    step = 0
    died = True
    while died:
        files = DyingFiles()
        manager = started(files)
        log = manager.create(KEY, bytes(16), config(), NOW)
        written: list[bytes] = []
        for number in range(16):
            written.append(append(log, batch, number))
            if number % 4 == 3:
                log.roll(NOW)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        files.dies_in = step
        try:
            log.truncate_to(6, NOW)
            died = False
        except Killed:
            died = True
        files.dies_in = -1
        files.kill()
        again = started(files).get(KEY)
        assert again is not None
        stored = values(again)
        assert stored == written[: len(stored)]
        assert 6 <= len(stored) <= 16 if died else len(stored) == 6
        step += 1
    assert step > 10


def test_a_kill_while_a_segment_is_rolled_leaves_the_old_ones_time(batch: MakeBatch) -> None:
    step = 0
    died = True
    while died:
        files = DyingFiles()
        manager = started(files)
        manager.loss_heeded()
        log = manager.create(KEY, bytes(16), config(index_interval_bytes=4096), NOW)
        for number in range(16):
            append(log, batch, number)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        files.dies_in = step
        try:
            log.roll(NOW)
            died = False
        except Killed:
            died = True
        files.dies_in = -1
        files.kill()
        again = started(files).get(KEY)
        assert again is not None
        assert again.end_offset == 16
        assert again.segments[0].max_timestamp() == NOW + 15
        assert again.offset_for_timestamp(NOW + 15) == (NOW + 15, 15)
        step += 1
    assert step > 5


def test_a_kill_while_a_damaged_log_is_recovered_leaves_no_hole(batch: MakeBatch) -> None:
    step = 0
    died = True
    while died:
        files = DyingFiles()
        log = started(files).create(KEY, bytes(16), config(), NOW)
        written: list[bytes] = []
        for number in range(16):
            written.append(append(log, batch, number))
            if number % 4 == 3:
                log.roll(NOW)
        first = f"{log.directory}/{4:020d}.log"
        files.kill()
        files.open(first).write_at(int(files.size(first)) // 2 + 70, b"damage")
        files.dies_in = step
        try:
            started(files)
            died = False
        except Killed:
            died = True
        files.dies_in = -1
        files.kill()
        again = started(files).get(KEY)
        assert again is not None
        assert values(again) == written[:6]
        step += 1
    assert step > 50


def test_a_power_cut_after_a_damaged_log_was_recovered_leaves_no_hole(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    written: list[bytes] = []
    for number in range(16):
        written.append(append(log, batch, number))
        if number % 4 == 3:
            log.roll(NOW)
    log.flush(NOW)
    second = f"{log.directory}/{4:020d}.log"
    files.kill()
    files.open(second).write_at(int(files.size(second)) // 2 + 70, b"damage")
    files.open(second).sync()
    recovered = started(files).get(KEY)
    assert recovered is not None
    assert values(recovered) == written[:6]
    files.power_cut()
    again = started(files).get(KEY)
    assert again is not None
    assert values(again) == written[:6]


def test_a_power_cut_while_a_cut_log_is_synced_leaves_no_hole(batch: MakeBatch) -> None:
    step = 0
    died = True
    while died:
        files = DyingFiles()
        manager = started(files)
        log = manager.create(KEY, bytes(16), config(), NOW)
        written: list[bytes] = []
        for number in range(16):
            written.append(append(log, batch, number))
            if number % 4 == 3:
                log.roll(NOW)
        log.flush(NOW)
        manager.checkpoint_recovery_points()
        log.truncate_to(6, NOW)
        files.dies_in = step
        try:
            log.flush(NOW)
            died = False
        except Killed:
            died = True
        files.dies_in = -1
        files.power_cut()
        again = started(files).get(KEY)
        assert again is not None
        stored = values(again)
        assert stored == written[: len(stored)]
        assert 6 <= len(stored) <= 16 if died else len(stored) == 6
        step += 1
    assert step > 3


def test_a_power_cut_after_a_log_was_cut_while_it_was_synced_leaves_no_hole(batch: MakeBatch) -> None:
    """The sync that follows a roll brings the segment before that to the disk, which may have been cut."""
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
    log = manager.create(KEY, bytes(16), config(), NOW)
    written: list[bytes] = []
    for number in range(8):
        written.append(append(log, batch, number))
        if number % 4 == 3:
            log.roll(NOW)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    for number in range(8, 12):
        written.append(append(log, batch, number))
    job = log.begin_flush()
    log.truncate_to(6, NOW)
    job.run()
    files.power_cut()
    again = started(files).get(KEY)
    assert again is not None
    assert values(again) == written[:6]


def test_records_that_take_the_place_of_those_that_were_synced_while_the_log_was_cut_are_synced(
    batch: MakeBatch,
) -> None:
    """Else they would be acknowledged without a sync where flush.messages asks for one."""
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
def test_a_power_cut_that_takes_the_end_of_a_segment_leaves_no_hole(
    batch: MakeBatch, left: int, more: int, policy: str
) -> None:
    """Compaction leaves gaps, too: only in what a start knows to be on the disk."""
    again, written, left_over = after_a_cut_segment(FaultyFiles(), batch, left, more, policy)
    assert values(again) == written[: 1 + left]
    assert left_over == again.end_offset
    assert append(again, batch, 9) == values(again)[-1]


def test_a_gap_that_the_compaction_of_kafka_may_have_left_stays(batch: MakeBatch) -> None:
    """It cleans what is behind the recovery point, too: its directory was never used by another broker."""
    again, written, _ = after_a_cut_segment(FaultyFiles(), batch, 1, 2, "compact", used=False)
    assert [part.to_bytes()[-9:-1] for part in batches(again)] == [*written[:2], *written[4:]]


def test_no_hole_stays_in_a_directory_whose_mark_of_use_a_full_disk_kept_out(batch: MakeBatch) -> None:
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
    """A log of three segments, opened after a power cut that left ``left`` of the second one's records."""
    manager = started(files)
    if used:
        manager.loss_heeded()
    if started_before:
        files.replace(manager.directories[0].file(START), b"1")
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
    # The system writes back names and records in any order.
    for name in files.list(log.directory):
        files.open(f"{log.directory}/{name}").sync()
    files.sync_directory(log.directory)
    files.open(path).truncate(size)
    files.open(path).sync()
    files.power_cut()
    again = started(files, cleanup_policy=(policy,)).get(KEY)
    assert again is not None
    return again, written, 1 + left


def test_a_name_without_a_directory_sync_is_lost() -> None:
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


def test_a_flush_syncs_the_name_of_a_rolled_segment(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1)
    log.flush(NOW)
    log.roll(NOW)
    append(log, batch, 2)
    log.flush(NOW)
    files.power_cut()
    again = started(files).get(KEY)
    assert again is not None
    assert values(again) == [b"00000001", b"00000002"]


def test_a_flush_that_follows_another_does_not_sync_the_directory_again(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1)
    log.flush(NOW)
    append(log, batch, 2)
    files.operations.clear()
    log.flush(NOW)
    assert [operation for operation, _ in files.operations] == ["sync"]


def test_a_flush_that_fails_is_made_up_for_by_the_next(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1)
    files.fail("sync_directory", "t-0")
    with pytest.raises(StorageError, match=r"cannot sync .*t-0: Input/output error; look for disk faults"):
        log.flush(NOW)
    assert log.recovery_point == 0
    log.flush(NOW)
    files.power_cut()
    again = started(files).get(KEY)
    assert again is not None
    assert values(again) == [b"00000001"]


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(batch: MakeBatch) -> None:
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
    again = started(files).get(KEY)
    assert again is not None
    assert values(again) == written


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_disk_that_is_full_when_the_machine_starts_is_read_and_may_be_cleared(
    is_clean: bool, batch: MakeBatch
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
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
    assert [one.failure for one in manager.directories] == [""]
    log = manager.logs[KEY]
    assert values(log) == written
    log.set_config(config(retention_bytes=1))
    manager.retain(NOW, {KEY: int(log.end_offset)})
    assert manager.remove_paths(manager.due_removals(NOW + log.config.file_delete_delay_ms)) == []
    assert files.free_bytes("/") > 0


def test_a_failed_write_leaves_no_trace_in_the_producer_state(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, bytes(16), config(), NOW)
    append(log, batch, 1, producer_id=4, producer_epoch=0, base_sequence=0)
    files.fail("append", ".log")
    with pytest.raises(StorageError, match=r"cannot append to /var/data/t-0/0+\.log: Input/output error"):
        append(log, batch, 2, producer_id=4, producer_epoch=0, base_sequence=1)
    result = log.append([batch(1, producer_id=4, producer_epoch=0, base_sequence=1)], 3, NOW)
    assert (result.duplicate, result.base_offset) == (False, 1)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("operation", ["open", "truncate", "append", "rename"])
def test_a_roll_that_fails_leaves_the_old_segment_in_use(
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
    last = started(files).get(KEY)
    assert last is not None
    assert values(last) == written


@pytest.mark.parametrize(
    ("fully", "epoch"), [(False, 3), (True, 3), pytest.param(True, -1, id="without a leader epoch, as v1")]
)
def test_a_clean_stop_syncs_other_records_that_end_where_the_last_clean_stop_did(
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
        log.truncate_fully(18, NOW)
    else:
        log.truncate_to(18, NOW)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    written[18:] = [append(log, batch, number, epoch) for number in (100, 101)]
    assert manager.close(NOW, {}) == []
    files.power_cut()
    again = started(files).get(KEY)
    assert again is not None
    assert values(again) == (written[18:] if fully else written)


def restarted(files: FaultyFiles, manager: LogManager, clean: bool) -> Log:
    """The partition's log after a stop of one kind or the other."""
    if clean:
        assert manager.close(NOW, {}) == []
    files.kill()
    log = started(files).get(KEY)
    assert log is not None
    return log


def test_a_directory_that_cannot_be_read_is_put_aside_and_the_others_serve(batch: MakeBatch) -> None:
    files = FaultyFiles()

    def start() -> LogManager:
        manager = LogManager(files, ["/a", "/b"])
        manager.lock()
        manager.claim("c" * 22, 1)
        manager.load(NOW, lambda topic: config())
        return manager

    manager = start()
    for partition in range(4):
        append(manager.create(TopicPartition("t", partition), bytes(16), config(), NOW), batch, partition)
    files.kill()
    files.fail("read_at", "/a/t-", times=99)
    again = start()
    assert sorted(log.directory[:3] for log in again.logs.values()) == ["/b/", "/b/"]
    assert again.directories[0].failure.startswith("cannot open /a/t-")
    files.heal()
