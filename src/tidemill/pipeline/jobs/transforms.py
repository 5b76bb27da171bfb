"""Transforms from DataFrame to DataFrame: no broker, no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.errors import ConfigError
from tidemill.pipeline.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

EVENT_DATE = "event_date"
CORRUPT = "corrupt_record"
PLACE = ("topic", "partition", "offset", "timestamp", "key")
"""Columns of the source that tell where a row comes from; prefixed with ``kafka_`` in what is loaded."""


def parsed(messages: DataFrame, schema: str | None) -> DataFrame:
    """Messages with their JSON value taken apart, one column a field, and ``kafka_*`` columns beside.

    ``schema`` is a DDL text ("carrier string, delay double"). A value that is no JSON of that form is kept
    whole in ``corrupt_record``; it is null for all others. Without a schema the value stays binary. Raises
    ConfigError for a schema that Spark cannot read.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    place = [f.col(name).alias(f"kafka_{name}") for name in PLACE]
    if schema is None:
        return messages.select("value", *place)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    try:
        value = f.from_json(f.col("value").cast("string"), f"{schema}, {CORRUPT} string", options)
        taken = messages.select(value.alias("fields"), *place)
    except (AnalysisException, ParseException) as problem:
        raise ConfigError(
            f"schema {schema!r} cannot be read ({one_line(problem)}): columns and their types are wanted, as "
            '"carrier string, dep_delay double"'
        ) from None
    return taken.select("fields.*", *[f"kafka_{name}" for name in PLACE])


def with_event_date(frame: DataFrame, column: str = "kafka_timestamp") -> DataFrame:
    """Adds ``event_date``: the local date of ``column`` in the session's time zone.

    A date without a zone says nothing: 38,444 of the 336,776 New York flights of 2013 leave on another
    date in UTC. Rows without a time get the date null, and stay.
    """
    from pyspark.sql import functions as f

    if column not in frame.columns:
        raise ConfigError(
            f"there is no column {column} for the event date; there are {', '.join(frame.columns)}"
        )
    return frame.withColumn(EVENT_DATE, f.to_date(f.col(quoted(column)).cast("timestamp")))


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
