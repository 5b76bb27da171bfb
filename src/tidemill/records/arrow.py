"""Arrow record batches of decoded columns, in the shape of Spark's Kafka source.

The columns' vectors become Arrow buffers without a copy; keys, values and headers are copied once, by Arrow's
own filter (see :mod:`tidemill.records.columns`). The module is not compiled. It is imported for the first
conversion, because it imports pyarrow, which the broker never needs.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.records.column_vectors import Columns, Field

EVERY_SECOND = b"\x55"
"""A validity byte that keeps elements 0, 2, 4 and 6."""


def to_record_batch(columns: Columns) -> pa.RecordBatch:
    """Converts columns to a record batch with the schema of Spark's Kafka source.

    Its columns are ``key``, ``value`` (binary), ``offset`` (int64), ``timestamp`` (us, UTC) and
    ``timestamp_type`` (int32). With headers, ``headers`` as well: list of struct of ``key`` (string) and
    ``value`` (binary), null for a record without headers, as in Spark. Header keys that are not UTF-8 get
    replacement characters.
    """
    count = int(columns.count)
    timestamps = _fixed(pa.timestamp("us", tz="UTC"), count, columns.timestamps)
    arrays = [
        _binary(columns.buffer, columns.keys, count),
        _binary(columns.buffer, columns.values, count),
        _fixed(pa.int64(), count, columns.offsets),
        timestamps,
        _timestamp_types(columns.timestamp_types),
    ]
    names = ["key", "value", "offset", "timestamp", "timestamp_type"]
    if columns.headers is not None:
        arrays.append(_headers(columns, count))
        names.append("headers")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _buffer(vector: Any) -> Any:
    """Returns the memory of a vector. For an empty vector, pyarrow would abort the process."""
    return pa.py_buffer(getattr(vector, "array", vector)) if len(vector) else pa.py_buffer(b"")


def _fixed(kind: Any, count: int, vector: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, _buffer(vector)])


def _binary(buffer: bytes, field: Field, count: int) -> Any:
    if field.null_count == count:
        return pa.nulls(count, pa.binary())
    return _between_edges(pa.binary(), buffer, field.edges, count, field.nulls, int(field.null_count))


def _between_edges(kind: Any, buffer: bytes, edges: Any, count: int, nulls: Any, null_count: int) -> Any:
    """Returns the byte strings from edge 0 to 1, 2 to 3 and so on."""
    if count == 0:
        return pa.array([], kind)
    with_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, _buffer(edges), pa.py_buffer(buffer)], null_count=0
    )
    mask = pa.py_buffer(EVERY_SECOND * (count // 4 + 1))
    kept = with_gaps.filter(pa.Array.from_buffers(pa.bool_(), 2 * count - 1, [None, mask], null_count=0))
    bitmap = _bitmap(nulls, count) if null_count else None
    _, offsets, content = kept.buffers()
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, content], null_count=null_count)


def _bitmap(nulls: Any, count: int) -> Any:
    """Converts bytes, 1 for each null element, to a validity bitmap."""
    flags = pa.Array.from_buffers(pa.uint8(), count, [None, _buffer(nulls)], null_count=0)
    return pc.equal(flags, 0).buffers()[1]


def _timestamp_types(runs: list[tuple[int, int]]) -> Any:
    pieces = [pa.repeat(pa.scalar(kind, pa.int32()), count) for count, kind in runs]
    if not pieces:
        return pa.array([], pa.int32())
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _headers(columns: Columns, count: int) -> Any:
    headers = columns.headers
    if headers is None:
        raise ValueError("the columns were decoded without headers")
    total = int(headers.count)
    buffer = columns.buffer
    keys = _strings(_between_edges(pa.binary(), buffer, headers.key_edges, total, None, 0))
    nulls = int(headers.value_null_count)
    values = _between_edges(pa.binary(), buffer, headers.value_edges, total, headers.value_nulls, nulls)
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    items = pa.StructArray.from_arrays([keys, values], fields=fields)
    begins = _fixed(pa.int32(), count + 1, headers.begins)
    lists = pa.ListArray.from_arrays(begins, items)
    if total == 0:
        return pa.nulls(count, lists.type)
    some = pc.greater(begins.slice(1), begins.slice(0, count))
    some = pa.concat_arrays([some])
    return pa.Array.from_buffers(
        lists.type, count, [some.buffers()[1], _buffer(headers.begins)], children=[items]
    )


def _strings(keys: Any) -> Any:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
