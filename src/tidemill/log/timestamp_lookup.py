"""Finds offsets by timestamp for ListOffsets.

Results are (timestamp in ms, offset), or None without a matching record. The time index leads to the batch;
only that batch is decompressed.

Source: KIP-79, KIP-734 (the largest timestamp); Apache Kafka, ``LogSegment.findOffsetByTimestamp``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.log.batch_scan import BatchScan
from tidemill.log.log_segment import LogSegment, first_reaching
from tidemill.records.batch import APPEND_TIME_FLAG, CODEC_MASK, CONTROL_FLAG, NO_COMPRESSION, RECORD_COUNT
from tidemill.records.record_cursor import open_cursor


def first_at(
    segments: list[LogSegment],
    timestamp: int,
    start_offset: int,
    unpacked_bytes_max: int,
) -> tuple[int, int] | None:
    """The first record, by offset, with a timestamp of at least ``timestamp``."""
    at = 0
    while at + 1 < len(segments) and segments[at + 1].base_offset <= start_offset:
        at += 1
    while (at := first_reaching(segments, at, timestamp, True)) < len(segments):
        segment = segments[at]
        at += 1
        from_offset = max(int(segment.time_index.lookup(timestamp)), start_offset)
        found = _first_in(
            segment, segment.index.lookup(from_offset), timestamp, start_offset, unpacked_bytes_max
        )
        if found is not None:
            return found
    return None


def largest(segments: list[LogSegment], start_offset: int, unpacked_bytes_max: int) -> tuple[int, int] | None:
    """The first record, by offset, with the largest timestamp."""
    best: LogSegment | None = None
    found: tuple[int, int] | None = None
    for at, segment in enumerate(segments):
        beyond = at + 1 < len(segments) and segments[at + 1].base_offset <= start_offset
        if beyond or segment.size == 0:
            continue
        if segment.base_offset < start_offset:
            # The segment's largest timestamp may belong to a record before the log start offset.
            found = _largest_in(segment, start_offset, unpacked_bytes_max)
        elif best is None or segment.max_timestamp() > best.max_timestamp():
            best = segment
    if best is None or best.max_timestamp() < 0:
        return found
    timestamp = int(best.max_timestamp())
    if found is not None and found[0] >= timestamp:
        return found
    position = best.index.lookup(best.max_timestamp_offset())
    return _first_in(best, position, timestamp, start_offset, unpacked_bytes_max)


def starts(
    segments: list[LogSegment], start_offset: int, end_offset: int, now_ms: int
) -> list[tuple[int, int]]:
    """(first offset, last write in ms) of every segment, oldest first."""
    found = [
        (max(int(one.base_offset), start_offset), int(one.files.modified_ms(one.path))) for one in segments
    ]
    if segments[-1].size > 0:
        found.append((end_offset, now_ms))
    return found


def _first_in(
    segment: LogSegment, position: int, timestamp: int, start_offset: int, unpacked_bytes_max: int
) -> tuple[int, int] | None:
    scan = BatchScan(segment.file(), position, segment.size)
    while scan.step():
        if scan.max_timestamp < timestamp or scan.last_offset < start_offset:
            continue
        for found_ms, offset in _records(scan, unpacked_bytes_max):
            if found_ms >= timestamp and offset >= start_offset:
                return found_ms, offset
    return None


def _largest_in(segment: LogSegment, start_offset: int, unpacked_bytes_max: int) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    scan = BatchScan(segment.file(), segment.index.lookup(start_offset), segment.size)
    while scan.step():
        if scan.last_offset < start_offset or (best is not None and scan.max_timestamp <= best[0]):
            continue
        for found_ms, offset in _records(scan, unpacked_bytes_max):
            if offset >= start_offset and (best is None or found_ms > best[0]):
                best = (found_ms, offset)
    return best if best is not None and best[0] >= 0 else None


def _records(scan: BatchScan, unpacked_bytes_max: int) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) of the records in the current batch of the scan, decompressed one by one."""
    attributes = scan.attributes
    if scan.magic == 2:
        if attributes & CONTROL_FLAG:
            yield scan.max_timestamp, scan.last_offset
            return
    elif attributes & CODEC_MASK == NO_COMPRESSION:
        yield scan.max_timestamp, scan.last_offset
        return
    data, at = scan.whole()
    if scan.magic == 2 and attributes & APPEND_TIME_FLAG:
        count = int.from_bytes(data[at + RECORD_COUNT : at + RECORD_COUNT + 4], "big")
        offsets = range(scan.base_offset, scan.last_offset + 1)
        if count == len(offsets):  # Otherwise compaction has removed some or all of them.
            yield from ((scan.max_timestamp, offset) for offset in offsets)
            return
    cursor = open_cursor(data, at, at + scan.size, False, unpacked_bytes_max)
    while cursor.step():
        yield int(cursor.timestamp), int(cursor.offset)
