"""Reads a segment's log file, in all formats, for :mod:`tidemill.log_tools.dump`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from tidemill.log.batch_scan import BatchScan
from tidemill.model.system_interfaces import Files
from tidemill.records.batch import (
    CURRENT_MAGIC,
    NO_COMPRESSION,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    Batch,
    parse_batch,
)
from tidemill.records.compression import CODEC_NAMES
from tidemill.records.end_transaction_marker import (
    UNKNOWN_CONTROL_TYPE,
    ControlRecord,
    decode_control_record,
)
from tidemill.records.legacy_formats import Entry, unpack_entry
from tidemill.records.record_cursor import APPEND_TIME, CREATE_TIME, NO_TIMESTAMP_TYPE
from tidemill.records.record_reader import Record, iter_stored, read_stored

TIMESTAMP_TYPES: Final = {
    NO_TIMESTAMP_TYPE: "NoTimestampType",
    CREATE_TIME: "CreateTime",
    APPEND_TIME: "LogAppendTime",
}
_WINDOW_BYTES: Final = 1024 * 1024


class StoredBatch(NamedTuple):
    """A batch, or an entry of format v0 or v1, which may be a wrapper of several messages."""

    stored: Batch | Entry
    position: int
    """In the file."""
    is_valid: bool
    """Whether its checksum is right."""

    @property
    def timestamp_type(self) -> str:
        """Kafka's name of the type of its timestamps."""
        if self.stored.magic == 0:
            return TIMESTAMP_TYPES[NO_TIMESTAMP_TYPE]
        return TIMESTAMP_TYPES[APPEND_TIME if self.stored.append_time else CREATE_TIME]

    @property
    def max_timestamp(self) -> int:
        """In ms; -1 in format v0."""
        return self.stored.timestamp if isinstance(self.stored, Entry) else self.stored.max_timestamp

    @property
    def codec_name(self) -> str:
        """The name of the compression codec; its number if that is unassigned."""
        codec = self.stored.codec
        return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else str(codec)


class StoredRecord(NamedTuple):
    """A record with its batch. In formats v0 and v1: with the entry of its message, whose checksum is right.

    The timestamp type and the offset of a message in a wrapper are those of ``record``.
    """

    stored: Batch | Entry
    record: Record

    @property
    def sequence(self) -> int:
        """Its sequence number; -1 without idempotence."""
        if isinstance(self.stored, Entry) or self.stored.base_sequence < 0:
            return NO_SEQUENCE
        return (self.stored.base_sequence + self.record.offset - self.stored.base_offset) & SEQUENCE_MAX

    @property
    def is_control(self) -> bool:
        """Whether its batch is a control batch."""
        return isinstance(self.stored, Batch) and self.stored.is_control

    @property
    def control(self) -> ControlRecord | None:
        """The control record; None for other records, and if the key has no control type."""
        control = decode_control_record(self.record.key, self.record.value)
        return control if self.is_control and control.control_type != UNKNOWN_CONTROL_TYPE else None


class InvalidBytes(NamedTuple):
    """The bytes from ``position`` to the end of a log, which are no batches."""

    size: int
    position: int
    fault: str


LogEntry: TypeAlias = StoredBatch | StoredRecord | InvalidBytes


def delete_horizon_ms(batch: Batch) -> int | None:
    """The time from which compaction may drop the tombstones of ``batch``; None if it is not set."""
    return batch.base_timestamp if batch.has_delete_horizon else None


def size_of(data: bytes | None) -> int:
    """The size of a key or value; -1 for null."""
    return -1 if data is None else len(data)


def log_entries(
    files: Files,
    path: str,
    records: bool,
    bytes_max: int,
    unpacked_bytes_max: int,
) -> Iterator[LogEntry]:
    """Yields the batches of a log, with ``records`` each followed by its records; then any invalid bytes.

    Raises UnpackedTooLarge before the records of a batch that unpack to more than ``unpacked_bytes_max``.
    """
    file = files.open(path, read_only=True)
    whole = int(file.size())
    size = whole if bytes_max < 0 else min(bytes_max, whole)
    scan = BatchScan(file, 0, size, _WINDOW_BYTES)
    while scan.step():
        data, at = scan.whole()
        is_current = scan.magic == CURRENT_MAGIC
        stored = parse_batch(data, at, at + scan.size) if is_current else Entry(data, at, scan.size)
        batch = StoredBatch(stored, scan.position, not scan.checksum_fault())
        yield batch
        if records and batch.is_valid:
            yield from _records(stored, unpacked_bytes_max)
    left = size - int(scan.next_position)
    if left > 0 and size == whole:
        yield InvalidBytes(left, scan.next_position, scan.fault)


def _records(stored: Batch | Entry, unpacked_bytes_max: int) -> Iterator[StoredRecord]:
    """Yields the records of a batch, of an entry, or inside a wrapper."""
    records = read_stored(stored, False, unpacked_bytes_max)
    sources = [stored] * len(records)
    if isinstance(stored, Entry) and stored.codec != NO_COMPRESSION:
        sources = list(iter_stored(unpack_entry(stored, unpacked_bytes_max)))
    for source, record in zip(sources, records, strict=True):
        yield StoredRecord(source, record)
