"""Compares Tidemill with Apache Kafka: the same clients, on the same machine, in turn; ends with one table.

    python bench/compare.py [--rounds 3] [--quick] [--only NAME]

Each round measures A, then B; a figure is the median of the rounds, and only ratios are reliable: the client
shares the processors with the broker. Logs are on tmpfs, otherwise the disk's write-back would be measured.
The same table has the figures of ``flat.py``, ``spark.py``, ``spark_streams.py``, ``spark_sink.py``,
``mirror.py``, ``compaction.py`` and ``conversion.py``; ``cluster.py``, ``transactions.py`` and
``leader_kill.py`` have separate tables.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cluster
import compaction
import conversion
import flat
import leader_kill
import mirror
import spark
import spark_sink
import spark_streams
from peers import Figures, Kafka, Peer, Tidemill, end_in_order, load, warm_memory

import transactions


def with_cpu(peer: Peer, size: int, count: int) -> Figures:
    """Throughput, and the broker's processor seconds per gigabyte in and out."""
    warm_memory(3 * size * count)
    before = peer.cpu_s()
    figures = load("throughput", peer.bootstrap, count, size)
    gigabytes = size * count / 1e9
    return {**figures, "cpu": (peer.cpu_s() - before) / gigabytes}


def throughput_axes(quick: bool) -> list[tuple[str, Callable[[Peer], Figures]]]:
    scale = 4 if quick else 1
    return [
        ("100 B", lambda peer: with_cpu(peer, 100, 1_000_000 // scale)),
        ("1 KB", lambda peer: with_cpu(peer, 1000, 400_000 // scale)),
        ("10 KB", lambda peer: with_cpu(peer, 10_000, 60_000 // scale)),
    ]


def request_axes(seconds: float) -> list[tuple[str, Callable[[Peer], Figures]]]:
    shapes = ((1, 1), (16, 1), (16, 5), (200, 1))
    return [
        (
            f"{connections} x {depth}",
            lambda peer, c=connections, d=depth: load("requests", peer.bootstrap, c, d, seconds, 100),
        )
        for connections, depth in shapes
    ]


def run(rounds: int, quick: bool, only: str) -> dict[str, dict[str, Figures]]:
    """Returns the medians of all figures, by broker and measurement."""
    seconds = 2.0 if quick else 4.0
    jobs = [(f"throughput {name}", job) for name, job in throughput_axes(quick)]
    jobs += [(f"requests {name}", job) for name, job in request_axes(seconds)]
    jobs.append(("latency", lambda peer: load("latency", peer.bootstrap, 1000 if quick else 5000)))
    jobs = [(name, job) for name, job in jobs if only in name]
    gathered: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    if not jobs:
        return {"tidemill": {}, "kafka": {}}
    base = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()) / "tidemill-bench"
    with Tidemill(base / "tidemill") as ours, Kafka(base / "kafka") as theirs:
        for peer in (ours, theirs):
            gathered[peer.name]["start"] = {"ready": [peer.ready_s], "idle": [peer.resident_mb()]}
        for name, job in jobs:
            # The first round warms up both and does not count.
            for turn in range(rounds + 1):
                for peer in (ours, theirs):
                    figures = job(peer)
                    if turn:
                        for key, value in figures.items():
                            gathered[peer.name][name].setdefault(key, []).append(value)
            print(f"{name}: {summary(gathered, name)}", file=sys.stderr, flush=True)
        for peer in (ours, theirs):
            gathered[peer.name]["start"]["after"] = [peer.resident_mb()]
    return {
        peer: {
            name: {key: statistics.median(values) for key, values in kinds.items()}
            for name, kinds in names.items()
        }
        for peer, names in gathered.items()
    }


def summary(gathered: dict[str, dict[str, dict[str, list[float]]]], name: str) -> str:
    return "; ".join(
        f"{key} {statistics.median(ours):,.0f} against {statistics.median(gathered['kafka'][name][key]):,.0f}"
        for key, ours in gathered["tidemill"][name].items()
    )


HEAD = "| axis | goal | Tidemill | against | ratio |\n|---|---|---|---|---|"


def table(medians: dict[str, dict[str, Figures]]) -> list[str]:
    """Returns the figures of both brokers as lines of a table in Markdown."""
    ours, theirs = medians["tidemill"], medians["kafka"]
    lines: list[str] = []

    def row(axis: str, goal: str, name: str, key: str, form: str) -> None:
        if name in ours and key in ours[name]:
            a, b = ours[name][key], theirs[name][key]
            lines.append(f"| {axis} | {goal} | {form.format(a)} | {form.format(b)} | {a / b:.2f} |")

    produce_goals = {"100 B": "1.3", "1 KB": "2.2", "10 KB": "1.6"}
    for size, goal in produce_goals.items():
        row(f"produce {size}, messages/s", f"≥ {goal}", f"throughput {size}", "produce", "{:,.0f}")
    for size in produce_goals:
        row(f"consume {size}, messages/s", "≥ 0.95", f"throughput {size}", "consume", "{:,.0f}")
    for shape in ("1 x 1", "16 x 1", "16 x 5", "200 x 1"):
        row(f"small requests {shape}, 1/s", "≥ 1.3", f"requests {shape}", "requests", "{:,.0f}")
    row("synchronous produce p50, µs", "≤ 1.05", "latency", "p50", "{:.0f}")
    row("synchronous produce p99, µs", "≤ 1", "latency", "p99", "{:.0f}")
    row("CPU seconds per GB in and out, 1 KB", "≤ 0.4", "throughput 1 KB", "cpu", "{:.2f}")
    row("start to first reply, s", "< 0.3 s", "start", "ready", "{:.2f}")
    row("resident memory idle, MB", "< 40 MB", "start", "idle", "{:.0f}")
    row("resident memory after, MB", "< 60 MB", "start", "after", "{:.0f}")
    return lines


def flat_rows() -> list[str]:
    """Returns the cost of a produce besides other load, relative to its cost alone."""
    lines = []
    for name, (_, text) in flat.CASES.items():
        (cpu, calls), (cpu_then, calls_then) = flat.compare(name, Path(tempfile.gettempdir()))
        axis = f"a produce beside {text}"
        lines.append(
            f"| {axis}: CPU, µs | ≤ 1.1 | {cpu_then:.2f} | {cpu:.2f} without | {cpu_then / cpu:.2f} |"
        )
        lines.append(
            f"| {axis}: system calls | ≤ 1.1 | {calls_then:.2f} | {calls:.2f} without"
            f" | {calls_then / calls:.2f} |"
        )
        print("\n".join(lines[-2:]), file=sys.stderr, flush=True)
    return lines


def spark_rows(quick: bool) -> list[str]:
    """Compares Spark with Tidemill's source and with its own connector."""
    rows = spark.ROWS // 8 if quick else spark.ROWS
    rates = spark.compare(rows)
    million = rows / 1e6
    return [
        f"| Spark, {million:.0f} M rows of 100 B: {what}, rows/s | ≥ {goal} | {ours:,.0f}"
        f" | {theirs:,.0f} its connector | {ours / theirs:.2f} |"
        for what, goal, ours, theirs in zip(
            ("count", "to Parquet"), ("2", "1.6"), rates["tidemill"], rates["kafka"], strict=True
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smaller loads, for a first look")
    parser.add_argument("--only", default="", help="what has this in its name; also: flat, cluster, ...")
    parser.add_argument("--json", action="store_true", help="both brokers' figures for machines")
    options = parser.parse_args()
    end_in_order()
    medians = run(options.rounds, options.quick, options.only)
    if options.json:
        print(json.dumps(medians, indent=1))
        return
    lines = table(medians)
    if options.only in "flat":
        lines += flat_rows()
    if options.only in "spark":
        lines += spark_rows(options.quick)
        lines += spark_streams.table_rows(spark_streams.ROWS // (4 if options.quick else 1))
        lines += spark_sink.table_rows(spark_sink.ROWS // (4 if options.quick else 1))
    if options.only in "mirror":
        lines += mirror.table_rows(mirror.MEGABYTES // (10 if options.quick else 1))
    if options.only in "compaction":
        lines += compaction.every_row(1_000_000 if options.quick else compaction.ROWS, compaction.PARTITIONS)
    if options.only in "conversion":
        lines += conversion.rows(options.quick)
    print("\n".join([HEAD, *lines]), flush=True)
    if options.only in "cluster":
        print("\n".join(["", cluster.HEAD, *cluster.rows(options.rounds, options.quick, "")]), flush=True)
    if options.only in "transactions":
        print(
            "\n".join(["", transactions.HEAD, *transactions.rows(options.rounds, options.quick)]), flush=True
        )
    if options.only in "leader_kill":
        print("\n".join(["", leader_kill.HEAD, *leader_kill.rows(options.rounds)]))


if __name__ == "__main__":
    main()
