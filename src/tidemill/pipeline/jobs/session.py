"""Creates the Spark session of the command-line jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from pyspark.sql import SparkSession

Result = TypeVar("Result")

STOP_SECONDS_MAX = 20.0
"""How long an interrupted job may take to end before the session is stopped."""

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Secrets that Spark hides in plans, its UI and event logs; its default covers only some of them.
    "spark.sql.redaction.options.regex": r"(?i)url|secret|password|token|jaas|[.]key$",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


def local_session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns a session on this machine, or the existing one.

    Executors run the interpreter of this process. PySpark's default is ``python3`` of the PATH, in which
    tidemill may not be installed; the format would then not be found.
    """
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
    """The standard error output of Java, and of the Python workers that it starts.

    While Spark starts, the output is kept in ``text``: it is irrelevant unless the start fails. After
    :meth:`forward` it goes to the standard error of this process.
    """

    def __init__(self) -> None:
        self._passing = threading.Event()
        self._kept: list[bytes] = []
        self._lock = threading.Lock()

    @property
    def text(self) -> str:
        """The kept output."""
        with self._lock:
            return b"".join(self._kept).decode(errors="replace")

    def forward(self) -> None:
        """Stops keeping output, and forwards it instead."""
        self._passing.set()

    def pump(self, source: int, target: int) -> None:
        """Reads until the last writer has closed the pipe: a full pipe without a reader would block Java."""
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
    """Captures the standard error of a Java process that is started in the block, until it ends."""
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
    """Runs ``work`` so that ctrl-C, and signals that raise, end it cleanly and raise here.

    ``work`` runs in another thread while this one waits. An interrupt must not break a call to the JVM: its
    connection would keep a response that the next call would take for its own. On an interrupt,
    ``on_interrupt`` is called first, so that the work does not continue. Then queries and jobs are ended.
    """
    outcome: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            # Makes the session the active one of this thread: otherwise Spark finds no Python data source
            # for a write. PySpark has no other public way.
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
            # A signal for the whole process group has ended the JVM as well, and Py4J logs lost connections.
            logging.disable()
            try:
                # Without the JVM there is no work to end, and the calls to it fail.
                with contextlib.suppress(Exception):
                    _end_work(spark)
                done.wait(STOP_SECONDS_MAX)
            finally:
                logging.disable(logging.NOTSET)
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
    """Ends queries and jobs, and suppresses Spark's error messages about that."""
    spark.sparkContext.setLogLevel("OFF")
    for query in spark.streams.active:
        query.stop()
    spark.sparkContext.cancelAllJobs()


def spark_version(spark: SparkSession) -> tuple[int, int]:
    """Returns the major and minor version."""
    major, minor = spark.version.split(".")[:2]
    return int(major), int(minor)


@contextmanager
def time_zone(spark: SparkSession, zone: str | None) -> Iterator[None]:
    """Sets the session's time zone, on which dates depend, for a ``with`` block.

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
