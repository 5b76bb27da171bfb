"""Files of a deleted topic never become part of a recreated topic of its name."""

from __future__ import annotations

from faulty_files import FaultyFiles
from log_stage import MakeBatch, copy_all

from log_start import NOW, start_logs
from tidemill.log.checkpoint_files import read_offsets
from tidemill.log.file_names import CLEANER_OFFSETS
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import LogDirMove, begin_move
from tidemill.log.log_manager import LogManager
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.model.types import ZERO_ID, TopicPartition

FORMER, NEW = b"f" * 16, b"n" * 16
KEY = TopicPartition("t", 0)


def started(files: FaultyFiles) -> LogManager:
    return start_logs(files, ["/a", "/b"])


def filled(manager: LogManager, topic_id: bytes, batch: MakeBatch, count: int, *, is_new: bool = True) -> Log:
    """Creates the log of a topic with ``count`` records."""
    log = manager.create(KEY, topic_id, LogConfig(), NOW, is_new=is_new)
    for _ in range(count):
        log.append(batch(value=b"former" if topic_id == FORMER else b"new"), 0, NOW)
    return log


def moved_half(manager: LogManager, batch: MakeBatch) -> LogDirMove:
    """The former topic's partition with all its records in a future log in ``/b``."""
    filled(manager, FORMER, batch, 3)
    move = begin_move(manager, KEY, "/b", NOW)
    assert move is not None
    copy_all(move)
    return move


def test_a_move_of_a_recreated_topic_starts_with_an_empty_future_log(batch: MakeBatch) -> None:
    manager = started(FaultyFiles())
    former = moved_half(manager, batch)
    manager.set_aside(KEY, NOW)
    assert former.is_cancelled()
    filled(manager, NEW, batch, 5)
    move = begin_move(manager, KEY, "/b", NOW)
    assert move is not None
    assert (move.future_log.topic_id, move.future_log.end_offset) == (NEW, 0)


def test_a_start_does_not_resume_the_move_of_a_former_topic(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    moved_half(manager, batch)
    (directory,) = [name for name in files.list("/b") if name.endswith("-future")]
    files.rename(f"/b/{directory}", "/kept")
    manager.delete(KEY, NOW)
    files.rename("/kept", f"/b/{directory}")  # the power failed before the removal was synced
    filled(manager, NEW, batch, 5)
    assert manager.close(NOW, {}) == []
    again = started(files)
    assert again.logs[KEY].end_offset == 5
    assert not any(one.future_logs for one in again.dirs.all)
    assert not any(name.endswith("-future") for name in files.list("/b"))


def test_the_high_watermark_of_a_former_topic_reports_no_loss_of_the_new_topic(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    filled(manager, FORMER, batch, 10, is_new=False)
    assert write_checkpoints(manager.high_watermark_checkpoints({KEY: 10})) == []
    manager.delete(KEY, NOW)
    assert write_checkpoints(manager.log_checkpoints(manager.dirs.all)) == []
    filled(manager, NEW, batch, 5, is_new=False)
    files.kill()
    again = started(files)
    assert again.logs[KEY].end_offset == 5
    assert (again.dirs.warnings, again.dirs.damaged, again.dirs.high_watermarks) == ([], set(), {})


def test_a_new_log_does_not_inherit_the_cleaner_checkpoint_of_a_log_set_aside(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = filled(manager, FORMER, batch, 10)
    log.clean_end = 10
    log.note_offset_change()
    directory = manager.dirs.directory_of(log)
    assert directory.cleaner_offsets.collect()
    directory.cleaner_offsets.write()
    manager.set_aside(KEY, NOW)
    manager.create(KEY, NEW, LogConfig(), NOW)
    assert read_offsets(files, f"{directory.path}/{CLEANER_OFFSETS}") == {}


def test_a_recreated_topic_does_not_get_records_of_a_restored_directory(
    batch: MakeBatch,
) -> None:
    """It is opened with its topic id. The broker then sets it aside or takes the partition offline."""
    files = FaultyFiles()
    manager = started(files)
    log = filled(manager, FORMER, batch, 1)
    path = log.directory
    manager.delete(KEY, NOW)
    (deleted,) = [name for name in files.list("/a") if name.startswith("t-0.")]
    files.rename(f"/a/{deleted}", path)
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    assert (log.topic_id, log.end_offset) == (FORMER, 1), "the topic of these records would be unknown"


def power_cut(files: FaultyFiles) -> LogManager:
    """The broker after a power cut."""
    files.power_cut()
    return started(files)


def test_files_left_by_a_power_cut_are_attributed_to_their_topic(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, FORMER, LogConfig(), NOW)
    log.append(batch(value=b"former"), 0, NOW)
    log.flush(NOW)
    log = power_cut(files).logs[KEY]
    assert (log.topic_id, log.end_offset) == (FORMER, 1), "a recreated topic would start with its records"


def test_a_late_topic_id_is_stored_by_the_next_sync_and_a_clean_shutdown(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, ZERO_ID, LogConfig(), NOW)
    log.append(batch(value=b"former"), 0, NOW)
    log.flush(NOW)
    manager.assign_topic_id(log, FORMER)
    log.append(batch(value=b"former"), 0, NOW)
    log.flush(NOW)
    manager = power_cut(files)
    assert manager.logs[KEY].topic_id == FORMER
    assert manager.close(NOW, {}) == []

    files = FaultyFiles()
    manager = started(files)
    manager.create(KEY, ZERO_ID, LogConfig(), NOW).append(batch(value=b"former"), 0, NOW)
    assert manager.close(NOW, {}) == []
    manager = started(files)
    manager.assign_topic_id(manager.logs[KEY], FORMER)
    assert manager.close(NOW, {}) == []
    assert power_cut(files).logs[KEY].topic_id == FORMER


def set_aside_from(manager: LogManager, batch: MakeBatch) -> Log:
    """The new topic's log in ``/b``. The former log in ``/a`` had ten records and is set aside."""
    former = filled(manager, FORMER, batch, 10)
    assert former.directory == "/a/t-0"
    former.flush(NOW)
    assert write_checkpoints(manager.high_watermark_checkpoints({KEY: 10})) == []
    manager.set_aside(KEY, NOW)
    manager.set_preferred_directory(KEY, "/b")
    log = filled(manager, NEW, batch, 5)
    assert log.directory == "/b/t-0"
    return log


def test_the_high_watermark_of_a_log_set_aside_reports_no_loss_in_another_directory(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    set_aside_from(manager, batch)
    files.kill()
    again = started(files)
    assert again.logs[KEY].end_offset == 5
    assert (again.dirs.damaged, again.dirs.high_watermarks) == (set(), {})


def test_a_power_cut_does_not_restore_a_log_set_aside_beside_its_replacement(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    set_aside_from(manager, batch).flush(NOW)
    again = power_cut(files)
    assert [one.offline_reason for one in again.dirs.all] == ["", ""]
    assert (again.logs[KEY].topic_id, again.logs[KEY].end_offset) == (NEW, 5)


def test_a_power_cut_does_not_restore_a_deleted_log_without_checkpoint(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.dirs.mark_losses_handled()
    assert write_checkpoints(manager.log_checkpoints(manager.dirs.all)) == []
    former = filled(manager, FORMER, batch, 1)
    former.flush(NOW)
    manager.delete(KEY, NOW)
    assert write_checkpoints(manager.log_checkpoints(manager.dirs.all)) == []
    manager.set_preferred_directory(KEY, "/b")
    log = filled(manager, NEW, batch, 1)
    log.flush(NOW)
    again = power_cut(files)
    assert [one.offline_reason for one in again.dirs.all] == ["", ""]
    assert again.logs[KEY].topic_id == NEW


def test_a_recreated_topic_does_not_start_with_files_of_a_failed_move(
    batch: MakeBatch,
) -> None:
    manager = started(FaultyFiles())
    move = moved_half(manager, batch)
    move.replace_current(NOW, True)
    manager.dirs.fail_directory("/b", "its disk is gone")
    manager.delete(KEY, NOW)
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    assert (log.directory, log.topic_id, log.end_offset) == ("/a/t-0", NEW, 0)
