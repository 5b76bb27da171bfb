"""The job: a streaming query for each source, and a thread that copies positions and measures the lag."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, ErrorCode, TidemillError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.jobs.preflight_checks import AVAILABLE_NOW
from tidemill.pipeline.mirror.cluster_observer import ClusterObserver
from tidemill.pipeline.mirror.cluster_outages import OutageReports
from tidemill.pipeline.mirror.copy_options import CopyOptions
from tidemill.pipeline.mirror.copy_source import FORMAT, MirrorDataSource
from tidemill.pipeline.mirror.mirror_lag import MirrorLag, MirrorMetrics
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.position_translation import MergedPositions
from tidemill.pipeline.mirror.preflight_checks import checked_clusters
from tidemill.pipeline.mirror.query_failures import (
    Verdict,
    has_lost_worker,
    verdict_on,
    verdict_on_copy,
    verdict_on_start,
)
from tidemill.pipeline.mirror.range_copy import REFUSED
from tidemill.pipeline.mirror.record_query import RecordQuery
from tidemill.pipeline.mirror.record_source import RecordDataSource, RecordOptions
from tidemill.pipeline.mirror.target_names import ClaimedNames
from tidemill.pipeline.mirror.target_support import (
    ONLY_BETWEEN_BROKERS,
)
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.spark_errors import explained

logger = logging.getLogger("tidemill.pipeline")

MEASURE_S = 2.0
"""How often the lag is measured."""
RESTARTS_MAX = 5
RESTART_PAUSE_S = 5.0
"""How often a query is started again after a failure of Spark, and the pause before; a copied range starts
the count anew. After the loss of a Python worker the pause doubles each time, up to 80 s.
"""
AGAIN_PAUSE_S = 1.0
"""The pause before an available-now query that has not copied all is started again."""
COPIED = "copied"
"""The name of the sums over the rows of a micro-batch, in Spark's progress."""


@dataclass
class SourceProgress:
    """What the job has done for one source since its start."""

    alias: str
    records: int = 0
    bytes: int = 0
    positions: int = 0
    topics: int = 0
    lag: MirrorLag | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why topics that the filter selects are not mirrored."""
    waiting: str = ""
    """Why nothing can be copied now; empty otherwise."""
    unmatched: str = ""
    """The lists that select no topic of the source; empty if they select one."""


def mirror(
    spark: SparkSession,
    job: MirrorJob,
    on_progress: Callable[[Sequence[SourceProgress]], None] | None = None,
    metrics: MirrorMetrics | None = None,
    stopping: threading.Event | None = None,
) -> list[SourceProgress]:
    """Runs the job to its end (``available-now``), or until ``stopping`` is set.

    Raises ConfigError for clusters that cannot be mirrored, and the error that stops a source: DataLoss for
    a source that is shorter than its mirror, TopicRecreated, and errors that no wait would end.
    """
    with checked_clusters(job):
        return run_mirror(spark, job, on_progress, metrics, stopping)


def run_mirror(
    spark: SparkSession,
    job: MirrorJob,
    on_progress: Callable[[Sequence[SourceProgress]], None] | None = None,
    metrics: MirrorMetrics | None = None,
    stopping: threading.Event | None = None,
) -> list[SourceProgress]:
    """As :func:`mirror`, within :func:`.preflight_checks.checked_clusters`."""
    spark.dataSource.register(MirrorDataSource)
    spark.dataSource.register(RecordDataSource)
    merged = MergedPositions(source.alias for source in job.sources) if job.merges else None
    claimed = ClaimedNames() if job.same_offsets else None
    runs = [SourceRun(spark, job, source, metrics, merged, claimed) for source in job.sources]
    try:
        for run in runs:
            run.start()
        while [run for run in runs if not run.has_ended()]:
            if stopping is not None and stopping.is_set():
                break
            if on_progress is not None:
                on_progress([run.progress for run in runs])
            time.sleep(0.25)
    finally:
        for run in runs:
            run.stop()
    if on_progress is not None:
        on_progress([run.progress for run in runs])
    return [run.progress for run in runs]


def none_selected(alias: str, topics: TopicFilter) -> str:
    """Returns the warning that the lists select no topic of a source."""
    denied = f", without those of the deny list {topics.deny!r}" if topics.deny else ""
    return (
        f"no topic of the source {alias} matches the allow list {topics.allow!r}{denied}: nothing is copied "
        "until there is one"
    )


class SourceRun:
    """The query of one source, and the thread that copies positions and measures lag."""

    def __init__(
        self,
        spark: SparkSession,
        job: MirrorJob,
        source: MirrorSource,
        metrics: MirrorMetrics | None,
        merged: MergedPositions | None = None,
        claimed: ClaimedNames | None = None,
    ) -> None:
        self._spark = spark
        self._job = job
        self._source = source
        self._metrics = metrics
        self._query: StreamingQuery | None = None
        self._last_batch = -1
        self._copy_problem = ""
        self._held_back: frozenset[TopicPartition] = frozenset()
        """The partitions that the last measurement has found held back."""
        self._failure: Exception | None = None
        """The error of the thread that ends the mirror."""
        self._restarts = 0
        self._restart_at_s = 0.0
        self._stopping = threading.Event()
        self._outages = OutageReports(source.alias)
        self._measured_s = time.monotonic()
        """When the last measurement ended that both clusters have answered; before, the start of the job."""
        self._records = None if job.same_offsets else self._record_query()
        self._observer = ClusterObserver(job, source, self._records, merged, claimed)
        self._thread = threading.Thread(target=self._observe, name=f"mirror-{source.alias}", daemon=True)
        self._goal: dict[TopicPartition, int] = {}
        """The ends of the source at the start, for ``available-now`` (:meth:`ClusterObserver.goal`)."""
        self.progress = SourceProgress(source.alias)

    def start(self) -> None:
        """Starts the query and the thread. Raises ClientError."""
        if self._job.trigger == AVAILABLE_NOW:
            self._goal = self._observer.goal()
        self._try_query()
        self._thread.start()

    def has_ended(self) -> bool:
        """Whether all is copied (``available-now``). Raises the error that ends the query."""
        if self._failure is not None:
            raise self._failure
        if outage := self._outages.update(self._observer.waits(), self._measured_s, time.monotonic()):
            self.progress.waiting = outage
        query = self._query
        if query is None:
            if time.monotonic() >= self._restart_at_s:
                self._try_query()
            return False
        is_active = query.isActive
        self._note_batches(query)
        if is_active:
            return False
        problem = query.exception()
        if problem is None:
            try:
                if self._is_copied():
                    return True
            except (ClientError, OSError) as outage:
                if isinstance(outage, ClientError) and not outage.retriable:
                    raise
                self.progress.waiting = str(outage)
                return False
            self._query, self._restart_at_s = None, time.monotonic() + AGAIN_PAUSE_S
            return False
        if self._records is None:
            self._restart_after(problem, verdict_on_copy(problem))
        else:
            # The cause is the batch's own error, or in the text of Spark's.
            cause = problem if self._records.failure is None else self._records.failure
            self._restart_after(cause, verdict_on(cause))
        return False

    def stop(self) -> None:
        """Stops the query and the thread."""
        self._stopping.set()
        # With many groups, or without a broker, the thread would wait for requests.
        self._observer.interrupt()
        if self._query is not None:
            if self._query.isActive:
                self._query.stop()
            with suppress(TidemillError):
                self._note_batches(self._query)
        if self._thread.ident is not None:
            self._thread.join()
        self._observer.close()
        if self._records is not None:
            self._records.close()

    def _copy_options(self) -> CopyOptions:
        job = self._job
        return CopyOptions(
            self._source.client,
            job.target.client,
            job.topics,
            job.names_of(self._source),
            job.replication_factor,
            job.topics_interval_s,
            job.tasks or max(1, self._spark.sparkContext.defaultParallelism),
        )

    def _record_query(self) -> RecordQuery:
        job = self._job
        return RecordQuery(
            self._spark,
            RecordOptions(
                self._copy_options(),
                job.offsets_max,
                job.fail_on_data_loss,
                not job.merges or self._source is job.sources[0],
            ),
            self._source.alias,
            Path(job.checkpoint) / self._source.alias,
            job.trigger,
            self._note_written,
        )

    def _note_written(self, records: int, size: int) -> None:
        """Adds up a micro-batch of ordinary records."""
        self.progress.records += records
        self.progress.bytes += size
        self._copy_problem = ""
        self._restarts = 0
        if self._metrics is not None:
            self._metrics.note_copied(self._source.alias, records, size)

    def _try_query(self) -> None:
        """Starts the query, or plans another attempt. Raises the error that ends the mirror."""
        try:
            self._query = self._start_query()
        except TidemillError:
            raise
        except Exception as problem:  # noqa: BLE001 - of Spark, Java or Python workers
            self._restart_after(problem, verdict_on_start(problem))

    def _restart_after(self, cause: BaseException, verdict: Verdict) -> None:
        """Plans another start of the query, from its checkpoint. Raises the error that ends the mirror."""
        if verdict is Verdict.END or (verdict is Verdict.COUNT and self._restarts >= RESTARTS_MAX):
            raise cause
        pause_s, attempt = RESTART_PAUSE_S, ""
        if verdict is Verdict.COUNT:
            if has_lost_worker(cause):
                # Of a machine that is overloaded; each attempt adds to its load.
                pause_s *= 2**self._restarts
            self._restarts += 1
            attempt = f", attempt {self._restarts} of {RESTARTS_MAX}"
        self._restart_at_s = time.monotonic() + pause_s
        self._query = None
        self._copy_problem = explained(cause)
        logger.warning(
            "the mirror of %s starts again from its checkpoint in %g s%s, after a failure: %s",
            self._source.alias,
            pause_s,
            attempt,
            self._copy_problem,
        )

    def _start_query(self) -> StreamingQuery:
        if self._records is not None:
            return self._records.start()
        job, options = self._job, self._copy_options()
        rows = self._spark.readStream.format(FORMAT).options(**options.to_options()).load()
        is_refused = f.col("code").isin([int(code) for code in REFUSED])
        writer = (
            rows.observe(
                COPIED,
                f.sum("records").alias("records"),
                f.sum("bytes").alias("bytes"),
                f.max("problem").alias("problem"),
                f.max(f.when(is_refused, f.concat_ws("\n", "target", "problem"))).alias("refused"),
            )
            .writeStream.queryName(f"mirror-{self._source.alias}")
            .format("noop")
            .option("checkpointLocation", str(Path(job.checkpoint) / self._source.alias))
        )
        if job.trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=job.trigger).start()

    def _note_batches(self, query: StreamingQuery) -> None:
        """Adds up what new micro-batches have copied. Raises ClientError if the target refuses them."""
        for progress in query.recentProgress:
            table = json.loads(progress.json)
            copied = table.get("observedMetrics", {}).get(COPIED, {})
            if table["batchId"] <= self._last_batch or not copied:
                continue
            self._last_batch = table["batchId"]
            records, size = copied.get("records") or 0, copied.get("bytes") or 0
            self.progress.records += records
            self.progress.bytes += size
            self._copy_problem = copied.get("problem") or ""
            if records:
                self._restarts = 0
            if self._metrics is not None:
                self._metrics.note_copied(self._source.alias, records, size)
            refused, _, problem = (copied.get("refused") or "").partition("\n")
            if refused and self._is_mirror(refused):
                raise ClientError(
                    f"{problem}; {ONLY_BETWEEN_BROKERS}", ErrorCode.POLICY_VIOLATION, topic=refused
                )

    def _is_mirror(self, name: str) -> bool:
        """Whether a topic of the target is an active mirror; False during an outage, which says nothing.

        The next micro-batch asks again.
        """
        try:
            return self._observer.is_mirror(name)
        except (ClientError, OSError) as problem:
            if isinstance(problem, ClientError) and not problem.retriable:
                raise
            return False

    def _observe(self) -> None:
        """Measures the lag, and copies positions, until the mirror stops."""
        next_groups_s = 0.0
        while not self._stopping.wait(MEASURE_S if self.progress.lag is not None else 0.2):
            try:
                self._observer.refuse_wrong_clusters()
                lag = self._observer.measure()
                self._note_topics(lag)
                self.progress.waiting = (self._copy_problem if lag.total else "") or self._observer.outage
                self._log_held_back(lag)
                if self._metrics is not None:
                    self._metrics.note_lag(self._source.alias, lag)
                if time.monotonic() >= next_groups_s and not self._observer.outage:
                    self._copy_positions(lag)
                    next_groups_s = time.monotonic() + self._job.groups_interval_s
                if not self._observer.outage:
                    self._measured_s = time.monotonic()
            except ConfigError as problem:
                self._failure = problem
            except (TidemillError, OSError) as problem:
                if self._stopping.is_set():
                    return  # The stop has closed the clients.
                self.progress.waiting = str(problem)
                logger.info("the mirror of %s: %s", self._source.alias, problem)
            except Exception as problem:  # noqa: BLE001 - without the thread, lag and positions would stay
                self._failure = problem

    def _note_topics(self, lag: MirrorLag) -> None:
        self.progress.lag, self.progress.topics = lag, len(self._observer.names)
        self.progress.refused = self._observer.refused
        before, self.progress.unmatched = self.progress.unmatched, ""
        if self._observer.selects_none:
            self.progress.unmatched = none_selected(self._source.alias, self._job.topics)
            if not before:
                logger.warning("%s", self.progress.unmatched)

    def _log_held_back(self, lag: MirrorLag) -> None:
        """Logs the partitions that are held back since the last measurement, and those that continue."""
        for item, reason in lag.held_back.items():
            if item not in self._held_back:
                logger.warning("the mirror of %s holds back %s: %s", self._source.alias, item, reason)
        for item in sorted(self._held_back.difference(lag.held_back)):
            logger.warning("the mirror of %s continues with %s", self._source.alias, item)
        self._held_back = frozenset(lag.held_back)

    def _copy_positions(self, lag: MirrorLag) -> None:
        self.progress.positions = self._observer.copy_positions(lag)
        if self._metrics is not None:
            self._metrics.note_positions(self._source.alias, self.progress.positions)

    def _is_copied(self) -> bool:
        """Whether the mirror has what the source had at the start; copies positions then.

        Topics that were deleted or refused since are not waited for. A partition without records is never
        copied.
        """
        lag = self._observer.measure()
        self._note_topics(lag)
        self._copy_positions(lag)
        if (problem := self._observer.position_failure) is not None:
            raise problem
        reached = lag.ends
        if self._records is not None:
            nothing_left = {item: self._goal.get(item, 0) for item, left in lag.messages.items() if not left}
            reached = {**self._records.points.copied(), **nothing_left}
        left = [item for item, end in self._goal.items() if reached.get(item, -1) < end]
        is_copied = not left or not self._observer.goal().keys() & set(left)
        return is_copied and (self._job.groups is None or self._observer.knows_positions)
