"""Converts fetched records to Arrow record batches, and Arrow columns to messages.

Record batches have these columns; ``headers`` only if requested:

==============  ==============================================  =======================================
name            type                                            notes
==============  ==============================================  =======================================
key             binary                                          null if the record has none
value           binary                                          null: a tombstone
offset          int64
timestamp       timestamp[us, UTC]                              +-(2**63 - 1): a time beyond its range
timestamp_type  int32                                           0 create time, 1 append time
headers         list<struct<key: string, value: binary>>        null if the record has none
==============  ==============================================  =======================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.records.arrow import to_record_batch
from tidemill.records.column_vectors import Columns

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ["key", "value", "offset", "timestamp", "timestamp_type", "headers"]

ROWS_AT_ONCE = 16_384

SendColumns = tuple[
    list[bytes | None],
    list[bytes | None] | None,
    list[int | None] | None,
    list[list[tuple[str, bytes | None]] | None] | None,
    list[int] | None,
]


def record_batch(columns: Columns) -> pa.RecordBatch:
    """Converts decoded columns to a batch with the columns above."""
    import pyarrow as pa

    batch = to_record_batch(columns)
    return pa.RecordBatch.from_arrays(batch.columns, names=NAMES[: batch.num_columns])


def columns_of(table: Any) -> Iterator[SendColumns]:
    """Yields the columns to send of a Table or RecordBatch: values, keys, times, headers, partitions.

    The rows come in slices. Raises ValueError without a column ``value``, or for a column of another type.
    """
    import pyarrow as pa

    if "value" not in table.schema.names:
        raise ValueError(f"the table has the columns {table.schema.names} and no column value to send")
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            values = _column(part, "value", _bytes)
            yield (
                values if values is not None else [],
                _column(part, "key", _bytes),
                _column(part, "timestamp", _times),
                _column(part, "headers", _headers),
                _column(part, "partition", _numbers),
            )


def _column(batch: Any, name: str, convert: Any) -> Any:
    if name not in batch.schema.names:
        return None
    return convert(batch.column(name), name)


def _bytes(column: Any, name: str) -> list[bytes | None]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    elif pa.types.is_null(kind):
        return [None] * len(column)
    elif not (
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        raise ValueError(f"column {name} is {kind}, and must be binary or string; cast it first")
    found: list[bytes | None] = column.to_pylist()
    return found


def _times(column: Any, name: str) -> list[int | None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.unit in ("us", "ns"):
            column = pc.floor_temporal(column, unit="millisecond")
        column = column.cast(pa.timestamp("ms", tz=kind.tz)).cast(pa.int64())
    elif not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise ValueError(
            f"column {name} is {kind}, and must be a timestamp, or int64 milliseconds since 1970"
        )
    found: list[int | None] = column.to_pylist()
    return found


def _numbers(column: Any, name: str) -> list[int]:
    """Converts partitions; null becomes -1, for which the partitioner chooses."""
    found = [None if number is None else int(number) for number in column.to_pylist()]
    wrong = next((number for number in found if number is not None and number < 0), None)
    if wrong is not None:
        raise ValueError(
            f"column {name} has {wrong}: partitions begin at 0, and null leaves the choice to the partitioner"
        )
    return [-1 if number is None else number for number in found]


def _headers(column: Any, name: str) -> list[list[tuple[str, bytes | None]] | None]:
    try:
        return [
            None if entry is None else [(item["key"], item["value"]) for item in entry]
            for entry in column.to_pylist()
        ]
    except (KeyError, TypeError):
        raise ValueError(
            f"column {name} is {column.type}, and must be a list of structs of key and value"
        ) from None
