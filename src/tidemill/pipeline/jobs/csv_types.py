"""Infers the types of CSV columns, and reports a value of another type with its file and row.

Spark's own inference silently turns a whole column into text if one of its values is not a number. Here a
column whose values are mostly numbers is numeric, and any other value in it is an error, before anything is
sent. A number with leading zeros or a plus sign is text, since it is an identifier. Text that looks like a
timestamp is not converted, because JSON has no type for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.publish_files import malformed_row_of, row_of
from tidemill.pipeline.jobs.schema import Kind, Struct, quoted, type_text

DEFAULTS = {"header": "true", "nullValue": "NA", "enforceSchema": "false"}
"""Without ``enforceSchema``, Spark refuses a file whose header has other names or another order."""
MALFORMED = "tidemill_malformed_row"

WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
LONG_WHOLE = r"^-?(0|[1-9][0-9]{0,37})$"
NUMBER = r"^(-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|NaN)$"
TRUTH = r"^(?i)(true|false)$"


class BadValue(ConfigError):
    """A value does not have the type of its column; the text has the file, the row and the value."""


def read_csv(
    spark: SparkSession,
    paths: Sequence[str],
    reader: Mapping[str, str],
    schema: Struct | None = None,
    timestamp: str | None = None,
) -> DataFrame:
    """Reads CSV files with the types of ``schema``, or with types inferred from all rows.

    Raises BadValue for the first value that is not of its column's type, for a row with another number of
    fields, and for text in the column ``timestamp`` that is not a timestamp.
    """
    options = {**DEFAULTS, **reader}
    names = spark.read.format("csv").options(**options).load(list(paths)).columns
    texts = ", ".join(f"{quoted(name)} string" for name in (*names, MALFORMED))
    rows = (
        spark.read.format("csv")
        .options(**{"columnNameOfCorruptRecord": MALFORMED, **options})
        .schema(texts)
        .load(list(paths))
    )
    declared = dict(schema.fields) if schema is not None else {}
    found = _Statistics(rows, names, declared, timestamp, reader)
    if "mode" not in reader:
        found.check_rows()
    kinds = {name: found.kind(name) for name in names}
    if timestamp is not None:
        found.check_moments(timestamp)
    return rows.select(*[_typed(f.col(quoted(name)), kinds[name]).alias(name) for name in names])


def _typed(text: Column, kind: str) -> Column:
    return text if kind == "string" else f.trim(text).cast(kind)


class _Statistics:
    """Statistics from one pass over the files: counts per column, and a value for each kind of error."""

    def __init__(
        self,
        rows: DataFrame,
        names: Sequence[str],
        declared: Mapping[str, Kind],
        timestamp: str | None,
        reader: Mapping[str, str],
    ) -> None:
        self._at = {name: at for at, name in enumerate(names)}
        self._declared = declared
        self._reader = reader
        counts = [count for name in names for count in self._counts(name, timestamp)]
        self._facts: dict[str, Any] = (
            rows.select("*", "_metadata.file_path").agg(_first_file(MALFORMED), *counts).collect()[0].asDict()
        )

    def _counts(self, name: str, timestamp: str | None) -> list[Column]:
        column, at = f.col(quoted(name)), self._at[name]
        trimmed = f.trim(column)
        counts = [f.count(column).alias(f"{at} values")]
        if name in self._declared:
            misfit = column.isNotNull() & trimmed.try_cast(type_text(self._declared[name])).isNull()
        else:
            misfit = ~trimmed.rlike(NUMBER)
            for what, form in (
                ("whole", WHOLE),
                ("long", LONG_WHOLE),
                ("numbers", NUMBER),
                ("truths", TRUTH),
            ):
                counts.append(f.count_if(trimmed.rlike(form)).alias(f"{at} {what}"))
        counts.append(_first_place(misfit, column).alias(f"{at} misfit"))
        if name == timestamp:
            no_moment = column.isNotNull() & trimmed.try_cast("timestamp").isNull()
            counts.append(_first_place(no_moment, column).alias(f"{at} no moment"))
        return counts

    def check_rows(self) -> None:
        """Raises BadValue for a row with more or fewer fields than its file's header."""
        path = self._facts[MALFORMED]
        if path is not None:
            raise BadValue(
                f"{malformed_row_of(_local(path), self._reader)} has another number of fields than the "
                "header, or quotes that do not end: correct it, or read its valid fields with --read-option "
                "mode=PERMISSIVE"
            )

    def kind(self, name: str) -> str:
        """Returns the type of a column, by Spark's name. Raises BadValue."""
        at = self._at[name]
        if name in self._declared:
            kind = type_text(self._declared[name])
            if self._facts[f"{at} misfit"] is not None:
                raise BadValue(
                    f"{self._place(name, 'misfit')}, which is not of type {kind}: correct it, declare it as "
                    "null with --read-option nullValue=TEXT, or set another type for the column in --schema"
                )
            return kind
        values, numbers = self._facts[f"{at} values"], self._facts[f"{at} numbers"]
        if not values or not numbers:
            return "boolean" if values and self._facts[f"{at} truths"] == values else "string"
        if self._facts[f"{at} whole"] == values:
            return "bigint"
        if self._facts[f"{at} long"] == values:
            return "decimal(38,0)"
        if numbers == values:
            return "double"
        if 2 * numbers <= values:
            return "string"
        raise BadValue(
            f"{self._place(name, 'misfit')}, and {numbers:,} of {values:,} values of the column are numbers: "
            "correct it, declare it as null with --read-option nullValue=TEXT, or publish the column as text "
            f'with --schema "{quoted(name) if not name.isidentifier() else name} string"'
        )

    def check_moments(self, name: str) -> None:
        """Raises BadValue for text in the timestamp column that is not a timestamp."""
        if self._facts[f"{self._at[name]} no moment"] is not None:
            raise BadValue(f"{self._place(name, 'no moment')}, {NO_MOMENT}")

    def _place(self, name: str, fault: str) -> str:
        path, value = self._facts[f"{self._at[name]} {fault}"]
        where = row_of(_local(path), "csv", self._reader, name, value)
        return f"{where}: {name} is {shown(value)}"


NO_MOMENT = (
    "which is not a timestamp, but sets the record's time: correct it (2013-01-01T12:00:00Z is valid), or "
    "declare it as null with --read-option nullValue=TEXT, which uses the time of sending"
)


def check_moments(frame: DataFrame, form: str, timestamp: str) -> None:
    """Checks text in the column ``timestamp`` of files in other formats than CSV.

    Raises BadValue for text that is not a timestamp, with its file and, for JSON, its line.
    """
    column = f.col(quoted(timestamp))
    if dict(frame.dtypes).get(timestamp) != "string":
        return
    bad = column.isNotNull() & f.trim(column).try_cast("timestamp").isNull()
    place = frame.select(column, "_metadata.file_path").agg(_first_place(bad, column)).collect()[0][0]
    if place is not None:
        where = row_of(_local(place[0]), form, {}, timestamp, place[1])
        raise BadValue(f"{where}: {timestamp} is {shown(place[1])}, {NO_MOMENT}")


def shown(value: str) -> str:
    """Formats a value for a message: quoted and shortened."""
    return repr(value if len(value) <= 60 else value[:60] + "…")


def _first_place(condition: Column, column: Column) -> Column:
    """Selects file and value of a row that meets the condition; null if there is none."""
    return f.min(f.when(condition, f.struct(f.col("file_path"), column.alias("value"))))


def _first_file(column: str) -> Column:
    return f.min(f.when(f.col(column).isNotNull(), f.col("file_path"))).alias(column)


def _local(path: str) -> str:
    """Converts Spark's name of a local file to a path; returns other names unchanged."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else path
