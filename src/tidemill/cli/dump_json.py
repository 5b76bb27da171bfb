"""Entries of files as JSON objects: the output of ``tidemill log dump --json``."""

from __future__ import annotations

from typing import Any, Final

from tidemill.cli.record_text import bytes_field, header_objects
from tidemill.log.producer_state_manager import ProducerEntry
from tidemill.log.transaction_index import Aborted
from tidemill.log_tools.dump import (
    MARKER_NAMES,
    UTF8,
    Decoder,
    DumpEntry,
    Epoch,
    IndexEntry,
    Mismatch,
    Problem,
    TimeIndexEntry,
    TopicId,
)
from tidemill.log_tools.dump_log import (
    TIMESTAMP_TYPES,
    InvalidBytes,
    StoredBatch,
    StoredRecord,
    delete_horizon_ms,
    size_of,
)
from tidemill.records.batch import NO_SEQUENCE, Batch
from tidemill.records.legacy_formats import Entry

KINDS: Final = {
    IndexEntry: "index_entry",
    TimeIndexEntry: "time_index_entry",
    Mismatch: "mismatch",
    Problem: "problem",
    Aborted: "aborted",
    Epoch: "epoch",
    TopicId: "topic_id",
}
"""The kinds of the entries whose objects have the fields of their class."""


def as_object(entry: DumpEntry, decode: Decoder) -> dict[str, Any]:
    """Returns ``entry`` for JSON: bytes become text, or base64 under another name.

    A record has the texts of ``decode`` in addition, unless it decodes UTF-8.
    """
    match entry:
        case StoredBatch():
            return _batch(entry)
        case StoredRecord():
            shown = _record(entry)
            if decode is not UTF8 and not entry.is_control:
                shown["decoded_key"], shown["decoded_value"] = decode(entry.record)
            return shown
        case ProducerEntry():
            return _producer(entry)
        case InvalidBytes(size, position, fault):
            return {"kind": "invalid_bytes", "count": size, "position": position, "fault": fault}
    return {"kind": KINDS[type(entry)], **entry._asdict()}


def _batch(entry: StoredBatch) -> dict[str, Any]:
    batch = entry.stored
    own: dict[str, Any] = {"last_offset": batch.last_offset}
    if isinstance(batch, Batch):
        own = {
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
            "count": batch.record_count,
            "base_sequence": batch.base_sequence,
            "last_sequence": batch.last_sequence,
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "leader_epoch": batch.leader_epoch,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "delete_horizon_ms": delete_horizon_ms(batch),
        }
    return {
        "kind": "batch",
        "magic": batch.magic,
        **own,
        "position": entry.position,
        "timestamp_type": entry.timestamp_type,
        "max_timestamp": entry.max_timestamp,
        "size": batch.size,
        "codec": entry.codec_name,
        "crc": batch.crc,
        "valid": entry.is_valid,
    }


def _record(entry: StoredRecord) -> dict[str, Any]:
    stored, record = entry
    is_old = isinstance(stored, Entry)
    return {
        "kind": "record",
        "magic": stored.magic,
        "offset": record.offset,
        "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type],
        "timestamp": record.timestamp,
        "key_size": size_of(record.key),
        "value_size": size_of(record.value),
        **({} if is_old else {"sequence": entry.sequence}),
        "headers": header_objects(record.headers),
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "control": entry.is_control,
        **({"crc": stored.crc, "valid": True} if is_old else _control(entry)),
    }


def _control(entry: StoredRecord) -> dict[str, Any]:
    control = entry.control
    marker = None if control is None else control.marker
    return {
        "marker": None if control is None else MARKER_NAMES.get(control.control_type),
        "control_type": None if control is None else control.control_type,
        "coordinator_epoch": None if marker is None else marker.coordinator_epoch,
    }


def _producer(producer: ProducerEntry) -> dict[str, Any]:
    batch = producer.batches[-1] if producer.batches else None
    first_offset = producer.transaction_first_offset
    return {
        "kind": "producer",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "transaction_first_offset": None if first_offset < 0 else first_offset,
        "last_timestamp": producer.last_timestamp,
        "first_sequence": NO_SEQUENCE if batch is None else batch.first_sequence,
        "last_sequence": producer.last_sequence,
        "last_offset": producer.last_offset,
        "offset_delta": 0 if batch is None else batch.offset_delta,
        "known": batch is not None,
    }
