"""The checks of the demo: compare the results with the broker's offsets and the source files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition
from tidemill.pipeline.demo import analysis
from tidemill.pipeline.demo.flights import FLIGHTS, WEATHER, expected_rows, rows, value_of
from tidemill.pipeline.demo.publish import Published
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

MEASURES = {FLIGHTS: "dep_delay", WEATHER: "wind_speed"}
"""The field whose monthly sums are compared with the file."""

RELATIVE_TOLERANCE = 1e-9
"""Sums of doubles depend slightly on their order."""


@dataclass(frozen=True)
class Check:
    """A question, both numbers, and whether they agree."""

    question: str
    expected: str
    found: str
    passed: bool


@dataclass(frozen=True)
class Month:
    """One month of a topic's file: rows, and sum and count of its measure."""

    rows: int
    total: float
    values: int


def equal(question: str, expected: int, found: int) -> Check:
    """Checks that two counts are equal."""
    return Check(question, f"{expected:,}", f"{found:,}", expected == found)


def months_of_file(topic: str, limit: int | None = None) -> dict[int, Month]:
    """Returns the monthly sums of the CSV file, read with Python's csv module only."""
    lines = rows(topic)
    names = next(lines)
    month_at, measure_at = names.index("month"), names.index(MEASURES[topic])
    counts: dict[int, list[float]] = {}
    for number, line in enumerate(lines):
        if number == limit:
            break
        value = value_of(MEASURES[topic], line[measure_at])
        entry = counts.setdefault(int(line[month_at]), [0, 0.0, 0])
        entry[0] += 1
        if isinstance(value, int | float):
            entry[1] += value
            entry[2] += 1
    return {month: Month(int(rows_), total, int(values)) for month, (rows_, total, values) in counts.items()}


def broker_ends(bootstrap: str, topic: str) -> dict[int, tuple[int, int]]:
    """Returns the first and the next offset of each partition, from the broker."""
    with RangeReader(bootstrap) as reader:
        count = reader.describe([topic])[topic].partitions
        places = [TopicPartition(topic, partition) for partition in range(count)]
        first = reader.list_offsets(dict.fromkeys(places, EARLIEST))
        last = reader.list_offsets(dict.fromkeys(places, LATEST))
    return {place.partition: (first[place], last[place]) for place in places}


def check_topic(
    topic: str,
    published: Published,
    ends: Mapping[int, tuple[int, int]],
    places: list[Any],
    months: list[Any],
    expected_months: Mapping[int, Month],
    limit: int | None,
) -> list[Check]:
    """Checks that every message is in Parquet once, with its fields, under its date."""
    expected = expected_rows(topic, limit)
    loaded = {row["kafka_partition"]: row for row in places}
    complete = sum(
        1
        for partition, (first, end) in ends.items()
        if (end == first and partition not in loaded)
        or (
            partition in loaded
            and loaded[partition]["rows"] == loaded[partition]["distinct_offsets"] == end - first
            and (loaded[partition]["first_offset"], loaded[partition]["last_offset"]) == (first, end - 1)
        )
    )
    found = {row["month"]: Month(row["rows"], row["total"] or 0.0, row["values"]) for row in months}
    agreeing = sum(
        1 for month, expected in expected_months.items() if month in found and _same(expected, found[month])
    )
    total = sum(row["total"] or 0.0 for row in months)
    wanted = sum(month.total for month in expected_months.values())
    return [
        equal(f"{topic}: messages acknowledged = rows of the file", expected, published.rows),
        equal(f"{topic}: offsets in the broker", expected, sum(end - first for first, end in ends.values())),
        equal(f"{topic}: rows in Parquet", expected, sum(row["rows"] for row in places)),
        equal(
            f"{topic}: distinct (partition, offset) in Parquet",
            expected,
            sum(row["distinct_offsets"] for row in places),
        ),
        equal(f"{topic}: partitions without gap or double, first to last offset", len(ends), complete),
        equal(
            f"{topic}: values that their fields do not represent completely",
            0,
            sum(row["raw"] for row in places),
        ),
        equal(
            f"{topic}: rows whose event date is not their local date", 0, sum(m["other_date"] for m in months)
        ),
        equal(
            f"{topic}: months whose rows and {MEASURES[topic]} agree with the file",
            len(expected_months),
            agreeing,
        ),
        Check(f"{topic}: sum of {MEASURES[topic]}", f"{wanted:,.2f}", f"{total:,.2f}", _close(wanted, total)),
    ]


def check_other_reader(topic: str, table: str, expected: int) -> Check:
    """Checks that a reader other than Spark finds the same rows in the folder."""
    import pyarrow.dataset

    found = pyarrow.dataset.dataset(table, partitioning="hive").count_rows()
    return equal(f"{topic}: rows that Arrow finds in the folder, without Spark", expected, found)


def check_bytes(spark: SparkSession, bootstrap: str, topic: str, published: Published) -> Check:
    """Reads a topic again as a batch, and compares the checksum of all values."""
    frame: DataFrame = (
        spark.read.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", published.topic)
        .load()
    )
    found = frame.agg(f.sum(f.crc32("value")).alias("checksum")).collect()[0]["checksum"] or 0
    return equal(f"{topic}: checksum of all values, read again as a batch", published.checksum, found)


def check_join(joined: DataFrame, expected_without: int | None, expected: int) -> list[Check]:
    """Checks that the join kept each flight once."""
    row = joined.agg(
        f.count(f.lit(1)).alias("rows"), f.count_if(~f.col("has_weather")).alias("without")
    ).collect()[0]
    checks = [equal("join: flights after the left join with weather", expected, row["rows"])]
    if expected_without is not None:
        checks.append(equal("join: flights without a weather report", expected_without, row["without"]))
    return checks


def check_aggregate(spark: SparkSession, bootstrap: str, topic: str, parquet: str) -> list[Check]:
    """Checks that the aggregate is the same in the topic and in Parquet."""
    stored = spark.read.parquet(parquet)
    messages = (
        spark.read.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .load()
        .select(f.from_json(f.col("value").cast("string"), stored.schema).alias("row"))
        .select("row.*")
    )
    return [
        equal("aggregate: rows in the topic, sent twice = rows in Parquet", stored.count(), messages.count()),
        equal(
            "aggregate: rows of the topic that Parquet does not have", 0, messages.exceptAll(stored).count()
        ),
    ]


def flights_without_weather(limit: int | None = None) -> int:
    """Counts, in the files, the flights whose airport has no report for the hour."""
    weather = rows(WEATHER)
    names = next(weather)
    origin_at, hour_at = names.index("origin"), names.index("time_hour")
    reports = {(line[origin_at], line[hour_at]) for line in weather}
    flights = rows(FLIGHTS)
    names = next(flights)
    origin_at, hour_at = names.index("origin"), names.index("time_hour")
    return sum(
        1
        for number, line in enumerate(flights)
        if (limit is None or number < limit) and (line[origin_at], line[hour_at]) not in reports
    )


def _same(left: Month, right: Month) -> bool:
    return left.rows == right.rows and left.values == right.values and _close(left.total, right.total)


def _close(left: float, right: float) -> bool:
    return abs(left - right) <= RELATIVE_TOLERANCE * max(1.0, abs(left), abs(right))


def loaded_facts(loaded: DataFrame, topic: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns partitions, months and days of a loaded topic; reads the files once."""
    loaded = loaded.select(
        "kafka_partition",
        "kafka_offset",
        "raw_value",
        "year",
        "month",
        "day",
        "event_date",
        MEASURES[topic],
    ).cache()
    try:
        return (
            analysis.places(loaded).collect(),
            analysis.months(loaded, MEASURES[topic]).collect(),
            analysis.days(loaded).collect(),
        )
    finally:
        loaded.unpersist()
