"""Formats the files of a partition for people: the output of ``tidemill log dump``.

:func:`entries` returns the entries as objects; :func:`lines` the lines that Kafka's ``kafka-dump-log`` prints
for the same file, so that scripts around that tool keep working.

The files may be in use: nothing is written to them, and data that a running broker has not written yet is
missing.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from tidemill.log.batch_scan import BatchScan
from tidemill.log.checkpoint_files import CheckpointDamaged, parse_checkpoint, read_partition_metadata
from tidemill.log.file_names import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    METADATA_SNAPSHOT,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    offset_of,
)
from tidemill.log.offset_index import OffsetIndex
from tidemill.log.producer_state_manager import ProducerEntry, decode_snapshot
from tidemill.log.time_index import TimeIndex
from tidemill.log.transaction_index import Aborted
from tidemill.log_tools.dump_log import (
    TIMESTAMP_TYPES,
    InvalidBytes,
    LogEntry,
    StoredBatch,
    StoredRecord,
    delete_horizon_ms,
    log_entries,
    size_of,
)
from tidemill.log_tools.index_entries import aborted_entries, offset_entries, time_entries
from tidemill.log_tools.java_text import java_text
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.system_interfaces import File, Files
from tidemill.records.batch import Batch
from tidemill.records.end_transaction_marker import ABORT, COMMIT
from tidemill.records.legacy_formats import Entry
from tidemill.records.record_reader import Record
from tidemill.records.varint import INT64_MAX

CONTROL_NAMES: Final = {
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
MARKER_NAMES: Final = {ABORT: "ABORT", COMMIT: "COMMIT"}
HOLES: Final = "Non-consecutive offsets in {}"
"""The heading for gaps that compaction leaves: no damage."""
_NOT_FOUND: Final = "The following indexed offsets are not found in :{}"


class IndexEntry(NamedTuple):
    """An entry of an offset index."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """An entry of a time index."""

    timestamp: int
    offset: int


class Epoch(NamedTuple):
    """A leader epoch."""

    epoch: int
    start_offset: int


class TopicId(NamedTuple):
    """The topic id of a partition, in hexadecimal."""

    topic_id: str


class Mismatch(NamedTuple):
    """An entry of an offset index that does not match the log. ``log_offset`` is -1 without a batch."""

    index_offset: int
    log_offset: int


class Problem(NamedTuple):
    """A finding on an entry of a time index, under the heading of ``kafka-dump-log``."""

    heading: str
    text: str


FileEntry: TypeAlias = LogEntry | IndexEntry | TimeIndexEntry | Aborted | ProducerEntry | Epoch | TopicId
"""An entry of a file."""
DumpEntry: TypeAlias = FileEntry | Mismatch | Problem
Decoder: TypeAlias = Callable[[Record], tuple[str | None, str | None]]
"""Returns the texts of a record's key and value; None for a field that is not shown."""
ControlDecoder: TypeAlias = Callable[[int, bytes | None], str | None]
"""Returns the text of a control record, from its control type and value; None for an unknown one."""


def text_decoder(key_text: Callable[[bytes], str], value_text: Callable[[bytes], str]) -> Decoder:
    """Returns the decoder that shows keys and values with these functions, and no field that is null."""

    def decode(record: Record) -> tuple[str | None, str | None]:
        key, value = record.key, record.value
        return None if key is None else key_text(key), None if value is None else value_text(value)

    return decode


UTF8: Final = text_decoder(java_text, java_text)
"""Decodes key and value as UTF-8, with replacement characters for invalid bytes."""


class DumpOptions(NamedTuple):
    """The output options, with the meaning of those of ``kafka-dump-log``."""

    unpacked_bytes_max: int
    """The limit for the unpacked records of one compressed batch."""
    decode_control: ControlDecoder
    """For control records other than transaction markers."""
    deep: bool = False
    """Shows every record, not only the batches."""
    contents: bool = False
    """Shows records with keys and values."""
    skip_metadata: bool = False
    """Shows only the keys and values of records."""
    bytes_max: int = -1
    """Skips the batches beyond this many bytes of a log; -1 for none."""
    verify_only: bool = False
    """Checks index entries without showing them."""
    sanity_only: bool = False
    """Only checks that indexes are consistent."""
    decode: Decoder = UTF8


def entries(
    files: Files,
    path: str,
    *,
    records: bool = False,
    bytes_max: int = -1,
    unpacked_bytes_max: int,
) -> Iterator[DumpEntry]:
    """Yields the contents of a file of a partition's directory, by the suffix of its name.

    The batches of a log are followed by their records with ``records``. The entries of an index are followed
    by the findings on them. Raises ConfigError for a file of another kind, OSError when it cannot be read,
    StorageError when its content is malformed.
    """
    name = os.path.basename(path)
    if offset_of(name, LOG) >= 0 or (name.endswith(METADATA_SNAPSHOT) and name != METADATA_SNAPSHOT):
        return log_entries(files, path, records, bytes_max, unpacked_bytes_max)
    readers: dict[str, Callable[[Files, str], Iterator[DumpEntry]]] = {
        INDEX: _index_entries,
        TIME_INDEX: _time_index_entries,
        TRANSACTION_INDEX: _aborted_entries,
        SNAPSHOT: _producer_entries,
    }
    for ending, read in readers.items():
        if offset_of(name, ending) >= 0:
            return read(files, path)
    if name == LEADER_EPOCHS:
        return _epoch_entries(files, path)
    if name == PARTITION_METADATA:
        return iter([TopicId(read_partition_metadata(files, path).hex())])
    raise ConfigError(
        f"{path} is not a file of a log: give one that ends in {LOG}, {INDEX}, {TIME_INDEX}, "
        f"{TRANSACTION_INDEX}, {SNAPSHOT} or {METADATA_SNAPSHOT}, {LEADER_EPOCHS} or {PARTITION_METADATA}"
    )


def lines(
    files: Files,
    path: str,
    options: DumpOptions,
    problems: list[str],
    damage: list[str],
) -> Iterator[str]:
    """Yields the file's lines as ``kafka-dump-log`` prints them.

    The findings that this tool prints on its standard error at the end (index entries that do not match the
    log, gaps between offsets) are appended to ``problems``. Damage is added to ``damage``.
    """
    name = os.path.basename(path)
    yield f"Dumping {path}"
    yield from _head(name)
    is_index = offset_of(name, INDEX) >= 0 or offset_of(name, TIME_INDEX) >= 0
    if is_index and options.sanity_only:
        yield _sanity(files, path)
        return
    found: dict[str, list[str]] = {}
    empty = offset_of(name, INDEX) >= 0
    last_offset = -1
    for entry in entries(
        files,
        path,
        records=options.deep or options.contents,
        bytes_max=options.bytes_max,
        unpacked_bytes_max=options.unpacked_bytes_max,
    ):
        empty = False
        note_damage(path, entry, damage)
        match entry:
            case Mismatch(index_offset, log_offset):
                text = f"  Index offset: {index_offset}, log offset: {log_offset}"
                found.setdefault("Mismatches in :{}", []).append(text)
            case Problem(heading, text):
                found.setdefault(heading, []).append(text)
            case _ if not (is_index and options.verify_only):
                yield _line(entry, path, options)
        if isinstance(entry, StoredRecord):
            offset = entry.record.offset
            if 0 <= last_offset != offset - 1:
                found.setdefault(HOLES, []).append(f"  {last_offset} is followed by {offset}")
            last_offset = offset
    if empty:
        yield f"{path} is empty."
    for heading, texts in found.items():
        problems += [heading.format(os.path.abspath(path)), *texts]


def note_damage(path: str, entry: DumpEntry, damage: list[str]) -> None:
    """Adds the damage that ``entry`` shows, if any, to ``damage``."""
    match entry:
        case InvalidBytes(size, position, fault):
            damage.append(f"{path}: {size} bytes from position {position} on are not a valid batch: {fault}")
        case StoredBatch(position=position, is_valid=False):
            damage.append(f"{path}: the checksum of the batch at position {position} is wrong")


def _head(name: str) -> Iterator[str]:
    if offset_of(name, LOG) >= 0:
        yield f"Log starting offset: {offset_of(name, LOG)}"
    elif name.endswith(METADATA_SNAPSHOT):
        offset, _, epoch = name[: -len(METADATA_SNAPSHOT)].partition("-")
        if offset.isdigit() and epoch.isdigit():
            yield f"Snapshot end offset: {int(offset)}, epoch: {int(epoch)}"
        else:
            yield "KRaft bootstrap snapshot"


def _sanity(files: Files, path: str) -> str:
    """Checks whether an index is usable. Raises StorageError when the next start would rebuild it."""
    name = os.path.basename(path)
    base = offset_of(name, INDEX)
    if base >= 0:
        log_path = os.path.join(os.path.dirname(path), offset_name(base, LOG))
        index = OffsetIndex(files, path, base, files.size(path))
        damage = index.damage(files.size(log_path) if files.exists(log_path) else 0)
        if not damage and index.entries == 0:
            return f"{path} is empty."
    else:
        damage = TimeIndex(files, path, offset_of(name, TIME_INDEX), files.size(path)).damage(INT64_MAX)
    if damage:
        raise StorageError(f"{path}: {damage}; the next start rebuilds it from the log")
    return f"{path} passed sanity check."


# -- the other files


def _log_beside(files: Files, path: str, base: int) -> File | None:
    """Opens the log file of an index, if it exists."""
    log_path = os.path.join(os.path.dirname(path), offset_name(base, LOG))
    return files.open(log_path, read_only=True) if files.exists(log_path) else None


def _index_entries(files: Files, path: str) -> Iterator[IndexEntry | Mismatch]:
    base = offset_of(os.path.basename(path), INDEX)
    log = _log_beside(files, path, base)
    log_bytes = int(log.size()) if log is not None else 0
    for relative, position in offset_entries(files, path).rows():
        offset = base + relative
        yield IndexEntry(offset, position)
        if log is None:
            continue
        scan = BatchScan(log, position, log_bytes)
        found = int(scan.last_offset) if position >= 0 and scan.step() else -1
        if found != offset:
            yield Mismatch(offset, found)


def _time_index_entries(files: Files, path: str) -> Iterator[TimeIndexEntry | Problem]:
    base = offset_of(os.path.basename(path), TIME_INDEX)
    log = _log_beside(files, path, base)
    offsets, positions = _positions(files, os.path.join(os.path.dirname(path), offset_name(base, INDEX)))
    before = -1
    for timestamp, relative in time_entries(files, path).rows():
        offset = base + relative
        yield TimeIndexEntry(timestamp, offset)
        if log is not None:
            scan = BatchScan(log, positions[bisect_right(offsets, relative) - 1], log.size())
            yield from _time_problems(scan, timestamp, offset, before)
        before = timestamp


def _positions(files: Files, path: str) -> tuple[array[int], array[int]]:
    """The positions in an offset index, and the largest relative offset up to each; an entry for 0 first.

    A search ends before the first entry that is too large: later entries of a damaged index may be wrong.
    For a negative position, the search starts at the first batch.
    """
    offsets, positions = array("i", [-1 << 31]), array("i", [0])
    for relative, position in offset_entries(files, path).rows() if files.exists(path) else ():
        offsets.append(max(offsets[-1], relative))
        positions.append(max(position, 0))
    return offsets, positions


def _time_problems(scan: BatchScan, timestamp: int, offset: int, before: int) -> Iterator[Problem]:
    """Yields the findings of ``kafka-dump-log`` for a time index entry that does not match the log."""
    found = -1
    while scan.step():
        if scan.last_offset >= offset:
            found = int(scan.last_offset)
            break
    if found != offset:
        text = f"Indexed offset: {offset}, found log offset: {found}"
        yield Problem(_NOT_FOUND, text)
        return
    if scan.max_timestamp != timestamp:
        text = f"  Index timestamp: {timestamp}, log timestamp: {scan.max_timestamp}"
        yield Problem("Found timestamp mismatch in :{}", text)
    if before >= timestamp:
        text = f"  Index timestamp: {timestamp}, Previously indexed timestamp: {before}"
        yield Problem("Found out of order timestamp in :{}", text)


def _aborted_entries(files: Files, path: str) -> Iterator[Aborted]:
    index = aborted_entries(files, path)
    for row in index.rows():
        yield Aborted(*row)
    if index.fault:
        raise StorageError(f"{path}: {index.fault}")


def _producer_entries(files: Files, path: str) -> Iterator[ProducerEntry]:
    return iter(decode_snapshot(files.read(path), path))


def _epoch_entries(files: Files, path: str) -> Iterator[Epoch]:
    try:
        fields = parse_checkpoint(files.read(path), 2, path)
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is missing") from None
    for epoch, start in fields:
        yield Epoch(int(epoch), int(start))


# -- as text


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _line(entry: FileEntry, path: str, options: DumpOptions) -> str:
    match entry:
        case StoredBatch():
            return _batch_line(entry)
        case StoredRecord():
            return _record_line(entry, options)
        case IndexEntry(offset, position):
            return f"offset: {offset} position: {position}"
        case TimeIndexEntry(timestamp, offset):
            return f"timestamp: {timestamp} offset: {offset}"
        case InvalidBytes(size):
            return f"Found {size} invalid bytes at the end of {os.path.basename(path)}"
        case Aborted():
            return (
                f"version: {entry.version} producerId: {entry.producer_id} "
                f"firstOffset: {entry.first_offset} lastOffset: {entry.last_offset} "
                f"lastStableOffset: {entry.last_stable_offset}"
            )
        case Epoch(epoch, start_offset):
            return f"epoch: {epoch} startOffset: {start_offset}"
        case TopicId(topic_id):
            return f"topicId: {topic_id}"
        case ProducerEntry():
            return _producer_line(entry)


def _producer_line(producer: ProducerEntry) -> str:
    first_offset = producer.transaction_first_offset
    line = (
        f"producerId: {producer.producer_id} producerEpoch: {producer.epoch} "
        f"coordinatorEpoch: {producer.coordinator_epoch} "
        f"currentTxnFirstOffset: {_optional(None if first_offset < 0 else first_offset)} "
        f"lastTimestamp: {producer.last_timestamp} "
    )
    for batch in producer.batches:  # A snapshot has at most one.
        line += (
            f"firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} "
            f"lastOffset: {batch.last_offset} offsetDelta: {batch.offset_delta} "
            f"timestamp: {batch.timestamp}"
        )
    return line


def _batch_line(entry: StoredBatch) -> str:
    batch = entry.stored
    line = f"offset: {batch.last_offset} "
    if isinstance(batch, Batch):
        line = (
            f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.record_count} "
            f"baseSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} "
            f"producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
            f"partitionLeaderEpoch: {batch.leader_epoch} isTransactional: {_bool(batch.is_transactional)} "
            f"isControl: {_bool(batch.is_control)} deleteHorizonMs: {_optional(delete_horizon_ms(batch))} "
        )
    return (
        f"{line}position: {entry.position} {entry.timestamp_type}: {entry.max_timestamp} "
        f"size: {batch.size} magic: {batch.magic} compresscodec: {entry.codec_name} "
        f"crc: {batch.crc} isvalid: {_bool(entry.is_valid)}"
    )


def _record_line(entry: StoredRecord, options: DumpOptions) -> str:
    stored, record = entry
    parts = []
    if not options.skip_metadata:
        parts.append(
            f"offset: {record.offset} {TIMESTAMP_TYPES[record.timestamp_type]}: {record.timestamp} "
            f"keySize: {size_of(record.key)} valueSize: {size_of(record.value)}"
        )
        if isinstance(stored, Entry):
            parts.append(f"isValid: true crc: {stored.crc}")
        else:
            names = ",".join(name for name, _ in record.headers)
            parts.append(f"sequence: {entry.sequence} headerKeys: [{names}]")
        if entry.is_control:
            parts.append(_control_text(entry, options))
    if options.contents and not entry.is_control:
        key, value = options.decode(record)
        if key is not None:
            parts.append(f"key: {key}")
        if value is not None:
            parts.append(f"payload: {value}")
    return f"| {' '.join(parts)}" if parts else ""


def _control_text(entry: StoredRecord, options: DumpOptions) -> str:
    control = entry.control
    if control is None:
        return "controlType: UNKNOWN(None)"
    number = control.control_type
    if number in MARKER_NAMES:
        epoch = None if control.marker is None else control.marker.coordinator_epoch
        return f"endTxnMarker: {MARKER_NAMES[number]} coordinatorEpoch: {epoch}"
    text = options.decode_control(number, entry.record.value)
    return f"controlType: {CONTROL_NAMES.get(number, 'UNKNOWN')}({number})" if text is None else text


def _bool(value: bool) -> str:
    return "true" if value else "false"
