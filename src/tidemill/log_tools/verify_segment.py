"""Checks one segment, every record of it, and compares its indexes with the log.

Memory use is bounded, whatever sizes the bytes claim: the checksum of a large batch is computed in pieces,
and records are unpacked only once it is correct, up to the limit of the check.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.batch_scan import BatchScan, zeros_to_end
from tidemill.log.file_names import INDEX, LOG, TIME_INDEX, offset_name
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log_tools.findings import Check
from tidemill.log_tools.verify_indexes import AbortedEntries, OffsetEntries, TimeEntries
from tidemill.model.errors import KafkaError, UnpackedTooLarge
from tidemill.records.batch import CONTROL_FLAG, Batch, parse_batch
from tidemill.records.batch_validation import RecordWalk
from tidemill.records.end_transaction_marker import is_abort
from tidemill.records.record_cursor import BatchCursor, RecordCursor, open_cursor

WINDOW_BYTES: Final = 1024 * 1024

ZEROS: Final = "only zeros follow: space that was allocated and never written, as after a crash"


class PartitionWalk:
    """The state that is passed from segment to segment of one partition."""

    def __init__(self, check: Check, names: set[str]) -> None:
        self.check = check
        self.names = names
        self.next_offset = -1
        """The lowest offset at which the next batch may start; -1 before the first segment."""
        self.log_start = -1
        self.epochs: LeaderEpochFileCache | None = None
        self.open_transactions: dict[int, int] = {}
        """First offsets by producer id."""


def check_segment(walk: PartitionWalk, base_offset: int, *, is_last: bool) -> None:
    """Checks one segment, and adds the findings to the walk's check. Raises OSError."""
    check = walk.check
    path = f"{check.directory}/{offset_name(base_offset, LOG)}"
    if walk.next_offset > base_offset:
        check.damage(
            path, f"starts at offset {base_offset}, the segment before it ends at {walk.next_offset - 1}"
        )
    walk.next_offset = base_offset
    # Indexes first: a running broker appends a batch to the log before it adds it to an index.
    offsets = OffsetEntries(check, check.directory, base_offset, walk.names)
    times = TimeEntries(check, check.directory, base_offset, walk.names)
    aborted = AbortedEntries(check, check.directory, base_offset, walk.names)
    file = check.files.open(path, read_only=True)
    size = int(file.size())
    for suffix in (INDEX, TIME_INDEX):
        if size and offset_name(base_offset, suffix) not in walk.names:
            check.note(path, f"has no {suffix} file beside it: the next start creates one")
    scan = BatchScan(file, 0, size, WINDOW_BYTES)
    epoch_reported = False
    while scan.step():
        offsets.batch(scan)
        times.batch(scan)
        if (scan.base_offset < walk.next_offset and scan.magic == 2) or scan.last_offset < walk.next_offset:
            text = f"offset {scan.base_offset} comes where {walk.next_offset} or later must be"
            check.damage(path, text, int(scan.position))
        elif scan.last_offset - base_offset > RELATIVE_OFFSET_MAX:
            text = f"offset {scan.last_offset} cannot be in a segment that starts with {base_offset}"
            check.damage(path, text, int(scan.position))
        epoch_reported = epoch_reported or not _check_epoch(walk, scan, path)
        _check_batch(walk, scan, path, aborted)
        walk.next_offset = max(walk.next_offset, int(scan.last_offset) + 1)
        check.batches += 1
        check.on_bytes(int(scan.size))
    check.segments += 1
    check.bytes += size
    if scan.fault:
        _report_rest(walk, scan, path, size, is_last=is_last)
        check.on_bytes(size - int(scan.position))
    else:
        offsets.end(size)
        times.end(is_last=is_last)
        aborted.end(walk.next_offset)


def _report_rest(walk: PartitionWalk, scan: BatchScan, path: str, size: int, *, is_last: bool) -> None:
    """Adds a finding for the bytes at which the walk stopped."""
    position = int(scan.position)
    if is_last and walk.check.running and scan.cut_off:
        walk.check.note(path, "the broker is writing here", position)
        return
    left = size - position
    text = f"the last {left} bytes are not a batch: {scan.fault}"
    if zeros_to_end(scan.file, position, size):
        text = f"the last {left} bytes are not a batch: {ZEROS}"
    following = "" if is_last else ", and removes the segments after this one if it has to recover it"
    walk.check.damage(path, f"{text}; a start after an unclean stop truncates them{following}", position)


def _check_epoch(walk: PartitionWalk, scan: BatchScan, path: str) -> bool:
    epochs, epoch = walk.epochs, int(scan.leader_epoch)
    if epochs is None or epoch == -1 or scan.last_offset < walk.log_start:
        return True
    if walk.check.running and epoch > epochs.latest:
        return True
    known = epochs.epoch_of(max(int(scan.base_offset), walk.log_start))
    if known == epoch:
        return True
    walk.check.damage(
        epochs.path,
        f"says that offset {scan.base_offset} is of epoch {known}, the batch in {path} says {epoch}: "
        "a follower would truncate its log at the wrong offset",
    )
    return False


def _check_batch(walk: PartitionWalk, scan: BatchScan, path: str, aborted: AbortedEntries) -> None:
    check, position = walk.check, int(scan.position)
    fault = scan.checksum_fault()
    if fault:
        check.damage(path, fault, position)
        return
    unpacked_bytes_max = check.unpacked_bytes_max
    if scan.size > unpacked_bytes_max:
        check.note(path, f"a batch of {scan.size} bytes is too large to check", position)
        return
    data, at = scan.whole()
    try:
        if scan.magic < 2:
            _check_messages(
                walk, open_cursor(data, at, at + scan.size, False, unpacked_bytes_max), path, scan
            )
            return
        batch = parse_batch(data, at, at + scan.size)
        check.records += int(batch.record_count)
        _track_transaction(walk, batch, path, position, aborted)
        fault = _record_fault(batch, unpacked_bytes_max)
        if fault:
            check.damage(path, fault, position)
    except UnpackedTooLarge as problem:
        check.note(path, f"the batch up to offset {scan.last_offset} is not checked: {problem}", position)
    except KafkaError as problem:
        check.damage(path, f"the checksum is correct, but the records are not: {problem}", position)


def _check_messages(walk: PartitionWalk, cursor: RecordCursor, path: str, scan: BatchScan) -> None:
    """Checks an entry of format v0 or v1, whose checksum does not cover its offset. Raises KafkaError."""
    first = -1
    while cursor.step():
        walk.check.records += 1
        first = int(cursor.offset) if first < 0 else first
    position = int(scan.position)
    if cursor.offset != scan.last_offset:
        text = f"the entry has offset {scan.last_offset}, but its last message has {cursor.offset}"
        walk.check.damage(path, text, position)
    elif 0 <= first < walk.next_offset:
        text = f"messages from offset {first} on come where {walk.next_offset} or later must be"
        walk.check.damage(path, text, position)


def _record_fault(batch: Batch, unpacked_bytes_max: int) -> str:
    """Walks over all records; returns the fault of a header that does not match them. Raises KafkaError."""
    walk = RecordWalk(BatchCursor(batch, None, unpacked_bytes_max))
    while not walk.step():
        pass
    if batch.append_time or batch.record_count != batch.last_offset_delta + 1:
        return ""  # The time is the broker's, or compaction left gaps.
    if walk.max_timestamp >= 0 and walk.max_timestamp != batch.max_timestamp:
        return (
            f"the batch with base offset {batch.base_offset} says that its largest timestamp is "
            f"{batch.max_timestamp}, that of its records is {walk.max_timestamp}"
        )
    return ""


def _track_transaction(
    walk: PartitionWalk, batch: Batch, path: str, position: int, aborted: AbortedEntries
) -> None:
    if batch.producer_id < 0 or not batch.is_transactional:
        return
    producer_id = int(batch.producer_id)
    if not batch.attributes & CONTROL_FLAG:
        walk.open_transactions.setdefault(producer_id, int(batch.base_offset))
        return
    first_offset = walk.open_transactions.pop(producer_id, -1)
    if is_abort(batch):
        aborted.abort(path, position, producer_id, first_offset, int(batch.base_offset))
