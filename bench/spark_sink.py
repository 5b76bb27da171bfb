"""Measures the Spark sink with ``delivery=exactly-once`` against ``at-least-once``, in turn, on one broker.

    python bench/spark_sink.py [--rows 4000000] [--batches 30]

A stream copies a topic in micro-batches of 100 rows: the median time of a micro-batch after the first five.
A batch query then writes ``--rows`` rows of 100 B that Spark has in its memory: rows a second, the median of
three writes after a first one. PySpark is that of ``spark.py``.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import Figures, Tidemill, end_in_order
from spark import fill, pyspark_and_jars, session

EXACTLY, AT_LEAST = "exactly-once", "at-least-once"
ROWS = 4_000_000
BATCHES = 30
BATCH_ROWS = 100
WARM_BATCHES = 5
ROUNDS = 3
READ_TOPIC, WRITTEN_TOPIC = "spark-copied", "spark-written"


def micro_batch_ms(spark: Any, delivery: str, bootstrap: str, count: int) -> float:
    """Returns the median duration of a micro-batch, in milliseconds."""
    directory = tempfile.mkdtemp(prefix="tidemill-sink-")
    frame = (
        spark.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", READ_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_ROWS)
        .load()
        .select("value")
    )
    query = (
        frame.writeStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", WRITTEN_TOPIC)
        .option("delivery", delivery)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    durations: dict[int, float] = {}
    while len(durations) < WARM_BATCHES + count:
        if not query.isActive:
            raise SystemExit(f"bench: {delivery}: the stream ended: {query.exception()}")
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                durations[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        time.sleep(0.02)
    query.stop()
    shutil.rmtree(directory, ignore_errors=True)
    return statistics.median(list(durations.values())[WARM_BATCHES:])


def measure_here(bootstrap: str, rows: int, batches: int) -> dict[str, Figures]:
    """Returns the figures of both deliveries."""
    spark = session()
    found: dict[str, Figures] = {delivery: {} for delivery in (EXACTLY, AT_LEAST)}
    for delivery, figures in found.items():
        figures["batch_ms"] = micro_batch_ms(spark, delivery, bootstrap, batches)
    frame = spark.range(0, rows, 1, 4).selectExpr("cast(lpad(id, 100, 'x') as binary) as value").cache()
    frame.count()
    rates: dict[str, list[float]] = {delivery: [] for delivery in found}
    for turn in range(ROUNDS + 1):
        for delivery in found:
            identity = {"writeId": "bench", "batchId": str(turn)} if delivery == EXACTLY else {}
            writer = frame.write.format("tidemill").option("kafka.bootstrap.servers", bootstrap)
            writer = writer.options(topic=WRITTEN_TOPIC, delivery=delivery, **identity)
            begin = time.perf_counter()
            writer.mode("append").save()
            if turn:
                rates[delivery].append(rows / (time.perf_counter() - begin))
    for delivery, figures in found.items():
        figures["rows_s"] = statistics.median(rates[delivery])
    spark.stop()
    return found


def compare(rows: int = ROWS, batches: int = BATCHES) -> dict[str, Figures]:
    """Returns the figures of both deliveries, from a process with PySpark on a new broker."""
    shared = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    with Tidemill(shared / "tidemill-bench-sink") as broker:
        fill(broker.bootstrap, READ_TOPIC, BATCH_ROWS * (WARM_BATCHES + batches + 20))
        fill(broker.bootstrap, WRITTEN_TOPIC, 4)
        command = [sys.executable, __file__, "--bootstrap", broker.bootstrap]
        command += ["--rows", str(rows), "--batches", str(batches)]
        done = subprocess.run(command, env=pyspark_and_jars(), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Figures] = json.loads(done.stdout.splitlines()[-1])
    print(f"spark sink: {found}", file=sys.stderr, flush=True)
    return found


def table_rows(rows: int = ROWS, batches: int = BATCHES) -> list[str]:
    """Returns lines of the table of ``compare.py``."""
    found = compare(rows, batches)
    exactly, at_least = found[EXACTLY], found[AT_LEAST]
    axes = (
        (f"Spark, exactly-once sink, micro-batch of {BATCH_ROWS} rows, ms", "batch_ms", "{:.0f}"),
        (f"Spark, exactly-once sink, {rows / 1e6:.0f} M rows of 100 B, rows/s", "rows_s", "{:,.0f}"),
    )
    return [
        f"| {axis} | – | {form.format(exactly[key])} | {form.format(at_least[key])} at least once"
        f" | {exactly[key] / at_least[key]:.2f} |"
        for axis, key, form in axes
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bootstrap:
        print(json.dumps(measure_here(options.bootstrap, options.rows, options.batches)))
        return
    end_in_order()
    print("| axis | goal | Tidemill | against | ratio |\n|---|---|---|---|---|")
    print("\n".join(table_rows(options.rows, options.batches)))


if __name__ == "__main__":
    main()
