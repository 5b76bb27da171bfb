"""What an append and a look-up cost in logs of 1, 10 and 50 GB, and in 1 and 2,000 partitions.

    python bench/sizes.py [--gigabytes 1,10,50] [--partitions 1,2000] [--turns 7] [--data DIR]

The logs are made: the header of each batch is there, its records are a hole in the file, which no look-up
reads. So 50 GB take 1 GB of disk. Each measure is a process of its own that opens the logs as a start after a
clean stop does, touches them all, and then takes turns; the median turn counts. Microseconds are of the
processor; system calls are counted by ``perf`` where it is there and may, else the reads and writes that the
kernel counts. The last columns are ratios to the first case: 1.00 is flat.

append   a batch of 1 KB to a partition by chance
fetch    the range of the log that holds an offset by chance, of at most 1 MB
by time  the first offset at or after a time by chance, as ListOffsets asks (its record is not unpacked here)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOPIC = "sized"
BATCH_BYTES = 256 * 1024
RECORDS = 256
SEGMENT_BYTES = 1 << 30
NOW_MS = 1_700_000_000_000
OPERATIONS = 20_000
HEADER = struct.Struct(">qiibIhiqqqhii")


def make_log(directory: Path, size: int) -> None:
    """The segments of one partition, ``size`` bytes in all, without their records."""
    directory.mkdir(parents=True)
    offset = written = 0
    while written < size:
        path = directory / f"{offset:020d}.log"
        segment_bytes = min(SEGMENT_BYTES, size - written) // BATCH_BYTES * BATCH_BYTES
        with path.open("wb") as file:
            for position in range(0, segment_bytes, BATCH_BYTES):
                header = HEADER.pack(
                    offset,
                    BATCH_BYTES - 12,
                    0,
                    2,
                    0,
                    8,  # append time: a look-up by time needs no record
                    RECORDS - 1,
                    NOW_MS + offset,
                    NOW_MS + offset,
                    -1,
                    -1,
                    -1,
                    RECORDS,
                )
                os.pwrite(file.fileno(), header, position)
                offset += RECORDS
            file.truncate(segment_bytes)
        written += max(segment_bytes, BATCH_BYTES)


def make(data: Path, gigabytes: float, partitions: int) -> None:
    """A data directory, stopped in order."""
    from tidemill.log.config import LogConfig
    from tidemill.log.files import SystemFiles
    from tidemill.log.manager import LogManager

    shutil.rmtree(data, ignore_errors=True)
    for partition in range(partitions):
        make_log(data / f"{TOPIC}-{partition}", max(BATCH_BYTES, int(gigabytes * 2**30) // partitions))
    # Indexes that are missing are made by a start.
    (data / ".kafka_cleanshutdown").touch()
    manager = LogManager(SystemFiles(), [str(data)])
    manager.load(NOW_MS, lambda topic: LogConfig())
    for log in manager.logs.values():
        for segment in log.segments[:-1]:
            segment.close_indexes()
    if problems := manager.close(NOW_MS, {}):
        raise SystemExit(f"bench: {problems[0]}")


def measure(data: Path, turns: int) -> dict[str, list[float]]:
    """Microseconds and system calls of each operation, in this process."""
    from tidemill.log.config import LogConfig
    from tidemill.log.files import SystemFiles
    from tidemill.log.manager import LogManager
    from tidemill.records.batch import parse_batch
    from tidemill.records.builder import build_batch

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    manager = LogManager(SystemFiles(), [str(data)])
    manager.load(NOW_MS, lambda topic: LogConfig())
    logs = list(manager.logs.values())
    ends = [int(log.end_offset) for log in logs]
    record = build_batch([(NOW_MS, None, os.urandom(900), None)])
    batch = parse_batch(record, 0, len(record))
    chance = random.Random(1)
    places = [chance.randrange(len(logs)) for _ in range(OPERATIONS)]
    offsets = [chance.randrange(ends[place]) for place in places]

    def append() -> None:
        for place in places:
            logs[place].append([batch], 0, NOW_MS)

    def fetch() -> None:
        for place, offset in zip(places, offsets, strict=True):
            logs[place].read(offset, 1 << 20, ends[place], True)

    def by_time() -> None:
        for place, offset in zip(places, offsets, strict=True):
            logs[place].offset_for_timestamp(NOW_MS + offset)

    found: dict[str, list[float]] = {}
    for name, work in (("append", append), ("fetch", fetch), ("by time", by_time)):
        for log in logs:
            log.append([batch], 0, NOW_MS)
        work()
        figures = [cost(work) for _ in range(turns)]
        found[name] = [statistics.median(column) for column in zip(*figures, strict=True)]
    return found


def cost(work: Callable[[], None]) -> tuple[float, float]:
    """Microseconds of the processor and system calls of an operation."""
    counting = counted_calls()
    calls, cpu = own_calls(), time.process_time()
    work()
    used, called = time.process_time() - cpu, float(own_calls() - calls)
    if counting is not None:
        counting.send_signal(signal.SIGINT)
        first = counting.communicate()[1].split(",")[0]
        called = float(first) if first.isdigit() else called
    return used / OPERATIONS * 1e6, called / OPERATIONS


def counted_calls() -> subprocess.Popen[str] | None:
    """A ``perf`` that counts the system calls of this process until it is interrupted; None: it may not."""
    if shutil.which("perf") is None:
        return None
    command = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", str(os.getpid())]
    counting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    return counting if counting.poll() is None else None


def own_calls() -> int:
    lines = Path("/proc/self/io").read_text().split()
    return int(lines[lines.index("syscr:") + 1]) + int(lines[lines.index("syscw:") + 1])


def measured(data: Path, gigabytes: float, partitions: int, turns: int) -> dict[str, list[float]]:
    """The figures of one size, by a process of its own."""
    make(data, gigabytes, partitions)
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", str(data), "--turns", str(turns)],
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(data, ignore_errors=True)
    if done.returncode:
        raise SystemExit(f"bench: {done.stderr[-2000:]}")
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def numbers(text: str, kind: Callable[[str], Any]) -> list[Any]:
    return [kind(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", default="1,10,50")
    parser.add_argument("--partitions", default="1,2000")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--data", default=tempfile.gettempdir(), help="where the logs are made, on a disk")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure), options.turns)))
        return
    data = Path(options.data) / "tidemill-sizes"
    sizes = numbers(options.gigabytes, float)
    counts = numbers(options.partitions, int)
    cases = [(size, counts[0]) for size in sizes] + [(sizes[-1], count) for count in counts[1:]]
    print("| GB | partitions | operation | CPU µs | calls | CPU, ratio | calls, ratio |")
    print("|---|---|---|---|---|---|---|")
    least: dict[str, list[float]] = {}
    for size, count in cases:
        for name, (cpu, calls) in measured(data, size, count, options.turns).items():
            cpu_least, calls_least = least.setdefault(name, [cpu, calls])
            print(
                f"| {size:g} | {count} | {name} | {cpu:.2f} | {calls:.3f}"
                f" | {cpu / cpu_least:.2f} | {calls / calls_least if calls_least else 1:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
