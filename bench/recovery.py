"""Measures how long a start takes after kill -9 under writes: Tidemill and Apache Kafka, in turn.

    python bench/recovery.py [--gigabytes 10] [--partitions 1,20] [--batch 16384] [--threads 2] [--cold]
                             [--rounds 3] [--data DIR]

Each broker appends the gigabytes in batches of that many bytes and is killed once all are acknowledged. The
time runs from the start of its process until it returns the end offset of every partition, as a client needs
it. It is killed again at once, and started again: one round each, and the result is the median; the first is
printed, too. With --cold the logs are dropped from the page cache before each start: after a power cut they
would be read from the disk. One partition: all but the last segment is on the disk by then. Many: each has an
open segment.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import Kafka, Peer, Tidemill, end_in_order

TOPIC = "recovered"
VALUE_BYTES = 1000
PATIENCE_S = 300.0
CHECKED = re.compile(rb"recovered ([0-9.]+) MB of logs")


class Start(NamedTuple):
    """One start: wall and processor seconds, and the megabytes that were checked, if logged."""

    took_s: float
    cpu_s: float
    checked_mb: float


def make_topic(peer: Peer, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        made.result()


def fill(peer: Peer, gigabytes: float, partitions: int, batch_bytes: int) -> list[int]:
    """Writes to each partition in turn; returns the end offset of each."""
    from confluent_kafka import Producer

    settings = {
        "bootstrap.servers": peer.bootstrap,
        "linger.ms": 50,
        "batch.size": batch_bytes,
        "queue.buffering.max.messages": 400_000,
        "queue.buffering.max.kbytes": 400_000,
        "acks": 1,
    }
    producer = Producer(settings)
    values = [os.urandom(VALUE_BYTES) for _ in range(100)]
    run = max(1, batch_bytes // VALUE_BYTES)
    count = int(gigabytes * 1e9) // VALUE_BYTES
    ends = [0] * partitions
    for number in range(count):
        partition = number // run % partitions
        ends[partition] += 1
        while True:
            try:
                producer.produce(TOPIC, values[number % 100], partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(PATIENCE_S):
        raise SystemExit(f"bench: {peer.name} did not take everything")
    return ends


def end_offsets(peer: Peer, partitions: int) -> list[int]:
    """Returns the log end offsets by ListOffsets v1; -1 if the broker does not return it yet."""
    name = TOPIC.encode()
    body = struct.pack(">ii", -1, 1) + struct.pack(">h", len(name)) + name
    body += struct.pack(">i", partitions) + b"".join(struct.pack(">iq", at, -1) for at in range(partitions))
    request = struct.pack(">hhih", 2, 1, 1, -1) + body
    with socket.create_connection(("127.0.0.1", peer.port), 5) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        file = connection.makefile("rb")
        answer = file.read(struct.unpack(">i", file.read(4))[0])
    found = [-1] * partitions
    position = 4 + 4 + 2 + len(name) + 4
    while position < len(answer):
        partition, error, _, offset = struct.unpack_from(">ihqq", answer, position)
        found[partition] = -1 if error else offset
        position += 4 + 2 + 8 + 8
    return found


def start(peer: Peer, expected: list[int]) -> Start:
    """Starts a killed broker, and waits until it returns all acknowledged offsets."""
    told_before = len(CHECKED.findall(peer.log_path.read_bytes()))
    began = time.perf_counter()
    peer.start()
    while True:
        try:
            if end_offsets(peer, len(expected)) == expected:
                break
        except (OSError, struct.error):
            pass
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit(f"bench: {peer.name} does not tell its logs' ends, see {peer.log_path}")
        time.sleep(0.005)
    took_s = time.perf_counter() - began
    told = CHECKED.findall(peer.log_path.read_bytes())[told_before:]
    return Start(took_s, peer.cpu_s(), float(told[-1]) if told else -1.0)


def kill(peer: Peer) -> None:
    if peer.process is None:
        raise RuntimeError("the broker was not started")
    peer.process.kill()
    peer.process.wait()
    peer.process = None
    peer.log.close()


def drop_from_cache(directory: Path) -> None:
    for path in directory.glob(f"{TOPIC}-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(peer: Peer, options: argparse.Namespace, partitions: int) -> list[Start]:
    """Measures all starts of one broker."""
    starts = []
    with peer:
        make_topic(peer, partitions)
        ends = fill(peer, options.gigabytes, partitions, options.batch)
        for _ in range(options.rounds):
            kill(peer)
            if options.cold:
                drop_from_cache(peer.data)
            starts.append(start(peer, ends))
    return starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--partitions", default="1,20")
    parser.add_argument("--batch", type=int, default=16384, help="bytes; the Java client's default")
    parser.add_argument("--threads", type=int, default=2, help="num.recovery.threads.per.data.dir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--only", default="", choices=["", "tidemill", "kafka"])
    parser.add_argument("--data", default=tempfile.gettempdir(), help="where the data directories are made")
    options = parser.parse_args()
    end_in_order()
    settings = [f"num.recovery.threads.per.data.dir={options.threads}"]
    print("| partitions | broker | checked, MB | first start, s | median, s | CPU s | of Kafka's time |")
    print("|---|---|---|---|---|---|---|")
    for partitions in map(int, options.partitions.split(",")):
        medians: dict[str, float] = {}
        for kind in (Kafka, Tidemill):
            if options.only not in ("", kind.name):
                continue
            peer = kind(Path(options.data) / f"{kind.name}-recovery", settings)
            starts = measure(peer, options, partitions)
            median = medians[kind.name] = statistics.median(one.took_s for one in starts)
            share = median / medians["kafka"] if "kafka" in medians else float("nan")
            checked = f"{starts[0].checked_mb:.0f}" if starts[0].checked_mb >= 0 else "?"
            print(
                f"| {partitions} | {kind.name} | {checked} | {starts[0].took_s:.2f} | {median:.2f}"
                f" | {statistics.median(one.cpu_s for one in starts):.2f} | {share:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
