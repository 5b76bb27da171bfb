"""Decodes what a fetch brought into columns, without a Python object for each record.

The records' own bytes are the value column, seen through *edges*: positions in the buffer, two for each
record, where its value begins and where it ends. Arrow takes a binary array with the offsets
``e0 e1 e2 e3 ...`` over the buffer as it is, whose elements are in turn a value and the bytes between it and
the next one; keeping every second element copies each value once, in C++
(:mod:`tidemill.records.arrow`). Keys and headers go the same way.

=================  =========  =====================================================================
column             held as    notes
=================  =========  =====================================================================
key                edges i32  nothing when no record has a key; validity, a byte each, when some have
value              edges i32  likewise
offset             i64
timestamp          i64        microseconds since 1970 UTC; -1000 for a record without a time; 2**63 - 1 or
                              its negative for one that microseconds cannot hold
timestamp type     runs       (records, type): -1 none (v0), 0 create time, 1 append time
headers            i32        where each record's headers begin; then edges of their keys and values
=================  =========  =====================================================================

A fetch may bring all message formats, one after the other: what an old broker stored stays as it was.

Edges are int32, as the offsets of Arrow's ``binary`` are: so decoding stops at a batch once it has
``bytes_max`` bytes, and says where to go on.

What it does not promise: that offsets are without gaps (compaction, transactions and control batches leave
some), or that times are in order.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from librt.vecs import append
from mypy_extensions import i32, i64

from tidemill.model.errors import CorruptMessage
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import (
    CODEC_MASK,
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
from tidemill.records.builder import ABORT_MARKER
from tidemill.records.compression import decompress_range
from tidemill.records.cursor import EntryCursor
from tidemill.records.legacy import parse_entry
from tidemill.records.validate import HEADER_BYTES_MIN, RECORD_LENGTH_MIN, add_timestamp
from tidemill.records.varint import read_varint, read_varlong
from tidemill.records.vectors import Columns, HeaderFields, to_microseconds

BYTES_MAX: Final = 64 * 1024 * 1024
"""Unpacked bytes of one decode, by default."""

EDGE_MAX: Final = 0x7FFFFFFF

DELTA_MAX: Final = 1 << 50
"""Milliseconds; two of them make an int64 in microseconds."""

APPEND_TIME: Final = 1
USUAL_TIME: Final = 2
UNUSUAL_TIME: Final = 3
"""How the time of a batch's records comes about; the last needs all checks."""

OFFSET_MAX: Final = 0x7FFFFFFFFFFFFFFF


def decode_columns(
    data: bytes,
    start_offset: i64 = 0,
    end_offset: i64 = OFFSET_MAX,
    position: i64 = 0,
    want_headers: bool = False,
    check_crcs: bool = True,
    bytes_max: i64 = BYTES_MAX,
    aborted: list[tuple[int, int]] | None = None,
    begin: i64 = 0,
    end: i64 = -1,
    unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX,
) -> Columns:
    """The records with ``start_offset <= offset < end_offset`` in ``data``, from byte ``position`` on.

    ``data[begin:end]`` (to the end of ``data`` where ``end`` is -1) is what a fetch answered for a partition:
    whole batches, and perhaps a last one that is cut off, which is left out. Control batches are left out
    too, and the batches of ``aborted`` transactions: (producer id, first offset) each, as a fetch with
    read_committed lists them.

    Stops once the records have ``bytes_max`` bytes unpacked, but takes one batch at least. Raises
    CorruptMessage and InvalidRecord for bytes that no broker may send, UnpackedTooLarge for a batch of more
    than ``unpacked_bytes_max``.
    """
    plan = _Plan(data, begin, len(data) if end < 0 else end, start_offset, end_offset, check_crcs, aborted)
    plan.unpacked_bytes_max = unpacked_bytes_max
    plan.skip_to(position)
    plan.collect(bytes_max if bytes_max < EDGE_MAX else EDGE_MAX)
    columns = Columns(plan.buffer(), plan.records, want_headers)
    for run in plan.runs:
        first: i64 = columns.count
        batch = run.batch
        cursor = run.cursor
        if batch is not None:
            _walk(columns, run, batch, start_offset, end_offset)
        elif cursor is not None:
            _walk_messages(columns, cursor, run.position - run.origin, start_offset, end_offset)
        if columns.count > first:
            columns.add_type(columns.count - first, run.timestamp_type)
    headers = columns.headers
    if headers is not None:
        headers.begins = append(headers.begins, i32(headers.count))
    columns.next_offset = plan.next_offset
    columns.next_position = plan.position
    columns.unfinished = plan.unfinished
    return columns


class _Run:
    """The records of one batch or entry: where they are in the buffer, or their bytes until there is one."""

    def __init__(self, timestamp_type: i64, position: i64, end: i64, unpacked: bytes | None) -> None:
        self.batch: Batch | None = None
        self.cursor: EntryCursor | None = None
        """Of an entry of v0 or v1; it tells positions that begin at :attr:`origin`."""
        self.origin: i64 = 0 if unpacked is not None else position
        self.timestamp_type: i64 = timestamp_type
        self.position: i64 = position
        self.end: i64 = end
        self.unpacked = unpacked


class _Plan:
    """Which batches are decoded, and the buffer that holds their records."""

    def __init__(
        self,
        data: bytes,
        begin: i64,
        end: i64,
        start_offset: i64,
        end_offset: i64,
        check_crcs: bool,
        aborted: list[tuple[int, int]] | None,
    ) -> None:
        if len(data) > EDGE_MAX:
            raise ValueError(f"{len(data)} bytes are more than the {EDGE_MAX} that one decode takes")
        self.data = data
        self.end: i64 = end
        self.start_offset: i64 = start_offset
        self.end_offset: i64 = end_offset
        self.check_crcs = check_crcs
        self.unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX
        self.aborted = sorted(aborted or [], key=_first_offset)
        self.aborted_index: i64 = 0
        self.aborting: set[int] = set()
        self.runs: list[_Run] = []
        self.records: i64 = 0
        self.bytes: i64 = 0
        self.position: i64 = begin
        self.next_offset: i64 = -1
        self.unfinished = False

    def skip_to(self, position: i64) -> None:
        """Goes to the batch at ``position``, and looks at those before it for ends of transactions only."""
        if not self.aborted:
            if position > self.position:
                self.position = position
            return
        while self.position < position:
            if self._at_entry():
                self.position += whole_batch_size(self.data, self.position, self.end)
                continue
            batch = parse_batch(self.data, self.position, self.end)
            self._is_wanted(batch)
            self.position += batch.size

    def collect(self, bytes_max: i64) -> None:
        """Chooses batches until their records have ``bytes_max`` bytes, and unpacks those that need it."""
        data = self.data
        end: i64 = self.end
        while whole_batch_size(data, self.position, end) > 0:
            if self._at_entry():
                if self._collect_entry(bytes_max):
                    continue
                return
            batch = parse_batch(data, self.position, end)
            if batch.base_offset < self.next_offset:
                raise _out_of_order(batch.position, batch.base_offset, self.next_offset)
            if batch.base_offset >= self.end_offset:
                self.next_offset = self.end_offset
                return
            if batch.last_offset >= self.start_offset:
                if self.bytes >= bytes_max:
                    self.unfinished = True
                    return
                if self.check_crcs:
                    check_crc(batch)
            if self._is_wanted(batch) and batch.last_offset >= self.start_offset:
                self._add(batch)
            self.position += batch.size
            self.next_offset = batch.next_offset
        if self.next_offset > self.end_offset:
            self.next_offset = self.end_offset

    def _at_entry(self) -> bool:
        """Whether an entry of v0 or v1 is next."""
        at: i64 = self.position + MAGIC
        return at < self.end and self.data[at] < CURRENT_MAGIC

    def _collect_entry(self, bytes_max: i64) -> bool:
        """Chooses the entry that is next; False at the end of what is wanted."""
        entry = parse_entry(self.data, self.position, self.end, self.check_crcs)
        if entry.offset < self.next_offset:
            raise _out_of_order(entry.position, entry.offset, self.next_offset)
        if entry.codec == NONE and entry.offset >= self.end_offset:
            self.next_offset = self.end_offset
            return False
        if entry.offset >= self.start_offset:
            if self.bytes >= bytes_max:
                self.unfinished = True
                return False
            cursor = EntryCursor(entry, self.unpacked_bytes_max)
            unpacked = cursor.data if entry.codec != NONE else None
            run = _Run(cursor.timestamp_type, cursor.position, cursor.end, unpacked)
            run.cursor = cursor
            self.runs.append(run)
            self.records += cursor.count
            self.bytes += cursor.end - cursor.position
        self.position += entry.size
        self.next_offset = entry.offset + 1
        return True

    def buffer(self) -> bytes:
        """The fetched bytes as they are; when a batch is compressed, the records of all batches in a row."""
        pieces: list[bytes] = []
        compressed = False
        for run in self.runs:
            if run.unpacked is not None:
                compressed = True
        if not compressed:
            return self.data
        position: i64 = 0
        for run in self.runs:
            piece = run.unpacked
            if piece is None:
                piece = self.data[run.position : run.end]
            run.unpacked = None
            run.position = position
            position += len(piece)
            run.end = position
            pieces.append(piece)
        if position > EDGE_MAX:
            raise ValueError(f"{position} bytes unpacked are more than {EDGE_MAX}: lower bytes_max")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _add(self, batch: Batch) -> None:
        position: i64 = batch.position + RECORDS
        end: i64 = batch.position + batch.size
        unpacked: bytes | None = None
        size: i64 = end - position
        if batch.attributes & CODEC_MASK != NONE:
            unpacked = decompress_range(batch.codec, self.data, position, end, self.unpacked_bytes_max)
            size = len(unpacked)
        if batch.record_count > size // RECORD_BYTES_MIN:
            raise CorruptMessage(
                f"the batch with base offset {batch.base_offset} says that {batch.record_count} records are "
                f"in {size} bytes: each takes at least {RECORD_BYTES_MIN}"
            )
        run = _Run(1 if batch.append_time else 0, position, end, unpacked)
        run.batch = batch
        self.runs.append(run)
        self.records += batch.record_count
        self.bytes += size

    def _is_wanted(self, batch: Batch) -> bool:
        """Whether applications see the batch; follows transactions by their first offsets and markers."""
        while self.aborted_index < len(self.aborted):
            producer_id, first_offset = self.aborted[self.aborted_index]
            if first_offset > batch.last_offset:
                break
            self.aborting.add(producer_id)
            self.aborted_index += 1
        if batch.is_control:
            if batch.producer_id in self.aborting and end_marker(batch) == ABORT_MARKER:
                self.aborting.discard(batch.producer_id)
            return False
        return not (batch.is_transactional and batch.producer_id in self.aborting)


def end_marker(batch: Batch) -> i64:
    """0 when the control batch aborts a transaction, 1 when it commits one, else its record's type."""
    data = batch.data
    end: i64 = batch.position + batch.size
    _, position = read_varint(data, batch.position + RECORDS, end)
    _, position = read_varlong(data, position + 1, end)
    _, position = read_varint(data, position, end)
    length, position = read_varint(data, position, end)
    if length < 4 or length > end - position:
        raise CorruptMessage(
            f"the control batch with base offset {batch.base_offset} has a key of {length} bytes"
        )
    return i64(read_i16_be(data, position + 2))


def _walk(columns: Columns, run: _Run, batch: Batch, start_offset: i64, end_offset: i64) -> None:
    """Adds the records of one batch that are in the range."""
    data = columns.buffer
    position: i64 = run.position
    end: i64 = run.end
    base_offset: i64 = batch.base_offset
    last_offset_delta: i64 = batch.last_offset_delta
    timestamp: i64 = to_microseconds(batch.max_timestamp)
    base_timestamp: i64 = to_microseconds(batch.base_timestamp)
    time_kind: i64 = _time_kind(batch)
    headers = columns.headers
    key_edges, value_edges = columns.keys.edges, columns.values.edges
    key_nulls, value_nulls = columns.keys.nulls, columns.values.nulls
    offsets, timestamps = columns.offsets, columns.timestamps
    key_null_count: i64 = 0
    value_null_count: i64 = 0
    row: i64 = columns.count
    last_delta: i64 = -1
    left: i64 = batch.record_count
    while left > 0:
        left -= 1
        length, position = read_varint(data, position, end)
        record_end: i64 = position + length
        if length < RECORD_LENGTH_MIN or record_end > end:
            raise wrong_record(batch, "length", length)
        delta, position = read_varlong(data, position + 1, record_end)
        offset_delta, position = read_varint(data, position, record_end)
        if offset_delta <= last_delta or offset_delta > last_offset_delta:
            raise wrong_record(batch, "offset delta", offset_delta)
        last_delta = offset_delta
        offset: i64 = base_offset + offset_delta
        if offset < start_offset or offset >= end_offset:
            position = record_end
            continue
        length, position = read_varint(data, position, record_end)
        if length < -1 or length > record_end - position:
            raise wrong_record(batch, "key length", length)
        key_edges[2 * row] = i32(position)
        if length < 0:
            key_nulls[row] = 1
            key_null_count += 1
        else:
            position += length
        key_edges[2 * row + 1] = i32(position)
        length, position = read_varint(data, position, record_end)
        if length < -1 or length > record_end - position:
            raise wrong_record(batch, "value length", length)
        value_edges[2 * row] = i32(position)
        if length < 0:
            value_nulls[row] = 1
            value_null_count += 1
        else:
            position += length
        value_edges[2 * row + 1] = i32(position)
        if headers is None and position == record_end - 1 and data[position] == 0:
            position = record_end
        else:
            position = _walk_headers(headers, data, position, record_end)
        if time_kind == USUAL_TIME and -DELTA_MAX < delta < DELTA_MAX:
            timestamp = base_timestamp + 1000 * delta
        elif time_kind != APPEND_TIME:
            timestamp = to_microseconds(add_timestamp(batch.base_timestamp, delta))
        offsets[row] = offset
        timestamps[row] = timestamp
        row += 1
    if position != end:
        raise wrong_record(batch, "rest", end - position)
    columns.take(row, key_null_count, value_null_count)


def _walk_messages(
    columns: Columns, cursor: EntryCursor, shift: i64, start_offset: i64, end_offset: i64
) -> None:
    """Adds the messages of one entry of v0 or v1; ``shift`` leads from its positions into the buffer."""
    keys, values, headers = columns.keys, columns.values, columns.headers
    row: i64 = columns.count
    key_null_count: i64 = 0
    value_null_count: i64 = 0
    while cursor.step():
        if cursor.offset < start_offset or cursor.offset >= end_offset:
            continue
        key: i64 = cursor.key_position + shift
        value: i64 = cursor.value_position + shift
        keys.edges[2 * row] = i32(key)
        keys.edges[2 * row + 1] = i32(key + (cursor.key_length if cursor.key_length > 0 else 0))
        values.edges[2 * row] = i32(value)
        values.edges[2 * row + 1] = i32(value + (cursor.value_length if cursor.value_length > 0 else 0))
        if cursor.key_length < 0:
            keys.nulls[row] = 1
            key_null_count += 1
        if cursor.value_length < 0:
            values.nulls[row] = 1
            value_null_count += 1
        if headers is not None:
            headers.begins = append(headers.begins, i32(headers.count))
        columns.offsets[row] = cursor.offset
        columns.timestamps[row] = to_microseconds(cursor.timestamp)
        row += 1
    columns.take(row, key_null_count, value_null_count)


def _walk_headers(headers: HeaderFields | None, data: bytes, position: i64, end: i64) -> i64:
    """Walks over, and adds when they are wanted, the headers at the end of a record; where it ends."""
    count, position = read_varint(data, position, end)
    if count < 0 or count > (end - position) // HEADER_BYTES_MIN:
        raise _wrong_header("count", count, position)
    if headers is not None:
        headers.begins = append(headers.begins, i32(headers.count))
        headers.count += count
    while count > 0:
        length, begin = read_varint(data, position, end)
        if length < 0 or length > end - begin:
            raise _wrong_header("key length", length, position)
        value_length, value_begin = read_varint(data, begin + length, end)
        if value_length < -1 or value_length > end - value_begin:
            raise _wrong_header("value length", value_length, value_begin)
        position = value_begin + (value_length if value_length > 0 else 0)
        if headers is not None:
            headers.key_edges = append(headers.key_edges, i32(begin))
            headers.key_edges = append(headers.key_edges, i32(begin + length))
            headers.value_edges = append(headers.value_edges, i32(value_begin))
            headers.value_edges = append(headers.value_edges, i32(position))
            headers.value_nulls = append(headers.value_nulls, 1 if value_length < 0 else 0)
            if value_length < 0:
                headers.value_null_count += 1
        count -= 1
    if position != end:
        raise _wrong_header("end", end, position)
    return position


def _time_kind(batch: Batch) -> i64:
    if batch.append_time:
        return APPEND_TIME
    return USUAL_TIME if -DELTA_MAX < batch.base_timestamp < DELTA_MAX else UNUSUAL_TIME


def _first_offset(transaction: tuple[int, int]) -> int:
    return transaction[1]


def _out_of_order(position: i64, base_offset: i64, next_offset: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the batch at byte {position} has base offset {base_offset}, "
        f"the one before it ended at {next_offset - 1}"
    )


def _wrong_header(what: str, value: i64, position: i64) -> CorruptMessage:
    return CorruptMessage(f"a record's header has {what} {value} at byte {position}")
