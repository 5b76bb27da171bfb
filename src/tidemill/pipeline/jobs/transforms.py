"""Transforms from DataFrame to DataFrame, without access to brokers or files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.round_trip import NOT_READ, REASONS, WITHOUT_FIELDS, round_trip_check
from tidemill.pipeline.jobs.schema import Kind, Struct, ddl_of, parse_schema, quoted
from tidemill.pipeline.source_columns import TYPES
from tidemill.pipeline.spark_errors import one_line

EVENT_DATE = "event_date"
RAW_VALUE = "raw_value"
RAW_REASON = "raw_reason"
PLACE = ("topic", "partition", "offset", "timestamp", "key")
"""Columns of the source with the origin of a row; prefixed with ``kafka_`` in a loaded table."""
PLACE_COLUMNS = tuple(f"kafka_{name}" for name in PLACE)
UNREAD = "unread"
"""Spark's column for values that do not match the schema; not a column of a loaded table."""


def columns_of(schema: Struct | None) -> dict[str, Kind]:
    """Returns the columns of :func:`parsed`, with their types."""
    fields = () if schema is None else schema.fields
    own = "value binary" if schema is None else f"{RAW_VALUE} binary, {RAW_REASON} string"
    place = ", ".join(f"kafka_{name} {TYPES[name]}" for name in PLACE)
    return dict((*fields, *parse_schema(f"{own}, {place}").fields))


def parsed(messages: DataFrame, schema: str | None) -> DataFrame:
    """Parses JSON messages into one column per field, and adds ``kafka_*`` columns.

    ``schema`` is a DDL text ("carrier string, delay double"). A value that its fields do not represent
    completely (:mod:`tidemill.pipeline.jobs.round_trip`) is kept in ``raw_value``, which is binary, because
    it may not be UTF-8; ``raw_reason`` has the reason. Both are null for all other values. Without a schema
    the value stays binary. Raises ConfigError for a schema that cannot be read.
    """
    place = [f.col(name).alias(f"kafka_{name}") for name in PLACE]
    if schema is None:
        return messages.select("value", *place)
    known = parse_schema(schema)
    reasoned = messages.select("value", *place, reason_column(known)("value").alias(RAW_REASON))
    code = f.substring_index(RAW_REASON, ":", 1)
    is_read = f.col(RAW_REASON).isNull() | ~code.isin(*WITHOUT_FIELDS)
    text = f.when(is_read, f.col("value").cast("string"))
    unread = _free_name(known, UNREAD)
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": unread,
        "allowSingleQuotes": "false",
        "allowNonNumericNumbers": "false",
    }
    try:
        fields = f.from_json(text, f"{ddl_of(known)}, {unread} string", options)
        taken = reasoned.withColumn("fields", fields).select("fields.*", "value", RAW_REASON, *PLACE_COLUMNS)
    except (AnalysisException, ParseException) as problem:
        raise ConfigError(
            f"Spark cannot read values with the schema {schema!r} ({one_line(problem)}): set other types"
        ) from None
    reason = f.coalesce(f.col(RAW_REASON), f.when(f.col(quoted(unread)).isNotNull(), f.lit(NOT_READ)))
    return taken.select(
        *[quoted(name) for name, _ in known.fields],
        f.when(reason.isNotNull(), f.col("value")).alias(RAW_VALUE),
        reason.alias(RAW_REASON),
        *PLACE_COLUMNS,
    )


def reason_column(schema: Struct) -> Callable[..., Column]:
    """Returns a Spark function from a value to the reason for keeping the raw value, or null."""
    import pandas as pd

    def reasons(values: Any) -> Any:
        reason_of = round_trip_check(schema)  # created in the worker: it is not picklable
        return pd.Series([reason_of(value) for value in values], dtype=object)

    # Spark derives the kind of function from the annotations, and cannot resolve those of this module.
    reasons.__annotations__ = {"values": pd.Series, "return": pd.Series}
    made: Callable[..., Column] = f.pandas_udf(reasons, "string")
    return made


def counted_by_reason(frame: DataFrame, seen: Observation) -> DataFrame:
    """Returns the rows unchanged; ``seen`` counts them, and by reason those that keep their raw value."""
    counts = [f.count(f.lit(1)).alias("rows")]
    if RAW_REASON in frame.columns:
        code = f.substring_index(RAW_REASON, ":", 1)
        counts += [f.count_if(code == f.lit(reason)).alias(reason) for reason in REASONS]
    return frame.observe(seen, *counts)


def reasons_in(counts: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """Returns the counts of :func:`counted_by_reason`: all rows, and the rows of each reason above 0."""
    return int(counts["rows"]), {
        reason: int(counts[reason]) for reason in REASONS if int(counts.get(reason) or 0) > 0
    }


def with_event_date(frame: DataFrame, column: str = "kafka_timestamp") -> DataFrame:
    """Adds ``event_date``: the local date of ``column`` in the session's time zone.

    A date depends on the zone: 38,444 of the 336,776 New York flights of 2013 leave on another date in UTC.
    Rows without a timestamp, or with text that is not one, are kept with a null date.
    """
    if column not in frame.columns:
        raise ConfigError(
            f"there is no column {column} for the event date; there are {', '.join(frame.columns)}"
        )
    return frame.withColumn(EVENT_DATE, f.to_date(f.col(quoted(column)).try_cast("timestamp")))


def _free_name(schema: Struct, name: str) -> str:
    taken = {field.lower() for field, _ in schema.fields}
    while name in taken:
        name += "_"
    return name


def one_file_a_date(frame: DataFrame, tasks: int) -> DataFrame:
    """Repartitions by date, so that each date is one file per batch, instead of one per task."""
    return frame.repartition(tasks, EVENT_DATE)


def without_nan(frame: DataFrame) -> DataFrame:
    """Replaces NaN with null in float and double columns: JSON has no NaN."""
    columns = []
    for name, kind in frame.dtypes:
        column = f.col(quoted(name))
        if kind in ("float", "double"):
            column = f.when(~f.isnan(column), column)
        columns.append(column.alias(name))
    return frame.select(*columns)


def as_messages(
    frame: DataFrame,
    *,
    key: str | None = None,
    timestamp: str | None = None,
    fields: Sequence[str] | None = None,
) -> DataFrame:
    """Converts rows to messages: ``value`` is the row as JSON (with null fields), ``key`` is a column.

    ``timestamp`` is the column of the record's timestamp.
    """
    for name in (key, timestamp, *(fields or ())):
        if name is not None and name not in frame.columns:
            raise ConfigError(f"there is no column {name}; there are {', '.join(frame.columns)}")
    clean = without_nan(frame)
    value = f.to_json(
        f.struct(*[quoted(name) for name in fields or frame.columns]), {"ignoreNullFields": "false"}
    )
    columns = [value.alias("value")]
    if key is not None:
        columns.insert(0, f.col(quoted(key)).cast("string").alias("key"))
    if timestamp is not None:
        columns.append(f.col(quoted(timestamp)).cast("timestamp").alias("timestamp"))
    return clean.select(*columns)
