"""Detects records that a log has lost although a checkpoint has their offsets, and keeps truncated bytes.

After a clean shutdown every byte of a log was on disk: damage was then caused by the disk or another program.
The damaged bytes are kept in a file for inspection, and nothing removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
from tidemill.model.system_interfaces import Files

PIECE_BYTES: Final = 4 * 1024 * 1024


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
    if keep:
        kept = keep_truncated(files, segment.path, position, int(segment.size))
        files.sync_directory(segment.directory)
        kept_text = f"; they are kept in {kept}, which is not used or removed"
    file = segment.file()
    file.truncate(position)
    file.sync()
    segment.size = position
    return kept_text
