"""What a log has lost although a checkpoint knows of it, and what is kept of a log that is cut.

A start never makes up what is gone; it says what that was. After a clean stop every byte of a log was on the
disk: what no longer makes sense is a disk's or somebody's doing, so that it is put aside under a name of its
own, for a person to look at, and nothing removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemill.log.names import CUT, HIGH_WATERMARKS, LOG, RECOVERY_POINTS, SNAPSHOT, SWAP, offset_of
from tidemill.log.segment import Segment
from tidemill.model.ports import Files

PIECE_BYTES: Final = 4 * 1024 * 1024


def loss_of(
    path: str, names: Iterable[str], end_offset: int, committed: int, synced: int, *, after_clean_stop: bool
) -> str:
    """What the log at ``path`` held and does not hold any more, in a sentence; empty when that is nothing.

    ``names`` are the files that were there, ``committed`` is what the high watermarks' checkpoint says and
    ``synced`` what the recovery points' does. After a clean stop that is where the log ended. Else a follower
    may have been cut below it, so that it tells only of a log whose segments are all gone, as snapshots do.
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
    stop = " after a clean stop" if after_clean_stop else ""
    how = "its segment files are gone" if is_gone else f"the log ends at offset {end_offset}{stop}"
    return (
        f"{path}: {how}, and {source} knows of offset {highest}: the records of offsets {end_offset} to "
        f"{highest - 1} are lost, unless another replica has them or a copy of the files is put back while "
        "the broker is stopped"
    )


def has_no_segment(names: Iterable[str]) -> bool:
    """Whether no segment is among the files of a log."""
    return not any(name.endswith((LOG, LOG + SWAP)) for name in names)


def keep_cut(files: Files, path: str, position: int, size: int) -> str:
    """Copies what lies in a log file from ``position`` on aside, and syncs it; the copy's path."""
    kept = f"{path}.{position}{CUT}"
    if files.exists(kept):
        files.remove(kept)  # an earlier start ended before it had cut the log
    source = files.open(path, read_only=True)
    copy = files.open(kept, create=True)
    try:
        at = position
        while at < size:
            piece = source.read_at(at, min(PIECE_BYTES, size - at))
            if not piece:
                break
            copy.append([piece])
            at += len(piece)
        copy.sync()
    finally:
        copy.close()
        source.close()
    return kept


def cut_segment(files: Files, segment: Segment, position: int, *, keep: bool) -> str:
    """Cuts a log file at ``position``, and syncs it; where the rest is, in words, if it is to be kept."""
    kept_text = ""
    if keep:
        kept = keep_cut(files, segment.path, position, int(segment.size))
        files.sync_directory(segment.directory)
        kept_text = f"; they are kept in {kept}, which nothing uses or removes"
    file = segment.file()
    file.truncate(position)
    file.sync()
    segment.size = position
    return kept_text
