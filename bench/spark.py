"""Measures Spark reading one topic: with Tidemill's source, and with Spark's own Kafka connector, in turn.

    python bench/spark.py [--rows 8000000] [--bootstrap HOST:PORT] [--installed]

Fills a topic of 4 partitions with messages of 100 B on a separate broker (or the given one), then counts it
and writes it to Parquet with both. PySpark 4.0.0 comes from PyPI and the connector's jars from Maven Central,
into ``build/``. ``--installed`` measures Tidemill's source alone, with the PySpark that is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import BUILD, ROOT, Tidemill, maven_jars

ROUNDS = 3
ROWS = 8_000_000
VERSION = "4.0.0"
"""Of PySpark: for later ones a jar that the connector needs is not in Maven Central."""
TOPIC = "spark-bench"
Rates = dict[str, tuple[float, float]]


def fill(bootstrap: str, topic: str, rows: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 4, 1)]).values():
        made.result()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 900_000,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for number in range(rows):
        producer.produce(topic, b"x" * 100, partition=number % 4)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def session() -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    if os.environ.get("JARS"):
        builder = builder.config("spark.jars", os.environ["JARS"])
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def measure(spark: Any, source: str, bootstrap: str, topic: str, rows: int, out: str) -> tuple[float, float]:
    """Returns rows per second, counted and written to Parquet."""
    frame = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    begin = time.perf_counter()
    found = frame.selectExpr("sum(length(value))", "count(1)").collect()[0][1]
    counted_s = time.perf_counter() - begin
    if found != rows:
        raise SystemExit(f"bench: {source} counted {found} rows, the topic holds {rows}")
    begin = time.perf_counter()
    frame.select("offset", "key", "value").write.mode("overwrite").parquet(out)
    return rows / counted_s, rows / (time.perf_counter() - begin)


def measure_all(bootstrap: str, rows: int, sources: list[str]) -> Rates:
    """Returns, by source, the medians of rows per second, counted and to Parquet, after a warm-up round."""
    out = tempfile.mkdtemp(prefix="tidemill-spark-")
    spark = session()
    rates: dict[str, list[tuple[float, float]]] = {source: [] for source in sources}
    for turn in range(ROUNDS + 1):
        for source in sources:
            figures = measure(spark, source, bootstrap, TOPIC, rows, out)
            print(f"{source}: {figures[0]:,.0f} {figures[1]:,.0f}", file=sys.stderr, flush=True)
            if turn:
                rates[source].append(figures)
    spark.stop()
    shutil.rmtree(out, ignore_errors=True)
    return {
        source: (statistics.median(of[0] for of in turns), statistics.median(of[1] for of in turns))
        for source, turns in rates.items()
    }


def pyspark_and_jars() -> dict[str, str]:
    """Returns an environment with PySpark and the connector of ``VERSION``, downloaded if missing."""
    directory = BUILD / f"pyspark-{VERSION}"
    if not (directory / "pyspark").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(directory)]
        subprocess.run([*pip, f"pyspark=={VERSION}"], check=True)
    jars = maven_jars(
        BUILD / f"spark-kafka-{VERSION}", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}"
    )
    # Jars of Spark itself must not be on the path twice.
    kinds = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
    needed = [str(jar) for jar in sorted(jars.iterdir()) if jar.name.startswith(kinds)]
    return {
        **os.environ,
        "PYTHONPATH": f"{directory}{os.pathsep}{ROOT / 'src'}",
        "PYSPARK_PYTHON": sys.executable,
        "JARS": ",".join(needed),
    }


def compare(rows: int, bootstrap: str | None = None, installed: bool = False) -> Rates:
    """Fills a topic and measures in a process with that PySpark."""
    shared = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    own = Tidemill(shared / "tidemill-bench-spark") if bootstrap is None else None
    with own or nullcontext():
        address = bootstrap or (own.bootstrap if own else "")
        fill(address, TOPIC, rows)
        command = [sys.executable, __file__, "--here", "--rows", str(rows), "--bootstrap", address]
        environment = dict(os.environ) if installed else pyspark_and_jars()
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: Rates = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--bootstrap", help="a broker that is there already")
    parser.add_argument("--installed", action="store_true", help="only our source, PySpark as installed")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        sources = ["tidemill", *(["kafka"] if os.environ.get("JARS") else [])]
        print(json.dumps(measure_all(options.bootstrap, options.rows, sources)))
        return
    print("| source | count, rows/s | to Parquet, rows/s |\n|---|---|---|")
    for source, (count, parquet) in compare(options.rows, options.bootstrap, options.installed).items():
        print(f"| {source} | {count:,.0f} | {parquet:,.0f} |")


if __name__ == "__main__":
    main()
