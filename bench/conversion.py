"""Measures the cost of conversion for old consumers: a log of format v2 read with Fetch 2 (v1).

    python bench/conversion.py [--megabytes 200] [--rounds 3] [--seconds 5]

Tidemill and Apache Kafka 3.9.2, the last version that converts, have the same log, in turn: records per
second of one consumer with fetches of 1 MB (the old default), processor time of the broker with its
processes, and the latency of a producer to another topic without and with such a consumer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load import topic
from peers import Kafka, Peer, Tidemill, kafka_jars, load

KAFKA_VERSION = "3.9.2"
FETCH_BYTES = 1 << 20
ROWS_A_MEGABYTE = 10_000
CODECS = ("none", "lz4", "gzip")
LOG = "converted"
OFFSET = struct.Struct(">q").unpack_from
LENGTH = struct.Struct(">i").unpack_from
ROW = b'{"carrier": "UA", "flight": %d, "origin": "EWR", "dest": "IAH", "delay": %d, "tail": "N%05d"}'


class OldKafka(Kafka):
    """Apache Kafka 3.9.2."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        # Another version than the one whose jars a variable may name.
        given = os.environ.pop("TIDEMILL_KAFKA_LIBS", None)
        self.jars = kafka_jars(KAFKA_VERSION)
        if given is not None:
            os.environ["TIDEMILL_KAFKA_LIBS"] = given


def fill(peer: Peer, codec: str, megabytes: int) -> None:
    """Writes rows of a hundred bytes to partition 0, in batches of 100 KB."""
    from confluent_kafka import Producer

    topic(peer.bootstrap, f"{LOG}-{codec}")
    count = megabytes * ROWS_A_MEGABYTE
    producer = Producer(
        {
            "bootstrap.servers": peer.bootstrap,
            "linger.ms": 50,
            "batch.size": 100_000,
            "compression.type": codec,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for number in range(count):
        while True:
            try:
                producer.produce(
                    f"{LOG}-{codec}", ROW % (number % 7000, number % 91, number % 99_999), partition=0
                )
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def read(bootstrap: str, name: str, end: int, seconds: float) -> dict[str, float]:
    """Reads the log with Fetch 2, from its start to ``end``, repeatedly for that many seconds (0: once)."""
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    stream = connection.makefile("rb")
    encoded = name.encode()
    head = struct.pack(">hhih", 1, 2, 1, 4) + b"load" + struct.pack(">iiii", -1, 100, 1, 1)
    head += struct.pack(">h", len(encoded)) + encoded + struct.pack(">ii", 1, 0)
    begin = time.perf_counter()
    records = received = offset = 0
    while True:
        body = head + struct.pack(">qi", offset, FETCH_BYTES)
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(size)
        received += size
        after = last_offset(answer, 4 + 4 + 4 + 2 + len(encoded) + 4) + 1
        if after <= offset:
            raise SystemExit(f"bench: no whole message from offset {offset} of {name} on")
        records += after - offset
        offset = after if after < end else 0
        taken = time.perf_counter() - begin
        if offset == 0 and (seconds == 0 or taken >= seconds):
            return {"records": records, "bytes": received, "seconds": taken}


def last_offset(answer: bytes, position: int) -> int:
    """Returns the offset of the last whole entry of the only partition."""
    error, _, size = struct.unpack_from(">hqi", answer, position + 4)
    if error:
        raise SystemExit(f"bench: Fetch 2 was answered with error {error}")
    position += 4 + 14
    end = position + size
    before = last = -1
    with contextlib.suppress(struct.error):  # a truncated size
        while position < end:
            before, last, position = last, position, position + 12 + LENGTH(answer, position + 8)[0]
    if position > end:
        last = before
    return int(OFFSET(answer, last)[0]) if last >= 0 else -1


def reader(peer: Peer, codec: str, end: int, seconds: float) -> subprocess.Popen[str]:
    """Starts such a consumer as a process."""
    command = [sys.executable, __file__, "--reader", peer.bootstrap, f"{LOG}-{codec}", str(end), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def figures(process: subprocess.Popen[str]) -> dict[str, float]:
    """Returns the figures that it prints at its end."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit("bench: the reader failed")
    found: dict[str, float] = json.loads(output)
    return found


def cpu_s(peer: Peer) -> float:
    """Returns processor seconds of the broker and its child processes."""
    total = peer.cpu_s()
    for task in Path(f"/proc/{peer.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(peer: Peer, codec: str, count: int, seconds: float) -> dict[str, float]:
    """Runs one turn of one broker."""
    before = cpu_s(peer)
    alone = figures(reader(peer, codec, count, 0))
    used = cpu_s(peer) - before
    idle = load("latency", peer.bootstrap, 2000)
    beside = reader(peer, codec, count, seconds)
    time.sleep(0.5)
    busy = load("latency", peer.bootstrap, 2000)
    figures(beside)
    return {
        "rate": alone["records"] / alone["seconds"],
        "cpu": used / alone["records"] * 1e6,
        "p99 idle": idle["p99"],
        "p50 busy": busy["p50"],
        "p99 busy": busy["p99"],
    }


def compare(
    codecs: list[str], megabytes: int, rounds: int, seconds: float, data: Path
) -> dict[tuple[str, str], dict[str, float]]:
    """Returns, by codec and broker, the medians of the rounds after the first."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with Tidemill(data / "tidemill-conversion") as ours, OldKafka(data / "kafka-conversion") as kafka:
        peers = (ours, kafka)
        for codec in codecs:
            for peer in peers:
                fill(peer, codec, megabytes)
        for turn in range(rounds + 1):
            for codec in codecs:
                for peer in peers:
                    told = measure(peer, codec, megabytes * ROWS_A_MEGABYTE, seconds)
                    if turn:
                        found.setdefault((codec, peer.name), []).append(told)
    return {
        key: {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for key, turns in found.items()
    }


def rows(quick: bool) -> list[str]:
    """Returns lines of the table of all benchmarks."""
    codecs = list(CODECS)
    found = compare(codecs, 40 if quick else 200, 1 if quick else 3, 3 if quick else 8, Path("/dev/shm"))
    lines = []
    for codec in codecs:
        ours, theirs = found[codec, "tidemill"], found[codec, "kafka"]
        for what, goal, name, form in (
            (f"v2 to v1 for Fetch 2, {codec}: records/s", "≥ 1", "rate", "{:,.0f}"),
            (f"the same: CPU, s a million, {codec}", "≤ 1", "cpu", "{:.2f}"),
            (f"p99 of a produce beside it, µs, {codec}", "≤ 1", "p99 busy", "{:.0f}"),
        ):
            told, other = form.format(ours[name]), form.format(theirs[name])
            lines.append(f"| {what} | {goal} | {told} | {other} of 3.9.2 | {ours[name] / theirs[name]:.2f} |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--reader"]:
        bootstrap, name, end, seconds = sys.argv[2:]
        print(json.dumps(read(bootstrap, name, int(end), float(seconds))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--codecs", nargs="*", default=list(CODECS))
    parser.add_argument("--data", default="/dev/shm")
    options = parser.parse_args()
    found = compare(options.codecs, options.megabytes, options.rounds, options.seconds, Path(options.data))
    print("| stored | broker | records/s | CPU, s a million | p99 alone, µs | p50 beside | p99 beside |")
    print("|---|---|---|---|---|---|---|")
    for (codec, name), middle in sorted(found.items()):
        print(
            f"| {codec} | {name} | {middle['rate']:,.0f} | {middle['cpu']:.2f} | {middle['p99 idle']:.0f} "
            f"| {middle['p50 busy']:.0f} | {middle['p99 busy']:.0f} |"
        )


if __name__ == "__main__":
    main()
