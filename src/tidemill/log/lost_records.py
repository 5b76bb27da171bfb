"""Detects records that a log has lost although a checkpoint has their offsets, and keeps truncated bytes.

After a clean shutdown every byte of a log was on disk, and after any other end every byte below the recovery
point. Damage of these bytes was caused by the disk or another program. Valid batches after damage may have
been acknowledged. In these cases the truncated bytes are kept in a file for inspection, and nothing removes
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tidemill.log.batch_scan import BatchScan, zeros_to_end
from tidemill.log.errors import storage_error
from tidemill.log.file_names import (
    CUT,
    HIGH_WATERMARKS,
    LOG,
    RECORDS_LOST,
    RECOVERY_POINTS,
    SNAPSHOT,
    SWAP,
    offset_of,
)
from tidemill.log.log_segment import LogSegment
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.model.system_interfaces import File, Files

PIECE_BYTES: Final = 4 * 1024 * 1024
SEARCHED_BYTES_MAX = 16 * 1024 * 1024
"""The limit of a search for valid batches, which takes about a second. Interrupted writes are shorter."""
CANDIDATE_BYTES: Final = 1024
"""The share of this limit that each candidate takes beside its checksum."""


def describe_loss(
    path: str, names: Iterable[str], end_offset: int, committed: int, synced: int, *, after_clean_stop: bool
) -> str:
    """Describes the records that the log at ``path`` has lost; empty if there are none.

    ``names`` are the files that existed, ``committed`` is the offset in the high watermark checkpoint,
    ``synced`` that in the recovery point checkpoint. After a clean shutdown the latter is the log end offset.
    Otherwise a follower may have truncated below it, so it counts only if all segments are missing, and so do
    snapshots.
    """
    found = list(names)
    known = [(committed, HIGH_WATERMARKS)]
    is_gone = has_no_segment(found)
    if is_gone or after_clean_stop:
        known.append((synced, RECOVERY_POINTS))
    if is_gone:
        known += [(offset_of(name, SNAPSHOT), name) for name in found]
    highest, source = max(known, key=lambda one: one[0])
    if highest <= end_offset:
        return ""
    stop = " after a clean shutdown" if after_clean_stop else ""
    how = "its segment files are missing" if is_gone else f"the log ends at offset {end_offset}{stop}"
    return (
        f"{path}: {how}, but {source} has offset {highest}: the records of offsets {end_offset} to "
        f"{highest - 1} are lost, unless another replica has them or a copy of the files is restored while "
        "the broker is stopped"
    )


def has_no_segment(names: Iterable[str]) -> bool:
    """Whether the files of a log include no segment."""
    return not any(name.endswith((LOG, LOG + SWAP)) for name in names)


def mark_loss(files: Files, directory: str) -> None:
    """Records durably that the log in ``directory`` has lost records, until the loss was handled.

    Raises StorageError.
    """
    path = f"{directory}/{RECORDS_LOST}"
    try:
        files.replace(path, b"")
    except OSError as problem:
        raise storage_error("write", path, problem) from problem


def has_valid_batch(segments: list[LogSegment], position: int, offset: int) -> bool:
    """Whether a valid batch with ``offset`` or a later offset follows ``position`` in the first segment."""
    return any(
        _has_valid_batch(segment.file(), 0 if at else position, int(segment.size), offset)
        for at, segment in enumerate(segments)
    )


def _has_valid_batch(file: File, position: int, end: int, offset: int) -> bool:
    """Searches a file at every byte: a damaged batch may have a wrong length.

    True if the search reaches ``SEARCHED_BYTES_MAX`` without an answer. A candidate has the upper half of the
    offset, a length, and a magic byte.
    """
    if zeros_to_end(file, position, end):
        return False
    halves = {(one >> 32).to_bytes(4, "big") for one in (offset, offset + RELATIVE_OFFSET_MAX)}
    upper_half = b"|".join(re.escape(half) for half in halves)
    candidates = re.compile(rb"(?=(?:%s).{4}(?!\0{4}).{8}[\0-\2])" % upper_half, re.DOTALL)
    window = file.read_at(position, min(SEARCHED_BYTES_MAX, end - position))
    checked = 0
    for match in candidates.finditer(window):
        scan = BatchScan(file, position + match.start(), end)
        checked += CANDIDATE_BYTES
        if scan.step() and scan.base_offset >= offset:
            if not scan.checksum_fault():
                return True
            checked += int(scan.size)
        if checked > SEARCHED_BYTES_MAX:
            return True
    return len(window) < end - position


def keep_truncated(files: Files, path: str, position: int, size: int) -> str:
    """Copies a log file from ``position`` on to a ``.cut`` file, and syncs it. Returns its path."""
    kept = f"{path}.{position}{CUT}"
    if files.exists(kept):
        files.remove(kept)  # An earlier start ended before it had truncated the log.
    with files.open(path, read_only=True) as source, files.open(kept, create=True) as copy:
        at = position
        while at < size:
            piece = source.read_at(at, min(PIECE_BYTES, size - at))
            if not piece:
                break
            copy.append([piece])
            at += len(piece)
        copy.sync()
    return kept


def truncate_segment(files: Files, segment: LogSegment, position: int, *, keep: bool) -> str:
    """Truncates a log file at ``position`` and syncs it. Returns a text about the kept bytes."""
    kept_text = ""
    if keep and position < segment.size:
        kept = keep_truncated(files, segment.path, position, int(segment.size))
        files.sync_directory(segment.directory)
        kept_text = f"; they are kept in {kept}, which is not used or removed"
    file = segment.file()
    file.truncate(position)
    file.sync()
    segment.size = position
    return kept_text
