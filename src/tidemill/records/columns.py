"""Decodes fetched records into columns, without a Python object per record.

The records' own bytes are the value column, described by *edges*: two buffer positions per record, the start
and the end of its value. Arrow accepts a binary array with the offsets ``e0 e1 e2 e3 ...`` over the unchanged
buffer. Its elements are alternately a value and the bytes up to the next value; a filter that keeps every
second element copies each value once, in C++ (:mod:`tidemill.records.arrow`). Keys and headers are handled in
the same way.

=================  =========  =====================================================================
column             held as    notes
=================  =========  =====================================================================
key                edges i32  no buffers when no record has a key; validity, a byte each, when some have
value              edges i32  likewise
offset             i64
timestamp          i64        microseconds since 1970 UTC; -1000 for a record without a time; 2**63 - 1 or
                              its negative for one that microseconds cannot hold
timestamp type     runs       (records, type): -1 none (v0), 0 create time, 1 append time
headers            i32        the start of each record's headers; then edges of their keys and values
=================  =========  =====================================================================

A fetch may return all message formats, one after the other: entries of old brokers stay unchanged.

Edges are int32, like the offsets of Arrow's ``binary`` type: so decoding stops at a batch once it has
``bytes_max`` bytes, and returns the position to continue at.

Not promised: offsets without gaps (compaction, transactions and control batches leave gaps), and timestamps
in order.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append
from mypy_extensions import i32, i64

from tidemill.model.errors import CorruptMessage
from tidemill.records.batch import (
    CURRENT_MAGIC,
    MAGIC,
    NO_COMPRESSION,
    Batch,
    check_crc,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.column_vectors import Columns, HeaderFields, to_microseconds
from tidemill.records.end_transaction_marker import is_abort
from tidemill.records.legacy_formats import parse_entry
from tidemill.records.record_cursor import BatchCursor, EntryCursor, RecordCursor

BYTES_MAX: Final = 64 * 1024 * 1024
"""Default limit of unpacked bytes per decode."""

EDGE_MAX: Final = 0x7FFFFFFF

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
    *,
    unpacked_bytes_max: i64,
) -> Columns:
    """Decodes the records with ``start_offset <= offset < end_offset``, from byte ``position`` on.

    ``data[begin:end]`` (to the end of ``data`` where ``end`` is -1) is the data of a partition in a Fetch
    response: whole batches, and possibly an incomplete last batch, which is skipped. Control batches are
    skipped too, and so are the batches of the ``aborted`` transactions: (producer id, first offset) each, as
    in a read_committed Fetch response.

    Stops once the records have ``bytes_max`` bytes unpacked, but decodes at least one batch. Raises
    CorruptMessage and InvalidRecord for invalid bytes, UnpackedTooLarge for a batch of more than
    ``unpacked_bytes_max``.
    """
    stop = len(data) if end < 0 else end
    plan = _Plan(data, begin, stop, start_offset, end_offset, check_crcs, aborted, unpacked_bytes_max)
    plan.skip_to(position)
    plan.collect(bytes_max if bytes_max < EDGE_MAX else EDGE_MAX)
    columns = Columns(plan.buffer(), plan.records, want_headers)
    for cursor in plan.cursors:
        first: i64 = columns.count
        _add_records(columns, cursor, start_offset, end_offset)
        if columns.count > first:
            columns.add_type(columns.count - first, cursor.timestamp_type)
    headers = columns.headers
    if headers is not None:
        headers.begins = append(headers.begins, i32(headers.count))
    columns.next_offset = plan.next_offset
    columns.next_position = plan.position
    columns.unfinished = plan.unfinished
    return columns


class _Plan:
    """The batches to decode, and the buffer with their records."""

    def __init__(
        self,
        data: bytes,
        begin: i64,
        end: i64,
        start_offset: i64,
        end_offset: i64,
        check_crcs: bool,
        aborted: list[tuple[int, int]] | None,
        unpacked_bytes_max: i64,
    ) -> None:
        if len(data) > EDGE_MAX:
            raise ValueError(f"{len(data)} bytes exceed the limit of {EDGE_MAX} bytes per decode")
        self.data = data
        self.end: i64 = end
        self.start_offset: i64 = start_offset
        self.end_offset: i64 = end_offset
        self.check_crcs = check_crcs
        self.unpacked_bytes_max: i64 = unpacked_bytes_max
        self.aborted = sorted(aborted or [], key=_first_offset)
        self.aborted_index: i64 = 0
        self.aborting: set[int] = set()
        self.cursors: list[RecordCursor] = []
        """Of each batch or entry, before its first record."""
        self.records: i64 = 0
        self.bytes: i64 = 0
        self.has_compressed = False
        self.position: i64 = begin
        self.next_offset: i64 = -1
        self.unfinished = False

    def skip_to(self, position: i64) -> None:
        """Moves to the batch at ``position``; tracks transactions in the batches before it."""
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
        """Selects batches until their records have ``bytes_max`` bytes, and unpacks compressed ones."""
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
                self._add(BatchCursor(batch, None, self.unpacked_bytes_max))
            self.position += batch.size
            self.next_offset = batch.next_offset
        if self.next_offset > self.end_offset:
            self.next_offset = self.end_offset

    def _at_entry(self) -> bool:
        """Whether the next item is an entry of v0 or v1."""
        at: i64 = self.position + MAGIC
        return at < self.end and self.data[at] < CURRENT_MAGIC

    def _collect_entry(self, bytes_max: i64) -> bool:
        """Selects the next entry; False at the end of the range or at ``bytes_max``."""
        entry = parse_entry(self.data, self.position, self.end, self.check_crcs)
        if entry.offset < self.next_offset:
            raise _out_of_order(entry.position, entry.offset, self.next_offset)
        if entry.codec == NO_COMPRESSION and entry.offset >= self.end_offset:
            self.next_offset = self.end_offset
            return False
        if entry.offset >= self.start_offset:
            if self.bytes >= bytes_max:
                self.unfinished = True
                return False
            self._add(EntryCursor(entry, self.unpacked_bytes_max))
        self.position += entry.size
        self.next_offset = entry.offset + 1
        return True

    def buffer(self) -> bytes:
        """Returns the fetched bytes; when a batch is compressed, the records of all batches joined."""
        if not self.has_compressed:
            return self.data
        if self.bytes > EDGE_MAX:
            raise ValueError(f"{self.bytes} bytes unpacked exceed the limit of {EDGE_MAX}: lower bytes_max")
        pieces: list[bytes] = []
        for cursor in self.cursors:
            whole: bool = cursor.codec != NO_COMPRESSION
            pieces.append(cursor.data if whole else cursor.data[cursor.position : cursor.end])
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        position: i64 = 0
        for cursor in self.cursors:
            cursor.move_to(joined, position)
            position = cursor.end
        return joined

    def _add(self, cursor: RecordCursor) -> None:
        self.cursors.append(cursor)
        self.records += cursor.count
        self.bytes += cursor.end - cursor.position
        if cursor.codec != NO_COMPRESSION:
            self.has_compressed = True

    def _is_wanted(self, batch: Batch) -> bool:
        """Whether applications see the batch; tracks transactions by their first offsets and markers."""
        while self.aborted_index < len(self.aborted):
            producer_id, first_offset = self.aborted[self.aborted_index]
            if first_offset > batch.last_offset:
                break
            self.aborting.add(producer_id)
            self.aborted_index += 1
        if batch.is_control:
            if batch.producer_id in self.aborting and is_abort(batch):
                self.aborting.discard(batch.producer_id)
            return False
        return not (batch.is_transactional and batch.producer_id in self.aborting)


def _add_records(columns: Columns, cursor: RecordCursor, start_offset: i64, end_offset: i64) -> None:
    """Adds the records of one batch or entry that are in the offset range."""
    headers = columns.headers
    key_edges, value_edges = columns.keys.edges, columns.values.edges
    key_nulls, value_nulls = columns.keys.nulls, columns.values.nulls
    offsets, timestamps = columns.offsets, columns.timestamps
    key_null_count: i64 = 0
    value_null_count: i64 = 0
    row: i64 = columns.count
    while cursor.step():
        offset: i64 = cursor.offset
        if offset < start_offset or offset >= end_offset:
            continue
        position: i64 = cursor.key_position
        key_edges[2 * row] = i32(position)
        if cursor.key_length < 0:
            key_nulls[row] = 1
            key_null_count += 1
        else:
            position += cursor.key_length
        key_edges[2 * row + 1] = i32(position)
        position = cursor.value_position
        value_edges[2 * row] = i32(position)
        if cursor.value_length < 0:
            value_nulls[row] = 1
            value_null_count += 1
        else:
            position += cursor.value_length
        value_edges[2 * row + 1] = i32(position)
        if headers is not None:
            headers.begins = append(headers.begins, i32(headers.count))
        if cursor.header_count > 0 and isinstance(cursor, BatchCursor):
            _add_headers(headers, cursor)
        offsets[row] = offset
        timestamps[row] = to_microseconds(cursor.timestamp)
        row += 1
    columns.add_rows(row, key_null_count, value_null_count)


def _add_headers(headers: HeaderFields | None, cursor: BatchCursor) -> None:
    """Checks the headers of the current record, and adds them if wanted."""
    while cursor.step_header():
        if headers is None:
            continue
        headers.count += 1
        begin: i64 = cursor.header_key_position
        headers.key_edges = append(headers.key_edges, i32(begin))
        headers.key_edges = append(headers.key_edges, i32(begin + cursor.header_key_length))
        begin = cursor.header_value_position
        headers.value_edges = append(headers.value_edges, i32(begin))
        length: i64 = cursor.header_value_length
        headers.value_edges = append(headers.value_edges, i32(begin + (length if length > 0 else 0)))
        headers.value_nulls = append(headers.value_nulls, 1 if length < 0 else 0)
        if length < 0:
            headers.value_null_count += 1


def _first_offset(transaction: tuple[int, int]) -> int:
    return transaction[1]


def _out_of_order(position: i64, base_offset: i64, next_offset: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the batch at byte {position} has base offset {base_offset}, "
        f"the one before it ended at {next_offset - 1}"
    )
