"""Reads records one by one, for tools and for state that is rebuilt from a log: one Python object each.

For millions of records use :mod:`tidemill.records.columns`. The layout of a record is in
:mod:`tidemill.records.record_cursor`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import i64

from tidemill.records.batch import CURRENT_MAGIC, MAGIC, Batch, check_crc, parse_batch, whole_batch_size
from tidemill.records.legacy_formats import Entry, parse_entry
from tidemill.records.record_cursor import BatchCursor, EntryCursor, RecordCursor


class Record:
    """One record of a log, as consumers see it."""

    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        """In ms since 1970 UTC, -1 where there is none."""
        self.timestamp_type = timestamp_type
        """-1 none (format v0), 0 create time, 1 append time."""
        self.key = key
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


def iter_stored(data: bytes, position: i64 = 0) -> Iterator[Batch | Entry]:
    """Yields the whole batches in ``data``, and the entries of formats v0 and v1 in old logs.

    An incomplete last item is skipped. Raises CorruptMessage and InvalidRecord; checksums are not checked.
    """
    while whole_batch_size(data, position, len(data)) > 0:
        if data[position + MAGIC] < CURRENT_MAGIC:
            entry = parse_entry(data, position, len(data), False)
            yield entry
            position += entry.size
        else:
            batch = parse_batch(data, position, len(data))
            yield batch
            position += batch.size


def read_stored(stored: Batch | Entry, check_crcs: bool, unpacked_bytes_max: i64) -> list[Record]:
    """Returns all records of a batch or an entry, unpacked. Raises CorruptMessage and InvalidRecord."""
    if isinstance(stored, Batch):
        if check_crcs:
            check_crc(stored)
        return read_records(stored, unpacked_bytes_max)
    entry = parse_entry(stored.data, stored.position, stored.position + stored.size, check_crcs)
    cursor = EntryCursor(entry, unpacked_bytes_max)
    records: list[Record] = []
    while cursor.step():
        records.append(_record(cursor, []))
    return records


def iter_records(
    data: bytes, unpacked_bytes_max: i64, start_offset: i64 = 0, check_crcs: bool = True
) -> Iterator[Record]:
    """Yields the records in ``data`` from ``start_offset`` on, without those of control batches.

    Raises CorruptMessage for a wrong checksum, CorruptMessage or InvalidRecord for malformed records.
    """
    for stored in iter_stored(data):
        if stored.last_offset < start_offset:
            continue
        if isinstance(stored, Batch) and stored.is_control:
            if check_crcs:
                check_crc(stored)
            continue
        for record in read_stored(stored, check_crcs, unpacked_bytes_max):
            if record.offset >= start_offset:
                yield record


def read_records(batch: Batch, unpacked_bytes_max: i64) -> list[Record]:
    """Returns all records of one batch, unpacked; the checksum is not checked."""
    cursor = BatchCursor(batch, None, unpacked_bytes_max)
    records: list[Record] = []
    while cursor.step():
        headers: list[tuple[str, bytes | None]] = []
        while cursor.step_header():
            headers.append((cursor.header_key, cursor.header_value))
        records.append(_record(cursor, headers))
    return records


def _record(cursor: RecordCursor, headers: list[tuple[str, bytes | None]]) -> Record:
    return Record(cursor.offset, cursor.timestamp, cursor.timestamp_type, cursor.key, cursor.value, headers)
