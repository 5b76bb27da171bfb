"""Makes the indexes of aborted transactions what the log says, after an unclean stop.

The segments that recovery walks get theirs from the markers on the way. Of those before the recovery point an
index that makes no sense is made anew, from the producers at the beginning of its segment on.

Source: Apache Kafka, ``LogSegment.java`` (``recover``, ``sanityCheck``), ``LogLoader.java``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.names import TRANSACTION_INDEX, offset_name
from tidemill.log.producer_loading import load_producers, note_scanned
from tidemill.log.producer_state import ProducerState
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment
from tidemill.log.transaction_index import (
    Aborted,
    damage,
    decode_all,
    read_index,
    write_index,
)
from tidemill.model.ports import Files


def index_path(segment: Segment) -> str:
    """Where the segment's index of aborted transactions is, or would be."""
    return f"{segment.directory}/{offset_name(segment.base_offset, TRANSACTION_INDEX)}"


def index_damage(files: Files, segment: Segment, end_offset: int) -> str:
    """What is wrong with the index of a segment that ends before ``end_offset``; empty: nothing, or no index.

    Raises OSError.
    """
    return damage(read_index(files, index_path(segment)), int(segment.base_offset), end_offset)


def take_walked(
    files: Files, segment: Segment, walked_from: int, aborted: Sequence[Aborted], warnings: list[str]
) -> None:
    """Makes the index tell what a walk over the segment from offset ``walked_from`` on has found.

    Raises OSError.
    """
    path = index_path(segment)
    known = decode_all(read_index(files, path)) if walked_from > segment.base_offset else []
    kept = [one for one in known if one.last_offset < walked_from]
    if write_index(files, path, [*kept, *aborted]):
        warnings.append(f"{path} told other aborted transactions than the log: it is made anew")


def remake(
    files: Files, before: list[Segment], segment: Segment, start_offset: int, now_ms: int, name: str
) -> None:
    """Makes a whole segment's index anew; ``before`` are the segments before it. Raises OSError."""
    producers = ProducerState(name)
    base = int(segment.base_offset)
    load_producers(files, segment.directory, before, producers, min(start_offset, base), base, now_ms)
    scan = BatchScan(segment.file(), 0, segment.size)
    found = []
    while scan.step():
        one = note_scanned(producers, scan, now_ms)
        if one is not None:
            found.append(one)
    write_index(files, index_path(segment), found)


def open_ones(producers: ProducerState) -> list[str]:
    """A line when transactions are open in a partition."""
    opened = [entry for entry in producers.entries.values() if entry.transaction_first_offset >= 0]
    if not opened:
        return []
    first = min(opened, key=lambda entry: int(entry.transaction_first_offset))
    return [
        f"{producers.name}: {len(opened)} transactions are open, the first since offset "
        f"{first.transaction_first_offset} (producer {first.producer_id}): readers of committed records wait "
        "there"
    ]
