"""How fast the same log is compacted by our broker and by Apache Kafka, and in how much memory.

    python bench/compaction.py [--rows 4000000] [--partitions 4] [--only SHAPE] [--data DIR]

Partitions with the same content are laid into the directory of each broker while it is stopped. It compacts
them one after the other with one cleaner; the first warms it up, and the median of the others counts: rows a
second, by the time that the broker's own log tells. Memory is the largest that was resident in the broker
and what it started, together. The cleaner of both has its default memory for keys (128 MB).
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import Kafka, Peer, Tidemill

TOPIC = "compacted"
SEGMENT_BYTES = 64 << 20
SETTINGS = ("log.cleaner.backoff.ms=200", "log.initial.task.delay.ms=600000")
DEADLINE_S = 900
NOW_MS = 1_700_000_000_000


class Shape(NamedTuple):
    """What a log is like. ``batch``: rows in each; ``keys``: distinct ones for every million rows."""

    batch: int
    value_bytes: int
    codec: int
    keys: int


SHAPES = {
    "batches of 500": Shape(500, 100, 0, 200_000),
    "lz4 batches of 500": Shape(500, 100, 3, 200_000),
    "batches of 1": Shape(1, 100, 0, 200_000),
    "1 KB values": Shape(50, 1000, 0, 200_000),
}


def write_content(directory: Path, shape: Shape, rows: int) -> int:
    """Writes a partition's files; the bytes of its log."""
    from tidemill.log.config import LogConfig
    from tidemill.log.files import SystemFiles
    from tidemill.log.recovery import open_log
    from tidemill.model.types import TopicPartition
    from tidemill.records.builder import build_batch

    directory.mkdir(parents=True)
    settings = LogConfig(segment_bytes=SEGMENT_BYTES)
    log = open_log(SystemFiles(), str(directory), TopicPartition(TOPIC, 0), settings, now_ms=NOW_MS)
    chance = random.Random(1)
    # Half of it repeats, so that codecs have something to do.
    text = b"".join(chance.randbytes(16) + b"0123456789abcdef" for _ in range(1 << 15))
    keys = max(shape.keys * rows // 1_000_000, 1)
    for first in range(0, rows, shape.batch):
        records = []
        for number in range(first, min(first + shape.batch, rows)):
            at = chance.randrange(len(text) - shape.value_bytes)
            key = b"key-%012d" % chance.randrange(keys)
            records.append((NOW_MS + number, key, text[at : at + shape.value_bytes], None))
        log.append_as_follower(
            build_batch(records, base_offset=first, codec=shape.codec, leader_epoch=0), NOW_MS
        )
    log.roll(NOW_MS)
    log.close(NOW_MS)
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def resident_peak_mb(pid: int) -> float:
    """Megabytes that a process had in memory at most; 0 for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def lay(content: Path, peer: Peer, partitions: int) -> None:
    """Puts the content into the directories of the topic's partitions."""
    for number in range(partitions):
        directory = peer.data / f"{TOPIC}-{number}"
        for path in directory.iterdir():
            if path.name[:20].isdigit():
                path.unlink()
        for path in content.iterdir():
            if path.suffix in (".log", ".index", ".timeindex"):
                shutil.copyfile(path, directory / path.name)


def seconds_of_ours(log: str) -> list[float]:
    return [float(found) for found in re.findall(rf"compacted {TOPIC}-\d+ from .* in ([\d.]+) s:", log)]


def seconds_of_kafka(log: str) -> list[float]:
    text = rf"cleaned log {TOPIC}-\d+ .*\n.* of log processed in ([\d.,]+) seconds"
    return [float(found.replace(",", "")) for found in re.findall(text, log)]


def measure(
    peer: Peer, content: Path, partitions: int, rows: int, seconds_of: Callable[[str], list[float]]
) -> tuple[float, float]:
    """Rows a second, and megabytes of memory."""
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
    }
    with peer:
        admin = AdminClient({"bootstrap.servers": peer.bootstrap})
        admin.create_topics([NewTopic(TOPIC, partitions, 1, config=settings)])[TOPIC].result(30)
        peer.stop()
        lay(content, peer, partitions)
        peer.start()
        memory_of: dict[int, float] = {}
        deadline = time.monotonic() + DEADLINE_S
        while len(found := seconds_of(peer.log_path.read_text(errors="replace"))) < partitions:
            for pid in (peer.pid, *children(peer.pid)):
                memory_of[pid] = max(memory_of.get(pid, 0.0), resident_peak_mb(pid))
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: {peer.name} compacted {len(found)} logs, see {peer.log_path}")
            time.sleep(0.05)
    return rows / statistics.median(found[1:] or found), sum(memory_of.values())


def compare(rows: int, partitions: int, only: str, base: Path) -> list[str]:
    """The lines of the table."""
    lines = []
    for name, shape in SHAPES.items():
        if only not in name:
            continue
        content = base / "content"
        shutil.rmtree(content, ignore_errors=True)
        count = rows // 4 if shape.value_bytes >= 1000 or shape.batch == 1 else rows
        size = write_content(content, shape, count)
        kafka = Kafka(base / "kafka", SETTINGS)
        kafka.told = ("org.apache.kafka.storage.internals.log",)
        ours, memory = measure(
            Tidemill(base / "tidemill", SETTINGS), content, partitions, count, seconds_of_ours
        )
        theirs, their_memory = measure(kafka, content, partitions, count, seconds_of_kafka)
        shutil.rmtree(content)
        what = f"compaction, {name}, {size / 1e6:.0f} MB"
        lines.append(f"| {what}: rows/s | ≥ 1.5 | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")
        lines.append(
            f"| {what}: peak memory, MB | ≤ 1 | {memory:.0f} | {their_memory:.0f}"
            f" | {memory / their_memory:.2f} |"
        )
        print("\n".join(lines[-2:]), file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--only", default="", help="what has this in its name")
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    parser.add_argument("--data", default=memory, help="a directory for the logs")
    options = parser.parse_args()
    base = Path(options.data) / "tidemill-compaction"
    head = "| axis | goal | Tidemill | Apache Kafka | ratio |\n|---|---|---|---|---|"
    print("\n".join([head, *compare(options.rows, options.partitions, options.only, base)]))


if __name__ == "__main__":
    main()
