"""The types of CSV columns: numbers stay numbers, and a value that is none is named with its file and row.

Spark's own inference makes texts of a whole column when one of its values is no number, and says nothing.
Here a column whose values are mostly numbers is a column of numbers, and another value in it is an error,
before anything is sent. A number with leading zeros or a plus sign is a text: it names something. Texts that
look like moments stay as they are written, because JSON has no type for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.publish_files import malformed_row_of, row_of
from tidemill.pipeline.jobs.schema import Kind, Struct, type_text
from tidemill.pipeline.jobs.transforms import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DEFAULTS = {"header": "true", "nullValue": "NA", "enforceSchema": "false"}
"""With ``enforceSchema`` off, a file whose header has other names or another order is refused by Spark."""
MALFORMED = "tidemill_malformed_row"

WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
LONG_WHOLE = r"^-?(0|[1-9][0-9]{0,37})$"
NUMBER = r"^(-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|NaN)$"
TRUTH = r"^(?i)(true|false)$"


class BadValue(ConfigError):
    """A value of a file is not what its column has; the text names file, row and value."""


def read_csv(
    spark: SparkSession,
    paths: Sequence[str],
    reader: Mapping[str, str],
    schema: Struct | None = None,
    timestamp: str | None = None,
) -> DataFrame:
    """The rows of CSV files, with types found by reading all of them, or by ``schema`` where it names a
    column.

    Raises BadValue for the first value that is not of its column's type, for a row with another number of
    fields, and for a text in the column ``timestamp`` that is no moment.
    """
    from pyspark.sql import functions as f

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
    found = _Found(rows, names, declared, timestamp, reader)
    if "mode" not in reader:
        found.check_rows()
    kinds = {name: found.kind(name) for name in names}
    if timestamp is not None:
        found.check_moments(timestamp)
    return rows.select(*[_typed(f.col(quoted(name)), kinds[name]).alias(name) for name in names])


def _typed(text: Column, kind: str) -> Column:
    from pyspark.sql import functions as f

    return text if kind == "string" else f.trim(text).cast(kind)


class _Found:
    """What one pass over the files has found: counts of each column, and a value of each kind of fault."""

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
        from pyspark.sql import functions as f

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
                "header, or quotes that do not end: mend it, or take what fits of it with --read-option "
                "mode=PERMISSIVE"
            )

    def kind(self, name: str) -> str:
        """The type of a column in Spark's words. Raises BadValue."""
        at = self._at[name]
        if name in self._declared:
            kind = type_text(self._declared[name])
            if self._facts[f"{at} misfit"] is not None:
                raise BadValue(
                    f"{self._place(name, 'misfit')}, which is no {kind}: mend it, name it as no value with "
                    "--read-option nullValue=TEXT, or give the column another type in --schema"
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
            "mend it, name it as no value with --read-option nullValue=TEXT, or publish the column as texts "
            f'with --schema "{quoted(name) if not name.isidentifier() else name} string"'
        )

    def check_moments(self, name: str) -> None:
        """Raises BadValue for a text that is to be the record's time and is no moment."""
        if self._facts[f"{self._at[name]} no moment"] is not None:
            raise BadValue(f"{self._place(name, 'no moment')}, {NO_MOMENT}")

    def _place(self, name: str, fault: str) -> str:
        path, value = self._facts[f"{self._at[name]} {fault}"]
        where = row_of(_local(path), "csv", self._reader, name, value)
        return f"{where}: {name} is {shown(value)}"


NO_MOMENT = (
    "which is no moment, and it is to be the record's time: mend it (2013-01-01T12:00:00Z is one), or "
    "name it as no value, for which the time of sending is taken, with --read-option nullValue=TEXT"
)


def check_moments(frame: DataFrame, form: str, timestamp: str) -> None:
    """Looks for a text that is no moment in the column ``timestamp`` of files that are no CSV.

    Raises BadValue with its file, and its line in JSON.
    """
    from pyspark.sql import functions as f

    column = f.col(quoted(timestamp))
    if dict(frame.dtypes).get(timestamp) != "string":
        return
    bad = column.isNotNull() & f.trim(column).try_cast("timestamp").isNull()
    place = frame.select(column, "_metadata.file_path").agg(_first_place(bad, column)).collect()[0][0]
    if place is not None:
        where = row_of(_local(place[0]), form, {}, timestamp, place[1])
        raise BadValue(f"{where}: {timestamp} is {shown(place[1])}, {NO_MOMENT}")


def shown(value: str) -> str:
    """A value of a file in a message: in quotes, and short."""
    return repr(value if len(value) <= 60 else value[:60] + "…")


def _first_place(condition: Column, column: Column) -> Column:
    """File and value of a row for which the condition holds; null where there is none."""
    from pyspark.sql import functions as f

    return f.min(f.when(condition, f.struct(f.col("file_path"), column.alias("value"))))


def _first_file(column: str) -> Column:
    from pyspark.sql import functions as f

    return f.min(f.when(f.col(column).isNotNull(), f.col("file_path"))).alias(column)


def _local(path: str) -> str:
    """Spark's name of a file, as a path of this machine where it is one."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else path
