"""Loads topics into Parquet, each message exactly once, in folders by event date.

Exactly-once depends on two files: the checkpoint has the offsets of a micro-batch, and the manifest of the
output has the last micro-batch in it (:mod:`tidemill.pipeline.jobs.table_folder`). An interrupted batch is
repeated from the same offsets, unless the output has it already. Every file of the output is valid for every
reader. Checkpoint and output belong together: the job refuses one without the other.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import TidemillError
from tidemill.pipeline.client_pool import open_cluster
from tidemill.pipeline.jobs.earlier_loads import check_same_schema, check_same_topics
from tidemill.pipeline.jobs.file_sink_migration import migrate
from tidemill.pipeline.jobs.preflight_checks import (
    AVAILABLE_NOW,
    check_event_time,
    check_fields,
    check_folder,
    check_pair,
    check_time_zone,
    check_trigger,
    local_path,
)
from tidemill.pipeline.jobs.schema import parse_schema
from tidemill.pipeline.jobs.session import spark_version, time_zone
from tidemill.pipeline.jobs.table_folder import TableFolder, Written, open_table
from tidemill.pipeline.jobs.transforms import (
    EVENT_DATE,
    counted_by_reason,
    one_file_a_date,
    parsed,
    reasons_in,
    with_event_date,
)
from tidemill.pipeline.offset_ranges import read_view
from tidemill.pipeline.options import SourceOptions, parse_source_options
from tidemill.pipeline.stream_offsets import parse_position

logger = logging.getLogger("tidemill.pipeline")


@dataclass(frozen=True, kw_only=True)
class LoadJob:
    """The source, the output and the settings of a load.

    ``source`` has options of the format ``tidemill`` (``subscribe``, ``startingOffsets``, ``kafka.*`` ...);
    the default start is ``earliest``. ``trigger`` is ``available-now`` (up to the current end, then finish)
    or an interval in Spark's notation ("10 seconds"; runs until it is stopped). ``time_zone`` is the zone of
    the event date; None is the session's.
    """

    source: Mapping[str, str] = field(repr=False)  # may contain a password
    output: str
    checkpoint: str
    schema: str | None = None
    event_time: str = "kafka_timestamp"
    time_zone: str | None = None
    trigger: str = AVAILABLE_NOW
    tasks: int | None = None
    transform: Callable[[DataFrame], DataFrame] | None = field(default=None, compare=False)


def source_of(job: LoadJob) -> dict[str, str]:
    """Returns the options of a load's source, with ``earliest`` as the default start."""
    names = {name.lower() for name in job.source}
    if names & {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}:
        return dict(job.source)
    return {"startingOffsets": "earliest", **job.source}


def check_load(job: LoadJob) -> SourceOptions:
    """Returns the options of a load's source. Raises ConfigError for an invalid job; asks no broker."""
    options = parse_source_options(source_of(job), streaming=True)
    check_trigger(job.trigger)
    check_time_zone(job.time_zone)
    schema = None if job.schema is None else parse_schema(job.schema)
    if schema is not None:
        check_fields(schema)
    if job.transform is None:  # a transform may add columns
        check_event_time(job.event_time, schema)
    output, checkpoint = local_path(job.output, "output"), local_path(job.checkpoint, "checkpoint")
    check_folder("output", output)
    check_folder("checkpoint", checkpoint)
    check_pair(output, checkpoint)
    check_same_topics(options, output, checkpoint)
    if job.transform is None:
        check_same_schema(schema, output, checkpoint)
    return options


@dataclass(frozen=True)
class Progress:
    """The progress of a load: rows and micro-batches of this run, and Spark's state of the query."""

    rows: int
    batches: int
    state: str


@dataclass(frozen=True)
class LoadResult:
    """The result of a run. ``batches`` has (batch id, rows, seconds) of each micro-batch with rows.

    ``raw`` counts, by reason, the rows whose fields do not represent the whole value, which is in
    ``raw_value``.
    """

    rows: int
    seconds: float
    batches: tuple[tuple[int, int, float], ...]
    raw: Mapping[str, int] = field(default_factory=dict)


def load(
    spark: SparkSession, job: LoadJob, on_progress: Callable[[Progress], None] | None = None
) -> LoadResult:
    """Runs the job to its end (``available-now``), or until it is interrupted.

    Raises ConfigError for an invalid job, and DataLoss inside Spark's StreamingQueryException if messages
    were deleted before they were loaded.
    """
    options = check_load(job)
    began_s = time.monotonic()
    with time_zone(spark, job.time_zone), locked_table(job) as table:
        run = LoadRun(spark, job, table, on_progress)
        end = run.run_to_end()
    if options.commit_group is not None and end is not None:
        _commit(options.client, options.commit_group, end)
    rows = sum(rows for _, rows, _ in run.done)
    return LoadResult(rows, time.monotonic() - began_s, tuple(run.done), dict(run.raw))


@contextmanager
def locked_table(job: LoadJob) -> Iterator[TableFolder]:
    """Locks the folder of a load's output for a run, and recovers it after a kill.

    Raises UnderWay while another process loads into it, ConfigError for an output and a checkpoint that do
    not belong together.
    """
    files = SystemFiles()
    output, checkpoint = local_path(job.output), local_path(job.checkpoint)
    table = open_table(files, output, checkpoint)
    try:
        removed = migrate(files, table, output, checkpoint)
        if removed is not None:
            logger.warning(
                "%s: migrated from Spark's file sink; removed %d files of interrupted micro-batches",
                output,
                removed,
            )
        table.recover()
        yield table
    finally:
        table.close()


class LoadRun:
    """One run of a job, with one or several queries; ``done`` and ``raw`` cover all of them."""

    def __init__(
        self,
        spark: SparkSession,
        job: LoadJob,
        table: TableFolder,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._spark = spark
        self._job = job
        self._table = table
        self._source = source_of(job)
        self._on_progress = on_progress
        self._failure: BaseException | None = None
        self.done: list[tuple[int, int, float]] = []
        self.raw: Counter[str] = Counter()

    def run_to_end(self) -> dict[str, Any] | None:
        """Runs until the trigger is satisfied; returns the reached offsets, None before the first batch."""
        if self._job.trigger != AVAILABLE_NOW or spark_version(self._spark) >= (4, 2):
            return self._run_query()
        return self._run_queries_to_end()

    def start(self) -> StreamingQuery:
        """Starts a streaming query of the job, without waiting for it."""
        job = self._job
        messages = self._spark.readStream.format("tidemill").options(**self._source).load()
        rows = parsed(messages, job.schema)
        if job.transform is not None:
            rows = job.transform(rows)
        dated = with_event_date(rows, job.event_time)
        writer = dated.writeStream.foreachBatch(self._load_batch).option("checkpointLocation", job.checkpoint)
        if job.trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=job.trigger).start()

    def _load_batch(self, frame: DataFrame, batch: int) -> None:
        """Loads a micro-batch. Spark calls it in a separate thread."""
        tasks = self._job.tasks or self._spark.sparkContext.defaultParallelism

        def write(staging: str) -> Written:
            seen = Observation(f"tidemill-batch-{batch}")
            counted = counted_by_reason(frame, seen)
            files = one_file_a_date(counted, tasks).write.partitionBy(EVENT_DATE)
            files.parquet(f"file:{staging}")
            rows, raw = reasons_in(seen.get)
            self.raw.update(raw)
            return Written(rows=rows, raw=raw)

        try:
            self._table.commit(batch, write)
        except BaseException as problem:
            self._failure = problem
            raise

    def _run_query(self) -> dict[str, Any] | None:
        """Runs one query to its end; returns the offsets that it reached."""
        query = self.start()
        before = len(self.done)
        try:
            while not query.awaitTermination(0.25):
                self._report(query, before)
        except Exception:
            # Spark reports it as a Python worker's stack trace inside a Java stack trace.
            if isinstance(self._failure, (TidemillError, OSError)):
                raise self._failure from None
            raise
        finally:
            if query.isActive:
                query.stop()
        self.done[before:] = _batches(query)
        self._report(query, before)
        last = query.lastProgress
        return _end_offset(last) if last is not None else None

    def _run_queries_to_end(self) -> dict[str, Any] | None:
        """Restarts the query until the end: before 4.2 a query with a limit ends after one batch.

        The end is fixed before the first query, so that a busy topic does not keep the job running for ever.
        """
        options = parse_source_options(self._source, streaming=True)
        with open_cluster(options.client) as cluster:
            target = read_view(cluster, options, strict=True).latest
        end: dict[str, Any] | None = None
        while True:
            # A batch that a crash left unfinished is a separate query, without rows if the table has it.
            before, earlier = len(self.done), end
            end = self._run_query() or end
            reached = parse_position(end).offsets() if end is not None else {}
            is_unchanged = len(self.done) == before and end == earlier
            if is_unchanged or all(reached.get(place, 0) >= offset for place, offset in target.items()):
                return end

    def _report(self, query: StreamingQuery, before: int) -> None:
        if self._on_progress is None:
            return
        batches = [*self.done[:before], *_batches(query)]
        state = query.status["message"] if query.isActive else "finished"
        self._on_progress(Progress(sum(rows for _, rows, _ in batches), len(batches), state))


def _batches(query: StreamingQuery) -> list[tuple[int, int, float]]:
    return [
        (
            int(progress["batchId"]),
            int(progress["numInputRows"]),
            progress["durationMs"].get("triggerExecution", 0) / 1000,
        )
        for progress in query.recentProgress
        if progress["numInputRows"] > 0
    ]


def _end_offset(progress: StreamingQueryProgress) -> dict[str, Any] | None:
    """Returns the offsets that a query has reached; None before its first batch.

    Parses the progress as JSON: before 4.2 its ``endOffset`` attribute is the repr of a Python dict.
    """
    end = json.loads(progress.json)["sources"][0].get("endOffset")
    return dict(json.loads(end) if isinstance(end, str) else end) if end is not None else None


def _commit(client: Mapping[str, str], group: str, end: dict[str, Any]) -> None:
    """Commits the last batch: Spark notifies a source about a batch only when it plans the next one."""
    try:
        with open_cluster(client) as cluster:
            cluster.commit(group, parse_position(end).offsets())
    except (TidemillError, OSError) as problem:
        logger.warning("cannot commit the load's end for group %s: %s", group, problem)
