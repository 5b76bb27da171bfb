"""Moves that resume with an existing future log after the partition was truncated and appended to."""

from __future__ import annotations

import errno
from random import Random

import pytest
from faulty_files import FaultyFiles
from log_stage import batches

from log_start import NOW, start_logs
from record_builders import build_batch, build_message_set
from tidemill.log.errors import DiskFull
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import LogDirMove, begin_move, interrupted_moves
from tidemill.model.types import ZERO_ID, TopicPartition

KEY = TopicPartition("t", 0)
TOPIC = b"t" * 16
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=200, segment_index_bytes=4000)


def batch(offset: int, epoch: int, value: bytes) -> bytes:
    """A batch of one record, as a leader of ``epoch`` sends it."""
    data = build_batch([(NOW, b"k", value, None)])
    return offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


def copy(move: LogDirMove, bytes_max: int = 1 << 20, pieces: int = 1 << 20) -> None:
    for _ in range(pieces):
        piece = move.next_range(bytes_max, NOW)
        if piece is None:
            return
        if move.needs_sync:
            move.future_log.flush(NOW)
        if move.is_overstated:
            for checkpoint in move.checkpoints():
                if checkpoint.collect():
                    checkpoint.write()
        move.copy_range(piece, NOW)


def content(log: Log) -> list[tuple[int, int, bytes]]:
    """Returns offset, leader epoch and bytes of every batch."""
    return [(int(one.base_offset), int(one.leader_epoch), one.to_bytes()) for one in batches(log)]


class Stage:
    """A follower's partition with all its records in a future log in the other directory."""

    def __init__(self, count: int, config: LogConfig | None = None) -> None:
        self.files = FaultyFiles()
        self.config = LogConfig() if config is None else config
        self.logs = start_logs(self.files, ["/a", "/b"], self.config)
        self.log = self.logs.create(KEY, TOPIC, self.config, NOW)
        self.receive(0, count, 1)
        self.target = "/b" if self.log.directory.startswith("/a/") else "/a"
        self.move = self.begin()
        copy(self.move)

    def receive(self, first: int, end: int, epoch: int) -> None:
        for offset in range(first, end):
            self.log.append_copied(batch(offset, epoch, b"%d of epoch %d" % (offset, epoch)), NOW)

    def begin(self) -> LogDirMove:
        move = begin_move(self.logs, KEY, self.target, NOW)
        assert move is not None
        return move

    def write_checkpoints(self) -> None:
        for checkpoint in self.logs.log_checkpoints(self.logs.dirs.all):
            if checkpoint.collect():
                checkpoint.write()

    def go_on(self, how: str) -> LogDirMove:
        """Ends the move in one of three ways, and starts it again."""
        if how == "asked again":
            self.move.abandon()
            self.move = self.begin()
            return self.move
        if how == "stopped":
            assert self.logs.close(NOW, {}) == []
        else:
            self.log.flush(NOW)
            self.files.kill()
        return self.start()

    def start(self) -> LogDirMove:
        self.logs = start_logs(self.files, ["/a", "/b"], self.config)
        self.log = self.logs.logs[KEY]
        (self.move,) = interrupted_moves(self.logs)
        return self.move

    def swap(self) -> Log:
        copy(self.move)
        self.move.replace_current(NOW, False)
        return self.logs.logs[KEY]


WAYS = ["asked again", "stopped", "killed"]


@pytest.mark.parametrize("how", WAYS)
def test_truncated_records_do_not_reappear_when_a_move_resumes(how: str) -> None:
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    stage.receive(2, 6, 2)
    expected = content(stage.log)
    stage.go_on(how)
    moved = stage.swap()
    assert content(moved) == expected
    assert (moved.leader_epochs.epochs, moved.leader_epochs.starts) == ([1, 2], [0, 2])


@pytest.mark.parametrize("how", WAYS)
def test_a_resumed_move_copies_only_missing_records(how: str) -> None:
    stage = Stage(40, SMALL)
    stage.log.truncate_to(30, NOW)
    stage.receive(30, 60, 2)
    move = stage.go_on(how)
    piece = move.next_range(1, NOW)
    assert piece is not None
    assert move.future_log.end_offset == 30
    assert content(stage.swap()) == content(stage.log)


def test_a_truncation_during_a_move_keeps_the_common_prefix_of_the_future_log() -> None:
    stage = Stage(40, SMALL)
    stage.log.truncate_to(30, NOW)
    stage.receive(30, 60, 2)
    assert stage.move.next_range(1, NOW) is not None
    assert stage.move.future_log.end_offset == 30
    assert stage.move.needs_sync


@pytest.mark.parametrize("cut_to", [2, 4, 6])
def test_a_slice_truncated_during_its_copy_leaves_no_former_records(cut_to: int) -> None:
    stage = Stage(4)
    stage.receive(4, 8, 1)
    piece = stage.move.next_range(1 << 20, NOW)
    assert piece is not None
    # It waits for its turn, and batches of equal size replace its records.
    stage.log.truncate_to(cut_to, NOW)
    stage.receive(cut_to, 8, 2)
    stage.move.copy_range(piece, NOW)
    assert content(stage.swap()) == content(stage.log)


def test_records_truncated_from_a_future_log_at_startup_do_not_reappear_after_a_power_cut() -> None:
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    assert stage.logs.close(NOW, {}) == []
    assert stage.start().future_log.end_offset == 2
    stage.receive(2, 6, 1)
    stage.log.flush(NOW)
    stage.files.power_cut()
    assert stage.start().future_log.end_offset == 2


@pytest.mark.parametrize("how", WAYS)
def test_a_log_that_starts_before_its_future_log_is_copied_from_its_start(how: str) -> None:
    stage = Stage(0)
    stage.log.truncate_fully_and_start_at(5, NOW)
    stage.receive(5, 9, 1)
    copy(stage.move)
    stage.log.truncate_to(3, NOW)
    stage.receive(3, 9, 1)
    stage.go_on(how)
    moved = stage.swap()
    assert moved.start_offset == 3
    assert content(moved) == content(stage.log)


def test_a_moved_partition_keeps_its_topic_id_when_the_future_log_lost_it_in_a_power_cut() -> None:
    stage = Stage(4)
    assert stage.logs.close(NOW, {}) == []
    stage.files.remove(f"{stage.move.future_log.directory}/partition.metadata")
    stage.start()
    assert stage.move.future_log.topic_id == ZERO_ID
    assert stage.swap().topic_id == TOPIC
    assert stage.logs.close(NOW, {}) == []
    assert start_logs(stage.files, ["/a", "/b"], stage.config).logs[KEY].topic_id == TOPIC


@pytest.mark.parametrize("how", WAYS)
def test_different_records_of_the_same_epoch_are_removed_from_the_future_log(how: str) -> None:
    """Only damage leads to this state."""
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    for offset in range(2, 6):
        stage.log.append_copied(batch(offset, 1, b"another %d" % offset), NOW)
    stage.go_on(how)
    assert content(stage.swap()) == content(stage.log)


@pytest.mark.parametrize("how", WAYS)
def test_messages_without_a_leader_epoch_are_copied_again(how: str) -> None:
    stage = Stage(0)
    data = build_message_set(1, [(NOW, b"k", b"former")])
    for offset in range(4):
        stage.log.append_copied(offset.to_bytes(8, "big") + data[8:], NOW)
    copy(stage.move)
    assert stage.move.future_log.end_offset == 4
    stage.log.truncate_to(2, NOW)
    data = build_message_set(1, [(NOW, b"k", b"latter")])
    for offset in range(2, 4):
        stage.log.append_copied(offset.to_bytes(8, "big") + data[8:], NOW)
    stage.go_on(how)
    moved = stage.swap()
    piece = moved.read(0, 1 << 20, 4, True)
    assert piece is not None
    assert (piece.read().count(b"former"), piece.read().count(b"latter")) == (2, 2)


@pytest.mark.parametrize("how", WAYS)
def test_a_future_log_of_deleted_records_restarts(how: str) -> None:
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    stage.receive(2, 6, 2)
    stage.log.advance_start(4)
    stage.write_checkpoints()
    stage.go_on(how)
    moved = stage.swap()
    assert (moved.start_offset, moved.end_offset) == (4, 6)
    assert (moved.leader_epochs.epochs, moved.leader_epochs.starts) == ([2], [3])
    assert content(moved) == content(stage.log)


@pytest.mark.parametrize("how", WAYS)
def test_the_future_log_of_an_emptied_log_has_the_leader_epoch_of_the_last_record(how: str) -> None:
    stage = Stage(4)
    stage.receive(4, 6, 2)
    stage.log.advance_start(6)
    stage.write_checkpoints()
    stage.go_on(how)
    moved = stage.swap()
    moved.close(NOW)
    epochs = LeaderEpochFileCache(stage.files, moved.leader_epochs.path)
    epochs.load()
    assert (moved.start_offset, moved.end_offset) == (6, 6)
    assert (epochs.epochs, epochs.starts) == ([2], [5])


@pytest.mark.parametrize("seed", range(40))
def test_a_move_ends_with_the_records_of_the_partition_after_any_history(seed: int) -> None:
    random = Random(seed)
    stage = Stage(random.randrange(20), SMALL)
    epoch = 1
    for _ in range(random.randrange(1, 12)):
        log = stage.log
        if random.random() < 0.5:
            epoch += random.randrange(1, 3)
            cut = random.randrange(int(log.start_offset), int(log.end_offset) + 1)
            log.truncate_to(cut, NOW)
            stage.receive(int(log.end_offset), int(log.end_offset) + random.randrange(12), epoch)
        elif random.random() < 0.2:
            epoch += 1
            recreated = max(0, int(log.end_offset) + random.randrange(-6, 6))
            log.truncate_fully_and_start_at(recreated, NOW)
            stage.receive(recreated, recreated + random.randrange(12), epoch)
        elif random.random() < 0.4:
            log.advance_start(random.randrange(int(log.start_offset), int(log.end_offset) + 1))
            if log.start_offset > log.segments[0].base_offset and len(log.segments) > 1:
                log.delete_old_segments(1, NOW)
        copy(stage.move, 300, random.choice([0, 0, 1, 3, 1000]))
        if random.random() < 0.5:
            stage.go_on(random.choice(WAYS))
    expected = content(stage.log)
    moved = stage.swap()
    assert content(moved) == expected
    assert content(stage.log) == expected


def test_a_future_log_is_completed_after_a_full_disk_prevented_its_last_segment() -> None:
    stage = Stage(3)
    stage.log.roll_over_gap(6, NOW)  # as the log cleaner of Apache Kafka may leave a log
    stage.files.fail("open", f"{stage.move.future_log.directory}/{6:020d}.log", errno.ENOSPC)
    with pytest.raises(DiskFull):
        copy(stage.move)
    assert stage.swap().end_offset == 6
    stage.move.delete_replaced(NOW)
    assert stage.logs.close(NOW, {KEY: 6}) == []
    logs = start_logs(stage.files, ["/a", "/b"], stage.config)
    assert (logs.logs[KEY].end_offset, logs.dirs.warnings, logs.dirs.damaged) == (6, [], set())


@pytest.mark.parametrize("reads", range(8))
def test_an_unreadable_source_log_does_not_take_the_destination_directory_offline(reads: int) -> None:
    stage = Stage(20, SMALL)
    assert stage.log.directory == "/a/t-0"
    other = stage.logs.make_log("/b/t-1", TopicPartition("t", 1), TOPIC, SMALL, NOW)
    stage.logs.dirs.all[1].add(other)
    assert stage.logs.close(NOW, {}) == []
    stage.files.fail("read_at", "/a/t-0/", errno.EIO, times=1000, after=reads)
    logs = start_logs(stage.files, ["/a", "/b"], SMALL)
    assert logs.dirs.all[1].offline_reason == ""
    assert TopicPartition("t", 1) in logs.logs
    assert logs.dirs.distrusted <= {one.meta.directory_id for one in logs.dirs.all[:1] if one.meta}


def test_a_moved_log_keeps_its_cleaner_checkpoint() -> None:
    """A follower that truncates its log below that has to fetch the removed records again."""
    stage = Stage(4)
    stage.log.clean_end = 3
    moved = stage.swap()
    assert moved.clean_end == 3


def test_a_future_log_is_flushed_at_its_end_only_if_unsynced() -> None:
    """Without a request. The recovery point must not decrease, and need not advance."""
    stage = Stage(4)
    assert stage.swap().recovery_point == 0
    stage = Stage(4)
    stage.log.flush(NOW)
    assert stage.swap().recovery_point == 4
