"""Ends what a crash had interrupted in the directory of a log: removals, and exchanges of segments.

Only names are read, and where an exchange is ended the headers of the new segment, which tell the old ones
that it replaces.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.names import (
    CLEANED,
    CUT,
    DELETED,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    MOVED_TO,
    OFFSET_DIGITS,
    PARTITION_METADATA,
    RECORDS_LOST,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    offset_of,
)
from tidemill.log.scan import BatchScan
from tidemill.model.ports import Files

_KNOWN_FILES: Final = frozenset({LEADER_EPOCHS, PARTITION_METADATA, MOVED_TO, RECORDS_LOST})


def tidy(files: Files, directory: str, names: list[str], warnings: list[str]) -> set[str]:
    """The names that are left of ``names`` in ``directory``. What was met goes to ``warnings``.

    Raises OSError.
    """
    left = set(names)
    # What a swap had not renamed to the last file does not count yet: the old segments are all there.
    unfinished = {name[:OFFSET_DIGITS] for name in names if name.endswith(CLEANED)}
    for name in names:
        begun = name.endswith(SWAP) and name[:OFFSET_DIGITS] in unfinished
        if begun or name.endswith((DELETED, CLEANED, ".tmp")):
            files.remove(f"{directory}/{name}")
            left.discard(name)
    if any(name.endswith(SWAP) for name in left):
        _finish_swaps(files, directory, left, warnings)
    for name in sorted(left):
        if not _is_known(name):
            warnings.append(f"{directory}/{name} is no file of a log: it is left alone")
    return left


def _is_known(name: str) -> bool:
    suffix = "." + name.rpartition(".")[2]
    if suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT):
        return offset_of(name, suffix) >= 0
    return name in _KNOWN_FILES or suffix == CUT


def _finish_swaps(files: Files, directory: str, left: set[str], warnings: list[str]) -> None:
    """A swapped-in segment is complete once it has this name: it replaces those whose range it covers."""
    for name in sorted(name for name in left if name.endswith(LOG + SWAP)):
        base = offset_of(name[: -len(SWAP)], LOG)
        path = f"{directory}/{name}"
        scan = BatchScan(files.open(path, read_only=True), 0, files.size(path))
        end = base
        while scan.step():
            end = scan.last_offset + 1
        bases = {base} | {one for one in (offset_of(other, LOG) for other in left) if base <= one < end}
        for old_base in sorted(bases):
            for suffix in SEGMENT_SUFFIXES:
                old = offset_name(old_base, suffix)
                if old in left:
                    files.remove(f"{directory}/{old}")
                    left.discard(old)
        warnings.append(f"{path}: a compaction that a crash had interrupted is ended")
    for name in sorted(name for name in left if name.endswith(SWAP)):
        final = name[: -len(SWAP)]
        files.rename(f"{directory}/{name}", f"{directory}/{final}")
        left.discard(name)
        left.add(final)
