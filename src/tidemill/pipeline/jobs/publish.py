"""Publishes a table, or CSV, JSON and Parquet files, to a topic, one JSON message per row."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.csv_types import check_moments, read_csv
from tidemill.pipeline.jobs.schema import parse_schema
from tidemill.pipeline.jobs.transforms import as_messages

FORMATS = ("csv", "json", "parquet", "orc")


@dataclass(frozen=True, kw_only=True)
class PublishJob:
    """The target of a publication, and the columns for key and timestamp.

    ``sink`` has options of the format ``tidemill`` (``kafka.bootstrap.servers``, ``delivery`` and others),
    ``reader`` those of Spark's file reader. ``schema`` is a DDL text with the types of CSV columns; the types
    of other columns are inferred from the files.
    """

    sink: Mapping[str, str] = field(repr=False)  # may contain a password
    topic: str
    key: str | None = None
    timestamp: str | None = None
    fields: tuple[str, ...] = ()
    reader: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None


@dataclass(frozen=True)
class PublishResult:
    """The result of a run; ``rows`` as Spark counted them while writing."""

    rows: int
    seconds: float


def publish(frame: DataFrame, job: PublishJob) -> PublishResult:
    """Writes the rows to the topic; all in-sync replicas acknowledge them.

    Spark retries a failed task, and the messages of its first attempt are then duplicates, unless ``sink``
    has ``delivery=exactly-once``.
    """
    began_s = time.monotonic()
    messages = as_messages(frame, key=job.key, timestamp=job.timestamp, fields=job.fields or None)
    seen = Observation("published")
    counted = messages.observe(seen, f.count(f.lit(1)).alias("rows"))
    counted.write.format("tidemill").options(**{**job.sink, "topic": job.topic}).mode("append").save()
    return PublishResult(int(seen.get["rows"]), time.monotonic() - began_s)


def read_files(spark: SparkSession, paths: Sequence[str], form: str, job: PublishJob) -> DataFrame:
    """Reads files. CSV has a header, its types are inferred, and ``NA`` is null.

    Raises ConfigError for an unknown format, and BadValue for a value that is not of its column's type,
    before anything is sent.
    """
    if form not in FORMATS:
        raise ConfigError(f"format {form!r} is unknown: one of {', '.join(FORMATS)} is allowed")
    if form == "csv":
        schema = None if job.schema is None else parse_schema(job.schema)
        return read_csv(spark, paths, job.reader, schema, job.timestamp)
    frame = spark.read.format(form).options(**job.reader).load(list(paths))
    if job.timestamp is not None:
        check_moments(frame, form, job.timestamp)
    return frame
