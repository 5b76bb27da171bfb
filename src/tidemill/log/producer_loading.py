"""Reads the producer state of a partition: the newest usable snapshot, then the batches after it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.log.names import SNAPSHOT, offset_of
from tidemill.log.producer_state import BATCHES_KEPT, SEQUENCE_MAX, KeptBatch, ProducerState, forget_from
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment
from tidemill.log.transaction_index import Aborted
from tidemill.log.transactions import MARKER_BYTES_MAX, marker_of
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.ports import Files
from tidemill.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, parse_batch

RECALL_BYTES: Final = 8 * 1024 * 1024
"""How far back a producer's earlier batches are looked for: more than five requests usually take."""


def load_producers(
    files: Files,
    directory: str,
    segments: list[Segment],
    producers: ProducerState,
    start_offset: i64,
    end_offset: i64,
    now_ms: i64,
) -> list[str]:
    """Makes ``producers`` what the log says before ``end_offset``; warnings about snapshots left out."""
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
    files: Files, directory: str, producers: ProducerState, start_offset: i64, end_offset: i64, now_ms: i64
) -> list[str]:
    """Takes the newest good snapshot at or before ``end_offset``; without one the state is empty."""
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
            warnings.append(f"{problem}; it is removed, and the producers are read from the log")
            files.remove(path)
            continue
        producers.snapshot_offset = offset
        break
    return warnings


def _read_batches(segment: Segment, producers: ProducerState, end_offset: i64, now_ms: i64) -> None:
    if segment.size == 0:
        return
    scan = BatchScan(segment.file(), segment.position_of(producers.end_offset), segment.size)
    while scan.step() and scan.base_offset < end_offset:
        note_scanned(producers, scan, now_ms)


def recall_batches(segments: list[Segment], producers: ProducerState, producer_id: i64) -> bool:
    """Finds the last batches of a producer in the log, where a snapshot told only the very last.

    Returns whether there may be something new. Some :data:`RECALL_BYTES` before the last one are looked
    through, headers only, in as many segments as that takes. Raises OSError; the next call looks again then.
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
        last_position: i64 = segment.position_of(last_offset)
        begin: i64 = 0
        if last_position > RECALL_BYTES:
            begin = segment.index.position_floor(last_position - RECALL_BYTES)
        scan = BatchScan(segment.file(), begin, segment.size)
        while scan.step() and scan.last_offset <= last_offset:
            if scan.producer_id != producer_id or scan.producer_epoch != entry.epoch:
                continue
            base: i64 = scan.base_sequence
            if base < 0:
                continue
            delta: i64 = scan.last_offset - scan.base_offset
            forget_from(found, base)
            found.append(
                KeptBatch((base + delta) & SEQUENCE_MAX, scan.last_offset, delta, scan.max_timestamp)
            )
    entry.from_snapshot = False
    if len(found) < 2:
        return False
    # What was appended since the start follows the snapshot's last batch, and stays behind it.
    later = [kept for kept in entry.batches if kept.last_offset > last_offset]
    kept_batches = found + later
    entry.batches = kept_batches[max(len(kept_batches) - BATCHES_KEPT, 0) :]
    return True


def note_scanned(producers: ProducerState, scan: BatchScan, now_ms: i64) -> Aborted | None:
    """Takes in the batch at which a scan stands; what the segment's index says of it, if it is an abort.

    Nobody reads the log yet: all that ended is below the high watermark.
    """
    producer_id: i64 = scan.producer_id
    if producer_id < 0:
        return None
    attributes: i64 = scan.attributes
    if attributes & CONTROL_FLAG != 0:
        return _note_marker(producers, scan)
    delta: i64 = scan.last_offset - scan.base_offset
    base: i64 = scan.base_sequence
    last: i64 = (base + delta) & SEQUENCE_MAX if base >= 0 else -1
    producers.note(
        producer_id, scan.producer_epoch, last, scan.last_offset, delta, scan.max_timestamp, now_ms
    )
    if attributes & TRANSACTIONAL_FLAG != 0:
        producers.begin_transaction(producer_id, scan.base_offset)
    return None


def _note_marker(producers: ProducerState, scan: BatchScan) -> Aborted | None:
    if scan.size > MARKER_BYTES_MAX:
        return None
    data, at = scan.whole()
    try:
        batch = parse_batch(data, at, at + scan.size)
    except KafkaError:
        return None
    marker = marker_of(batch)
    if marker is None:
        return None
    aborted = producers.aborted_by(batch.producer_id, marker, batch.base_offset)
    producers.end_transaction(
        batch.producer_id, batch.producer_epoch, marker, batch.base_offset, batch.max_timestamp
    )
    producers.transactions.forget_ended()
    return aborted
