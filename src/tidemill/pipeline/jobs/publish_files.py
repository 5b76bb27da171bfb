"""Examines files to publish without Spark: finds their columns, and the row of a value."""

from __future__ import annotations

import csv
import glob
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.schema import Array, Map, Struct

COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate", ".xz")
"""Suffixes of files that Spark decompresses; they are not examined here."""
LINES_EXAMINED = 1000
"""The number of JSON objects of a file whose fields are collected."""


def check_files(
    paths: Sequence[str],
    form: str,
    reader: Mapping[str, str],
    wanted: Mapping[str, str],
    schema: Struct | None,
) -> None:
    """Raises ConfigError for paths without a file, files of another format and missing columns.

    ``wanted`` has the columns by their purpose ("key"). ``reader`` has options of Spark's reader.
    """
    fields = () if schema is None else schema.fields
    for name, kind in fields:
        if isinstance(kind, Struct | Array | Map):
            raise ConfigError(f"the schema has a composed type for {name}, which a CSV column cannot have")
    for path in paths:
        found = files_of(path)
        if not found:
            raise ConfigError(
                f"there is no file {path}: set files or folders to publish, or patterns like *.csv"
            )
        columns = _columns(found[0], form, reader)
        if columns is None:
            continue
        columns += _partition_columns(path, found[0])
        for what, name in {**wanted, **{f"schema {name}": name for name, _ in fields}}.items():
            if name not in columns and not (form == "json" and _has_field(found, name)):
                purpose = what.partition(" ")[0]
                raise ConfigError(
                    f"there is no column {name} for the {purpose} in {found[0]}; there are "
                    f"{', '.join(columns[:40])}"
                )


def check_not_empty(paths: Sequence[str]) -> None:
    """Raises ConfigError if all files of the paths are empty: Spark finds no columns in them."""
    files = [file for path in paths for file in files_of(path)]
    if not any(os.path.getsize(file) for file in files):
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise ConfigError(f"{files[0]}{more}: empty, without columns and rows to publish")


def files_of(path: str) -> list[str]:
    """Returns the files that Spark reads for a local path: a file, a folder or a pattern."""
    found: list[str] = []
    for match in [path] if os.path.exists(path) else sorted(glob.glob(path)):
        if not os.path.isdir(match):
            found.append(match)
            continue
        for folder, folders, names in os.walk(match):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
            found += [os.path.join(folder, name) for name in sorted(names) if not name.startswith((".", "_"))]
    return found


def row_of(path: str, form: str, reader: Mapping[str, str], column: str, value: str) -> str:
    """Returns the position of a value: "FILE, row 3 (line 4)"; the file alone if it is not examined."""
    if not os.path.isfile(path) or path.endswith(COMPRESSED):
        return path
    try:
        if form == "json":
            for number, fields in enumerate(_objects(path), 1):
                if str(fields.get(column)) == value:
                    return f"{path}, line {number}"
        if form == "csv":
            return _row_of_csv(path, reader, column, value)
    except (OSError, ValueError, csv.Error, LookupError):
        pass
    return path


def _partition_columns(path: str, file: str) -> list[str]:
    parts = os.path.relpath(os.path.dirname(file), path).split(os.sep) if os.path.isdir(path) else []
    return [part.partition("=")[0] for part in parts if "=" in part]


def _columns(path: str, form: str, reader: Mapping[str, str]) -> list[str] | None:
    """Returns the columns of a file, with Spark's names; None if the file is not examined.

    Raises ConfigError for a file of another format.
    """
    if path.endswith(COMPRESSED):
        return None
    try:
        if form == "csv":
            return _columns_of_csv(path, reader)
        if form == "json":
            return _columns_of_json(path, reader)
        return _columns_of_arrow(path, form)
    except (OSError, ValueError, csv.Error) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:  # Arrow's own errors have none
            raise ConfigError(f"{path} cannot be read: {problem.strerror or problem}") from None
        fault = str(problem).strip().splitlines()[0] if str(problem) else type(problem).__name__
        raise ConfigError(f"{path} is not in the format {form} ({fault}): set it with --format") from None
    except LookupError:
        return None


def _columns_of_arrow(path: str, form: str) -> list[str]:
    """Reads the columns of Parquet and ORC. Arrow's own errors are ValueErrors and OSErrors."""
    if form == "parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    import pyarrow.orc

    return list(pyarrow.orc.ORCFile(path).schema.names)


def _columns_of_json(path: str, reader: Mapping[str, str]) -> list[str] | None:
    options = _lower(reader)
    if options.get("multiline", "").lower() == "true" or "encoding" in options:
        return None
    names: dict[str, None] = {}
    for fields in itertools.islice(_objects(path), LINES_EXAMINED):
        names.update(dict.fromkeys(fields))
    return list(names)


def _has_field(paths: Sequence[str], name: str) -> bool:
    """Whether any of the JSON objects of the files has the field."""
    return any(name in fields for path in paths for fields in _objects(path))


def _objects(path: str) -> Iterator[dict[str, object]]:
    """Yields the JSON objects of a file, one per line; an empty one for an invalid line."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                fields = {}
            yield fields if isinstance(fields, dict) else {}


def _columns_of_csv(path: str, reader: Mapping[str, str]) -> list[str]:
    with _opened_csv(path, reader) as text:
        first = next(csv.reader(text, **_dialect(reader)), [])
    if "\0" in "".join(first):
        raise ValueError("it has NUL characters")
    if not _has_header(reader):
        return [f"_c{number}" for number in range(len(first))]
    return first


def malformed_row_of(path: str, reader: Mapping[str, str]) -> str:
    """Returns the first row of a CSV file with another width than its header: "FILE, row 3 (line 4)"."""
    try:
        width = len(_columns_of_csv(path, reader))
        return _first_row(path, reader, lambda row: len(row) != width)
    except (OSError, ValueError, csv.Error, LookupError):
        return path


def _row_of_csv(path: str, reader: Mapping[str, str], column: str, value: str) -> str:
    at = _columns_of_csv(path, reader).index(column)
    return _first_row(path, reader, lambda row: at < len(row) and row[at] == value)


def _first_row(path: str, reader: Mapping[str, str], is_meant: Callable[[list[str]], bool]) -> str:
    """Finds a row. Rows are counted from 1 after the header, without empty lines."""
    with _opened_csv(path, reader) as text:
        lines = csv.reader(text, **_dialect(reader))
        rows = (row for row in lines if row)
        if _has_header(reader):
            next(rows, None)
        for number, row in enumerate(rows, 1):
            if is_meant(row):
                return f"{path}, row {number} (line {lines.line_num})"
    return path


def _has_header(reader: Mapping[str, str]) -> bool:
    return _lower(reader).get("header", "true").lower() == "true"


def _lower(reader: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in reader.items()}


def _opened_csv(path: str, reader: Mapping[str, str]) -> IO[str]:
    options = _lower(reader)
    encoding = options.get("encoding", options.get("charset", "utf-8-sig"))
    return open(path, encoding=encoding, errors="replace", newline="")


def _dialect(reader: Mapping[str, str]) -> dict[str, Any]:
    """Converts Spark's CSV options to those of Python's csv module."""
    options = _lower(reader)
    separator = options.get("sep", options.get("delimiter", ","))
    dialect = {"delimiter": {"\\t": "\t"}.get(separator, separator)}
    if len(options.get("quote", "")) == 1:
        dialect["quotechar"] = options["quote"]
    return dialect
