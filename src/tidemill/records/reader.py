"""Records one by one, for tools and for state that is rebuilt from a log: a Python object each.

Whoever wants millions takes :mod:`tidemill.records.columns`. The layout of a record is in
:mod:`tidemill.records.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import i64

from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import (
    CURRENT_MAGIC,
    MAGIC,
    NONE,
    RECORD_BYTES_MIN,
    RECORDS,
    Batch,
    check_crc,
    parse_batch,
    whole_batch_size,
    wrong_record,
)
from tidemill.records.compression import decompress_range
from tidemill.records.cursor import APPEND_TIME, CREATE_TIME, EntryCursor
from tidemill.records.legacy import Entry, parse_entry
from tidemill.records.validate import HEADER_BYTES_MIN, RECORD_LENGTH_MIN, add_timestamp
from tidemill.records.varint import read_varint, read_varlong


class Record:
    """One record of a log, as a consumer sees it."""

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
        """ms since 1970 UTC, -1 where there is none."""
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


def iter_batches(data: bytes, position: i64 = 0) -> Iterator[Batch]:
    """The whole batches in ``data``; a last one that is cut off is left out.

    Raises CorruptMessage, for formats v0 and v1 too.
    """
    while whole_batch_size(data, position, len(data)) > 0:
        batch = parse_batch(data, position, len(data))
        yield batch
        position += batch.size


def iter_stored(data: bytes, position: i64 = 0) -> Iterator[Batch | Entry]:
    """The whole batches in ``data``, and the entries of formats v0 and v1 where a log holds such.

    A last one that is cut off is left out. Raises CorruptMessage and InvalidRecord; no checksum is looked at.
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


def read_stored(
    stored: Batch | Entry, check_crcs: bool = True, unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX
) -> list[Record]:
    """All records of a batch or an entry, unpacked. Raises CorruptMessage and InvalidRecord."""
    if isinstance(stored, Batch):
        if check_crcs:
            check_crc(stored)
        return read_records(stored, unpacked_bytes_max)
    entry = parse_entry(stored.data, stored.position, stored.position + stored.size, check_crcs)
    cursor = EntryCursor(entry, unpacked_bytes_max)
    records: list[Record] = []
    while cursor.step():
        records.append(
            Record(cursor.offset, cursor.timestamp, cursor.timestamp_type, cursor.key, cursor.value, [])
        )
    return records


def iter_records(
    data: bytes,
    start_offset: i64 = 0,
    check_crcs: bool = True,
    unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX,
) -> Iterator[Record]:
    """The records in ``data`` from ``start_offset`` on, without those of control batches.

    Raises CorruptMessage for a wrong checksum, CorruptMessage or InvalidRecord for records out of shape.
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


def read_records(batch: Batch, unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX) -> list[Record]:
    """All records of one batch, unpacked; the checksum is not looked at."""
    data = batch.data
    position: i64 = batch.position + RECORDS
    end: i64 = batch.position + batch.size
    if batch.codec != NONE:
        data = decompress_range(batch.codec, data, position, end, unpacked_bytes_max)
        position = 0
        end = len(data)
    if batch.record_count > (end - position) // RECORD_BYTES_MIN:
        raise wrong_record(batch, "count", batch.record_count)
    records: list[Record] = []
    last_delta: i64 = -1
    left: i64 = batch.record_count
    while left > 0:
        length, position = read_varint(data, position, end)
        if length < RECORD_LENGTH_MIN or length > end - position:
            raise wrong_record(batch, "length", length)
        record = _read_record(batch, data, position, position + length)
        delta: i64 = record.offset - batch.base_offset
        if delta <= last_delta or delta > batch.last_offset_delta:
            raise wrong_record(batch, "offset delta", delta)
        last_delta = delta
        records.append(record)
        position += length
        left -= 1
    if position != end:
        raise wrong_record(batch, "rest", end - position)
    return records


def _read_record(batch: Batch, data: bytes, position: i64, end: i64) -> Record:
    delta, position = read_varlong(data, position + 1, end)
    offset_delta, position = read_varint(data, position, end)
    length, position = read_varint(data, position, end)
    key = _field(batch, data, position, length, end)
    position += length if length > 0 else 0
    length, position = read_varint(data, position, end)
    value = _field(batch, data, position, length, end)
    position += length if length > 0 else 0
    count, position = read_varint(data, position, end)
    if count < 0 or count > (end - position) // HEADER_BYTES_MIN:
        raise wrong_record(batch, "header count", count)
    headers: list[tuple[str, bytes | None]] = []
    while count > 0:
        length, position = read_varint(data, position, end)
        if length < 0 or length > end - position:
            raise wrong_record(batch, "header key length", length)
        name = data[position : position + length].decode("utf-8", "replace")
        length, position = read_varint(data, position + length, end)
        headers.append((name, _field(batch, data, position, length, end)))
        position += length if length > 0 else 0
        count -= 1
    if position != end:
        raise wrong_record(batch, "rest", end - position)
    if batch.append_time:
        return Record(batch.base_offset + offset_delta, batch.max_timestamp, APPEND_TIME, key, value, headers)
    timestamp = add_timestamp(batch.base_timestamp, delta)
    return Record(batch.base_offset + offset_delta, timestamp, CREATE_TIME, key, value, headers)


def _field(batch: Batch, data: bytes, position: i64, length: i64, end: i64) -> bytes | None:
    if length == -1:
        return None
    if length < 0 or length > end - position:
        raise wrong_record(batch, "field length", length)
    return data[position : position + length]
