"""Moves that go on with a copy that was left, after the partition was cut and got other records."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tidemill.log.config import LogConfig
from tidemill.log.errors import DiskFull
from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.moves import Move, begin_move, interrupted_moves
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.records.message_set import build_message_set
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
KEY = TopicPartition("t", 0)
TOPIC = b"t" * 16
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=200, segment_index_bytes=4000)


def started(files: FaultyFiles, config: LogConfig) -> LogManager:
    logs = LogManager(files, ["/a", "/b"])
    logs.lock()
    if not files.exists("/a/meta.properties"):
        logs.claim("c" * 22, 1)
    logs.load(NOW, lambda topic: config)
    return logs


def batch(offset: int, epoch: int, value: bytes) -> bytes:
    """A batch of one record, as a leader of ``epoch`` sends it."""
    data = build_batch([(NOW, b"k", value, None)])
    return offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


def copy(move: Move, bytes_max: int = 1 << 20, pieces: int = 1 << 20) -> None:
    for _ in range(pieces):
        piece = move.next_piece(bytes_max, NOW)
        if piece is None:
            return
        if move.needs_sync:
            move.future.flush(NOW)
        if move.is_overstated:
            for checkpoint in move.checkpoints():
                if checkpoint.take():
                    checkpoint.write()
        move.store(piece, NOW)


def content(log: Log) -> list[tuple[int, int, bytes]]:
    """Offset, leader epoch and bytes of every batch."""
    found = []
    offset = int(log.start_offset)
    while offset < log.end_offset:
        piece = log.read(offset, 1, log.end_offset, True)
        if piece is None:
            break
        one = parse_batch(piece.read(), 0, piece.size)
        found.append((int(one.base_offset), int(one.leader_epoch), piece.read()))
        offset = int(one.last_offset) + 1
    return found


class Stage:
    """A follower's partition, whose records are all in a copy that is on its way to the other directory."""

    def __init__(self, count: int, config: LogConfig | None = None) -> None:
        self.files = FaultyFiles()
        self.config = LogConfig() if config is None else config
        self.logs = started(self.files, self.config)
        self.log = self.logs.create(KEY, TOPIC, self.config, NOW)
        self.receive(0, count, 1)
        self.target = "/b" if self.log.directory.startswith("/a/") else "/a"
        self.move = self.begin()
        copy(self.move)

    def receive(self, first: int, end: int, epoch: int) -> None:
        for offset in range(first, end):
            self.log.append_as_follower(batch(offset, epoch, b"%d of epoch %d" % (offset, epoch)), NOW)

    def begin(self) -> Move:
        move = begin_move(self.logs, KEY, self.target, NOW)
        assert move is not None
        return move

    def write_checkpoints(self) -> None:
        for checkpoint in self.logs.log_checkpoints(self.logs.directories):
            if checkpoint.take():
                checkpoint.write()

    def go_on(self, how: str) -> Move:
        """Ends the move in one of three ways, and begins it once more."""
        if how == "asked again":
            self.move.give_up()
            self.move = self.begin()
            return self.move
        if how == "stopped":
            assert self.logs.close(NOW, {}) == []
        else:
            self.log.flush(NOW)
            self.files.kill()
        return self.start()

    def start(self) -> Move:
        self.logs = started(self.files, self.config)
        self.log = self.logs.logs[KEY]
        (self.move,) = interrupted_moves(self.logs)
        return self.move

    def swap(self) -> Log:
        copy(self.move)
        self.move.swap(NOW, False)
        return self.logs.logs[KEY]


WAYS = ["asked again", "stopped", "killed"]


@pytest.mark.parametrize("how", WAYS)
def test_records_that_a_partition_has_cut_do_not_come_back_with_a_move_that_goes_on(how: str) -> None:
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    stage.receive(2, 6, 2)
    expected = content(stage.log)
    stage.go_on(how)
    moved = stage.swap()
    assert content(moved) == expected
    assert (moved.leader_epochs.epochs, moved.leader_epochs.starts) == ([1, 2], [0, 2])


@pytest.mark.parametrize("how", WAYS)
def test_a_move_that_goes_on_copies_only_what_the_copy_lacks(how: str) -> None:
    stage = Stage(40, SMALL)
    stage.log.truncate_to(30, NOW)
    stage.receive(30, 60, 2)
    move = stage.go_on(how)
    piece = move.next_piece(1, NOW)
    assert piece is not None
    assert move.future.end_offset == 30
    assert content(stage.swap()) == content(stage.log)


def test_a_partition_that_is_cut_under_way_leaves_what_both_have_in_the_copy() -> None:
    stage = Stage(40, SMALL)
    stage.log.truncate_to(30, NOW)
    stage.receive(30, 60, 2)
    assert stage.move.next_piece(1, NOW) is not None
    assert stage.move.future.end_offset == 30
    assert stage.move.needs_sync


@pytest.mark.parametrize("cut_to", [2, 4, 6])
def test_a_piece_that_is_cut_while_it_is_copied_leaves_no_former_records_before_it(cut_to: int) -> None:
    stage = Stage(4)
    stage.receive(4, 8, 1)
    piece = stage.move.next_piece(1 << 20, NOW)
    assert piece is not None
    # It waits for its turn, and batches of the same size come into its place.
    stage.log.truncate_to(cut_to, NOW)
    stage.receive(cut_to, 8, 2)
    stage.move.store(piece, NOW)
    assert content(stage.swap()) == content(stage.log)


def test_what_a_start_cuts_from_a_copy_does_not_come_back_with_a_power_cut() -> None:
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    assert stage.logs.close(NOW, {}) == []
    assert stage.start().future.end_offset == 2
    stage.receive(2, 6, 1)
    stage.log.flush(NOW)
    stage.files.power_cut()
    assert stage.start().future.end_offset == 2


@pytest.mark.parametrize("how", WAYS)
def test_a_partition_that_begins_before_its_copy_is_copied_from_its_beginning(how: str) -> None:
    stage = Stage(0)
    stage.log.truncate_fully(5, NOW)
    stage.receive(5, 9, 1)
    copy(stage.move)
    stage.log.truncate_to(3, NOW)
    stage.receive(3, 9, 1)
    stage.go_on(how)
    moved = stage.swap()
    assert moved.start_offset == 3
    assert content(moved) == content(stage.log)


def test_a_partition_has_the_id_of_its_topic_after_a_move_whose_copy_had_lost_it_in_a_power_cut() -> None:
    stage = Stage(4)
    assert stage.logs.close(NOW, {}) == []
    stage.files.remove(f"{stage.move.future.directory}/partition.metadata")
    stage.start()
    assert stage.move.future.topic_id == ZERO_ID
    assert stage.swap().topic_id == TOPIC
    assert stage.logs.close(NOW, {}) == []
    assert started(stage.files, stage.config).logs[KEY].topic_id == TOPIC


@pytest.mark.parametrize("how", WAYS)
def test_other_records_of_the_same_epoch_do_not_stay_in_the_copy(how: str) -> None:
    """Nothing but damage brings that about."""
    stage = Stage(4)
    stage.log.truncate_to(2, NOW)
    for offset in range(2, 6):
        stage.log.append_as_follower(batch(offset, 1, b"another %d" % offset), NOW)
    stage.go_on(how)
    assert content(stage.swap()) == content(stage.log)


@pytest.mark.parametrize("how", WAYS)
def test_messages_without_an_epoch_are_copied_again(how: str) -> None:
    stage = Stage(0)
    data = build_message_set(1, [(NOW, b"k", b"former")])
    for offset in range(4):
        stage.log.append_as_follower(offset.to_bytes(8, "big") + data[8:], NOW)
    copy(stage.move)
    assert stage.move.future.end_offset == 4
    stage.log.truncate_to(2, NOW)
    data = build_message_set(1, [(NOW, b"k", b"latter")])
    for offset in range(2, 4):
        stage.log.append_as_follower(offset.to_bytes(8, "big") + data[8:], NOW)
    stage.go_on(how)
    moved = stage.swap()
    piece = moved.read(0, 1 << 20, 4, True)
    assert piece is not None
    assert (piece.read().count(b"former"), piece.read().count(b"latter")) == (2, 2)


@pytest.mark.parametrize("how", WAYS)
def test_a_copy_of_what_was_deleted_begins_anew(how: str) -> None:
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
def test_the_copy_of_an_emptied_log_knows_the_epoch_of_its_last_record(how: str) -> None:
    stage = Stage(4)
    stage.receive(4, 6, 2)
    stage.log.advance_start(6)
    stage.write_checkpoints()
    stage.go_on(how)
    moved = stage.swap()
    moved.close(NOW)
    epochs = LeaderEpochs(stage.files, moved.leader_epochs.path)
    epochs.load()
    assert (moved.start_offset, moved.end_offset) == (6, 6)
    assert (epochs.epochs, epochs.starts) == ([2], [5])


@pytest.mark.parametrize("seed", range(40))
def test_whatever_becomes_of_a_partition_its_move_ends_with_what_it_holds(seed: int) -> None:
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
            anew = max(0, int(log.end_offset) + random.randrange(-6, 6))
            log.truncate_fully(anew, NOW)
            stage.receive(anew, anew + random.randrange(12), epoch)
        elif random.random() < 0.4:
            log.advance_start(random.randrange(int(log.start_offset), int(log.end_offset) + 1))
            if log.start_offset > log.segments[0].base_offset and len(log.segments) > 1:
                log.remove_segments(1, NOW)
        copy(stage.move, 300, random.choice([0, 0, 1, 3, 1000]))
        if random.random() < 0.5:
            stage.go_on(random.choice(WAYS))
    expected = content(stage.log)
    moved = stage.swap()
    assert content(moved) == expected
    assert content(stage.log) == expected


def test_a_copy_ends_where_the_partition_does_although_a_full_disk_kept_its_last_segment_away() -> None:
    stage = Stage(3)
    stage.log.roll_over_gap(6, NOW)  # as compaction leaves a log of Apache Kafka
    stage.files.fail("open", f"{stage.move.future.directory}/{6:020d}.log", errno.ENOSPC)
    with pytest.raises(DiskFull):
        copy(stage.move)
    assert stage.swap().end_offset == 6
    stage.move.retire(NOW)
    assert stage.logs.close(NOW, {KEY: 6}) == []
    logs = started(stage.files, stage.config)
    assert (logs.logs[KEY].end_offset, logs.warnings, logs.damaged) == (6, [], set())


@pytest.mark.parametrize("reads", range(8))
def test_a_partition_that_cannot_be_read_takes_the_directory_of_its_copy_not_offline(reads: int) -> None:
    stage = Stage(20, SMALL)
    assert stage.log.directory == "/a/t-0"
    other = stage.logs.make_log("/b/t-1", TopicPartition("t", 1), TOPIC, SMALL, NOW)
    stage.logs.directories[1].add(other)
    assert stage.logs.close(NOW, {}) == []
    stage.files.fail("read_at", "/a/t-0/", errno.EIO, times=1000, after=reads)
    logs = started(stage.files, SMALL)
    assert logs.directories[1].failure == ""
    assert TopicPartition("t", 1) in logs.logs
    assert logs.distrusted <= {one.meta.directory_id for one in logs.directories[:1] if one.meta}


def test_a_log_that_was_moved_stays_compacted_up_to_where_it_was() -> None:
    """A follower whose log is cut before that has to fetch the removed records again; see follow_end."""
    stage = Stage(4)
    stage.log.clean_end = 3
    moved = stage.swap()
    assert moved.clean_end == 3


def test_a_copy_is_flushed_at_its_end_only_where_less_of_it_is_on_the_disk() -> None:
    """Without being told to: the recovery point must not go back, and need not go on."""
    stage = Stage(4)
    assert stage.swap().recovery_point == 0
    stage = Stage(4)
    stage.log.flush(NOW)
    assert stage.swap().recovery_point == 4
