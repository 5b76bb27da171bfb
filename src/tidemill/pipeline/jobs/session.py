"""The Spark session that the jobs run in, when they are not given one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The file sink's list of files is compacted rarely enough to stay cheap, and is read by Spark only.
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
