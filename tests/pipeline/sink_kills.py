"""Causes one event at a request of the exactly-once sink, mostly a kill, and checks the output.

    python tests/pipeline/sink_kills.py --runs 300 [--seed 1] [--cluster "three brokers"]

Each run has a query with some micro-batches, which is started until it succeeds. The seed decides the
cluster, the kind of write, the event, and the cores and tasks of each start: see ``Plan``.

Promise: three readers of committed records (librdkafka, kafka-python, and Tidemill's) get each row of the
source once, and the last stable offset is the high watermark.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyspark
from sink_kill_clusters import KAFKA, ONE, THREE, Target, started
from sink_kill_processes import await_true, java_above, java_below
from sink_kill_readers import READERS

HERE = Path(__file__).parent
PROGRAM, PYTHON_START = HERE / "killed_sink.py", HERE / "python_start"
CLUSTERS = (ONE, THREE, KAFKA)
REQUESTS = {
    "AppendControl": 10,
    "ReadControl": 10,
    "WriteRows": 5,
    "ListTransactions": 3,
    "EndTransaction": 6,
    "DeleteControl": 2,
}
"""The requests of the protocol, and up to which of them an event may come."""
EVENTS = (
    "kill driver",
    "kill executor",
    "kill worker",
    "kill leader",
    "kill coordinator",
    "kill controller",
    "fail",
    "wait",
    "pause driver",
    "second driver",
)
"""``fail`` raises an error, ``wait`` makes a task slow enough to be started twice. ``pause driver`` stops the
driver, runs a second one, and lets the first go on; ``second driver`` starts one beside the first.
"""
MASTERS = ("local[1,4]", "local[2,4]", "local-cluster[2,1,1024]")
MESSAGES, PARTITIONS = 150, 2
STARTS_MAX = 6
RUN_S_MAX = 200


class Plan(NamedTuple):
    """What happens, and when. Masters and tasks are those of the first start, and of the others."""

    write: str
    request: str
    is_after: bool
    number: int
    event: str
    masters: tuple[str, str]
    tasks: tuple[str, str]
    """``any`` for as many as adaptive execution chooses."""
    partition: int

    def __str__(self) -> str:
        when = "after" if self.is_after else "before"
        return f"{self.write}, {self.event} {when} {self.request} {self.number}, {self.masters}, {self.tasks}"


def plan_of(seed: int) -> Plan:
    """Draws a plan."""
    random = Random(seed)
    request = random.choice(sorted(REQUESTS))
    tasks = ("1", "2", "3", "any")
    return Plan(
        random.choice(("stream", "stream", "foreachBatch")),
        request,
        random.random() < 0.5,
        random.randint(1, REQUESTS[request]),
        random.choice(EVENTS),
        (random.choice(MASTERS), random.choice(MASTERS)),
        (random.choice(tasks), random.choice(tasks)),
        random.randrange(PARTITIONS),
    )


class Result(NamedTuple):
    """The result of a run."""

    has_kept: bool
    """The promise."""
    has_happened: bool
    """The event: there may be fewer requests than its number."""


class Run:
    """One query, until it has succeeded."""

    def __init__(self, target: Target, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.starts = 0
        self._target = target
        self._folder = folder
        self._asked = folder / "asked"
        name = uuid.uuid4().hex[:12]
        self._source, self._topic = f"source-{name}", f"target-{name}"

    def faults(self) -> Counter[str]:
        """Runs the query; returns what the readers miss, or have too often."""
        self._fill()
        while True:
            if self.starts >= STARTS_MAX:
                end = (self._folder / f"start-{self.starts - 1}.log").read_text()[-2_000:]
                return Counter({f"the query did not succeed in {STARTS_MAX} starts:\n{end}": 1})
            if self._await_end(self._start()) == 0:
                break
        self._target.await_recovered()
        return self._differences()

    @property
    def has_happened(self) -> bool:
        """Whether the query has come to the request of the event."""
        counter = self._folder / "counter"
        return counter.exists() and counter.stat().st_size >= self.plan.number

    def _fill(self) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        config = {"bootstrap.servers": self._target.bootstrap, "log_level": 0}
        wanted = [NewTopic(one, PARTITIONS) for one in (self._source, self._topic)]
        admin = AdminClient(config)
        for done in admin.create_topics(wanted, operation_timeout=20).values():
            done.result(30)
        producer = Producer(config)
        for number in range(MESSAGES):
            producer.produce(self._source, str(number).encode(), partition=number % PARTITIONS)
        if producer.flush(30):
            raise RuntimeError("the source was not filled")

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts a driver."""
        place = min(self.starts, 1)
        plan = self.plan
        arguments = [self._target.bootstrap, self._source, self._topic, str(self._folder / "checkpoint")]
        arguments += [plan.masters[place], plan.tasks[place], plan.write]
        hook = {
            "request": plan.request,
            "is_after": plan.is_after,
            "number": plan.number,
            "event": plan.event,
            "counter": str(self._folder / "counter"),
            "asked": str(self._asked),
        }
        with open(self._folder / f"start-{self.starts}.log", "w") as log:
            self.starts += 1
            return subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAM),
                    *arguments,
                ],
                env={
                    **os.environ,
                    "SINK_KILL": json.dumps(hook),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": os.pathsep.join((str(PYTHON_START), *sys.path)),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_end(self, driver: subprocess.Popen[bytes]) -> int:
        """Waits until a driver has ended, or both; causes the event. Returns 0 if one has succeeded."""
        drivers = [driver]
        deadline = time.monotonic() + RUN_S_MAX
        while any(one.poll() is None for one in drivers):
            if self._asked.exists():
                self._cause(json.loads(self._asked.read_text()), drivers)
                self._asked.unlink()
            if time.monotonic() > deadline:
                for one in drivers:
                    _kill_all(one)
            time.sleep(0.05)
        return min(abs(one.returncode) for one in drivers)

    def _cause(self, asked: dict[str, object], drivers: list[subprocess.Popen[bytes]]) -> None:
        event = self.plan.event
        first = drivers[0]
        if event == "kill driver":
            for pid in (*java_below(first.pid), first.pid):
                os.kill(pid, signal.SIGKILL)
        elif event == "kill executor":
            os.kill(java_above(int(str(asked["pid"]))), signal.SIGKILL)
        elif event == "pause driver":
            paused = [*java_below(first.pid), first.pid]
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            second = self._start()
            await_true(lambda: second.poll() is not None, RUN_S_MAX / 2)
            for pid in paused:
                os.kill(pid, signal.SIGCONT)
            drivers.append(second)
        elif event == "second driver":
            drivers.append(self._start())
        else:
            name = asked["transactional_id"]
            place = self._topic, self.plan.partition
            self._target.kill(event.removeprefix("kill "), place, None if name is None else str(name))

    def _differences(self) -> Counter[str]:
        """Returns the differences between the source and what each reader gets."""
        expected = Counter(str(number) for number in range(MESSAGES))
        found: Counter[str] = Counter()
        for name, read in READERS.items():
            got = read(self._target.bootstrap, self._topic, PARTITIONS, MESSAGES)
            for value, count in (expected - got).items():
                found[f"{name} misses {value}"] += count
            for value, count in (got - expected).items():
                found[f"{name} has {value} too often"] += count
        return found


def _kill_all(driver: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--cluster", choices=CLUSTERS, help="default: all, one after the other")
    options = parser.parse_args()
    results = []
    chosen = [options.cluster] if options.cluster else CLUSTERS
    seeds = range(options.seed, options.seed + options.runs)
    for kind in chosen:
        results += runs(kind, [seed for seed in seeds if chosen[seed % len(chosen)] == kind])
    # Executors apart from the driver have their files here.
    shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)
    kept = sum(one.has_kept for one in results)
    happened = sum(one.has_happened for one in results)
    print(f"{kept} of {len(results)} runs kept the promise; the event occurred in {happened}")
    return int(kept < len(results))


def runs(kind: str, seeds: Sequence[int]) -> Iterator[Result]:
    """Runs the seeds on a cluster of this kind, and prints each result."""
    with tempfile.TemporaryDirectory(prefix="tidemill-sink-") as place, started(kind, Path(place)) as target:
        for seed in seeds:
            begun_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="tidemill-sink-") as folder:
                run = Run(target, plan_of(seed), Path(folder))
                faults = run.faults()
                result = Result(not faults, run.has_happened)
            text = ", ".join(f"{what} ({times})" for what, times in faults.most_common(5)) or "kept"
            spent = f"{run.starts} starts, {time.monotonic() - begun_s:.0f} s"
            print(f"{seed}: {kind}, {run.plan}: {spent}: {text}", flush=True)
            yield result


if __name__ == "__main__":
    sys.exit(main())
