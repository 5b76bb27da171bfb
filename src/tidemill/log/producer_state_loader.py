"""Reads the producer state of a partition: the newest usable snapshot, then the batches after it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import SNAPSHOT, offset_of
from tidemill.log.log_segment import LogSegment
from tidemill.log.producer_state_manager import (
    BATCHES_KEPT,
    KeptBatch,
    ProducerStateManager,
    forget_from,
)
from tidemill.log.transaction_index import Aborted
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.system_interfaces import Files
from tidemill.records.batch import CONTROL_FLAG, CURRENT_MAGIC, parse_batch
from tidemill.records.end_transaction_marker import MARKER_BATCH_BYTES_MAX, EndTransactionMarker, read_marker
from tidemill.records.mirror_end import ended_mirror

RECALL_BYTES: Final = 8 * 1024 * 1024
"""How far back earlier batches of a producer are searched: more than five requests usually take."""


def load_producers(
    files: Files,
    directory: str,
    segments: list[LogSegment],
    producers: ProducerStateManager,
    start_offset: i64,
    end_offset: i64,
    now_ms: i64,
) -> list[str]:
    """Loads the state of ``producers`` at ``end_offset``. Returns warnings about ignored snapshots."""
    warnings = restore_snapshot(files, directory, producers, start_offset, end_offset, now_ms)
    position = len(segments)
    while position > 1 and segments[position - 1].base_offset > producers.end_offset:
        position -= 1
    for segment in segments[max(position - 1, 0) :]:
        if producers.end_offset >= end_offset:
            break
        _read_batches(segment, producers, end_offset, now_ms)
    producers.end_offset = end_offset
    return warnings


def restore_snapshot(
    files: Files,
    directory: str,
    producers: ProducerStateManager,
    start_offset: i64,
    end_offset: i64,
    now_ms: i64,
) -> list[str]:
    """Restores the newest valid snapshot at or before ``end_offset``; without one the state is empty."""
    warnings: list[str] = []
    producers.forget()
    producers.end_offset = start_offset
    producers.snapshot_offset = -1
    offsets = [offset_of(name, SNAPSHOT) for name in files.list(directory)]
    for offset in sorted((offset for offset in offsets if 0 <= offset <= end_offset), reverse=True):
        path = f"{directory}/{offset:020d}{SNAPSHOT}"
        try:
            producers.restore(files.read(path), offset, now_ms, path)
        except StorageError as problem:
            warnings.append(f"{problem}; it is removed, and the producer state is read from the log")
            files.remove(path)
            continue
        producers.snapshot_offset = offset
        break
    return warnings


def _read_batches(segment: LogSegment, producers: ProducerStateManager, end_offset: i64, now_ms: i64) -> None:
    if segment.size == 0:
        return
    scan = BatchScan(segment.file(), segment.translate_offset(producers.end_offset), segment.size)
    while scan.step() and scan.base_offset < end_offset:
        apply_scanned(producers, scan, now_ms)


def recall_batches(segments: list[LogSegment], producers: ProducerStateManager, producer_id: i64) -> bool:
    """Reads the last batches of a producer from the log: a snapshot has only the very last.

    Returns whether it may have found further batches. Reads the headers of :data:`RECALL_BYTES` before the
    last batch, over several segments if needed. Raises OSError; the next call then tries again.
    """
    entry = producers.entries.get(producer_id)
    if entry is None or not entry.from_snapshot:
        return False
    last_offset: i64 = entry.last_offset
    found: list[KeptBatch] = []
    count = len(segments)
    while count > 0 and segments[count - 1].base_offset > last_offset:
        count -= 1
    first: i64 = count - 1
    left: i64 = RECALL_BYTES
    while first > 0 and left > 0:
        first -= 1
        left -= segments[first].size
    for segment in segments[max(first, 0) : count]:
        if segment.size == 0:
            continue
        last_position: i64 = segment.translate_offset(last_offset)
        begin: i64 = 0
        if last_position > RECALL_BYTES:
            begin = segment.index.position_floor(last_position - RECALL_BYTES)
        scan = BatchScan(segment.file(), begin, segment.size)
        while scan.step() and scan.last_offset <= last_offset:
            if scan.producer_id != producer_id or scan.producer_epoch != entry.epoch:
                continue
            batch = scan.header()
            if batch.base_sequence < 0:
                continue
            forget_from(found, batch.base_sequence)
            found.append(
                KeptBatch(
                    batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp
                )
            )
    entry.from_snapshot = False
    if len(found) < 2:
        return False
    # Batches appended since the start follow the last batch of the snapshot.
    later = [kept for kept in entry.batches if kept.last_offset > last_offset]
    kept_batches = found + later
    entry.batches = kept_batches[max(len(kept_batches) - BATCHES_KEPT, 0) :]
    return True


def apply_scanned(producers: ProducerStateManager, scan: BatchScan, now_ms: i64) -> Aborted | None:
    """Applies the current batch of a scan. Returns the index entry if it is the marker of an abort.

    The log has no readers yet: all ended transactions are below the high watermark.
    """
    if scan.producer_id < 0:
        topic_id = _ended_mirror(scan)
        if topic_id is not None:
            producers.end_mirror(topic_id)
        return None
    batch = scan.header()
    if batch.attributes & CONTROL_FLAG == 0:
        producers.apply(batch, None, batch.base_offset, batch.max_timestamp, now_ms)
        return None
    marker = _marker_of(scan)
    if marker is None:
        return None
    aborted = producers.aborted_by(batch.producer_id, marker, batch.base_offset)
    producers.apply(batch, marker, batch.base_offset, batch.max_timestamp, now_ms)
    producers.transactions.clear_ended()
    return aborted


def _ended_mirror(scan: BatchScan) -> bytes | None:
    """Returns the id of the topic if the current batch of a scan is the end of a mirror, or None."""
    if scan.magic != CURRENT_MAGIC or scan.size > MARKER_BATCH_BYTES_MAX:
        return None
    if scan.header().attributes & CONTROL_FLAG == 0:
        return None
    data, at = scan.whole()
    return ended_mirror(parse_batch(data, at, at + scan.size))


def _marker_of(scan: BatchScan) -> EndTransactionMarker | None:
    """Returns the marker in the current control batch of a scan; None if it has none, or is malformed."""
    if scan.size > MARKER_BATCH_BYTES_MAX:
        return None
    data, at = scan.whole()
    try:
        return read_marker(parse_batch(data, at, at + scan.size))
    except KafkaError:
        return None
