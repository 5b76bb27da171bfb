"""Runs the demo: broker, data, jobs, checks, report."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.model.types import TopicPartition
from tidemill.pipeline.demo import analysis, checks
from tidemill.pipeline.demo.broker import DemoBroker
from tidemill.pipeline.demo.directory import locked_directory
from tidemill.pipeline.demo.flights import FLIGHTS, SCHEMAS, WEATHER, expected_rows
from tidemill.pipeline.demo.killed_load import KilledLoad, load_and_kill
from tidemill.pipeline.demo.publish import publish_topic
from tidemill.pipeline.demo.results import Files, Loaded, MicroBatch, Results, Step
from tidemill.pipeline.demo.show import Show
from tidemill.pipeline.demo.topics import make_topics, remove_topics
from tidemill.pipeline.jobs.earlier_loads import position_after

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 6
TIME_ZONE = "America/New_York"
OFFSETS_A_BATCH = 100_000
KILLED_BATCH = 1
DELAYS = "flight-delays"
SINK_CONTROL = "flight-delays-sink"
"""The control topic of the exactly-once sink."""


class Interrupted(Exception):
    """Ends the thread that works with Spark, after the main thread was interrupted."""


class Demo:
    """A run of the demo in a directory."""

    def __init__(
        self, directory: Path, show: Show, bootstrap: str | None = None, limit: int | None = None
    ) -> None:
        self.directory = directory
        self.results = Results()
        self._interrupted = threading.Event()
        self._show = show
        self._limit = limit
        self._broker = DemoBroker(directory) if bootstrap is None else None
        self.bootstrap = bootstrap or ""
        # On an existing cluster, the demo's topics must not collide with other topics.
        suffix = "" if bootstrap is None else f"-demo-{uuid.uuid4().hex[:8]}"
        self.names = {topic: f"{topic}{suffix}" for topic in (FLIGHTS, WEATHER, DELAYS, SINK_CONTROL)}

    def run(self) -> Results:
        """Runs all steps; stops the broker at the end, even after an error."""
        from tidemill.pipeline.demo.report import sections, write_report

        began_s = time.monotonic()
        with locked_directory(self.directory):
            try:
                self._work()
            except BaseException:
                self._finish()
                raise
            with self._step("stop the broker" if self._broker else "remove the topics") as notes:
                self._finish()
                notes.append(agreement(self.results))
            with self._step("report"):
                body = sections(self.results)
                self.results.seconds = time.monotonic() - began_s
                write_report(self.directory / "report.html", self.results, body)
        return self.results

    def _work(self) -> None:
        from tidemill.pipeline.jobs.session import interruptible

        self._start_broker()
        self._publish()
        killed = self._first_load()
        spark = self._start_spark()
        try:
            interruptible(spark, lambda: self._work_with(spark, killed), self._interrupted.set)
        finally:
            spark.stop()

    def _work_with(self, spark: SparkSession, killed: KilledLoad) -> None:
        self._second_load(spark, killed)
        self._aggregate(spark)
        self._check(spark)

    def _finish(self) -> None:
        """Stops the demo's broker, or deletes its topics on an existing cluster."""
        if self._broker is None:
            remove_topics(self.bootstrap, list(self.names.values()))
            return
        code = self._broker.stop()
        if code is not None:
            self.results.checks.append(checks.equal("the broker's exit code after SIGTERM", 0, code))

    @contextmanager
    def _step(self, name: str) -> Iterator[list[str]]:
        """Measures a step; the entries of the yielded list become its note."""
        began_s = time.monotonic()
        notes: list[str] = []
        with self._show.step(name):
            yield notes
        if self._interrupted.is_set():
            raise Interrupted(f"{name}: interrupted")
        step = Step(name, time.monotonic() - began_s, ", ".join(notes))
        self.results.steps.append(step)
        self._show.done(step)

    def _start_broker(self) -> None:
        with self._step("start the broker") as notes:
            if self._broker is not None:
                self._broker.start()
                self.bootstrap = self._broker.bootstrap
                notes.append(f"answers after {self._broker.ready_seconds:.2f} s, at {self.bootstrap}")
            else:
                notes.append(f"an existing cluster: {self.bootstrap}")
            make_topics(self.bootstrap, [self.names[one] for one in (FLIGHTS, WEATHER, DELAYS)], PARTITIONS)

    def _publish(self) -> None:
        for topic in (FLIGHTS, WEATHER):
            total = expected_rows(topic, self._limit)
            with (
                self._step(f"publish {topic}") as notes,
                self._show.progress(f"publish {topic}", total) as report_progress,
            ):
                published = publish_topic(
                    self.bootstrap, topic, self.names[topic], report_progress, self._limit
                )
                ends = checks.broker_ends(self.bootstrap, self.names[topic])
                self.results.topics[topic] = Loaded(published, ends)
                notes.append(f"{published.rows:,} messages, {published.value_bytes / 1e6:.0f} MB of JSON")

    def _first_load(self) -> KilledLoad:
        """Loads flights with the command line, and kills the process."""
        with (
            self._step("load flights, killed in the middle") as notes,
            self._show.waiting() as report_progress,
        ):
            options = ["--bootstrap-server", self.bootstrap, "--topic", self.names[FLIGHTS]]
            options += ["--output", str(self._table(FLIGHTS)), "--checkpoint", str(self._checkpoint(FLIGHTS))]
            options += ["--schema", SCHEMAS[FLIGHTS], "--time-zone", TIME_ZONE]
            options += ["--max-offsets", str(self._offsets_a_batch()), "--group", "tidemill-demo"]
            killed = load_and_kill(
                options,
                self._table(FLIGHTS),
                self._checkpoint(FLIGHTS),
                self.directory / "killed-load.log",
                KILLED_BATCH,
                report_progress,
            )
            what = (
                f"killed in micro-batch {killed.interrupted}"
                if killed.interrupted is not None
                else "not in a batch"
            )
            notes.append(
                f"{counted(len(killed.committed), 'micro-batch', 'micro-batches')} committed, {what}"
            )
        return killed

    def _start_spark(self) -> SparkSession:
        from tidemill.pipeline.jobs.session import local_session

        with self._step("start Spark") as notes:
            warehouse = (self.directory / "spark-warehouse").as_uri()
            settings = {"spark.sql.warehouse.dir": warehouse, "spark.driver.memory": "1g"}
            with errors_into(self.directory / "spark.log"):
                spark = local_session("tidemill demo", settings=settings)
            spark.conf.set("spark.sql.session.timeZone", TIME_ZONE)
            notes.append(f"Spark {spark.version}")
            self._note_versions(spark)
        return spark

    def _second_load(self, spark: SparkSession, killed: KilledLoad) -> None:
        from tidemill.pipeline.jobs.load import LoadJob, load

        for topic in (FLIGHTS, WEATHER):
            total = expected_rows(topic, self._limit)
            name = "load flights, the rest" if topic == FLIGHTS else "load weather"
            with self._step(name) as notes, self._show.progress(name, total) as report_progress:
                source = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.names[topic]}
                source |= {"kafka.group.id": "tidemill-demo", "commitOffsets": "true"}
                if topic == FLIGHTS:
                    source["maxOffsetsPerTrigger"] = str(self._offsets_a_batch())
                job = LoadJob(
                    source=source,
                    output=str(self._table(topic)),
                    checkpoint=str(self._checkpoint(topic)),
                    schema=SCHEMAS[topic],
                    time_zone=TIME_ZONE,
                )
                before = killed_rows(self._checkpoint(topic), killed) if topic == FLIGHTS else {}
                committed = sum(rows for batch, rows in before.items() if batch in killed.committed)
                report_progress(committed)
                seen = [0]

                def forward(
                    progress: Any, report_progress: Any = report_progress, seen: list[int] = seen
                ) -> None:
                    report_progress(progress.rows - seen[0])
                    seen[0] = progress.rows

                result = load(spark, job, forward)
                batches = counted(len(result.batches), "micro-batch", "micro-batches")
                notes.append(f"{result.rows:,} messages in {batches}")
                if topic == FLIGHTS:
                    self._note_batches(before, killed, result.batches)
                discarded = killed.staged if topic == FLIGHTS else 0
                self.results.topics[topic].files = files_of(self._table(topic), discarded)

    def _note_batches(
        self, before: dict[int, int], killed: KilledLoad, after: tuple[tuple[int, int, float], ...]
    ) -> None:
        for batch in killed.committed:
            seconds = seconds_of(self._checkpoint(FLIGHTS), batch)
            self.results.batches.append(MicroBatch(1, batch, before.get(batch, 0), seconds))
        if killed.interrupted is not None:
            self.results.batches.append(
                MicroBatch(1, killed.interrupted, before.get(killed.interrupted, 0), None)
            )
            self.results.killed = (
                "The first run was the command tidemill pipeline load. It was killed with SIGKILL, JVM "
                f"and all, while it wrote the files of micro-batch {killed.interrupted}."
            )
            repeated = next((rows for batch, rows, _ in after if batch == killed.interrupted), 0)
            question = "restart: messages of the killed micro-batch, when planned and when loaded again"
            self.results.checks.append(checks.equal(question, before.get(killed.interrupted, 0), repeated))
        else:
            self.results.killed = "The first run was killed with SIGKILL between two micro-batches."
        self.results.batches += [MicroBatch(2, batch, rows, seconds) for batch, rows, seconds in after]

    def _aggregate(self, spark: SparkSession) -> None:
        from tidemill.pipeline.jobs.publish import PublishJob, publish

        with self._step("join with weather, aggregate, write and publish") as notes:
            joined = self._joined(spark).cache()
            path = str(self.directory / DELAYS)
            analysis.delays_by_carrier_and_hour(joined).coalesce(1).write.mode("overwrite").parquet(path)
            stored = spark.read.parquet(path)
            sink = {"kafka.bootstrap.servers": self.bootstrap, "delivery": "exactly-once"}
            sink |= {"controlTopic": self.names[SINK_CONTROL], "writeId": self.names[DELAYS], "batchId": "0"}
            job = PublishJob(sink=sink, topic=self.names[DELAYS], key="carrier")
            done = publish(stored, job)
            publish(stored, job)
            self.results.aggregate_rows = done.rows
            self.results.delays = stored.collect()
            self.results.weather = analysis.delay_by_weather(joined).collect()
            notes.append(f"{done.rows:,} rows of carrier and hour, published twice with the same id")

    def _check(self, spark: SparkSession) -> None:
        with self._step("check") as notes:
            for topic in (FLIGHTS, WEATHER):
                loaded = self.results.topics[topic]
                table = spark.read.parquet(str(self._table(topic)))
                places, months, loaded.days = checks.loaded_facts(table, topic)
                loaded.places = places
                expected = checks.months_of_file(topic, self._limit)
                self.results.checks += checks.check_topic(
                    topic, loaded.published, loaded.ends, places, months, expected, self._limit
                )
                self._check_days(topic, loaded)
                self.results.checks.append(
                    checks.check_other_reader(
                        topic, str(self._table(topic)), expected_rows(topic, self._limit)
                    )
                )
                self.results.checks.append(checks.check_bytes(spark, self.bootstrap, topic, loaded.published))
            without = checks.flights_without_weather(self._limit) if self._limit is None else None
            total = expected_rows(FLIGHTS, self._limit)
            self.results.checks += checks.check_join(self._joined(spark), without, total)
            self.results.checks += checks.check_aggregate(
                spark, self.bootstrap, self.names[DELAYS], str(self.directory / DELAYS)
            )
            notes.append(agreement(self.results))
            if self._broker is not None:
                notes.append("one more follows: the broker's exit code")
            if self._broker is not None and (resident := self._broker.resident_bytes()) is not None:
                self.results.facts["broker, resident memory at the end"] = f"{resident / 1e6:.0f} MB"

    def _check_days(self, topic: str, loaded: Loaded) -> None:
        found = {
            row["event_date"].isoformat(): row["count"]
            for row in loaded.days
            if row["event_date"] is not None
        }
        published = dict(loaded.published.by_date)
        agreeing = sum(1 for day, count in published.items() if found.get(day) == count)
        extra = len(found.keys() - published.keys())
        self.results.checks.append(
            checks.equal(
                f"{topic}: days with as many rows as were published", len(published), agreeing - extra
            )
        )

    def _joined(self, spark: SparkSession) -> Any:
        flights = spark.read.parquet(str(self._table(FLIGHTS)))
        return analysis.with_weather(flights, spark.read.parquet(str(self._table(WEATHER))))

    def _note_versions(self, spark: SparkSession) -> None:
        from tidemill import __version__, _build_mode

        mode = (
            "compiled data path" if _build_mode.compiled else f"plain Python data path ({_build_mode.reason})"
        )
        self.results.versions = {
            "tidemill": f"{__version__}, {mode}",
            "Spark": spark.version,
            "Python": platform.python_version(),
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        }
        self.results.facts["cluster"] = (
            f"one tidemill broker, ready in {self._broker.ready_seconds:.2f} s"
            if self._broker
            else self.bootstrap
        )

    def _table(self, topic: str) -> Path:
        return self.directory / f"{topic}.parquet"

    def _checkpoint(self, topic: str) -> Path:
        return self.directory / f"{topic}.checkpoint"

    def _offsets_a_batch(self) -> int:
        return OFFSETS_A_BATCH if self._limit is None else max(1, self._limit // 3)


@contextmanager
def errors_into(path: Path) -> Iterator[None]:
    """Redirects the standard error of processes that start in the block, such as the JVM, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def killed_rows(checkpoint: Path, killed: KilledLoad) -> dict[int, int]:
    """Returns the messages of the first run's micro-batches, from the offsets in the checkpoint."""
    before: dict[TopicPartition, int] = {}
    rows: dict[int, int] = {}
    batches = sorted({*killed.committed, *(() if killed.interrupted is None else (killed.interrupted,))})
    for batch in batches:
        after = position_after(checkpoint, batch).offsets()
        rows[batch] = sum(offset - before.get(place, 0) for place, offset in after.items())
        before = after
    return rows


def seconds_of(checkpoint: Path, batch: int) -> float:
    """Returns the duration of a committed micro-batch: from its offset log entry to its commit log entry."""
    planned, committed = (checkpoint / log / str(batch) for log in ("offsets", "commits"))
    return max(0.0, committed.stat().st_mtime - planned.stat().st_mtime)


def agreement(results: Results) -> str:
    """Returns how many checks agree so far."""
    return f"{sum(check.passed for check in results.checks)} of {len(results.checks)} checks agree"


def counted(count: int, singular: str, many: str) -> str:
    """Formats a number with its noun."""
    return f"{count:,} {singular if count == 1 else many}"


def files_of(table: Path, discarded: int = 0) -> Files:
    """Returns the files of a table; ``discarded`` more were staged by the killed attempt."""
    found = list(table.glob("event_date=*/*.parquet"))
    folders = {path.parent for path in found}
    return Files(len(folders), len(found), sum(path.stat().st_size for path in found), discarded)
