"""What a small produce costs our broker as it fills up: processor time and system calls, before and after.

    python bench/flat.py

Each case measures the same load twice on one broker: fresh, then with a log of 10 GB (made as a sparse
directory of sealed segments beside a written tail), 1,000 idle topics, or 500 idle connections. The median
of five turns each, and their ratio: 1.00 is flat.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import load
from load import connect, idle_fetch, topic
from peers import Peer, Tidemill

TURNS = 5
SECONDS = 2.0


def cost(peer: Peer) -> tuple[float, float]:
    """Microseconds of processor time and system calls of one small produce."""
    cpu, calls = peer.cpu_s(), peer.system_calls()
    done = load("requests", peer.bootstrap, 16, 5, SECONDS)["requests"] * SECONDS
    return (peer.cpu_s() - cpu) / done * 1e6, (peer.system_calls() - calls) / done


def medians(peer: Peer) -> tuple[float, float]:
    turns = [cost(peer) for _ in range(TURNS)]
    return statistics.median(one[0] for one in turns), statistics.median(one[1] for one in turns)


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


def large_log(peer: Peer, gigabytes: int) -> None:
    """Writes a log of so many gigabytes to one topic, in batches of 900 KB."""
    from confluent_kafka import Producer

    name = topic(peer.bootstrap, "large-log")
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
    "connections": (idle_connections, "500 idle connections, each with a fetch that waits"),
    "log": (lambda peer: large_log(peer, 10), "10 GB more in the data directory"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=tempfile.gettempdir(), help="where the data directory is made")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| beside | CPU µs, fresh | CPU µs, then | ratio | calls, fresh | calls, then | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, (fill, text) in CASES.items():
        if options.only not in name:
            continue
        with Tidemill(Path(options.data) / f"tidemill-flat-{name}") as peer:
            load("requests", peer.bootstrap, 16, 5, SECONDS)
            cpu, calls = medians(peer)
            fill(peer)
            cpu_then, calls_then = medians(peer)
        print(
            f"| {text} | {cpu:.2f} | {cpu_then:.2f} | {cpu_then / cpu:.2f}"
            f" | {calls:.2f} | {calls_then:.2f} | {calls_then / calls:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
