"""Reads the files of a partition for people: what ``tidemill log dump`` shows.

:func:`entries` gives plain dictionaries, for machines; :func:`lines` the lines that Kafka's
``kafka-dump-log`` prints for the same file, so that scripts around that tool go on working.

The files may be in use: nothing is written to them, and what a running broker has not written is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from tidemill.log.checkpoints import CheckpointDamaged, parse_checkpoint, read_partition_metadata
from tidemill.log.index import OffsetIndex, TimeIndex
from tidemill.log.names import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    offset_name,
    offset_of,
)
from tidemill.log.producer_state import decode_snapshot
from tidemill.log.scan import BatchScan
from tidemill.model.errors import ConfigError, KafkaError
from tidemill.model.ports import Files
from tidemill.records.batch import NO_PRODUCER_ID, Batch, check_crc, parse_batch
from tidemill.records.reader import Record, read_records

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
MARKER_NAMES: Final = {0: "ABORT", 1: "COMMIT"}
_WINDOW_BYTES: Final = 1024 * 1024


def entries(files: Files, path: str, *, records: bool = False) -> Iterator[dict[str, Any]]:
    """What is in a file of a partition's directory, by the ending of its name.

    Each dictionary has a ``kind``: ``batch``, ``record`` (with ``records``), ``invalid_bytes``,
    ``index_entry``, ``time_index_entry``, ``mismatch``, ``producer``, ``epoch``, ``topic_id``. Raises
    ConfigError for a file of another kind, OSError when it cannot be read, StorageError when its content
    makes no sense.
    """
    name = os.path.basename(path)
    if offset_of(name, LOG) >= 0:
        return _log_entries(files, path, records)
    if offset_of(name, INDEX) >= 0:
        return _index_entries(files, path)
    if offset_of(name, TIME_INDEX) >= 0:
        return _time_index_entries(files, path)
    if offset_of(name, SNAPSHOT) >= 0:
        return _producer_entries(files, path)
    if name == LEADER_EPOCHS:
        return _epoch_entries(files, path)
    if name == PARTITION_METADATA:
        return iter([{"kind": "topic_id", "topic_id": read_partition_metadata(files, path).hex()}])
    raise ConfigError(
        f"{path} is no file of a log: give one that ends in {LOG}, {INDEX}, {TIME_INDEX} or {SNAPSHOT}, "
        f"{LEADER_EPOCHS} or {PARTITION_METADATA}"
    )


def lines(files: Files, path: str, *, records: bool = False, payload: bool = False) -> Iterator[str]:
    """The file as ``kafka-dump-log`` prints it: ``records`` is its ``--deep-iteration``, ``payload`` its
    ``--print-data-log``. Keys and values are shown as UTF-8, with a replacement where they are not."""
    name = os.path.basename(path)
    yield f"Dumping {path}"
    if offset_of(name, LOG) >= 0:
        yield f"Log starting offset: {offset_of(name, LOG)}"
    mismatches = []
    empty = offset_of(name, INDEX) >= 0 or offset_of(name, TIME_INDEX) >= 0
    for entry in entries(files, path, records=records or payload):
        empty = False
        if entry["kind"] == "mismatch":
            mismatches.append(f"  Index offset: {entry['index_offset']}, log offset: {entry['log_offset']}")
        else:
            yield _line(entry, path, payload)
    if empty:
        yield f"{path} is empty."
    if mismatches:
        yield f"Mismatches in :{os.path.abspath(path)}"
        yield from mismatches


# -- logs


def _log_entries(files: Files, path: str, records: bool) -> Iterator[dict[str, Any]]:
    file = files.open(path, read_only=True)
    size = int(file.size())
    scan = BatchScan(file, 0, size, _WINDOW_BYTES)
    while scan.step():
        data, at = scan.whole()
        if scan.magic < 2:
            yield {
                "kind": "batch",
                "magic": int(scan.magic),
                "offset": int(scan.last_offset),
                "position": int(scan.position),
                "timestamp": int(scan.max_timestamp),
                "size": int(scan.size),
                "codec": CODEC_NAMES[min(scan.attributes & 7, 4)],
            }
            continue
        batch = parse_batch(data, at, at + scan.size)
        valid = _is_valid(batch)
        yield _batch_entry(batch, int(scan.position), valid)
        if records and valid:
            for record in read_records(batch):
                yield _record_entry(batch, record)
    left = size - int(scan.next_position)
    if left > 0:
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
        "timestamp_type": "LogAppendTime" if batch.append_time else "CreateTime",
        "max_timestamp": int(batch.max_timestamp),
        "size": int(batch.size),
        "codec": CODEC_NAMES[batch.codec] if batch.codec < len(CODEC_NAMES) else str(batch.codec),
        "crc": int(batch.crc),
        "valid": valid,
    }


def _record_entry(batch: Batch, record: Record) -> dict[str, Any]:
    sequence = -1
    if batch.base_sequence >= 0:
        sequence = (int(batch.base_sequence) + record.offset - int(batch.base_offset)) & 0x7FFFFFFF
    entry: dict[str, Any] = {
        "kind": "record",
        "offset": record.offset,
        "timestamp_type": "LogAppendTime" if batch.append_time else "CreateTime",
        "timestamp": record.timestamp,
        "key_size": -1 if record.key is None else len(record.key),
        "value_size": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "headers": record.headers,
        "key": record.key,
        "value": record.value,
        "marker": None,
        "coordinator_epoch": None,
    }
    if batch.is_control and record.key is not None and len(record.key) >= 4:
        entry["marker"] = MARKER_NAMES.get(int.from_bytes(record.key[2:4], "big"), "UNKNOWN")
        if record.value is not None and len(record.value) >= 6:
            entry["coordinator_epoch"] = int.from_bytes(record.value[2:6], "big", signed=True)
    return entry


# -- the other files


def _index_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    base = offset_of(os.path.basename(path), INDEX)
    index = OffsetIndex(files, path, base, files.size(path))
    log_path = os.path.join(os.path.dirname(path), offset_name(base, LOG))
    log = files.open(log_path, read_only=True) if files.exists(log_path) else None
    log_bytes = int(log.size()) if log is not None else 0
    index.load()
    for slot in range(index.entries):
        offset, position = (int(value) for value in index.entry(slot))
        yield {"kind": "index_entry", "offset": offset, "position": position}
        if log is None:
            continue
        scan = BatchScan(log, position, log_bytes)
        found = int(scan.last_offset) if scan.step() else -1
        if found != offset:
            yield {"kind": "mismatch", "index_offset": offset, "log_offset": found}


def _time_index_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    base = offset_of(os.path.basename(path), TIME_INDEX)
    index = TimeIndex(files, path, base, files.size(path))
    index.load()
    for slot in range(index.entries):
        timestamp, offset = (int(value) for value in index.entry(slot))
        yield {"kind": "time_index_entry", "timestamp": timestamp, "offset": offset}


def _producer_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    for producer in decode_snapshot(files.read(path), path):
        batch = producer.batches[-1] if producer.batches else None
        yield {
            "kind": "producer",
            "producer_id": int(producer.producer_id),
            "producer_epoch": int(producer.epoch),
            "coordinator_epoch": int(producer.coordinator_epoch),
            "transaction_first_offset": (
                None if producer.transaction_first_offset < 0 else int(producer.transaction_first_offset)
            ),
            "last_timestamp": int(producer.last_timestamp),
            "first_sequence": NO_PRODUCER_ID if batch is None else int(batch.first_sequence),
            "last_sequence": int(producer.last_sequence),
            "last_offset": int(producer.last_offset),
            "offset_delta": 0 if batch is None else int(batch.offset_delta),
            "known": batch is not None,
        }


def _epoch_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    try:
        fields = parse_checkpoint(files.read(path), 2, path)
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is not there") from None
    for epoch, start in fields:
        yield {"kind": "epoch", "epoch": int(epoch), "start_offset": int(start)}


# -- as text


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _line(entry: dict[str, Any], path: str, payload: bool) -> str:
    kind = entry["kind"]
    if kind == "batch":
        return _batch_line(entry)
    if kind == "record":
        return _record_line(entry, payload)
    if kind == "index_entry":
        return f"offset: {entry['offset']} position: {entry['position']}"
    if kind == "time_index_entry":
        return f"timestamp: {entry['timestamp']} offset: {entry['offset']}"
    if kind == "invalid_bytes":
        return f"Found {entry['count']} invalid bytes at the end of {os.path.basename(path)}"
    if kind == "epoch":
        return f"epoch: {entry['epoch']} startOffset: {entry['start_offset']}"
    if kind == "topic_id":
        return f"topicId: {entry['topic_id']}"
    line = (
        f"producerId: {entry['producer_id']} producerEpoch: {entry['producer_epoch']} "
        f"coordinatorEpoch: {entry['coordinator_epoch']} "
        f"currentTxnFirstOffset: {_optional(entry['transaction_first_offset'])} "
        f"lastTimestamp: {entry['last_timestamp']} "
    )
    if entry["known"]:
        line += (
            f"firstSequence: {entry['first_sequence']} lastSequence: {entry['last_sequence']} "
            f"lastOffset: {entry['last_offset']} offsetDelta: {entry['offset_delta']} "
            f"timestamp: {entry['last_timestamp']}"
        )
    return line


def _batch_line(entry: dict[str, Any]) -> str:
    if entry["magic"] < 2:
        return (
            f"offset: {entry['offset']} position: {entry['position']} CreateTime: {entry['timestamp']} "
            f"size: {entry['size']} magic: {entry['magic']} compresscodec: {entry['codec']}"
        )
    return (
        f"baseOffset: {entry['base_offset']} lastOffset: {entry['last_offset']} count: {entry['count']} "
        f"baseSequence: {entry['base_sequence']} lastSequence: {entry['last_sequence']} "
        f"producerId: {entry['producer_id']} producerEpoch: {entry['producer_epoch']} "
        f"partitionLeaderEpoch: {entry['leader_epoch']} isTransactional: {_bool(entry['transactional'])} "
        f"isControl: {_bool(entry['control'])} deleteHorizonMs: {_optional(entry['delete_horizon_ms'])} "
        f"position: {entry['position']} {entry['timestamp_type']}: {entry['max_timestamp']} "
        f"size: {entry['size']} magic: {entry['magic']} compresscodec: {entry['codec']} "
        f"crc: {entry['crc']} isvalid: {_bool(entry['valid'])}"
    )


def _record_line(entry: dict[str, Any], payload: bool) -> str:
    line = (
        f"| offset: {entry['offset']} {entry['timestamp_type']}: {entry['timestamp']} "
        f"keySize: {entry['key_size']} valueSize: {entry['value_size']} sequence: {entry['sequence']} "
        f"headerKeys: [{','.join(name for name, _ in entry['headers'])}]"
    )
    if entry["marker"] is not None:
        line += f" endTxnMarker: {entry['marker']} coordinatorEpoch: {entry['coordinator_epoch']}"
    elif payload:
        if entry["key"] is not None:
            line += f" key: {entry['key'].decode('utf-8', 'replace')}"
        if entry["value"] is not None:
            line += f" payload: {entry['value'].decode('utf-8', 'replace')}"
    return line


def _bool(value: bool) -> str:
    return "true" if value else "false"
