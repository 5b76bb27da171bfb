"""Measures produce latency on a disk while another client reads old records: p50 and p99, in turn.

    python bench/cold.py [--gigabytes 5] [--data DIR]

Writes a log, drops it from the page cache (POSIX_FADV_DONTNEED on its segments), then measures synchronous
produces to another topic with and without a consumer that reads the log from its start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from flat import large_log
from peers import Peer, Tidemill, load

READER = """
import sys, time
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "cold", "enable.auto.commit": False,
                     "fetch.message.max.bytes": 4_000_000, "queued.max.messages.kbytes": 65536})
consumer.assign([TopicPartition("large-log", index, 0) for index in range(3)])
begin, read = time.time(), 0
while time.time() - begin < float(sys.argv[2]):
    for message in consumer.consume(1000, 0.5):
        read += len(message.value())
print(read / (time.time() - begin) / 1e6)
"""


def drop_from_cache(directory: Path) -> None:
    """Drops the segments of the large log from the page cache."""
    for path in directory.glob("large-log-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(peer: Peer, reading: bool) -> tuple[float, float, float]:
    """Returns p50 and p99 in microseconds, and the reader's megabytes per second."""
    if not reading:
        figures = load("latency", peer.bootstrap, 5000)
        return figures["p50"], figures["p99"], 0.0
    drop_from_cache(peer.data)
    reader = subprocess.Popen([sys.executable, "-c", READER, peer.bootstrap, "8"], stdout=subprocess.PIPE)
    time.sleep(1)
    figures = load("latency", peer.bootstrap, 5000)
    output, _ = reader.communicate()
    return figures["p50"], figures["p99"], float(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", default=tempfile.gettempdir(), help="a directory on a disk, not on tmpfs")
    options = parser.parse_args()
    with Tidemill(Path(options.data) / "tidemill-cold") as peer:
        large_log(peer, options.gigabytes)
        load("latency", peer.bootstrap, 1000)
        found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for reading in (False, True):
                found[reading].append(measure(peer, reading))
    print("| produce beside | p50, µs | p99, µs | cold read, MB/s |\n|---|---|---|---|")
    for reading, text in ((False, "nothing"), (True, f"a consumer that reads {options.gigabytes} GB cold")):
        p50, p99, rate = (statistics.median(column) for column in zip(*found[reading], strict=True))
        print(f"| {text} | {p50:.0f} | {p99:.0f} | {rate:.0f} |")


if __name__ == "__main__":
    main()
