"""A partial truncation (a full disk, no descriptors) is completed before the next write."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from faulty_files import FaultyFiles

from log_start import open_log
from record_builders import build_batch
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.builder import build_end_marker

NOW = 1_700_000_000_000
DIRECTORY = "/disk/events-0"
PARTITION = TopicPartition("events", 0)
END = 12
CUT = 7
"""Between the batches of the producer, in a segment that is not the last."""


class FailsAt(FaultyFiles):
    """Files whose operation number ``fails_at`` fails; with ``goes_on`` also later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_at = -1
        self.goes_on = False
        self.number = errno.ENOSPC

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        self.fails_at -= 1
        if self.fails_at == -1 or (self.fails_at < -1 and self.goes_on):
            raise OSError(self.number, os.strerror(self.number), path)

    def heal(self) -> None:
        super().heal()
        self.fails_at = -1
        self.goes_on = False


def made(**options: int) -> Batch:
    data = build_batch([(NOW, b"k", b"v" * 20, None)], **options)
    return parse_batch(data, 0, len(data))


def produced(sequence: int) -> Batch:
    return made(producer_id=7, producer_epoch=0, base_sequence=sequence)


def opened(files: FaultyFiles) -> Log:
    files.make_directory(DIRECTORY)
    config = LogConfig(segment_bytes=400, index_interval_bytes=1, file_delete_delay_ms=0)
    return open_log(files, DIRECTORY, PARTITION, config, now_ms=NOW)


def filled(files: FaultyFiles) -> Log:
    """Three segments, a batch an offset, with the epochs 1 (from 0), 2 (from 5) and 3 (from 8)."""
    log = opened(files)
    for offset in range(END):
        log.append(produced(offset), 1 + (offset >= 5) + (offset >= 8), NOW)
    assert len(log.segments) > 2
    assert log.segments[-1].base_offset > CUT
    log.flush(NOW)
    return log


def state(log: Log) -> tuple[object, ...]:
    """Returns the records and the state of a log."""
    producers = [(one.producer_id, one.last_sequence, one.last_offset) for one in log.producers()]
    names = [
        name
        for name in log.segment_list.files.list(DIRECTORY)
        if not name.endswith((".deleted", ".snapshot"))
    ]
    return (
        *(int(log.start_offset), int(log.end_offset), records(log), producers, names),
        *(log.leader_epochs.epochs[:], log.leader_epochs.starts[:], int(log.producer_state.end_offset)),
        log.segment_list.files.read(log.leader_epochs.path),
    )


def records(log: Log) -> list[bytes]:
    found = []
    for offset in range(int(log.start_offset), int(log.end_offset)):
        piece = log.read(offset, 1, log.end_offset, True)
        assert piece is not None
        found.append(piece.read())
    return found


def truncate(log: Log) -> None:
    log.truncate_to(CUT, NOW)


def empty(log: Log) -> None:
    log.truncate_fully_and_start_at(CUT, NOW)


def empty_behind(log: Log) -> None:
    log.truncate_fully_and_start_at(100, NOW)


def failures(cut: Callable[[Log], None], *, goes_on: bool) -> Iterator[tuple[FailsAt, Log]]:
    """Yields the log after each possible failure of a truncation; a lasting fault is still active."""
    for number in (errno.ENOSPC, errno.EMFILE):
        for step in itertools.count():
            files = FailsAt()
            log = filled(files)
            files.number = number
            files.goes_on = goes_on
            files.fails_at = step
            try:
                cut(log)
            except StorageError:
                yield files, log
            else:
                if files.fails_at >= 0:
                    break
    assert step > 5


CUTS = pytest.mark.parametrize("cut", [truncate, empty, empty_behind])


@CUTS
def test_reads_after_a_partial_truncation_return_only_the_remaining_records(
    cut: Callable[[Log], None],
) -> None:
    before, after = filled(FailsAt()), filled(FailsAt())
    cut(after)
    for files, log in failures(cut, goes_on=False):
        files.heal()
        expected = before if log.end_offset == END else after
        assert (log.start_offset, log.end_offset) == (expected.start_offset, expected.end_offset)
        assert log.leader_epochs.epochs == expected.leader_epochs.epochs
        assert records(log) == records(expected)


@CUTS
def test_an_append_after_a_partial_truncation_completes_the_truncation(
    cut: Callable[[Log], None],
) -> None:
    after = filled(FailsAt())
    cut(after)
    after.append(produced(CUT if cut is truncate else 0), 4, NOW)
    for files, log in failures(cut, goes_on=False):
        files.heal()
        if log.end_offset == END:
            cut(log)  # No step was done.
        log.begin_leader_epoch(4)
        log.append(produced(CUT if cut is truncate else 0), 4, NOW)
        assert state(log) == state(after)
        files.kill()
        again = opened(files)
        assert (records(again), again.leader_epochs.starts) == (records(after), after.leader_epochs.starts)


@CUTS
def test_appends_and_syncs_fail_while_a_truncation_is_incomplete(cut: Callable[[Log], None]) -> None:
    for files, log in failures(cut, goes_on=True):
        if log.end_offset == END:
            continue  # No step was done.
        end, size = int(log.end_offset), files.size(log.active.path) if files.exists(log.active.path) else 0
        for write in (
            lambda one: one.append(produced(int(one.end_offset)), 4, NOW),
            lambda one: one.append_copied(b"", NOW),
            lambda one: one.begin_flush(),
            lambda one: one.begin_safe_point(),
            lambda one: one.close(NOW),
            lambda one: one.truncate_to(3, NOW),
        ):
            with pytest.raises(StorageError):
                write(log)
        assert (log.end_offset, log.closed) == (end, False)
        files.heal()
        assert not files.exists(log.active.path) or files.size(log.active.path) <= size
        log.close(NOW)
        again = opened(files)
        assert records(again) == records(log)


def test_after_a_partial_truncation_removed_batches_are_stored_again_and_kept_ones_are_not() -> None:
    for files, log in failures(truncate, goes_on=False):
        files.heal()
        if log.end_offset == END:
            continue  # No step was done.
        left = log.append(produced(CUT - 1), 4, NOW)
        assert (left.duplicate, left.base_offset) == (True, CUT - 1)
        taken = log.append(produced(CUT), 4, NOW)
        assert (taken.duplicate, taken.base_offset, log.end_offset) == (False, CUT, CUT + 1)


def test_records_fetched_again_after_a_failed_truncation_keep_the_start_of_their_epoch() -> None:
    for files, log in failures(truncate, goes_on=False):
        files.heal()
        if log.end_offset == END:
            continue  # No step was done.
        source = filled(FailsAt())
        piece = source.read(CUT, 10_000, END, True)
        assert piece is not None
        while piece is not None:
            log.append_copied(piece.read(), NOW)
            piece = source.read(log.end_offset, 10_000, END, True)
        assert state(log) == state(source)


def test_an_aborted_transaction_removed_by_a_failed_truncation_is_not_listed() -> None:
    files = FailsAt()
    log = opened(files)
    log.append(made(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), 1, NOW)
    marker = build_end_marker(False, NOW, 7, 0, 5, leader_epoch=0, base_offset=1)
    log.append(parse_batch(marker, 0, len(marker)), 1, NOW)
    index = log.active.path.replace(".log", ".txnindex")
    assert files.size(index) > 0
    files.fail("open", ".txnindex", errno.EMFILE)
    with pytest.raises(StorageError):
        log.truncate_to(1, NOW)
    assert log.last_stable_offset(1) == 0
    log.append(made(), 2, NOW)
    assert (files.size(index), log.end_offset, log.last_stable_offset(2)) == (0, 2, 0)


def test_a_later_append_removes_an_empty_epoch_kept_by_a_full_disk() -> None:
    files = FaultyFiles()
    log = opened(files)
    log.append(made(), 1, NOW)
    log.begin_leader_epoch(5)
    files.fail("append", ".log", errno.ENOSPC)
    with pytest.raises(StorageError):
        log.append(made(), 5, NOW)
    files.fail("append", "leader-epoch-checkpoint", errno.ENOSPC)
    with pytest.raises(StorageError):
        log.truncate_to(1, NOW)
    assert log.leader_epochs.latest == 1
    log.append(made(), 1, NOW)
    assert files.read(log.leader_epochs.path).decode().split("\n")[1:] == ["1", "1 0", ""]


def test_a_truncation_that_changed_nothing_is_retried_from_its_start() -> None:
    seen = 0
    for files, log in failures(truncate, goes_on=False):
        files.heal()
        if log.end_offset == END:
            seen += 1
            assert log.append(produced(END), 4, NOW).base_offset == END
            truncate(log)
            assert log.end_offset == CUT
    assert seen


def test_a_log_that_could_not_be_emptied_treats_earlier_offsets_and_batches_as_unknown() -> None:
    files = FaultyFiles()
    log = filled(files)
    files.fail("open", f"{100:020}.log", errno.ENOSPC)
    with pytest.raises(StorageError):
        log.truncate_fully_and_start_at(100, NOW)
    with pytest.raises(KafkaError, match="holds offsets 100 to 100"):
        log.read(3, 1000, 100, True)
    result = log.append(produced(3), 4, NOW)
    assert (result.duplicate, result.base_offset) == (False, 100)
