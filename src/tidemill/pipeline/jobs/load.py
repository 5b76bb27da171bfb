"""Loads topics into Parquet, each message exactly once, in folders by event date.

Exactly once rests on two things: the checkpoint says which offsets a micro-batch has, and the manifest of the
output which micro-batch is in it (:mod:`tidemill.pipeline.jobs.table_folder`). A batch that was interrupted
is done again from the same offsets, or was done already. Every file of the output counts, for every reader.
Checkpoint and output belong together: one of them without the other is refused.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.log.files import SystemFiles
from tidemill.model.errors import TidemillError
from tidemill.model.ports import Files
from tidemill.pipeline.connect import open_cluster
from tidemill.pipeline.jobs.before import AVAILABLE_NOW, check_load, local_path, source_of
from tidemill.pipeline.jobs.file_sink_migration import migrate
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
    """What a run did. ``batches`` holds (batch id, rows, seconds) of each micro-batch that had rows.

    ``raw`` counts, by reason, the rows whose fields do not hold the whole value; they have it in
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

    Raises ConfigError for what cannot be used, DataLoss inside Spark's StreamingQueryException when
    messages were deleted before they were loaded.
    """
    options = check_load(job)
    began_s = time.monotonic()
    with time_zone(spark, job.time_zone), claimed_table(job) as table:
        run = LoadRun(spark, job, table, on_progress)
        end = run.to_the_end()
    if options.commit_group is not None and end is not None:
        _commit(options.client, options.commit_group, end)
    rows = sum(rows for _, rows, _ in run.done)
    return LoadResult(rows, time.monotonic() - began_s, tuple(run.done), dict(run.raw))


@contextmanager
def claimed_table(job: LoadJob, files: Files | None = None) -> Iterator[TableFolder]:
    """The folder of a load's output, brought in order after a kill, for the time of a run.

    Raises UnderWay while another process loads into it, ConfigError for an output and a checkpoint that do
    not belong together.
    """
    files = files or SystemFiles()
    output, checkpoint = local_path(job.output), local_path(job.checkpoint)
    table = open_table(files, output, checkpoint)
    try:
        removed = migrate(files, table, output, checkpoint)
        if removed is not None:
            log.warning(
                "%s: taken over from Spark's file sink; %d files of interrupted micro-batches were removed",
                output,
                removed,
            )
        table.recover()
        yield table
    finally:
        table.close()


class LoadRun:
    """One run of a job, of one or several queries: ``done`` and ``raw`` are of all of them."""

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

    def to_the_end(self) -> dict[str, Any] | None:
        """Runs until the trigger is satisfied; the offsets that were reached, None before the first batch."""
        if self._job.trigger != AVAILABLE_NOW or spark_version(self._spark) >= (4, 2):
            return self._query()
        return self._until_nothing_is_left()

    def start(self) -> StreamingQuery:
        """Starts a streaming query of the job, and does not wait for it."""
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
        """Called by Spark for each micro-batch, in a thread of its own."""
        tasks = self._job.tasks or self._spark.sparkContext.defaultParallelism

        def write(staging: str) -> Written:
            from pyspark.sql import Observation

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

    def _query(self) -> dict[str, Any] | None:
        """One query from start to end; returns the offsets that it reached."""
        query = self.start()
        before = len(self.done)
        try:
            while not query.awaitTermination(0.25):
                self._report(query, before)
        except Exception:
            # Spark tells of it as a Python worker's stack trace inside of one of Java.
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

    def _until_nothing_is_left(self) -> dict[str, Any] | None:
        """Before 4.2 a query with a limit ends after one batch: it is started again until it is at the end.

        The end is fixed before the first, so that a busy topic does not keep the job for ever.
        """
        options = parse_source_options(self._source, streaming=True)
        with open_cluster(options.client) as cluster:
            target = look(cluster, options, strict=True).latest
        end: dict[str, Any] | None = None
        while True:
            # A batch that a crash left behind is a query of its own, without rows where the table has it.
            before, earlier = len(self.done), end
            end = self._query() or end
            reached = parse_position(end).offsets() if end is not None else {}
            stands = len(self.done) == before and end == earlier
            if stands or all(reached.get(place, 0) >= offset for place, offset in target.items()):
                return end

    def _report(self, query: StreamingQuery, before: int) -> None:
        if self._on_progress is None:
            return
        batches = [*self.done[:before], *_batches(query)]
        state = query.status["message"] if query.isActive else "finished"
        self._on_progress(Progress(sum(rows for _, rows, _ in batches), len(batches), state))


def _batches(query: StreamingQuery) -> list[tuple[int, int, float]]:
    return [
        (int(one["batchId"]), int(one["numInputRows"]), one["durationMs"].get("triggerExecution", 0) / 1000)
        for one in query.recentProgress
        if one["numInputRows"] > 0
    ]


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
