"""Compares the transactions of Tidemill and Apache Kafka: the same clients, in turn; ends with one table.

    python bench/transactions.py [--rounds 3] [--quick]

Transactions a second with one message and with 100 messages of 1 KB, by one producer and by 16; the time
from the send of a message to its consumer, after the commit; throughput with transactions of 100 ms, relative
to that without, and of committed reads, relative to uncommitted ones; memory of 100,000 transactional ids.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import Figures, Kafka, Peer, Tidemill, end_in_order, run_client, warm_memory

HEAD = "| transactions, one broker | goal | Tidemill | against | ratio |\n|---|---|---|---|---|"
LOAD = Path(__file__).resolve().parent / "transaction_load.py"
SETTINGS = ("transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1")
SHAPES = ((1, 1), (16, 1), (1, 100), (16, 100))
"""Producers, and messages in a transaction."""
BYTES = 1000
COUNT = 400_000
IDS = 100_000
LATENCIES = 2_000


def load(*arguments: object) -> Figures:
    """Runs one client process."""
    return run_client(LOAD, *arguments)


def shape_name(producers: int, records: int) -> str:
    return f"{producers} producer{'s' * (producers > 1)}, {records} message{'s' * (records > 1)}"


def axes(quick: bool) -> list[tuple[str, Callable[[Peer], Figures]]]:
    """The measurements by name."""
    seconds = 2.0 if quick else 5.0
    found: list[tuple[str, Callable[[Peer], Figures]]] = [
        (
            shape_name(producers, records),
            lambda peer, p=producers, r=records: load("rate", peer.bootstrap, p, r, BYTES, seconds),
        )
        for producers, records in SHAPES
    ]
    found.append(
        ("latency", lambda peer: load("latency", peer.bootstrap, LATENCIES // 4 if quick else LATENCIES))
    )
    found.append(("throughput", lambda peer: throughput(peer, COUNT // 4 if quick else COUNT)))
    return found


def throughput(peer: Peer, count: int) -> Figures:
    warm_memory(4 * BYTES * count)
    return load("throughput", peer.bootstrap, count, BYTES)


def run(rounds: int, quick: bool) -> dict[str, dict[str, Figures]]:
    """Returns the medians of all figures, by broker and measurement."""
    gathered: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    base = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()) / "tidemill-transactions"
    with Tidemill(base / "tidemill", SETTINGS) as ours, Kafka(base / "kafka", SETTINGS) as theirs:
        for name, job in axes(quick):
            # The first round warms up both and does not count.
            for turn in range(rounds + 1):
                for peer in (ours, theirs):
                    for key, value in job(peer).items():
                        if turn:
                            gathered[peer.name][name].setdefault(key, []).append(value)
            print(
                f"{name}: { {peer: dict(names[name]) for peer, names in gathered.items()} }", file=sys.stderr
            )
        for peer in (ours, theirs):
            before = peer.resident_mb()
            figures = load("ids", peer.bootstrap, IDS // 10 if quick else IDS)
            gathered[peer.name]["ids"] = {
                "growth": [peer.resident_mb() - before],
                "ids": [figures["ids"]],
            }
    return {
        peer: {
            name: {key: statistics.median(values) for key, values in kinds.items()}
            for name, kinds in names.items()
        }
        for peer, names in gathered.items()
    }


def rows(rounds: int, quick: bool) -> list[str]:
    """Returns the lines of the table."""
    medians = run(rounds, quick)
    ours, theirs = medians["tidemill"], medians["kafka"]
    lines: list[str] = []

    def row(axis: str, goal: str, name: str, key: str) -> None:
        a, b = ours[name][key], theirs[name][key]
        lines.append(f"| {axis} | {goal} | {a:,.0f} | {b:,.0f} | {a / b:.2f} |")

    for shape in SHAPES:
        name = shape_name(*shape)
        row(f"transactions of {name} of 1 KB, 1/s", "≥ 1.5", name, "transactions")
    for key in ("p50", "p99"):
        row(f"send to committed read {key}, µs", "≤ 1", "latency", key)
    for axis, goal, key, base in (
        ("produce in transactions of 100 ms, messages/s", "≥ 0.95", "transactional", "plain"),
        ("read_committed, messages/s", "≥ 0.98", "read_committed", "read_uncommitted"),
    ):
        for peer, figures in (("", ours), ("Apache Kafka: ", theirs)):
            a, b = figures["throughput"][key], figures["throughput"][base]
            lines.append(
                f"| {peer}{axis} | {'' if peer else goal} | {a:,.0f} | {b:,.0f} without | {a / b:.2f} |"
            )
    row("memory of 100,000 transactional ids, MB", "< 100 MB", "ids", "growth")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smaller loads, for a first look")
    options = parser.parse_args()
    end_in_order()
    print("\n".join([HEAD, *rows(options.rounds, options.quick)]), flush=True)


if __name__ == "__main__":
    main()
