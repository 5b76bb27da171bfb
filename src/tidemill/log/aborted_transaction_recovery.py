"""Rebuilds the indexes of aborted transactions after an unclean shutdown.

Recovery rebuilds the indexes of the segments that it reads from their transaction markers. An index before
the recovery point is rebuilt only if it is damaged, from the producer state at the start of its segment.

Source: Apache Kafka, ``LogSegment.java`` (``recover``, ``sanityCheck``), ``LogLoader.java``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.batch_scan import BatchScan
from tidemill.log.checkpoint_files import read_existing
from tidemill.log.log_segment import LogSegment
from tidemill.log.producer_state_loader import apply_scanned, load_producers
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.log.transaction_index import (
    Aborted,
    damage,
    decode_all,
    write_index,
)
from tidemill.model.system_interfaces import Files


def index_damage(files: Files, segment: LogSegment, end_offset: int) -> str:
    """Describes the damage to the index of a segment that ends before ``end_offset``; empty if there is none.

    Raises OSError.
    """
    return damage(read_existing(files, segment.transaction_index_path), int(segment.base_offset), end_offset)


def save_recovered_aborts(
    files: Files, segment: LogSegment, walked_from: int, aborted: Sequence[Aborted], warnings: list[str]
) -> None:
    """Replaces the entries from offset ``walked_from`` on with the aborted transactions that recovery found.

    Raises OSError.
    """
    path = segment.transaction_index_path
    known = decode_all(read_existing(files, path)) if walked_from > segment.base_offset else []
    kept = [one for one in known if one.last_offset < walked_from]
    if write_index(files, path, [*kept, *aborted]):
        warnings.append(f"{path} differs from the aborted transactions in the log: it was rebuilt")


def rebuild_index(
    files: Files, before: list[LogSegment], segment: LogSegment, start_offset: int, now_ms: int, name: str
) -> None:
    """Rebuilds the index of a segment; ``before`` are the preceding segments. Raises OSError."""
    producers = ProducerStateManager(name)
    base = int(segment.base_offset)
    load_producers(files, segment.directory, before, producers, min(start_offset, base), base, now_ms)
    scan = BatchScan(segment.file(), 0, segment.size)
    found = []
    while scan.step():
        one = apply_scanned(producers, scan, now_ms)
        if one is not None:
            found.append(one)
    write_index(files, segment.transaction_index_path, found)
