"""Measures the cost of a small produce on a broker with 2,000 partitions: Tidemill and Apache Kafka, in turn.

    python bench/partitions.py [--partitions 2000] [--turns 5] [--only tidemill|kafka] [--data DIR]

The same requests, one message of 100 bytes each, have three targets, in turn:

the only one   the one partition of a broker without others
one of many    one partition of a broker with 2,000: the others should cost nothing
spread         each to another of the 2,000: the kernel's share of an append doubles with the number of files
               (see ``sizes.py``), and responses, write-back and index pages are those of 2,000 logs

Microseconds of the broker's processor time and system calls of a request; medians of the turns, and ratios to
the first line. The first turns warm the brokers up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import CallCount, Kafka, Peer, Tidemill, end_in_order, load, warm_memory

TOPIC = "partitions"
CONNECTIONS = 16
DEPTH = 5
SECONDS = 2.0
WARM_TURNS = 2
PATIENCE_S = 120.0


def make_topic(peer: Peer, partitions: int) -> None:
    """Creates the topic, waits until every partition has a leader, and writes to each: the first produce to a
    partition syncs a file, with both brokers.
    """
    from confluent_kafka import KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        made.result()
    deadline = time.monotonic() + PATIENCE_S
    wanted = {TopicPartition(TOPIC, partition): OffsetSpec.latest() for partition in range(partitions)}
    while True:
        try:
            for found in admin.list_offsets(wanted).values():
                found.result()
            break
        except KafkaException as problem:
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: {peer.name} does not lead all of {TOPIC}: {problem}") from problem
            time.sleep(0.2)
    producer = Producer({"bootstrap.servers": peer.bootstrap})
    for partition in range(partitions):
        producer.produce(TOPIC, b"first", partition=partition)
    if left := producer.flush(PATIENCE_S):
        raise SystemExit(f"bench: {peer.name} did not take the first produce of {left} partitions")


def cost(peer: Peer, partitions: int) -> tuple[float, float]:
    """Returns processor microseconds of the broker and its system calls, of one request."""
    warm_memory(256 << 20)
    arguments = (peer.bootstrap, TOPIC, partitions, CONNECTIONS, DEPTH, SECONDS)
    cpu = peer.cpu_s()
    made = load("spread", *arguments)["requests"] * SECONDS
    used_us = (peer.cpu_s() - cpu) / made * 1e6
    # In a separate turn, since counting takes time, too.
    calls = CallCount(peer.pid)
    made = load("spread", *arguments)["requests"] * SECONDS
    return used_us, calls.end() / made


def measure(kind: type[Kafka] | type[Tidemill], options: argparse.Namespace) -> None:
    """Prints the rows of one broker."""
    data, many = Path(options.data), options.partitions
    with kind(data / f"{kind.name}-one") as alone, kind(data / f"{kind.name}-many") as filled:
        make_topic(alone, 1)
        make_topic(filled, many)
        places = {"the only one": (alone, 1), f"one of {many:,}": (filled, 1), "spread": (filled, many)}
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
        for turn in range(WARM_TURNS + options.turns):
            for name, (peer, partitions) in places.items():
                figures = cost(peer, partitions)
                if turn >= WARM_TURNS:
                    turns[name].append(figures)
    least: list[float] = []
    for name, rows in turns.items():
        cpu, calls = (statistics.median(column) for column in zip(*rows, strict=True))
        least = least or [cpu, calls]
        ratios = f"{cpu / least[0]:.2f} | {calls / least[1]:.2f}"
        print(f"| {kind.name} | {name} | {cpu:.2f} | {calls:.3f} | {ratios} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default="", choices=["", "tidemill", "kafka"])
    parser.add_argument("--data", default=tempfile.gettempdir(), help="where the data directories are made")
    options = parser.parse_args()
    end_in_order()
    print("| broker | produces to | CPU µs | calls | CPU, ratio | calls, ratio |")
    print("|---|---|---|---|---|---|")
    for kind in (Tidemill, Kafka):
        if options.only in ("", kind.name):
            measure(kind, options)


if __name__ == "__main__":
    main()
