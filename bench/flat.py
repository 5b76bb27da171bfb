"""Measures the cost of a small produce before and after a broker fills up: processor time and system calls.

    python bench/flat.py [--only topics|connections|log] [--data DIR]

Two brokers have the same load in turn: one with only a log of 1 GB, one that also has a log of 10 GB, 1,000
idle topics, or 500 idle connections. The results are the medians of the turns, and their ratio: 1.00 is flat.
System calls are counted by ``perf`` if it is available and permitted, otherwise the reads and writes that the
kernel counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load import connect, idle_fetch, topic
from peers import CallCount, Peer, Tidemill, load

TURNS = 5
SECONDS = 2.0


def cost(peer: Peer) -> tuple[float, float]:
    """Returns microseconds of processor time and system calls of one small produce."""
    calls, cpu = CallCount(peer.pid), peer.cpu_s()
    done = load("requests", peer.bootstrap, 16, 5, SECONDS)["requests"] * SECONDS
    used_us = (peer.cpu_s() - cpu) / done * 1e6
    return used_us, calls.end() / done


def idle_topics(peer: Peer) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    for made in admin.create_topics([NewTopic(f"idle-topic-{n}", 1, 1) for n in range(1000)]).values():
        made.result()


def idle_connections(peer: Peer) -> None:
    name = topic(peer.bootstrap, "idle-connections")
    peer.kept = [connect(peer.bootstrap) for _ in range(500)]  # type: ignore[attr-defined]
    for one in peer.kept:  # type: ignore[attr-defined]
        one.sendall(idle_fetch(name))


def large_log(peer: Peer, gigabytes: int, name: str = "large-log") -> None:
    """Writes that many gigabytes to a new topic, in batches of 900 KB."""
    from confluent_kafka import Producer

    topic(peer.bootstrap, name)
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 5, "batch.size": 1_000_000})
    value = b"x" * 10_000
    for number in range(gigabytes * 100_000):
        while True:
            try:
                producer.produce(name, value, partition=number % 3)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


CASES: dict[str, tuple[Callable[[Peer], None], str]] = {
    "topics": (idle_topics, "1,000 idle topics"),
    "connections": (idle_connections, "500 idle connections"),
    "log": (lambda peer: large_log(peer, 9, "larger-log"), "a log of 10 GB, not 1 GB"),
}


def compare(name: str, data: Path) -> tuple[list[float], list[float]]:
    """Returns the medians of (CPU in µs, calls), of a broker with 1 GB and of a filled broker."""
    few, many = Tidemill(data / f"tidemill-flat-{name}-few"), Tidemill(data / f"tidemill-flat-{name}-many")
    with few, many:
        for peer in (few, many):
            large_log(peer, 1)
        CASES[name][0](many)
        # The filling is on the disk before the measurement, which would include its write-back otherwise.
        os.sync()
        turns: dict[Peer, list[tuple[float, float]]] = {few: [], many: []}
        for turn in range(TURNS + 1):
            for peer in (few, many):
                figures = cost(peer)
                if turn:
                    turns[peer].append(figures)
    return median_of(turns[few]), median_of(turns[many])


def median_of(turns: list[tuple[float, float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=tempfile.gettempdir(), help="where the data directories are made")
    parser.add_argument("--only", default="", choices=["", *CASES])
    options = parser.parse_args()
    print("| beside | CPU µs, without | with | ratio | calls, without | with | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in [options.only] if options.only else CASES:
        (cpu, calls), (cpu_then, calls_then) = compare(name, Path(options.data))
        print(
            f"| {CASES[name][1]} | {cpu:.2f} | {cpu_then:.2f} | {cpu_then / cpu:.2f}"
            f" | {calls:.3f} | {calls_then:.3f} | {calls_then / calls:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
