"""Publishes a table, or CSV, JSON and Parquet files, to a topic: each row one JSON message."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.csv_types import check_moments, read_csv
from tidemill.pipeline.jobs.schema import parse_schema
from tidemill.pipeline.jobs.transforms import as_messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "json", "parquet", "orc")


@dataclass(frozen=True, kw_only=True)
class PublishJob:
    """Where rows go and which of their columns are key and time.

    ``sink`` are options of the format ``tidemill`` (``kafka.bootstrap.servers`` and other ``kafka.*``),
    ``reader`` those of Spark's reader of files. ``schema`` is a DDL text with the types of CSV columns; those
    that it does not name are found by reading the files.
    """

    sink: Mapping[str, str] = field(repr=False)  # it may hold a password
    topic: str
    key: str | None = None
    timestamp: str | None = None
    fields: tuple[str, ...] = ()
    reader: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None


@dataclass(frozen=True)
class PublishResult:
    """What a run did; ``rows`` as Spark counted them while writing."""

    rows: int
    seconds: float


def publish(frame: DataFrame, job: PublishJob) -> PublishResult:
    """Writes the rows to the topic: at least once, all of them acknowledged by all in-sync replicas.

    A task that fails is done again by Spark, and its messages are then there twice.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    began_s = time.monotonic()
    messages = as_messages(frame, key=job.key, timestamp=job.timestamp, fields=job.fields or None)
    seen = Observation("published")
    counted = messages.observe(seen, f.count(f.lit(1)).alias("rows"))
    counted.write.format("tidemill").options(**{**job.sink, "topic": job.topic}).mode("append").save()
    return PublishResult(int(seen.get["rows"]), time.monotonic() - began_s)


def read_files(spark: SparkSession, paths: Sequence[str], form: str, job: PublishJob) -> DataFrame:
    """The rows of files. CSV has a header, its types are found by reading it, ``NA`` is null.

    Raises ConfigError for a format that is not known, and BadValue for a value that cannot be published as
    what it is: nothing has been sent then.
    """
    if form not in FORMATS:
        raise ConfigError(f"format {form!r} is not known: one of {', '.join(FORMATS)} is allowed")
    if form == "csv":
        schema = None if job.schema is None else parse_schema(job.schema)
        return read_csv(spark, paths, job.reader, schema, job.timestamp)
    frame = spark.read.format(form).options(**job.reader).load(list(paths))
    if job.timestamp is not None:
        check_moments(frame, form, job.timestamp)
    return frame
