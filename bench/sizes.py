"""Measures an append and a look-up in logs of 1, 10 and 50 GB, and with 1 and 2,000 partitions.

    python bench/sizes.py [--gigabytes 1,10,50] [--partitions 1,2000] [--turns 7] [--data DIR]

The logs are synthetic: the header of each batch exists, its records are a hole in the file, which no look-up
reads. So all of them use 2 GB of disk. Each case is a process that opens its logs as a start after a clean
shutdown does and accesses them all; then the cases run in turn, and the result is the median. Microseconds
are processor time; system calls are counted by ``perf`` if it is available and permitted, otherwise the reads
and writes that the kernel counts. The last columns are ratios to the first case: 1.00 is flat.

write    a bare write(2) of 1 KB to a random file, of as many as the segments written to, and as large: the
         share of the kernel. With 2,000 files that is twice as much: each write accesses another inode, whose
         modification time goes to the journal, and pages that no cache of the processor holds
append   a batch of 1 KB to a random partition: to be compared with the write above
to one   a batch of 1 KB to one partition of many: to be compared with an append to a single partition
fetch    the range of the log with an offset, of at most 1 MB
by time  the first offset at or after a time, as in ListOffsets (its record is not unpacked here)

Look-ups go to a hundred random positions, the same number in each case: 20,000 positions in 50 GB exceed the
processor's caches, in 1 GB they do not, and the caches would be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import CallCount, end_in_order, warm_memory

TOPIC = "sized"
BATCH_BYTES = 256 * 1024
RECORDS = 256
SEGMENT_BYTES = 1 << 30
NOW_MS = 1_700_000_000_000
OPERATIONS = 20_000
PLACES = 100
HEADER = struct.Struct(">qiibIhiqqqhii")


def make_log(directory: Path, size: int) -> None:
    """Creates the segments of one partition, ``size`` bytes in all, without their records."""
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
    """Creates a data directory with a clean shutdown."""
    from tidemill.log.log_config import LogConfig
    from tidemill.log.log_manager import LogManager
    from tidemill.log.system_files import SystemFiles

    shutil.rmtree(data, ignore_errors=True)
    for partition in range(partitions):
        make_log(data / f"{TOPIC}-{partition}", max(BATCH_BYTES, int(gigabytes * 2**30) // partitions))
    # A start rebuilds missing indexes.
    (data / ".kafka_cleanshutdown").touch()
    manager = LogManager(SystemFiles(), [str(data)])
    manager.load(NOW_MS, lambda topic: LogConfig())
    for log in manager.logs.values():
        for segment in log.segments[:-1]:
            segment.close_indexes()
    if problems := manager.close(NOW_MS, {}):
        raise SystemExit(f"bench: {problems[0]}")


def open_files(directory: Path, count: int, size: int) -> list[int]:
    """Returns descriptors of empty files of ``size`` bytes, to be appended to."""
    directory.mkdir()
    opened = []
    for number in range(count):
        descriptor = os.open(directory / str(number), os.O_RDWR | os.O_CREAT)
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, 0, os.SEEK_END)
        opened.append(descriptor)
    return opened


def operations(data: Path) -> dict[str, Callable[[], None]]:
    """Returns the measured operations, each as :data:`OPERATIONS` calls in this process."""
    from tidemill.log.log_config import LogConfig
    from tidemill.log.log_manager import LogManager
    from tidemill.log.system_files import SystemFiles
    from tidemill.records.batch import parse_batch
    from tidemill.records.builder import BatchBuilder

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    manager = LogManager(SystemFiles(), [str(data)])
    manager.load(NOW_MS, lambda topic: LogConfig())
    logs = list(manager.logs.values())
    ends = [int(log.end_offset) for log in logs]
    builder = BatchBuilder()
    builder.append(NOW_MS, None, os.urandom(900), None)
    record = builder.build()
    batch = parse_batch(record, 0, len(record))
    chance = random.Random(1)
    places = [chance.randrange(len(logs)) for _ in range(OPERATIONS)]
    files = open_files(data / "bare", len(logs), int(logs[0].active.size))
    found = [(log, chance.randrange(ends[log])) for log in places[:PLACES]]
    look_ups = [(logs[log], offset, ends[log]) for log, offset in chance.choices(found, k=OPERATIONS)]

    def write() -> None:
        for place in places:
            os.write(files[place], record)

    def append() -> None:
        for place in places:
            logs[place].append(batch, 0, NOW_MS)

    def to_one() -> None:
        log = logs[0]
        for _ in places:
            log.append(batch, 0, NOW_MS)

    def fetch() -> None:
        for log, offset, end in look_ups:
            log.read(offset, 1 << 20, end, True)

    def by_time() -> None:
        for log, offset, _ in look_ups:
            log.offset_for_timestamp(NOW_MS + offset)

    for log in logs:
        log.append(batch, 0, NOW_MS)
    return {"write": write, "append": append, "to one": to_one, "fetch": fetch, "by time": by_time}


def serve(data: Path) -> None:
    """Runs a turn for each line of input, which names the operation; prints the processor's µs."""
    work = operations(data)
    print("ready", flush=True)
    for line in sys.stdin:
        warm_memory(4 * 1024 * OPERATIONS)
        begin = time.process_time()
        work[line.strip()]()
        print((time.process_time() - begin) / OPERATIONS * 1e6, flush=True)


class Case:
    """Logs of one size, and the process that has them open; ``with`` creates and removes them."""

    def __init__(self, data: Path, gigabytes: float, partitions: int) -> None:
        self.data = data / f"tidemill-sizes-{gigabytes:g}-{partitions}"
        self.gigabytes = gigabytes
        self.partitions = partitions
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Case:
        try:
            make(self.data, self.gigabytes, self.partitions)
            command = [sys.executable, __file__, "--serve", str(self.data)]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.answer()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.data, ignore_errors=True)

    def answer(self) -> str:
        if self.process is None or self.process.stdout is None:
            raise RuntimeError("the process was not started")
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench: the process of {self.data.name} ended, see above")
        return line

    def turn(self, name: str) -> float:
        """Returns processor microseconds of one operation."""
        if self.process is None or self.process.stdin is None:
            raise RuntimeError("the process was not started")
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return float(self.answer())

    def calls(self, name: str) -> float:
        """Returns system calls of one operation, in a separate turn, since counting takes time, too."""
        if self.process is None:
            raise RuntimeError("the process was not started")
        calls = CallCount(self.process.pid)
        self.turn(name)
        return calls.end() / OPERATIONS


def measure(cases: list[Case], turns: int) -> None:
    """Prints a row for each operation and case."""
    least: dict[str, tuple[float, float]] = {}
    for name in ("write", "append", "to one", "fetch", "by time"):
        asked = [case for case in cases if name != "to one" or case.partitions > 1]
        for case in asked:
            case.turn(name)  # the first call opens files
        calls = [case.calls(name) for case in asked]
        figures = [[case.turn(name) for case in asked] for _ in range(turns)]
        for case, called, column in zip(asked, calls, zip(*figures, strict=True), strict=True):
            cpu = statistics.median(column)
            first = "append" if name == "to one" else name
            cpu_least, calls_least = least.setdefault(first, (cpu, called))
            print(
                f"| {name} | {case.gigabytes:g} | {case.partitions} | {cpu:.2f} | {called:.3f}"
                f" | {cpu / cpu_least:.2f} | {called / calls_least if calls_least else 1:.2f} |",
                flush=True,
            )


def numbers(text: str, kind: Callable[[str], Any]) -> list[Any]:
    return [kind(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", default="1,10,50")
    parser.add_argument("--partitions", default="1,2000")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--data", default=tempfile.gettempdir(), help="where the logs are made, on a disk")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Path(options.serve))
        return
    end_in_order()
    sizes = numbers(options.gigabytes, float)
    counts = numbers(options.partitions, int)
    wanted = [(size, counts[0]) for size in sizes] + [(sizes[-1], count) for count in counts[1:]]
    print("| operation | GB | partitions | CPU µs | calls | CPU, ratio | calls, ratio |")
    print("|---|---|---|---|---|---|---|")
    with contextlib.ExitStack() as stack:
        measure([stack.enter_context(Case(Path(options.data), *one)) for one in wanted], options.turns)


if __name__ == "__main__":
    main()
