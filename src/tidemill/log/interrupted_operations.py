"""Completes removals and segment replacements that a crash interrupted in the directory of a log.

Only names are read, and for an interrupted replacement the headers of the new segment, which determine the
segments that it replaces.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import (
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
from tidemill.model.system_interfaces import Files

_KNOWN_FILES: Final = frozenset({LEADER_EPOCHS, PARTITION_METADATA, MOVED_TO, RECORDS_LOST})


def clean_up(files: Files, directory: str, names: list[str], warnings: list[str]) -> set[str]:
    """Returns the remaining ``names`` in ``directory``. Reports to ``warnings``.

    Raises OSError.
    """
    left = set(names)
    # A swap that has not renamed the last file is void: all old segments still exist.
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
            warnings.append(f"{directory}/{name} is not a file of a log: it is ignored")
    return left


def _is_known(name: str) -> bool:
    suffix = "." + name.rpartition(".")[2]
    if suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT):
        return offset_of(name, suffix) >= 0
    return name in _KNOWN_FILES or suffix == CUT


def _finish_swaps(files: Files, directory: str, left: set[str], warnings: list[str]) -> None:
    """Completes swaps: a segment with its ``.swap`` name is complete, and replaces those in its range."""
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
        warnings.append(f"{path}: completed a compaction that a crash had interrupted")
    for name in sorted(name for name in left if name.endswith(SWAP)):
        final = name[: -len(SWAP)]
        files.rename(f"{directory}/{name}", f"{directory}/{final}")
        left.discard(name)
        left.add(final)
