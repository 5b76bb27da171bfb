"""The Spark session that the jobs run in, when they are not given one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")

STOP_SECONDS_MAX = 20.0
"""How long an interrupted job may take to end, before the session is stopped under it."""

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Secrets that Spark leaves out of plans, its UI and event logs: by default it knows some of them only.
    "spark.sql.redaction.options.regex": r"(?i)url|secret|password|token|jaas|[.]key$",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


def local_session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, or the one that there is.

    Executors run the interpreter of this process: PySpark's own default is ``python3`` of the PATH, where
    tidemill may not be installed, and then the format is not found.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if "SPARK_REMOTE" not in os.environ and "MASTER" not in os.environ:
        builder = builder.master(master)
    for key, value in {**LOCAL_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class JavaOutput:
    """What Java, and the Python workers that it starts, write to standard error.

    While Spark starts it is kept in ``said``: it is noise, unless the start fails. After :meth:`pass_on` it
    goes to this process' standard error.
    """

    def __init__(self) -> None:
        self._passing = threading.Event()
        self._kept: list[bytes] = []
        self._lock = threading.Lock()

    @property
    def said(self) -> str:
        """What was kept so far."""
        with self._lock:
            return b"".join(self._kept).decode(errors="replace")

    def pass_on(self) -> None:
        """From now on nothing is kept."""
        self._passing.set()

    def pump(self, source: int, target: int) -> None:
        """Reads until the last writer is gone: a pipe that nobody reads would halt Java."""
        while data := os.read(source, 65536):
            if self._passing.is_set():
                with contextlib.suppress(OSError):
                    os.write(target, data)
            else:
                with self._lock:
                    self._kept.append(data)
        os.close(source)


@contextmanager
def java_output_kept() -> Iterator[JavaOutput]:
    """A Java that is started in here writes its standard error to what is given, for as long as it runs."""
    output = JavaOutput()
    source, sink = os.pipe()
    sys.stderr.flush()
    before = os.dup(2)
    os.set_inheritable(before, False)
    os.dup2(sink, 2)
    os.close(sink)
    threading.Thread(target=output.pump, args=(source, before), name="java-output", daemon=True).start()
    try:
        yield output
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)


def interruptible(
    spark: SparkSession, work: Callable[[], Result], on_interrupt: Callable[[], object] | None = None
) -> Result:
    """What ``work`` gives, done so that ctrl-C, and signals that raise, end it cleanly: they are raised here.

    In this thread, which PySpark's own handler of ctrl-C may not interrupt in the middle of a call: a call to
    the JVM that is broken off leaves its connection with an answer that the next call takes for its own. So
    the work has another thread, and this one waits. On an interrupt queries and jobs are ended, after
    ``on_interrupt``: work that would go on then is told so by it.
    """
    outcome: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            # Makes the session the active one of this thread, without which Spark finds no Python source
            # to write with. PySpark has no other public way.
            spark.createDataFrame([], "nothing int")
            outcome.append(work())
        except BaseException as problem:  # noqa: BLE001 - raised again below
            failures.append(problem)
        finally:
            done.set()

    done = threading.Event()
    with _own_handler_of_interrupts():
        try:
            threading.Thread(target=run, name="tidemill-job", daemon=True).start()
            done.wait()
        except BaseException:
            if on_interrupt is not None:
                on_interrupt()
            _end_work(spark)
            done.wait(STOP_SECONDS_MAX)
            raise
    if failures:
        raise failures[0]
    return outcome[0]


@contextmanager
def _own_handler_of_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_work(spark: SparkSession) -> None:
    """Ends queries and jobs; Spark's complaints about that help nobody."""
    spark.sparkContext.setLogLevel("OFF")
    for query in spark.streams.active:
        query.stop()
    spark.sparkContext.cancelAllJobs()


def spark_version(spark: SparkSession) -> tuple[int, int]:
    """Major and minor version."""
    major, minor = spark.version.split(".")[:2]
    return int(major), int(minor)


@contextmanager
def time_zone(spark: SparkSession, zone: str | None) -> Iterator[None]:
    """Sets the session's time zone for a while: what a date is, depends on it.

    A streaming query keeps the zone that was set when it started.
    """
    if zone is None:
        yield
        return
    before = spark.conf.get("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
