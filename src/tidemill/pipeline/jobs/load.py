"""Loads topics into Parquet, each message exactly once, in folders by event date.

Exactly once rests on two lists: the checkpoint says which offsets a micro-batch has, the file sink's
``_spark_metadata`` in the output which files count. A batch that was interrupted is done again from the same
offsets, and the files of its first try are not in the list. So only Spark, or a reader that takes the file
names from ``_spark_metadata``, sees each message once; and checkpoint and output belong together: deleting
one alone loses rows or doubles them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.model.errors import TidemillError
from tidemill.pipeline.connect import open_cluster
from tidemill.pipeline.jobs.before import AVAILABLE_NOW, check_load, source_of
from tidemill.pipeline.jobs.session import spark_version, time_zone
from tidemill.pipeline.jobs.transforms import one_file_a_date, parsed, with_event_date
from tidemill.pipeline.options import parse_source_options
from tidemill.pipeline.position import parse_position
from tidemill.pipeline.targets import look

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress

log = logging.getLogger("tidemill.pipeline")


@dataclass(frozen=True, kw_only=True)
class LoadJob:
    """What to load, from where to where.

    ``source`` are options of the format ``tidemill`` (``subscribe``, ``startingOffsets``, ``kafka.*`` ...);
    a start is ``earliest`` when they name none. ``trigger`` is ``available-now`` (up to the present end, then
    finish) or Spark's notation of an interval ("10 seconds"; runs until it is stopped). ``time_zone`` is
    where the event date is taken; None is the session's.
    """

    source: Mapping[str, str] = field(repr=False)  # it may hold a password
    output: str
    checkpoint: str
    schema: str | None = None
    event_time: str = "kafka_timestamp"
    time_zone: str | None = None
    trigger: str = AVAILABLE_NOW
    tasks: int | None = None
    transform: Callable[[DataFrame], DataFrame] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Progress:
    """Where a load is: rows and micro-batches of this run, the state that Spark gives it."""

    rows: int
    batches: int
    state: str


@dataclass(frozen=True)
class LoadResult:
    """What a run did. ``batches`` holds (batch id, rows, seconds) of each micro-batch that had rows."""

    rows: int
    seconds: float
    batches: tuple[tuple[int, int, float], ...]


def load(
    spark: SparkSession, job: LoadJob, on_progress: Callable[[Progress], None] | None = None
) -> LoadResult:
    """Runs the job to its end (``available-now``), or until it is interrupted.

    Raises ConfigError for what cannot be used, DataLoss inside Spark's StreamingQueryException when
    messages were deleted before they were loaded.
    """
    options = check_load(job)
    source = source_of(job)
    began_s = time.monotonic()
    done: list[tuple[int, int, float]] = []
    with time_zone(spark, job.time_zone):
        if job.trigger != AVAILABLE_NOW or spark_version(spark) >= (4, 2):
            end = _run(spark, job, source, done, on_progress)
        else:
            end = _run_until_nothing_is_left(spark, job, source, done, on_progress)
    if options.commit_group is not None and end is not None:
        _commit(options.client, options.commit_group, end)
    return LoadResult(sum(rows for _, rows, _ in done), time.monotonic() - began_s, tuple(done))


def start(spark: SparkSession, job: LoadJob, source: Mapping[str, str]) -> StreamingQuery:
    """Starts the streaming query of a job, and does not wait for it."""
    messages = spark.readStream.format("tidemill").options(**source).load()
    rows = parsed(messages, job.schema)
    if job.transform is not None:
        rows = job.transform(rows)
    dated = with_event_date(rows, job.event_time)
    tasks = job.tasks or spark.sparkContext.defaultParallelism
    writer = (
        one_file_a_date(dated, tasks)
        .writeStream.format("parquet")
        .partitionBy("event_date")
        .option("path", job.output)
        .option("checkpointLocation", job.checkpoint)
    )
    if job.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=job.trigger).start()


def _run(
    spark: SparkSession,
    job: LoadJob,
    source: Mapping[str, str],
    done: list[tuple[int, int, float]],
    on_progress: Callable[[Progress], None] | None,
) -> dict[str, Any] | None:
    """One query from start to end; returns the offsets that it reached."""
    query = start(spark, job, source)
    before = len(done)
    try:
        while not query.awaitTermination(0.25):
            _report(query, done[:before], on_progress)
    finally:
        if query.isActive:
            query.stop()
    done[before:] = _batches(query)
    _report(query, done[:before], on_progress)
    last = query.lastProgress
    return _end_offset(last) if last is not None else None


def _run_until_nothing_is_left(
    spark: SparkSession,
    job: LoadJob,
    source: Mapping[str, str],
    done: list[tuple[int, int, float]],
    on_progress: Callable[[Progress], None] | None,
) -> dict[str, Any] | None:
    """Before 4.2 a query with a limit ends after one batch: it is started again until it is at the end.

    The end is fixed before the first, so that a busy topic does not keep the job for ever.
    """
    options = parse_source_options(source, streaming=True)
    with open_cluster(options.client) as cluster:
        target = look(cluster, options, strict=True).latest
    end: dict[str, Any] | None = None
    while True:
        # A batch that a crash left behind is a query of its own, without rows where the sink has it already.
        before, earlier = len(done), end
        end = _run(spark, job, source, done, on_progress) or end
        reached = parse_position(end).offsets() if end is not None else {}
        stands = len(done) == before and end == earlier
        if stands or all(reached.get(place, 0) >= offset for place, offset in target.items()):
            return end


def _batches(query: StreamingQuery) -> list[tuple[int, int, float]]:
    return [
        (int(one["batchId"]), int(one["numInputRows"]), one["durationMs"].get("triggerExecution", 0) / 1000)
        for one in query.recentProgress
        if one["numInputRows"] > 0
    ]


def _report(
    query: StreamingQuery,
    earlier: list[tuple[int, int, float]],
    on_progress: Callable[[Progress], None] | None,
) -> None:
    if on_progress is None:
        return
    batches = [*earlier, *_batches(query)]
    state = query.status["message"] if query.isActive else "finished"
    on_progress(Progress(sum(rows for _, rows, _ in batches), len(batches), state))


def _end_offset(progress: StreamingQueryProgress) -> dict[str, Any] | None:
    """The offsets that a query has reached; None before its first batch.

    Out of the progress as JSON: before 4.2 its own ``endOffset`` is Python's notation of a dict.
    """
    end = json.loads(progress.json)["sources"][0].get("endOffset")
    return dict(json.loads(end) if isinstance(end, str) else end) if end is not None else None


def _commit(client: Mapping[str, str], group: str, end: dict[str, Any]) -> None:
    """Spark tells a source about a batch only when it plans the next: the last one is for the job."""
    try:
        with open_cluster(client) as cluster:
            cluster.commit(group, parse_position(end).offsets())
    except (TidemillError, OSError) as problem:
        log.warning("group %s does not show the load's end: %s", group, problem)
