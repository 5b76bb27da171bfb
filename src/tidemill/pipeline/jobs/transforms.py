"""Transforms from DataFrame to DataFrame: no broker, no files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.model.errors import ConfigError
from tidemill.pipeline.failures import one_line
from tidemill.pipeline.jobs.round_trip import NOT_READ, REASONS, WITHOUT_FIELDS, round_trip_check
from tidemill.pipeline.jobs.schema import Struct, ddl_of, parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Observation

EVENT_DATE = "event_date"
RAW_VALUE = "raw_value"
RAW_REASON = "raw_reason"
PLACE = ("topic", "partition", "offset", "timestamp", "key")
"""Columns of the source that tell where a row comes from; prefixed with ``kafka_`` in what is loaded."""
PLACE_COLUMNS = tuple(f"kafka_{name}" for name in PLACE)
UNREAD = "unread"
"""Spark's own word on a value that it cannot read as the schema says; not a column of what is loaded."""


def columns_of(schema: Struct | None) -> tuple[str, ...]:
    """The names of what :func:`parsed` gives."""
    if schema is None:
        return ("value", *PLACE_COLUMNS)
    return (*[name for name, _ in schema.fields], RAW_VALUE, RAW_REASON, *PLACE_COLUMNS)


def parsed(messages: DataFrame, schema: str | None) -> DataFrame:
    """Messages with their JSON value taken apart, one column a field, and ``kafka_*`` columns beside.

    ``schema`` is a DDL text ("carrier string, delay double"). A value whose fields do not hold all of it
    (:mod:`tidemill.pipeline.jobs.round_trip`) is kept whole in ``raw_value``, which is binary, because it may
    be no UTF-8; ``raw_reason`` says why. Both are null for all others. Without a schema the value stays
    binary. Raises ConfigError for a schema that cannot be read.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

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
            f"Spark cannot read values with the schema {schema!r} ({one_line(problem)}): give other types"
        ) from None
    reason = f.coalesce(f.col(RAW_REASON), f.when(f.col(quoted(unread)).isNotNull(), f.lit(NOT_READ)))
    return taken.select(
        *[quoted(name) for name, _ in known.fields],
        f.when(reason.isNotNull(), f.col("value")).alias(RAW_VALUE),
        reason.alias(RAW_REASON),
        *PLACE_COLUMNS,
    )


def reason_column(schema: Struct) -> Callable[..., Column]:
    """A function of Spark over the values: why the raw value is to be kept, or null."""
    import pandas as pd
    from pyspark.sql import functions as f

    def reasons(values: Any) -> Any:
        reason_of = round_trip_check(schema)  # in the worker: it cannot be sent there
        return pd.Series([reason_of(value) for value in values], dtype=object)

    # Spark reads from these what kind of function it is, and cannot resolve those of this module.
    reasons.__annotations__ = {"values": pd.Series, "return": pd.Series}
    made: Callable[..., Column] = f.pandas_udf(reasons, "string")
    return made


def counted_by_reason(frame: DataFrame, seen: Observation) -> DataFrame:
    """The same rows; ``seen`` gets their number, and how many keep their raw value, by reason."""
    from pyspark.sql import functions as f

    counts = [f.count(f.lit(1)).alias("rows")]
    if RAW_REASON in frame.columns:
        code = f.substring_index(RAW_REASON, ":", 1)
        counts += [f.count_if(code == f.lit(reason)).alias(reason) for reason in REASONS]
    return frame.observe(seen, *counts)


def reasons_in(counts: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """What :func:`counted_by_reason` has counted: rows, and those of each reason that there is."""
    return int(counts["rows"]), {
        reason: int(counts[reason]) for reason in REASONS if int(counts.get(reason) or 0) > 0
    }


def with_event_date(frame: DataFrame, column: str = "kafka_timestamp") -> DataFrame:
    """Adds ``event_date``: the local date of ``column`` in the session's time zone.

    A date without a zone says nothing: 38,444 of the 336,776 New York flights of 2013 leave on another
    date in UTC. Rows without a time, or with a text that is none, get the date null, and stay.
    """
    from pyspark.sql import functions as f

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
    """Brings the rows of a date together, so that each date becomes one file of a batch, not one a task."""
    return frame.repartition(tasks, EVENT_DATE)


def without_nan(frame: DataFrame) -> DataFrame:
    """NaN becomes null in float and double columns: JSON has no NaN."""
    from pyspark.sql import functions as f

    columns = []
    for name, kind in frame.dtypes:
        column = f.col(quoted(name))
        if kind in ("float", "double"):
            column = f.when(~f.isnan(column), column)
        columns.append(column.alias(name))
    return frame.select(*columns)


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally: a dot in it would mean a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def as_messages(
    frame: DataFrame,
    *,
    key: str | None = None,
    timestamp: str | None = None,
    fields: Sequence[str] | None = None,
) -> DataFrame:
    """Rows as messages: ``value`` is the row as JSON (null fields included), ``key`` one of its columns.

    ``timestamp`` names the column that becomes the record's time.
    """
    from pyspark.sql import functions as f

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
