"""Formats the files of a partition for people: the output of ``tidemill log dump``.

:func:`entries` returns plain dictionaries, for programs; :func:`lines` the lines that Kafka's
``kafka-dump-log`` prints for the same file, so that scripts around that tool keep working.

The files may be in use: nothing is written to them, and data that a running broker has not written yet is
missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

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
from tidemill.log.producer_state_manager import decode_snapshot
from tidemill.log.time_index import TimeIndex
from tidemill.log.transaction_index import Aborted
from tidemill.log_tools.dump_log import log_entries
from tidemill.log_tools.index_entries import aborted_entries, offset_entries, time_entries
from tidemill.log_tools.java_text import java_text
from tidemill.model.errors import ConfigError, StorageError
from tidemill.model.system_interfaces import File, Files
from tidemill.records.batch import CURRENT_MAGIC, NO_PRODUCER_ID
from tidemill.records.varint import INT64_MAX

CONTROL_NAMES: Final = {
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
HOLES: Final = "Non-consecutive offsets in {}"
"""The heading for gaps that compaction leaves: no damage."""
_NOT_FOUND: Final = "The following indexed offsets are not found in :{}"

Decoder: TypeAlias = "Callable[[dict[str, Any]], tuple[str | None, str | None]]"
"""Returns the texts of a record's key and value; None for a field that is not shown."""


def utf8(record: dict[str, Any]) -> tuple[str | None, str | None]:
    """Decodes key and value as UTF-8, with replacement characters for invalid bytes."""
    key, value = record["key"], record["value"]
    return None if key is None else java_text(key), None if value is None else java_text(value)


def _no_control(record: dict[str, Any]) -> str | None:
    return None


class DumpOptions(NamedTuple):
    """The output options, with the meaning of those of ``kafka-dump-log``."""

    unpacked_bytes_max: int
    """The limit for the unpacked records of one compressed batch."""
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
    decode: Decoder = utf8
    decode_control: Callable[[dict[str, Any]], str | None] = _no_control
    """Returns the text of a control record other than a transaction marker; None for an unknown one."""


def entries(
    files: Files,
    path: str,
    *,
    records: bool = False,
    bytes_max: int = -1,
    unpacked_bytes_max: int,
) -> Iterator[dict[str, Any]]:
    """Yields the contents of a file of a partition's directory, by the suffix of its name.

    Each dictionary has a ``kind``: ``batch``, ``record`` (with ``records``), ``invalid_bytes``,
    ``index_entry``, ``time_index_entry``, ``mismatch``, ``problem``, ``aborted``, ``producer``, ``epoch``,
    ``topic_id``. Raises ConfigError for a file of another kind, OSError when it cannot be read, StorageError
    when its content is malformed.
    """
    name = os.path.basename(path)
    if is_log(name):
        return log_entries(files, path, records, bytes_max, unpacked_bytes_max)
    if offset_of(name, INDEX) >= 0:
        return _index_entries(files, path)
    if offset_of(name, TIME_INDEX) >= 0:
        return _time_index_entries(files, path)
    if offset_of(name, TRANSACTION_INDEX) >= 0:
        return _aborted_entries(files, path)
    if offset_of(name, SNAPSHOT) >= 0:
        return _producer_entries(files, path)
    if name == LEADER_EPOCHS:
        return _epoch_entries(files, path)
    if name == PARTITION_METADATA:
        return iter([{"kind": "topic_id", "topic_id": read_partition_metadata(files, path).hex()}])
    raise ConfigError(
        f"{path} is not a file of a log: give one that ends in {LOG}, {INDEX}, {TIME_INDEX}, "
        f"{TRANSACTION_INDEX}, {SNAPSHOT} or {METADATA_SNAPSHOT}, {LEADER_EPOCHS} or {PARTITION_METADATA}"
    )


def is_log(name: str) -> bool:
    """Whether a file of this name contains batches."""
    return offset_of(name, LOG) >= 0 or (name.endswith(METADATA_SNAPSHOT) and name != METADATA_SNAPSHOT)


def lines(
    files: Files,
    path: str,
    options: DumpOptions,
    problems: list[str] | None = None,
    on_entry: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[str]:
    """Yields the file's lines as ``kafka-dump-log`` prints them.

    The findings that this tool prints on its standard error at the end (index entries that do not match the
    log, gaps between offsets) are appended to ``problems``; without a list, they follow the other lines.
    ``on_entry`` is called with the entry of each line.
    """
    deep = options.deep or options.contents
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
        records=deep,
        bytes_max=options.bytes_max,
        unpacked_bytes_max=options.unpacked_bytes_max,
    ):
        empty = False
        if on_entry is not None:
            on_entry(entry)
        kind = entry["kind"]
        if kind == "mismatch":
            text = f"  Index offset: {entry['index_offset']}, log offset: {entry['log_offset']}"
            found.setdefault("Mismatches in :{}", []).append(text)
        elif kind == "problem":
            found.setdefault(entry["heading"], []).append(entry["text"])
        elif not (is_index and options.verify_only):
            yield _line(entry, path, options)
        if kind == "record":
            if 0 <= last_offset != entry["offset"] - 1:
                text = f"  {last_offset} is followed by {entry['offset']}"
                found.setdefault(HOLES, []).append(text)
            last_offset = entry["offset"]
    if empty:
        yield f"{path} is empty."
    findings = problems if problems is not None else []
    for heading, texts in found.items():
        findings += [heading.format(os.path.abspath(path)), *texts]
    if problems is None:
        yield from findings


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
    if offset_of(name, INDEX) >= 0:
        base = offset_of(name, INDEX)
        log_path = os.path.join(os.path.dirname(path), offset_name(base, LOG))
        index = OffsetIndex(files, path, base, files.size(path))
        damage = index.damage(files.size(log_path) if files.exists(log_path) else 0)
        if not damage and index.entries == 0:
            return f"{path} is empty."
    else:
        base = offset_of(name, TIME_INDEX)
        damage = TimeIndex(files, path, base, files.size(path)).damage(INT64_MAX)
    if damage:
        raise StorageError(f"{path}: {damage}; the next start rebuilds it from the log")
    return f"{path} passed sanity check."


# -- the other files


def _log_beside(files: Files, path: str, base: int) -> File | None:
    """Opens the log file of an index, if it exists."""
    log_path = os.path.join(os.path.dirname(path), offset_name(base, LOG))
    return files.open(log_path, read_only=True) if files.exists(log_path) else None


def _index_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    base = offset_of(os.path.basename(path), INDEX)
    log = _log_beside(files, path, base)
    log_bytes = int(log.size()) if log is not None else 0
    for relative, position in offset_entries(files, path).rows():
        offset = base + relative
        yield {"kind": "index_entry", "offset": offset, "position": position}
        if log is None:
            continue
        scan = BatchScan(log, position, log_bytes)
        found = int(scan.last_offset) if scan.step() else -1
        if found != offset:
            yield {"kind": "mismatch", "index_offset": offset, "log_offset": found}


def _time_index_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    base = offset_of(os.path.basename(path), TIME_INDEX)
    log = _log_beside(files, path, base)
    positions = _Positions(files, os.path.join(os.path.dirname(path), offset_name(base, INDEX)))
    before = -1
    for timestamp, relative in time_entries(files, path).rows():
        offset = base + relative
        yield {"kind": "time_index_entry", "timestamp": timestamp, "offset": offset}
        if log is not None:
            scan = BatchScan(log, positions.lookup(relative), log.size())
            yield from _time_problems(scan, timestamp, offset, before)
        before = timestamp


class _Positions:
    """Positions in the log from which to search for mostly increasing offsets; 0 without an index."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._restart()

    def _restart(self) -> None:
        is_there = self._files.exists(self._path)
        self._rows = offset_entries(self._files, self._path).rows() if is_there else iter(())
        self._position = 0
        self._reached = -1
        self._next = next(self._rows, None)

    def lookup(self, relative: int) -> int:
        """Returns the position of the last entry up to the offset ``relative``; 0 without such an entry."""
        if relative < self._reached:
            self._restart()
        while self._next is not None and self._next[0] <= relative:
            self._reached, self._position = self._next
            self._next = next(self._rows, None)
        return self._position


def _time_problems(scan: BatchScan, timestamp: int, offset: int, before: int) -> Iterator[dict[str, Any]]:
    """Yields the findings of ``kafka-dump-log`` for a time index entry that does not match the log."""
    found = -1
    while scan.step():
        if scan.last_offset >= offset:
            found = int(scan.last_offset)
            break
    if found != offset:
        text = f"Indexed offset: {offset}, found log offset: {found}"
        yield {"kind": "problem", "heading": _NOT_FOUND, "text": text}
        return
    if scan.max_timestamp != timestamp:
        text = f"  Index timestamp: {timestamp}, log timestamp: {scan.max_timestamp}"
        yield {"kind": "problem", "heading": "Found timestamp mismatch in :{}", "text": text}
    if before >= timestamp:
        text = f"  Index timestamp: {timestamp}, Previously indexed timestamp: {before}"
        yield {"kind": "problem", "heading": "Found out of order timestamp in :{}", "text": text}


def _aborted_entries(files: Files, path: str) -> Iterator[dict[str, Any]]:
    index = aborted_entries(files, path)
    for row in index.rows():
        yield {"kind": "aborted", **Aborted(*row)._asdict()}
    if index.fault:
        raise StorageError(f"{path}: {index.fault}")


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
        raise CheckpointDamaged(f"{path} is missing") from None
    for epoch, start in fields:
        yield {"kind": "epoch", "epoch": int(epoch), "start_offset": int(start)}


# -- as text


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _line(entry: dict[str, Any], path: str, options: DumpOptions) -> str:
    kind = entry["kind"]
    if kind == "batch":
        return _batch_line(entry)
    if kind == "record":
        return _record_line(entry, options)
    if kind == "index_entry":
        return f"offset: {entry['offset']} position: {entry['position']}"
    if kind == "time_index_entry":
        return f"timestamp: {entry['timestamp']} offset: {entry['offset']}"
    if kind == "invalid_bytes":
        return f"Found {entry['count']} invalid bytes at the end of {os.path.basename(path)}"
    if kind == "aborted":
        return (
            f"version: {entry['version']} producerId: {entry['producer_id']} "
            f"firstOffset: {entry['first_offset']} lastOffset: {entry['last_offset']} "
            f"lastStableOffset: {entry['last_stable_offset']}"
        )
    if kind == "epoch":
        return f"epoch: {entry['epoch']} startOffset: {entry['start_offset']}"
    if kind == "topic_id":
        return f"topicId: {entry['topic_id']}"
    return _producer_line(entry)


def _producer_line(entry: dict[str, Any]) -> str:
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
    if entry["magic"] < CURRENT_MAGIC:
        return (
            f"offset: {entry['last_offset']} position: {entry['position']} "
            f"{entry['timestamp_type']}: {entry['max_timestamp']} size: {entry['size']} "
            f"magic: {entry['magic']} compresscodec: {entry['codec']} "
            f"crc: {entry['crc']} isvalid: {_bool(entry['valid'])}"
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


def _record_line(entry: dict[str, Any], options: DumpOptions) -> str:
    parts = []
    if not options.skip_metadata:
        parts.append(
            f"offset: {entry['offset']} {entry['timestamp_type']}: {entry['timestamp']} "
            f"keySize: {entry['key_size']} valueSize: {entry['value_size']} "
        )
        if entry["magic"] < CURRENT_MAGIC:
            parts[0] += f"isValid: {_bool(entry['valid'])} crc: {entry['crc']}"
        else:
            names = ",".join(name for name, _ in entry["headers"])
            parts[0] += f"sequence: {entry['sequence']} headerKeys: [{names}]"
        if entry["control"]:
            parts.append(_control_text(entry, options))
    if options.contents and not entry["control"]:
        key, value = options.decode(entry)
        if key is not None:
            parts.append(f"key: {key}")
        if value is not None:
            parts.append(f"payload: {value}")
    return f"| {' '.join(parts)}" if parts else ""


def _control_text(entry: dict[str, Any], options: DumpOptions) -> str:
    if entry["marker"] is not None:
        return f"endTxnMarker: {entry['marker']} coordinatorEpoch: {entry['coordinator_epoch']}"
    text = options.decode_control(entry)
    if text is not None:
        return text
    number = entry["control_type"]
    name = CONTROL_NAMES.get(-1 if number is None else number, "UNKNOWN")
    return f"controlType: {name}({number})"


def _bool(value: bool) -> str:
    return "true" if value else "false"
