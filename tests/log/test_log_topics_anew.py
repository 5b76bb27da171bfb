"""What a topic leaves behind in the data directories never gets into the next topic of its name."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.log.checkpoints import read_offsets
from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.moves import Move, begin_move
from tidemill.log.names import CLEANER_OFFSETS
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import Batch
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
FORMER, NEW = b"f" * 16, b"n" * 16
KEY = TopicPartition("t", 0)

MakeBatch = Callable[..., Batch]


def started(files: FaultyFiles) -> LogManager:
    manager = LogManager(files, ["/a", "/b"])
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: LogConfig())
    return manager


def moved_half(manager: LogManager, batch: MakeBatch) -> Move:
    """The former topic's partition, whose records are all in a copy that is on its way to ``/b``."""
    log = manager.create(KEY, FORMER, LogConfig(), NOW)
    for _ in range(3):
        log.append([batch(value=b"former")], 0, NOW)
    move = begin_move(manager, KEY, "/b", NOW)
    assert move is not None
    copy(move)
    return move


def copy(move: Move) -> None:
    while (piece := move.next_piece(1 << 20, NOW)) is not None:
        move.store(piece, NOW)


def test_a_move_of_a_topic_made_anew_begins_with_an_empty_copy(batch: MakeBatch) -> None:
    manager = started(FaultyFiles())
    former = moved_half(manager, batch)
    manager.set_aside(KEY, NOW)
    assert former.is_off()
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    for _ in range(5):
        log.append([batch(value=b"new")], 0, NOW)
    move = begin_move(manager, KEY, "/b", NOW)
    assert move is not None
    assert (move.future.topic_id, move.future.end_offset) == (NEW, 0)


def test_a_start_does_not_go_on_with_the_move_of_a_topic_that_had_the_name_before(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    moved_half(manager, batch)
    (directory,) = [name for name in files.list("/b") if name.endswith("-future")]
    files.rename(f"/b/{directory}", "/kept")
    manager.delete(KEY, NOW)
    files.rename("/kept", f"/b/{directory}")  # the power failed before its removal was on the disk
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    for _ in range(5):
        log.append([batch(value=b"new")], 0, NOW)
    assert manager.close(NOW, {}) == []
    again = started(files)
    assert again.logs[KEY].end_offset == 5
    assert not any(one.arriving for one in again.directories)
    assert not any(name.endswith("-future") for name in files.list("/b"))


def test_the_former_topics_high_watermark_makes_no_loss_of_the_new_one(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
    log = manager.create(KEY, FORMER, LogConfig(), NOW, is_new=False)
    for _ in range(10):
        log.append([batch(value=b"former")], 0, NOW)
    assert write_checkpoints(manager.high_watermark_checkpoints({KEY: 10})) == []
    manager.delete(KEY, NOW)
    assert write_checkpoints(manager.log_checkpoints(manager.directories)) == []
    log = manager.create(KEY, NEW, LogConfig(), NOW, is_new=False)
    for _ in range(5):
        log.append([batch(value=b"new")], 0, NOW)
    files.kill()
    again = started(files)
    assert again.logs[KEY].end_offset == 5
    assert (again.warnings, again.damaged, again.high_watermarks) == ([], set(), {})


def test_a_new_log_is_not_taken_for_compacted_as_far_as_the_one_that_was_set_aside(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, FORMER, LogConfig(), NOW)
    for _ in range(10):
        log.append([batch(value=b"former")], 0, NOW)
    log.clean_end = 10
    log.note_move()
    directory = manager.directory_of(log)
    assert directory.cleaner_offsets.take()
    directory.cleaner_offsets.write()
    manager.set_aside(KEY, NOW)
    manager.create(KEY, NEW, LogConfig(), NOW)
    assert read_offsets(files, f"{directory.path}/{CLEANER_OFFSETS}") == {}


def test_a_topic_made_anew_does_not_get_the_records_of_a_directory_that_was_put_back(
    batch: MakeBatch,
) -> None:
    """It is opened as what it is: the broker sets it aside then, or takes the partition offline."""
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, FORMER, LogConfig(), NOW)
    log.append([batch(value=b"former")], 0, NOW)
    path = log.directory
    manager.delete(KEY, NOW)
    (deleted,) = [name for name in files.list("/a") if name.startswith("t-0.")]
    files.rename(f"/a/{deleted}", path)
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    assert (log.topic_id, log.end_offset) == (FORMER, 1), "nobody would know whose records these are"


def power_cut(files: FaultyFiles) -> LogManager:
    """The broker after a power cut."""
    files.power_cut()
    return started(files)


def test_what_a_power_cut_leaves_of_a_topic_is_known_to_be_of_that_topic(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = started(files).create(KEY, FORMER, LogConfig(), NOW)
    log.append([batch(value=b"former")], 0, NOW)
    log.flush(NOW)
    log = power_cut(files).logs[KEY]
    assert (log.topic_id, log.end_offset) == (FORMER, 1), "a topic made anew would begin with its records"


def test_an_id_that_a_log_got_late_is_on_the_disk_with_the_next_sync_and_after_a_clean_stop(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    log = manager.create(KEY, ZERO_ID, LogConfig(), NOW)
    log.append([batch(value=b"former")], 0, NOW)
    log.flush(NOW)
    manager.assign_topic_id(log, FORMER)
    log.append([batch(value=b"former")], 0, NOW)
    log.flush(NOW)
    manager = power_cut(files)
    assert manager.logs[KEY].topic_id == FORMER
    assert manager.close(NOW, {}) == []

    files = FaultyFiles()
    manager = started(files)
    manager.create(KEY, ZERO_ID, LogConfig(), NOW).append([batch(value=b"former")], 0, NOW)
    assert manager.close(NOW, {}) == []
    manager = started(files)
    manager.assign_topic_id(manager.logs[KEY], FORMER)
    assert manager.close(NOW, {}) == []
    assert power_cut(files).logs[KEY].topic_id == FORMER


def set_aside_from(manager: LogManager, batch: MakeBatch) -> Log:
    """The new topic's log in ``/b``. The former one's was in ``/a``, had ten records, and is set aside."""
    former = manager.create(KEY, FORMER, LogConfig(), NOW)
    assert former.directory == "/a/t-0"
    for _ in range(10):
        former.append([batch(value=b"former")], 0, NOW)
    former.flush(NOW)
    assert write_checkpoints(manager.high_watermark_checkpoints({KEY: 10})) == []
    manager.set_aside(KEY, NOW)
    manager.prefer(KEY, "/b")
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    assert log.directory == "/b/t-0"
    for _ in range(5):
        log.append([batch(value=b"new")], 0, NOW)
    return log


def test_the_high_watermark_of_a_log_set_aside_in_one_directory_makes_no_loss_in_another(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
    set_aside_from(manager, batch)
    files.kill()
    again = started(files)
    assert again.logs[KEY].end_offset == 5
    assert (again.damaged, again.high_watermarks) == (set(), {})


def test_a_power_cut_does_not_bring_a_log_set_aside_back_beside_the_one_made_in_its_place(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
    set_aside_from(manager, batch).flush(NOW)
    again = power_cut(files)
    assert [one.failure for one in again.directories] == ["", ""]
    assert (again.logs[KEY].topic_id, again.logs[KEY].end_offset) == (NEW, 5)


def test_a_power_cut_does_not_bring_a_deleted_log_back_of_which_no_checkpoint_knew(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = started(files)
    manager.loss_heeded()
    assert write_checkpoints(manager.log_checkpoints(manager.directories)) == []
    former = manager.create(KEY, FORMER, LogConfig(), NOW)
    former.append([batch(value=b"former")], 0, NOW)
    former.flush(NOW)
    manager.delete(KEY, NOW)
    assert write_checkpoints(manager.log_checkpoints(manager.directories)) == []
    manager.prefer(KEY, "/b")
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    log.append([batch(value=b"new")], 0, NOW)
    log.flush(NOW)
    again = power_cut(files)
    assert [one.failure for one in again.directories] == ["", ""]
    assert again.logs[KEY].topic_id == NEW


def test_a_topic_made_anew_does_not_begin_with_what_a_move_left_whose_destination_failed(
    batch: MakeBatch,
) -> None:
    manager = started(FaultyFiles())
    move = moved_half(manager, batch)
    move.swap(NOW, True)
    manager.fail_directory("/b", "its disk is gone")
    manager.delete(KEY, NOW)
    log = manager.create(KEY, NEW, LogConfig(), NOW)
    assert (log.directory, log.topic_id, log.end_offset) == ("/a/t-0", NEW, 0)
