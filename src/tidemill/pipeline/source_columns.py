"""The columns of the source, as in Spark's Kafka connector, with their Spark and Arrow types.

==============  ==========================================  ==================================
column          Spark                                       Arrow
==============  ==========================================  ==================================
key             binary                                      binary
value           binary                                      binary
topic           string                                      string
partition       int                                         int32
offset          bigint                                      int64
timestamp       timestamp                                   timestamp[us, tz=UTC]
timestampType   int (0 create time, 1 append time)          int32
headers         array<struct<key: string, value: binary>>   list<struct<key, value>>
==============  ==========================================  ==================================

``headers`` exists with ``includeHeaders=true``. A read with its own schema
(``spark.read.schema("value binary, offset bigint")``) selects fewer columns, in any order. The other columns
are then not built. Spark does not report to a Python source which columns a query uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill.model.errors import ConfigError, InvalidRecord
from tidemill.model.types import TopicPartition
from tidemill.records.column_vectors import MICROSECONDS_BEYOND

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def schema_text(include_headers: bool) -> str:
    """Returns the default schema of a read, as DDL."""
    names = [name for name in TYPES if include_headers or name != "headers"]
    return ", ".join(f"{name} {TYPES[name]}" for name in names)


def requested_columns(schema: StructType, include_headers: bool) -> tuple[tuple[str, bool], ...]:
    """Returns names and nullability of the columns that Spark requests.

    Raises ConfigError for an unknown column, or a column with another type.
    """
    available = {name: kind for name, kind in TYPES.items() if include_headers or name != "headers"}
    wanted = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if available.get(field.name) != kind:
            hint = " (set includeHeaders=true)" if field.name == "headers" and not include_headers else ""
            raise ConfigError(
                f"the schema has {field.name} {kind}{hint}: this source has "
                f"{schema_text(include_headers)}; "
                "name some of these columns, and cast them afterwards"
            )
        wanted.append((field.name, bool(field.nullable)))
    return tuple(wanted)


def arrow_schema(columns: Sequence[tuple[str, bool]]) -> pa.Schema:
    """Returns the exact Arrow schema that Spark expects for these columns."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types: dict[str, Any] = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(name, types[name], nullable=nullable) for name, nullable in columns])


class BatchBuilder:
    """Converts fetched columns to the schema that Spark requested, without copying keys and values."""

    def __init__(self, columns: Sequence[tuple[str, bool]], topic: str, partition: int, rows: int) -> None:
        import pyarrow as pa

        self.schema = arrow_schema(columns)
        self.names = [name for name, _ in columns]
        self._scalars = {
            "topic": pa.scalar(topic, pa.string()),
            "partition": pa.scalar(partition, pa.int32()),
        }
        self._place = TopicPartition(topic, partition)
        self._repeated: dict[str, pa.Array] = {}
        self._rows = rows

    def build(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts a batch of the client to the columns of the source.

        Raises InvalidRecord for a timestamp beyond Spark's range, if the column is requested.
        """
        import pyarrow as pa

        if "timestamp" in self.names:
            self._refuse_times_beyond(batch)
        arrays = [self._column(name, batch) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _refuse_times_beyond(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        times = batch.column("timestamp").view(pa.int64())
        bounds = pc.min_max(times).as_py()
        for bound in (bounds["min"], bounds["max"]):
            if bound is not None and abs(bound) >= MICROSECONDS_BEYOND:
                offset = batch.column("offset")[pc.index(times, bound).as_py()].as_py()
                raise InvalidRecord(
                    f"the record at offset {offset} of {self._place} has a time more than 292,000 years from "
                    "1970, which Spark's timestamps cannot hold: read with a schema without the column "
                    'timestamp, such as .schema("key binary, value binary, offset bigint"), or with offsets '
                    "that exclude the record"
                )

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name in self._scalars:
            return self._constant(name, batch.num_rows)
        array = batch.column("timestamp_type" if name == "timestampType" else name)
        wanted = self.schema.field(name).type
        return array if array.type == wanted else array.cast(wanted)

    def _constant(self, name: str, rows: int) -> pa.Array:
        """Returns a column with one value: a slice of an array that is created once."""
        import pyarrow as pa

        known = self._repeated.get(name)
        if known is None or len(known) < rows:
            known = self._repeated[name] = pa.repeat(
                self._scalars[name], max(rows, min(self._rows, 2 * rows))
            )
        return known.slice(0, rows)
