"""The walk of recovery: every batch of a segment is checked, its checksum included."""

from __future__ import annotations

import zlib
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.producer_loading import note_scanned
from tidemill.log.producer_state import ProducerState
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment
from tidemill.records.batch import ATTRIBUTES, CRC, LOG_OVERHEAD, MAGIC
from tidemill.records.checksum import crc32c

CHUNK_BYTES: Final = 1024 * 1024
"""Read at a time: large enough that the reads do not count beside the checksums."""


class Progress:
    """How far the check of a log is, for another thread to look at; and to end it by :attr:`stop`."""

    def __init__(self) -> None:
        self.checked_bytes: i64 = 0
        self.bytes_to_check: i64 = 0
        self.stop: bool = False


class Stopped(Exception):
    """:attr:`Progress.stop` was set while a log was checked."""


class Walk:
    """What a walk over a segment found. ``fault`` is empty when every byte of it is good."""

    def __init__(self, position: i64, next_offset: i64, fault: str, truncated: bool) -> None:
        self.position: i64 = position
        self.next_offset: i64 = next_offset
        self.fault = fault
        self.truncated: bool = truncated


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
    leader_epochs: LeaderEpochs,
    now_ms: i64,
    progress: Progress,
    resumed: Resumption | None = None,
) -> Walk:
    """Checks the batches of ``segment``, and makes its indexes anew on the way; ``resumed``: from there on.

    Stops at the first byte that is not part of a good batch; nothing is cut here. Producers and leader
    epochs are taken in as they come. Raises Stopped.
    """
    begin: i64 = 0
    expected: i64 = segment.base_offset
    if resumed is None:
        segment.begin_rebuild()
    else:
        begin = resumed.position
        expected = resumed.offset
        segment.resume_rebuild(begin, expected)
    scan = BatchScan(segment.file(), begin, segment.size, CHUNK_BYTES)
    latest_epoch: i64 = leader_epochs.latest
    fault: str = ""
    while scan.step():
        fault = _fault_of(scan, expected)
        if fault:
            break
        if progress.stop:
            raise Stopped
        progress.checked_bytes += scan.size
        segment.note(scan.position, scan.size, scan.base_offset, scan.last_offset, scan.max_timestamp)
        expected = scan.last_offset + 1
        epoch: i64 = scan.leader_epoch
        if epoch > latest_epoch:
            leader_epochs.assign(int(epoch), int(scan.base_offset), False)
            latest_epoch = epoch
        if scan.producer_id >= 0 and scan.base_offset >= producers.end_offset:
            note_scanned(producers, scan, now_ms)
    if producers.end_offset < expected:
        producers.end_offset = expected
    if fault:
        return Walk(scan.position, expected, fault, False)
    if scan.fault:
        missing = scan.cut_off or _zeros_to_end(segment, scan.position)
        return Walk(scan.position, expected, scan.fault, missing)
    return Walk(segment.size, expected, "", False)


def _fault_of(scan: BatchScan, expected: i64) -> str:
    """What is wrong with the batch at which the scan stands; empty when nothing is."""
    if scan.last_offset < expected or (scan.magic == 2 and scan.base_offset < expected):
        return f"offset {scan.base_offset} comes where {expected} or later must be"
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


def _zeros_to_end(segment: Segment, position: i64) -> bool:
    """Whether only zeros follow: blocks that the file system gave to the file, and never wrote."""
    file = segment.file()
    while position < segment.size:
        data = file.read_at(position, CHUNK_BYTES)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True
