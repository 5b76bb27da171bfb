"""Reads a segment's log file, in all formats, as dictionaries, for :mod:`tidemill.log_tools.dump`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tidemill.log.batch_scan import BatchScan
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Files
from tidemill.records.batch import CURRENT_MAGIC, NO_COMPRESSION, SEQUENCE_MAX, Batch, check_crc, parse_batch
from tidemill.records.compression import CODEC_NAMES
from tidemill.records.end_transaction_marker import (
    ABORT,
    COMMIT,
    UNKNOWN_CONTROL_TYPE,
    decode_control_record,
)
from tidemill.records.legacy_formats import Entry, entry_crc, parse_entry, unpack_entry
from tidemill.records.record_reader import Record, read_records, read_stored

MARKER_NAMES: Final = {ABORT: "ABORT", COMMIT: "COMMIT"}
NO_TIMESTAMP_TYPE: Final = "NoTimestampType"
_TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
_WINDOW_BYTES: Final = 1024 * 1024


def log_entries(
    files: Files,
    path: str,
    records: bool,
    bytes_max: int,
    unpacked_bytes_max: int,
) -> Iterator[dict[str, Any]]:
    """Yields the batches of a log, with ``records`` each followed by its records; then any invalid bytes.

    Raises UnpackedTooLarge before the records of a batch that unpack to more than ``unpacked_bytes_max``.
    """
    file = files.open(path, read_only=True)
    whole = int(file.size())
    size = whole if bytes_max < 0 else min(bytes_max, whole)
    scan = BatchScan(file, 0, size, _WINDOW_BYTES)
    while scan.step():
        data, at = scan.whole()
        if scan.magic < CURRENT_MAGIC:
            yield from _old_entries(
                Entry(data, at, scan.size), int(scan.position), records, unpacked_bytes_max
            )
            continue
        batch = parse_batch(data, at, at + scan.size)
        valid = _is_valid(batch)
        yield _batch_entry(batch, int(scan.position), valid)
        if records and valid:
            for record in read_records(batch, unpacked_bytes_max):
                yield _record_entry(batch, record)
    left = size - int(scan.next_position)
    if left > 0 and size == whole:
        yield {
            "kind": "invalid_bytes",
            "count": left,
            "position": int(scan.next_position),
            "fault": scan.fault,
        }


def _is_valid(batch: Batch) -> bool:
    try:
        check_crc(batch)
    except KafkaError:
        return False
    return True


def _batch_entry(batch: Batch, position: int, valid: bool) -> dict[str, Any]:
    return {
        "kind": "batch",
        "magic": int(batch.magic),
        "base_offset": int(batch.base_offset),
        "last_offset": int(batch.last_offset),
        "count": int(batch.record_count),
        "base_sequence": int(batch.base_sequence),
        "last_sequence": int(batch.last_sequence),
        "producer_id": int(batch.producer_id),
        "producer_epoch": int(batch.producer_epoch),
        "leader_epoch": int(batch.leader_epoch),
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "delete_horizon_ms": int(batch.base_timestamp) if batch.has_delete_horizon else None,
        "position": position,
        "timestamp_type": _TIMESTAMP_TYPES[bool(batch.append_time)],
        "max_timestamp": int(batch.max_timestamp),
        "size": int(batch.size),
        "codec": _codec_name(int(batch.codec)),
        "crc": int(batch.crc),
        "valid": valid,
    }


def _codec_name(codec: int) -> str:
    return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else str(codec)


def _old_entries(
    entry: Entry, position: int, records: bool, unpacked_bytes_max: int
) -> Iterator[dict[str, Any]]:
    """Yields an entry of format v0 or v1, which may be a wrapper of several messages."""
    valid = entry.crc == entry_crc(entry.data, entry.position, entry.size)
    timestamp_type = _TIMESTAMP_TYPES[bool(entry.append_time)] if entry.magic > 0 else NO_TIMESTAMP_TYPE
    yield {
        "kind": "batch",
        "magic": int(entry.magic),
        "last_offset": int(entry.offset),
        "position": position,
        "timestamp_type": timestamp_type,
        "max_timestamp": int(entry.timestamp),
        "size": int(entry.size),
        "codec": _codec_name(int(entry.codec)),
        "crc": int(entry.crc),
        "valid": valid,
    }
    if not (records and valid):
        return
    stored = read_stored(entry, True, unpacked_bytes_max)
    for record, message in zip(stored, _messages(entry, unpacked_bytes_max), strict=True):
        yield {
            "kind": "record",
            "magic": int(entry.magic),
            "offset": record.offset,
            "timestamp_type": timestamp_type,
            "timestamp": record.timestamp,
            "key_size": -1 if record.key is None else len(record.key),
            "value_size": -1 if record.value is None else len(record.value),
            "headers": [],
            "key": record.key,
            "value": record.value,
            "control": False,
            "crc": int(message.crc),
            "valid": message.crc == entry_crc(message.data, message.position, message.size),
        }


def _messages(entry: Entry, unpacked_bytes_max: int) -> Iterator[Entry]:
    """Yields the entry itself, or the messages that it wraps."""
    if entry.codec == NO_COMPRESSION:
        yield entry
        return
    data = unpack_entry(entry, unpacked_bytes_max)
    at = 0
    while at < len(data):
        message = parse_entry(data, at, len(data), check_crcs=False)
        yield message
        at += int(message.size)


def _record_entry(batch: Batch, record: Record) -> dict[str, Any]:
    sequence = -1
    if batch.base_sequence >= 0:
        sequence = (int(batch.base_sequence) + record.offset - int(batch.base_offset)) & SEQUENCE_MAX
    entry: dict[str, Any] = {
        "kind": "record",
        "magic": int(batch.magic),
        "offset": record.offset,
        "timestamp_type": _TIMESTAMP_TYPES[bool(batch.append_time)],
        "timestamp": record.timestamp,
        "key_size": -1 if record.key is None else len(record.key),
        "value_size": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "headers": record.headers,
        "key": record.key,
        "value": record.value,
        "control": batch.is_control,
        "marker": None,
        "control_type": None,
        "coordinator_epoch": None,
    }
    control = decode_control_record(record.key, record.value)
    if batch.is_control and control.control_type != UNKNOWN_CONTROL_TYPE:
        entry["control_type"] = int(control.control_type)
        entry["marker"] = MARKER_NAMES.get(entry["control_type"])
        marker = control.marker
        entry["coordinator_epoch"] = None if marker is None else int(marker.coordinator_epoch)
    return entry
