"""Measures how fast Tidemill and Apache Kafka compact the same log, and their memory use.

    python bench/compaction.py [--rows 4000000] [--partitions 4] [--only SHAPE|latency] [--data DIR]

Partitions with the same content are copied into the directory of each broker while it is stopped. The broker
compacts them one after the other with one cleaner; the first warms it up, and the result is the median of the
others: rows per second, by the time that the broker logs. Memory is the maximum resident memory of the broker
and its child processes together. The cleaner of both has its default memory for keys (128 MB).

Then follows the latency of a client: synchronous produces to another topic, alone and during a compaction.
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
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import Figures, Kafka, Peer, Tidemill, load

TOPIC = "compacted"
ROWS = 4_000_000
PARTITIONS = 4
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
SEGMENT_BYTES = 64 << 20
SETTINGS = ("log.cleaner.backoff.ms=200", "log.initial.task.delay.ms=600000")
DEADLINE_S = 900
NOW_MS = 1_700_000_000_000
NEVER, AT_ONCE = "1.0", "0.01"
"""Of ``min.cleanable.dirty.ratio``."""


class Shape(NamedTuple):
    """The properties of a log. ``batch``: rows per batch; ``keys``: distinct keys per million rows."""

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
    """Writes a partition's files; returns the bytes of its log."""
    from tidemill.log.delayed_file_removal import DelayedFileRemoval
    from tidemill.log.log_config import LogConfig
    from tidemill.log.log_loader import LogLoader
    from tidemill.log.system_files import SystemFiles
    from tidemill.model.types import TopicPartition
    from tidemill.records.builder import BatchBuilder

    directory.mkdir(parents=True)
    settings = LogConfig(segment_bytes=SEGMENT_BYTES)
    partition = TopicPartition(TOPIC, 0)
    removals = DelayedFileRemoval()
    opening = LogLoader(SystemFiles(), str(directory), partition, settings, removals=removals, now_ms=NOW_MS)
    log = opening.open()
    chance = random.Random(1)
    # Half of it repeats, so that codecs can compress.
    text = b"".join(chance.randbytes(16) + b"0123456789abcdef" for _ in range(1 << 15))
    keys = max(shape.keys * rows // 1_000_000, 1)
    for first in range(0, rows, shape.batch):
        builder = BatchBuilder(shape.codec)
        for number in range(first, min(first + shape.batch, rows)):
            at = chance.randrange(len(text) - shape.value_bytes)
            key = b"key-%012d" % chance.randrange(keys)
            builder.append(NOW_MS + number, key, text[at : at + shape.value_bytes], None)
        log.append_copied(builder.build(base_offset=first, leader_epoch=0), NOW_MS)
    log.roll(NOW_MS)
    log.close(NOW_MS)
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def resident_peak_mb(pid: int) -> float:
    """Returns the maximum resident megabytes of a process; 0 for an ended process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def children(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def lay(content: Path, peer: Peer, partitions: int) -> None:
    """Copies the content into the directories of the topic's partitions."""
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


def begin(peer: Peer, content: Path, partitions: int, ratio: str) -> None:
    """Creates the topic on a running broker, fills it while the broker is stopped, and starts again."""
    from confluent_kafka.admin import AdminClient, NewTopic

    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": ratio,
    }
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, partitions, 1, config=settings)])[TOPIC].result(30)
    peer.stop()
    lay(content, peer, partitions)
    peer.start()


def compacted(peer: Peer) -> list[float]:
    """Returns the seconds of each compaction that the broker has logged."""
    log = peer.log_path.read_text(errors="replace")
    return seconds_of_ours(log) if isinstance(peer, Tidemill) else seconds_of_kafka(log)


def measure(peer: Peer, content: Path, partitions: int, rows: int) -> tuple[float, float]:
    """Returns rows per second, and megabytes of memory."""
    with peer:
        begin(peer, content, partitions, AT_ONCE)
        memory_of: dict[int, float] = {}
        deadline = time.monotonic() + DEADLINE_S
        while len(found := compacted(peer)) < partitions:
            for pid in (peer.pid, *children(peer.pid)):
                memory_of[pid] = max(memory_of.get(pid, 0.0), resident_peak_mb(pid))
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: {peer.name} compacted {len(found)} logs, see {peer.log_path}")
            time.sleep(0.05)
    return rows / statistics.median(found[1:] or found), sum(memory_of.values())


def compact_now(peer: Peer) -> None:
    """Enables compaction on the broker."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry("min.cleanable.dirty.ratio", AT_ONCE, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def client_latency(peer: Peer, content: Path, partitions: int) -> tuple[Figures, Figures]:
    """Measures produce latency alone, and during a permanent compaction."""
    with peer:
        begin(peer, content, partitions, NEVER)
        load("latency", peer.bootstrap, 2000)
        alone = load("latency", peer.bootstrap, 20_000)
        compact_now(peer)
        time.sleep(1)
        beside = load("latency", peer.bootstrap, 20_000)
        if len(compacted(peer)) >= partitions:
            print(f"bench: {peer.name} was done before the clients: raise --rows", file=sys.stderr)
    return alone, beside


def latency_rows(rows: int, partitions: int, base: Path) -> list[str]:
    """Returns the lines of the table on clients."""
    content = base / "content"
    shutil.rmtree(content, ignore_errors=True)
    write_content(content, SHAPES["batches of 500"], rows)
    lines = []
    for peer in peers(base):
        alone, beside = client_latency(peer, content, partitions)
        for key in ("p50", "p99"):
            a, b = beside[key], alone[key]
            lines.append(
                f"| {peer.name}: produce {key} beside a compaction, µs | ≤ 1.1 | {a:.0f} | {b:.0f} without"
                f" | {a / b:.2f} |"
            )
        print("\n".join(lines[-2:]), file=sys.stderr, flush=True)
    shutil.rmtree(content)
    return lines


def peers(base: Path) -> tuple[Peer, Peer]:
    """Both brokers, not started yet."""
    kafka = Kafka(base / "kafka", SETTINGS)
    kafka.told = ("org.apache.kafka.storage.internals.log",)
    return Tidemill(base / "tidemill", SETTINGS), kafka


def compare(rows: int, partitions: int, only: str, base: Path) -> list[str]:
    """Returns the lines of the table."""
    lines = []
    for name, shape in SHAPES.items():
        if only not in name:
            continue
        content = base / "content"
        shutil.rmtree(content, ignore_errors=True)
        count = rows // 4 if shape.value_bytes >= 1000 or shape.batch == 1 else rows
        size = write_content(content, shape, count)
        (ours, memory), (theirs, their_memory) = (
            measure(peer, content, partitions, count) for peer in peers(base)
        )
        shutil.rmtree(content)
        what = f"compaction, {name}, {size / 1e6:.0f} MB"
        lines.append(f"| {what}: rows/s | ≥ 1.5 | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |")
        lines.append(
            f"| {what}: peak memory, MB | ≤ 1 | {memory:.0f} | {their_memory:.0f}"
            f" | {memory / their_memory:.2f} |"
        )
        print("\n".join(lines[-2:]), file=sys.stderr, flush=True)
    return lines


def every_row(rows: int, partitions: int, only: str = "", data: str = MEMORY) -> list[str]:
    """Returns all lines of the table; ``data`` is a directory for the logs."""
    base = Path(data) / "tidemill-compaction"
    lines = compare(rows, partitions, only, base)
    if only in "latency":
        lines += latency_rows(rows, partitions, base)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--only", default="", help="what has this in its name; also: latency")
    parser.add_argument("--data", default=MEMORY, help="a directory for the logs")
    options = parser.parse_args()
    head = "| axis | goal | Tidemill | against | ratio |\n|---|---|---|---|---|"
    lines = every_row(options.rows, options.partitions, options.only, options.data)
    print("\n".join([head, *lines]))


if __name__ == "__main__":
    main()
