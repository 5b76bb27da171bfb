"""Validates every batch of a segment during recovery, including its checksum."""

from __future__ import annotations

from enum import Enum
from typing import Final

from mypy_extensions import i64

from tidemill.log.batch_scan import BatchScan, zeros_to_end
from tidemill.log.log_segment import LogSegment
from tidemill.log.producer_state_loader import apply_scanned
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.transaction_index import Aborted
from tidemill.model.errors import KafkaError
from tidemill.records.batch import CODEC_MASK
from tidemill.records.record_cursor import open_cursor

CHUNK_BYTES: Final = 1024 * 1024
"""The number of bytes per read: large enough that reads cost little beside the checksums."""
RUNS_MAX: Final = 1000
"""The maximum number of leader epochs of a segment that are collected; no valid log has more."""


class Progress:
    """The progress of a recovery, for another thread, which can end it with :attr:`stop`."""

    def __init__(self) -> None:
        self.checked_bytes: i64 = 0
        self.bytes_to_check: i64 = 0
        self.stop: bool = False


class Stopped(Exception):
    """:attr:`Progress.stop` was set during a recovery."""


class WalkEnd(Enum):
    """Why the walk over a segment ended."""

    WHOLE = "whole"
    """Every byte is valid."""
    TRUNCATION = "truncation"
    """The end was never written, the usual effect of a crash."""
    CORRUPTION = "corruption"
    """Other bytes were written."""
    WRONG_LAST_BATCH = "wrong last batch"
    """Other bytes were written in a batch that was considered valid: its effects must be undone."""


class RecoveryWalk:
    """The result for one segment, whose valid batches end at ``position`` with offset ``next_offset``.

    ``fault``: the text of the fault; empty for :attr:`WalkEnd.WHOLE`. ``epochs``: (leader epoch, end of the
    previous batch, consecutive batches) in order. ``aborted``: the aborted transactions whose markers are
    among the batches.
    """

    def __init__(
        self,
        end: WalkEnd,
        fault: str,
        position: i64,
        next_offset: i64,
        epochs: list[tuple[int, int, int]],
        aborted: list[Aborted],
    ) -> None:
        self.end = end
        self.fault = fault
        self.position: i64 = position
        self.next_offset: i64 = next_offset
        self.epochs = epochs
        self.aborted = aborted


class Resumption:
    """Where validation begins in a segment: a batch with base offset ``offset`` is at ``position``.

    Before format v2, ``offset`` is that of the entry, which no earlier batch reaches either.
    """

    def __init__(self, position: i64, offset: i64) -> None:
        self.position: i64 = position
        self.offset: i64 = offset


def resumption(segment: LogSegment, recovery_point: i64, bytes_min: i64) -> Resumption | None:
    """Where validation of a segment must begin if everything before ``recovery_point`` is on disk.

    None for the whole segment: if less than ``bytes_min`` would be spared, or the index does not lead to a
    batch before the recovery point. The entries of the index must grow.
    """
    position: i64 = segment.index.lookup(recovery_point - 1)
    if position <= 0 or position < bytes_min:
        return None
    scan = BatchScan(segment.file(), position, segment.size)
    if not scan.step() or scan.base_offset <= segment.base_offset or scan.base_offset >= recovery_point:
        return None
    return Resumption(position, scan.base_offset)


def walk_segment(
    segment: LogSegment,
    producers: ProducerStateManager,
    now_ms: i64,
    progress: Progress,
    limit_offset: i64,
    unpacked_bytes_max: i64,
    resumed: Resumption | None = None,
) -> RecoveryWalk:
    """Validates the batches of ``segment`` and rebuilds its indexes; ``resumed``: from there on.

    All offsets must be below ``limit_offset``. Stops at the first invalid byte, without truncation. Applies
    the batches to the producer state. Raises Stopped.
    """
    begin: i64 = 0
    expected: i64 = segment.base_offset
    if resumed is None:
        segment.begin_rebuild()
    else:
        begin = resumed.position
        expected = resumed.offset
        segment.resume_rebuild(begin, expected)
    if limit_offset > segment.base_offset + RELATIVE_OFFSET_MAX:
        limit_offset = segment.base_offset + RELATIVE_OFFSET_MAX + 1
    scan = BatchScan(segment.file(), begin, segment.size, CHUNK_BYTES)
    before_position: i64 = -1
    before_base: i64 = 0
    before_expected: i64 = 0
    fault: str = ""
    epochs = _EpochRuns()
    aborted: list[Aborted] = []
    while scan.step():
        if scan.last_offset < expected or (scan.magic == 2 and scan.base_offset < expected):
            fault = f"offset {scan.base_offset} follows, expected {expected} or later"
            if _has_jumped(segment, before_position, before_expected, scan, unpacked_bytes_max):
                fault = f"offset {before_base} follows, expected {before_expected}"
                return RecoveryWalk(
                    WalkEnd.WRONG_LAST_BATCH, fault, before_position, before_expected, epochs.end(), aborted
                )
            break
        if scan.last_offset >= limit_offset:
            fault = f"offset {scan.last_offset} follows, expected an offset below {limit_offset}"
            break
        fault = scan.checksum_fault()
        if fault:
            break
        if progress.stop:
            raise Stopped
        progress.checked_bytes += scan.size
        segment.index_batch(scan.position, scan.size, scan.base_offset, scan.last_offset, scan.max_timestamp)
        before_position = scan.position
        before_base = scan.base_offset
        before_expected = expected
        expected = scan.last_offset + 1
        epochs.batch(scan.leader_epoch, before_expected)
        if scan.base_offset >= producers.end_offset:
            one = apply_scanned(producers, scan, now_ms)
            if one is not None:
                aborted.append(one)
    if producers.end_offset < expected:
        producers.end_offset = expected
    if fault:
        return RecoveryWalk(WalkEnd.CORRUPTION, fault, scan.position, expected, epochs.end(), aborted)
    if scan.fault:
        is_missing = scan.cut_off or zeros_to_end(scan.file, scan.position, scan.end)
        end = WalkEnd.TRUNCATION if is_missing else WalkEnd.CORRUPTION
        return RecoveryWalk(end, scan.fault, scan.position, expected, epochs.end(), aborted)
    return RecoveryWalk(WalkEnd.WHOLE, "", segment.size, expected, epochs.end(), aborted)


def _has_jumped(
    segment: LogSegment, position: i64, expected: i64, scan: BatchScan, unpacked_bytes_max: i64
) -> bool:
    """Whether the batch at ``scan`` would follow the one at ``position`` if that began at ``expected``."""
    if position < 0 or scan.checksum_fault():
        return False
    taken: i64 = _offsets_taken(segment, position, unpacked_bytes_max)
    begins: i64 = segment.base_offset_at(scan.position, unpacked_bytes_max)
    return taken > 0 and begins == expected + taken


def _offsets_taken(segment: LogSegment, position: i64, unpacked_bytes_max: i64) -> i64:
    """The number of offsets of the batch or entry at ``position``; -1 if unknown."""
    scan = BatchScan(segment.file(), position, segment.size)
    if not scan.step():
        return -1
    if scan.magic == 2 or scan.attributes & CODEC_MASK == 0:
        return scan.last_offset - scan.base_offset + 1
    data, at = scan.whole()
    count: i64 = 0
    try:
        cursor = open_cursor(data, at, at + scan.size, True, unpacked_bytes_max)
        while cursor.step():
            count += 1
    except KafkaError:
        return -1
    return count


class _EpochRuns:
    """Collects the leader epochs of consecutive batches as runs."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []
        self.epoch: i64 = -1
        self.start: i64 = 0
        self.count: i64 = 0

    def batch(self, epoch: i64, offset: i64) -> None:
        """Adds a batch after all offsets below ``offset``; -1 is no epoch, as in formats v0 and v1."""
        if epoch == self.epoch or epoch == -1:
            self.count += 1
            return
        self.end()
        self.epoch = epoch
        self.start = offset
        self.count = 1

    def end(self) -> list[tuple[int, int, int]]:
        """All runs."""
        if self.epoch != -1 and len(self.runs) < RUNS_MAX:
            self.runs.append((int(self.epoch), int(self.start), int(self.count)))
        self.epoch = -1
        return self.runs
