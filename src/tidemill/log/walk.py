"""The walk of recovery: every batch of a segment is checked, its checksum included."""

from __future__ import annotations

import zlib
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from tidemill.log.producer_loading import note_scanned
from tidemill.log.producer_state import ProducerState
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.transaction_index import Aborted
from tidemill.model.errors import KafkaError
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import ATTRIBUTES, CODEC_MASK, CRC, LOG_OVERHEAD, MAGIC
from tidemill.records.checksum import crc32c
from tidemill.records.cursor import open_cursor

CHUNK_BYTES: Final = 1024 * 1024
"""Read at a time: large enough that the reads do not count beside the checksums."""
RUNS_MAX: Final = 1000
"""Leader epochs of a segment that are looked at; whoever writes more than that means no good."""


class Progress:
    """How far the check of a log is, for another thread to look at; and to end it by :attr:`stop`."""

    def __init__(self) -> None:
        self.checked_bytes: i64 = 0
        self.bytes_to_check: i64 = 0
        self.stop: bool = False


class Stopped(Exception):
    """:attr:`Progress.stop` was set while a log was checked."""


class Walk:
    """What a walk over a segment found. ``fault`` is empty when every byte of it is good.

    ``again``: the fault is one of a batch that had been taken for good: what was noted of it must go.
    ``epochs``: (leader epoch, where the batch before it ends, batches in a row) as they come. ``aborted``:
    the aborted transactions whose markers are among the batches.
    """

    def __init__(
        self,
        position: i64,
        next_offset: i64,
        fault: str,
        truncated: bool,
        epochs: list[tuple[int, int, int]],
        aborted: list[Aborted],
        again: bool = False,
    ) -> None:
        self.position: i64 = position
        self.next_offset: i64 = next_offset
        self.fault = fault
        self.truncated: bool = truncated
        self.epochs = epochs
        self.aborted = aborted
        self.again: bool = again


class Resumption:
    """From where in a segment a walk begins: a batch whose base offset is ``offset`` lies at ``position``.

    Before format v2 it is the offset of the entry, which no batch before it reaches either.
    """

    def __init__(self, position: i64, offset: i64) -> None:
        self.position: i64 = position
        self.offset: i64 = offset


def resumption(segment: Segment, recovery_point: i64, bytes_min: i64) -> Resumption | None:
    """From where a segment must be checked of which what comes before ``recovery_point`` is on the disk.

    None when that is the whole segment: when less than ``bytes_min`` would be spared, and when the index
    does not lead to a batch before the recovery point. The entries of the index must grow.
    """
    position: i64 = segment.index.lookup(recovery_point - 1)
    if position <= 0 or position < bytes_min:
        return None
    scan = BatchScan(segment.file(), position, segment.size)
    if not scan.step() or scan.base_offset <= segment.base_offset or scan.base_offset >= recovery_point:
        return None
    return Resumption(position, scan.base_offset)


def walk_segment(
    segment: Segment,
    producers: ProducerState,
    now_ms: i64,
    progress: Progress,
    limit_offset: i64,
    resumed: Resumption | None = None,
    unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX,
) -> Walk:
    """Checks the batches of ``segment``, and makes its indexes anew on the way; ``resumed``: from there on.

    All offsets must be below ``limit_offset``. Stops at the first byte that is not part of a good batch;
    nothing is cut here. Producers are taken in as they come. Raises Stopped.
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
            fault = f"offset {scan.base_offset} comes where {expected} or later must be"
            if before_position >= 0 and not _checksum_fault(scan):
                taken: i64 = _offsets_taken(segment, before_position, unpacked_bytes_max)
                begins: i64 = segment.base_offset_at(scan.position, unpacked_bytes_max)
                if taken > 0 and begins == before_expected + taken:
                    # It would follow if the batch before it had not jumped.
                    fault = f"offset {before_base} comes where {before_expected} must be"
                    return Walk(before_position, before_expected, fault, False, epochs.end(), aborted, True)
            break
        if scan.last_offset >= limit_offset:
            fault = f"offset {scan.last_offset} comes where those below {limit_offset} must be"
            break
        fault = _checksum_fault(scan)
        if fault:
            break
        if progress.stop:
            raise Stopped
        progress.checked_bytes += scan.size
        segment.note(scan.position, scan.size, scan.base_offset, scan.last_offset, scan.max_timestamp)
        before_position = scan.position
        before_base = scan.base_offset
        before_expected = expected
        expected = scan.last_offset + 1
        epochs.batch(scan.leader_epoch, before_expected)
        if scan.producer_id >= 0 and scan.base_offset >= producers.end_offset:
            one = note_scanned(producers, scan, now_ms)
            if one is not None:
                aborted.append(one)
    if producers.end_offset < expected:
        producers.end_offset = expected
    if fault:
        return Walk(scan.position, expected, fault, False, epochs.end(), aborted)
    if scan.fault:
        missing = scan.cut_off or zeros_to_end(segment, scan.position)
        return Walk(scan.position, expected, scan.fault, missing, epochs.end(), aborted)
    return Walk(segment.size, expected, "", False, epochs.end(), aborted)


def _offsets_taken(segment: Segment, position: i64, unpacked_bytes_max: i64) -> i64:
    """How many offsets the batch or entry at ``position`` takes; -1 when that cannot be told."""
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
    """Collects leader epochs: batches in a row that have the same are one run."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int]] = []
        self.epoch: i64 = -1
        self.start: i64 = 0
        self.count: i64 = 0

    def batch(self, epoch: i64, offset: i64) -> None:
        """Takes in a batch after all below ``offset``; -1 is no epoch, as in formats v0 and v1."""
        if epoch == self.epoch or epoch == -1:
            self.count += 1
            return
        self.end()
        self.epoch = epoch
        self.start = offset
        self.count = 1

    def end(self) -> list[tuple[int, int, int]]:
        """All of them."""
        if self.epoch != -1 and len(self.runs) < RUNS_MAX:
            self.runs.append((int(self.epoch), int(self.start), int(self.count)))
        self.epoch = -1
        return self.runs


def _checksum_fault(scan: BatchScan) -> str:
    """What is wrong with the checksum of the batch at which the scan stands; empty when nothing is."""
    data, at = scan.whole()
    end: i64 = at + scan.size
    if scan.magic == 2:
        found: i64 = crc32c(memoryview(data)[at + ATTRIBUTES : end])
        stored: i64 = i64(read_i32_be(data, at + CRC)) & 0xFFFFFFFF
    else:
        found = zlib.crc32(memoryview(data)[at + MAGIC : end])
        stored = i64(read_i32_be(data, at + LOG_OVERHEAD)) & 0xFFFFFFFF
    if found != stored:
        return f"the batch with base offset {scan.base_offset} has checksum {found}, its header says {stored}"
    return ""


def zeros_to_end(segment: Segment, position: i64) -> bool:
    """Whether only zeros follow: blocks that the file system gave to the file, and never wrote."""
    file = segment.file()
    while position < segment.size:
        data = file.read_at(position, CHUNK_BYTES)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True
