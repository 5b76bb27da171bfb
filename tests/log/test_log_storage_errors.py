"""System errors become storage errors, and leave the log unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import pytest
from faulty_files import PAGE_BYTES, FaultyFiles
from log_stage import MakeBatch

from log_start import NOW, open_log, start_logs
from record_builders import build_message_set
from tidemill.log.errors import DiskFull
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import NO_COMPRESSION, Batch
from tidemill.records.message_set import MessageSet

PARTITION = TopicPartition("events", 0)
MANY = 1_000_000


def opened(files: FaultyFiles, **options: int | bool) -> Log:
    files.make_directory("/disk/events-0")
    return open_log(files, "/disk/events-0", PARTITION, LogConfig(segment_bytes=1000), now_ms=NOW, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".log", ".timeindex"])
def test_an_append_without_descriptors_is_a_storage_error_and_a_retry_succeeds(
    suffix: str, batch: MakeBatch
) -> None:
    files = FaultyFiles()
    first = opened(files)
    first.append(batch(3), 0, NOW)
    first.close(NOW)
    again = opened(files, clean=True, recovery_point=3)
    files.fail("open", suffix, errno.EMFILE, times=MANY)
    for _ in range(3):
        with pytest.raises(StorageError, match="ulimit -n"):
            again.append(batch(2), 0, NOW)
        assert again.end_offset == 3
    files.heal()
    assert again.append(batch(2), 0, NOW).base_offset == 3
    assert again.append(batch(2), 0, NOW).base_offset == 5
    piece = again.read(3, 10_000, 7, True)
    assert piece is not None
    assert piece.read()[:8] == (3).to_bytes(8, "big")


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_bytes_of_a_failed_append_are_truncated_before_the_next_append(magic: int, batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = opened(files)
    data = build_message_set(1 if magic else 0, [(NOW, b"k", b"v")])

    def append() -> None:
        if magic == 2:
            log.append(batch(1), 0, NOW)
        else:
            log.append_messages(MessageSet(data, magic, NO_COMPRESSION, 1, NOW if magic else -1), 0, NOW)

    append()
    log.active.close_idle()
    files.open(log.active.path).append([b"half a message"])
    append()
    piece = log.read(1, 10_000, 2, True)
    assert piece is not None
    assert piece.read()[:8] == (1).to_bytes(8, "big")
    assert files.size(log.active.path) == log.size_bytes


def test_a_flush_that_cannot_open_a_segment_is_a_storage_error(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = opened(files)
    log.append(batch(3), 0, NOW)
    log.close_handlers()
    files.fail("open", ".log", errno.EMFILE, times=MANY)
    with pytest.raises(StorageError, match="ulimit -n"):
        log.begin_flush()


def full_disk(batch: MakeBatch, **settings: Any) -> tuple[FaultyFiles, LogManager, Log]:
    """A log that has filled the disk to the last page, with immediate file deletion."""
    files = FaultyFiles(50 * PAGE_BYTES)
    manager = start_logs(files, ["/disk"])
    config = LogConfig(segment_bytes=8192, segment_index_bytes=4096, file_delete_delay_ms=0, **settings)
    log = manager.create(PARTITION, b"t" * 16, config, NOW)
    with contextlib.suppress(DiskFull):
        while True:
            log.append(batch(1, value=bytes(1000)), 0, NOW)
    files.open("/disk/of-others", True).append([bytes(files.free_bytes("/"))])
    assert files.free_bytes("/") == 0
    return files, manager, log


@pytest.mark.parametrize("settings", [{"retention_bytes": 16_384}, {"retention_ms": 1}])
def test_retention_frees_space_on_a_completely_full_disk(settings: dict[str, int], batch: MakeBatch) -> None:
    files, manager, log = full_disk(batch, **settings)
    end = int(log.end_offset)
    for minute in range(1, 3):
        now_ms = NOW + minute * 60_000
        manager.cleanup_logs(now_ms, {PARTITION: end})
        assert manager.remove_paths(manager.removals.pop_due(now_ms)) == []
        names = files.list(log.directory)
        assert sum(name.endswith(".log") for name in names) == len(log.segments) <= 3
    assert log.append(batch(1, value=bytes(1000)), 0, NOW).base_offset == end
    assert manager.cleanup_logs(NOW + 3 * 60_000, {PARTITION: end}) == {}
    for checkpoint in manager.start_offset_checkpoints():
        checkpoint.write()
    start, epochs = int(log.start_offset), log.leader_epochs.starts
    assert start > 0
    assert epochs == [start - 1]
    files.kill()
    again = start_logs(files, ["/disk"], log.config)
    assert again.dirs.warnings == []
    found = again.logs[PARTITION]
    assert (int(found.start_offset), int(found.end_offset)) == (start, end + 1)
    assert found.leader_epochs.starts == epochs


def test_a_log_starts_after_segments_deleted_from_a_full_disk(batch: MakeBatch) -> None:
    """The log start offset is not checkpointed yet."""
    files, manager, log = full_disk(batch, retention_bytes=16_384)
    end = int(log.end_offset)
    assert manager.cleanup_logs(NOW, {PARTITION: end}) == {PARTITION: log.start_offset}
    files.kill()
    files.remove("/disk/of-others")
    again = start_logs(files, ["/disk"], log.config)
    found = again.logs[PARTITION]
    assert (int(found.start_offset), int(found.end_offset)) == (int(log.start_offset), end)
    assert found.leader_epochs.starts == [found.start_offset]


@pytest.mark.parametrize(("suffix", "gone"), [(".log", 1), (".index", 2), (".snapshot", 2)])
def test_the_next_retention_removes_segments_that_could_not_be_renamed(
    suffix: str, gone: int, batch: MakeBatch
) -> None:
    files = FaultyFiles()
    log = opened(files)
    while len(log.segments) < 5:
        log.append(batch(1, value=bytes(300)), 0, NOW)
    bases = [int(segment.base_offset) for segment in log.segments]
    files.fail("rename", f"{bases[1]:020}{suffix}", errno.EIO)
    with pytest.raises(StorageError):
        log.delete_old_segments(3, NOW)
    assert [int(segment.base_offset) for segment in log.segments] == bases[gone:]
    assert log.start_offset == bases[gone]
    log.delete_old_segments(3 - gone, NOW)
    logs = [name for name in files.list(log.directory) if name.endswith(".log")]
    assert logs == [f"{base:020}.log" for base in bases[3:]]
    assert log.start_offset == bases[3]


def test_records_deleted_on_a_full_disk_leave_the_epochs_of_the_rest_after_a_start(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    log = opened(files)
    for epoch in range(3):
        log.append(batch(3), epoch, NOW)
    files.fail("append", "leader-epoch-checkpoint", errno.ENOSPC)
    assert log.advance_start(4)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([1, 2], [3, 6])
    files.kill()
    again = opened(files, start_offset=4)
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([1, 2], [3, 6])
    assert again.start_offset == 4


def test_a_log_emptied_on_a_full_disk_has_only_the_files_of_its_segments(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    log = opened(files)
    for epoch in range(3):
        log.append(batch(3), epoch, NOW)
    files.fail("append", "leader-epoch-checkpoint", errno.ENOSPC)
    log.truncate_fully_and_start_at(20, NOW)
    assert (log.start_offset, log.end_offset, log.leader_epochs.latest) == (20, 20, -1)
    assert [name for name in files.list(log.directory) if name.endswith(".log")] == [f"{20:020}.log"]
    files.kill()
    again = opened(files, start_offset=20)
    assert (again.start_offset, again.end_offset) == (20, 20)
    again.append(batch(1), 1, NOW)
    assert (again.leader_epochs.epochs, again.leader_epochs.starts) == ([1], [20])


def test_retention_continues_after_a_log_with_unreadable_files(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = start_logs(files, ["/disk"])
    config = LogConfig(retention_ms=1000, flush_ms=0)
    logs = [manager.create(TopicPartition("events", at), b"t" * 16, config, NOW) for at in range(2)]
    for log in logs:
        log.append(batch(3, timestamp=-1), 0, NOW)
        log.close_handlers()
    files.fail("modified_ms", "/disk/events-0/", errno.EIO, times=MANY)
    files.fail("open", "/disk/events-0/", errno.EMFILE, times=MANY)
    moved = manager.cleanup_logs(NOW * 2, {TopicPartition("events", at): 3 for at in range(2)})
    assert list(moved) == [TopicPartition("events", 1)]
    assert [log.topic_partition.partition for log, _ in manager.flushes_due(NOW * 2)] == [1]
    assert len([text for text in manager.dirs.warnings if "/disk/events-0" in text]) == 2


def test_no_segment_of_a_log_without_partition_is_deleted(batch: MakeBatch) -> None:
    manager = start_logs(FaultyFiles(), ["/disk"])
    config = LogConfig(retention_ms=1000)
    known, unknown = (TopicPartition(name, 0) for name in ("known", "unknown"))
    for key in (known, unknown):
        manager.create(key, b"t" * 16, config, NOW).append(batch(3, timestamp=1), 0, NOW)
    # The controller may be unable to read the settings of the other topic.
    assert list(manager.cleanup_logs(NOW * 2, {known: 3})) == [known]
    assert int(manager.logs[unknown].start_offset) == 0


def fail_appends(monkeypatch: pytest.MonkeyPatch, written_bytes: int, number: int) -> None:
    """The first bytes of an append are written, and cannot be truncated."""
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) > written_bytes:
            return write(descriptor, data[:written_bytes])
        raise OSError(number, os.strerror(number))

    def refuse(descriptor: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", half)
    monkeypatch.setattr(os, "ftruncate", refuse)


def test_an_append_that_could_not_be_undone_is_truncated_before_the_next(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SystemFiles().open(f"{directory}/log", True)
    file.append([b"whole"])
    with monkeypatch.context() as patched:
        fail_appends(patched, 4, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.append([b"torn off"])
        with pytest.raises(OSError, match="Input/output"):
            file.append([b"too soon"])
    file.append([b" again"])
    assert file.read_at(0, 100) == b"whole again"
    file.close()


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("is_let_go", [False, True])
def test_no_batch_is_appended_after_bytes_of_a_failed_append(
    directory: str,
    batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
    is_read: bool,
    is_let_go: bool,
) -> None:
    log = open_log(SystemFiles(), directory, PARTITION, LogConfig())
    log.append(batch(1), 1, 0)
    with monkeypatch.context() as patched:
        fail_appends(patched, 40, errno.ENOSPC)
        with pytest.raises(StorageError, match="No space"):
            log.append(batch(1), 1, 0)
    if is_let_go:
        log.active.close_idle()
    if is_read:
        log.active.file()
    log.append(batch(1), 1, 0)
    assert log.active.last_offset_end() == log.end_offset == 2
    log.close(0)
    again = open_log(SystemFiles(), directory, PARTITION, LogConfig(), clean=True)
    assert again.end_offset == 2
    again.close(0)


def test_a_retried_batch_is_detected_after_a_failed_lookup(
    batch: MakeBatch,
) -> None:
    def produced(sequence: int) -> Batch:
        return batch(1, producer_id=42, producer_epoch=0, base_sequence=sequence)

    files = FaultyFiles()
    first = opened(files)
    for sequence in range(3):
        first.append(produced(sequence), 0, NOW)
    first.close(NOW)
    again = opened(files, clean=True, recovery_point=3)
    again.active.close_handlers()
    files.fail("open", ".log", errno.EMFILE, times=MANY)
    with pytest.raises(StorageError, match="ulimit -n"):
        again.append(produced(1), 0, NOW)
    files.heal()
    assert again.append(produced(1), 0, NOW).base_offset == 1
