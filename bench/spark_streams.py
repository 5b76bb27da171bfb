"""Measures micro-batches of 100 rows, and the sink: Tidemill's and Spark's own Kafka connector, in turn.

    python bench/spark_streams.py [--rows 4000000] [--batches 30]

Fills a topic on a separate broker. A stream then reads it in micro-batches of 100 rows: the median time of a
micro-batch after the first five, and the CPU seconds of ``--batches`` of them. A batch query then writes
``--rows`` rows of 100 B to another topic: rows a second and CPU seconds, the median of three writes after a
first one. First the query creates the rows, which takes about half of that time with Tidemill; then Spark has
them in its memory, and the JVM is warm. CPU seconds are those of Python, the JVM and the Python workers
together, without the broker's. PySpark and the connector are those of ``spark.py``.
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

SOURCES = ("tidemill", "kafka")
ROWS = 4_000_000
BATCHES = 30
BATCH_ROWS = 100
WARM_BATCHES = 5
ROUNDS = 3
READ_TOPIC, WRITTEN_TOPIC = "spark-streams", "spark-written"


def cpu_s_of_tree(root: int) -> float:
    """Returns CPU seconds of a process, of its live descendants, and of those that they have waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # The process has ended.
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [root]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def micro_batches(spark: Any, source: str, bootstrap: str, count: int, directory: str) -> Figures:
    """``batch_ms``: median duration of a micro-batch; ``batches_cpu``: CPU seconds of ``count`` of them."""
    frame = (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", READ_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_ROWS)
        .load()
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    durations: list[float] = []
    seen, last = -1, WARM_BATCHES + count - 1
    cpu_s = 0.0
    while seen < last:
        if not query.isActive:
            raise SystemExit(f"bench: {source}: the stream ended: {query.exception()}")
        for progress in query.recentProgress:
            if progress["numInputRows"] and progress["batchId"] > seen:
                seen = progress["batchId"]
                if progress["numInputRows"] != BATCH_ROWS:
                    raise SystemExit(
                        f"bench: {source} read {progress['numInputRows']} rows, not {BATCH_ROWS}"
                    )
                if WARM_BATCHES <= seen <= last:
                    durations.append(progress["durationMs"]["triggerExecution"])
                if seen == WARM_BATCHES - 1:
                    cpu_s = cpu_s_of_tree(os.getpid())
        time.sleep(0.02)
    used_s = cpu_s_of_tree(os.getpid()) - cpu_s
    query.stop()
    return {"batch_ms": statistics.median(durations), "batches_cpu": used_s}


def write_rows(spark: Any, source: str, bootstrap: str, count: int, cached: bool) -> tuple[float, float]:
    """Returns rows per second, and CPU seconds of one write; ``cached``: Spark has the rows in memory."""
    rates, used = [], []
    frame = spark.range(0, count, 1, 4).selectExpr("cast(lpad(id, 100, 'x') as binary) as value")
    if cached:
        frame.cache().count()
    for turn in range(ROUNDS + 1):
        cpu_s, begin = cpu_s_of_tree(os.getpid()), time.perf_counter()
        writer = frame.write.format(source).option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", WRITTEN_TOPIC).mode("append").save()
        took_s = time.perf_counter() - begin
        if turn:
            rates.append(count / took_s)
            used.append(cpu_s_of_tree(os.getpid()) - cpu_s)
    return statistics.median(rates), statistics.median(used)


def measure_here(source: str, bootstrap: str, rows: int, batches: int) -> Figures:
    """Returns all figures of one source, in this process."""
    directory = tempfile.mkdtemp(prefix="tidemill-streams-")
    spark = session()
    try:
        figures = micro_batches(spark, source, bootstrap, batches, directory)
        for name, cached in (("made", False), ("cached", True)):
            rows_s, cpu_s = write_rows(spark, source, bootstrap, rows, cached)
            figures |= {f"{name}_rows_s": rows_s, f"{name}_cpu": cpu_s}
        return figures
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)


def compare(rows: int = ROWS, batches: int = BATCHES) -> dict[str, Figures]:
    """Returns the figures of Tidemill's source and sink and of Spark's connector, in separate processes."""
    shared = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    found = {}
    environment = pyspark_and_jars()
    for source in SOURCES:
        with Tidemill(shared / "tidemill-bench-streams") as broker:
            fill(broker.bootstrap, READ_TOPIC, BATCH_ROWS * (WARM_BATCHES + batches + 20))
            fill(broker.bootstrap, WRITTEN_TOPIC, 4)
            command = [sys.executable, __file__, "--here", source, "--bootstrap", broker.bootstrap]
            command += ["--rows", str(rows), "--batches", str(batches)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found[source] = json.loads(done.stdout.splitlines()[-1])
            print(f"{source}: {found[source]}", file=sys.stderr, flush=True)
    return found


def table_rows(rows: int = ROWS, batches: int = BATCHES) -> list[str]:
    """Returns lines of the table of ``compare.py``."""
    found = compare(rows, batches)
    ours, theirs = (found[source] for source in SOURCES)
    million = rows / 1e6
    axes = (
        (f"Spark, micro-batch of {BATCH_ROWS} rows, ms", "≤ 1.5", "batch_ms", "{:.0f}"),
        (f"Spark, {batches} such micro-batches, CPU seconds", "≤ 1.5", "batches_cpu", "{:.1f}"),
        (f"Spark, sink, {million:.0f} M rows of 100 B, rows/s", "≥ 1.5", "made_rows_s", "{:,.0f}"),
        (f"Spark, sink, {million:.0f} M rows of 100 B, CPU seconds", "≤ 0.8", "made_cpu", "{:.1f}"),
        ("Spark, sink, the same rows from memory, rows/s", "–", "cached_rows_s", "{:,.0f}"),
        ("Spark, sink, the same rows from memory, CPU seconds", "–", "cached_cpu", "{:.1f}"),
    )
    return [
        f"| {axis} | {goal} | {form.format(ours[key])} | {form.format(theirs[key])} its connector"
        f" | {ours[key] / theirs[key]:.2f} |"
        for axis, goal, key, form in axes
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--here", choices=SOURCES, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(options.here, options.bootstrap, options.rows, options.batches)))
        return
    end_in_order()
    print("| axis | goal | Tidemill | against | ratio |\n|---|---|---|---|---|")
    print("\n".join(table_rows(options.rows, options.batches)))


if __name__ == "__main__":
    main()
