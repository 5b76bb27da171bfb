"""Kills drivers, Python workers and brokers at a request of the exactly-once sink, and checks the output.

    python tests/pipeline/sink_kills.py --runs 300 [--seed 1]

Each run has a query with some micro-batches. It is started until it succeeds, with another number of cores
after the first start. ``TIDEMILL_TEST_BOOTSTRAP`` names another cluster; its brokers are not killed.

Promise: three readers of committed records (librdkafka, kafka-python, and Tidemill's) get each row of the
source once, and the last stable offset is the high watermark.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PROGRAM, HOOK = HERE / "killed_sink.py", HERE / "sink_kill_hook"
REQUESTS = {
    "AppendControl": 12,
    "ReadControl": 12,
    "WriteRows": 6,
    "ListTransactions": 4,
    "EndTransaction": 8,
    "DeleteControl": 2,
}
"""The requests of the protocol, and up to which of them a kill may come."""
MESSAGES, PARTITIONS = 150, 2
STARTS_MAX = 6
RUN_S_MAX = 150


class Plan(NamedTuple):
    """What is killed, and when."""

    request: str
    is_after: bool
    number: int
    target: str
    cores: tuple[int, int]
    """Of the first start, and of the others."""
    shuffles: tuple[int, int]

    def __str__(self) -> str:
        when = "after" if self.is_after else "before"
        return f"{self.target} {when} {self.request} {self.number}, cores {self.cores}, tasks {self.shuffles}"


def plan_of(seed: int, *, kills_brokers: bool) -> Plan:
    """Draws a plan."""
    random = Random(seed)
    request = random.choice(sorted(REQUESTS))
    shuffles = random.choice((1, 2, 3))
    return Plan(
        request,
        random.random() < 0.5,
        random.randint(1, REQUESTS[request]),
        random.choice(("driver", "driver", "worker", "broker" if kills_brokers else "worker")),
        (random.choice((1, 2)), random.choice((1, 2))),
        (shuffles, shuffles),
    )


def run(bootstrap: str, plan: Plan, folder: Path, broker: Any = None) -> Counter[str]:
    """Runs the query until it succeeds; returns what the readers miss, or have too often."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    source, target = (f"{name}-{uuid.uuid4().hex[:12]}" for name in ("source", "target"))
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.create_topics(
        [NewTopic(one, PARTITIONS) for one in (source, target)], operation_timeout=20
    ).values():
        done.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(MESSAGES):
        producer.produce(source, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    checkpoint = folder / "checkpoint"
    hook = {
        "request": plan.request,
        "is_after": plan.is_after,
        "number": plan.number,
        "target": plan.target,
        "counter": str(folder / "counter"),
        "driver_file": f"{checkpoint}.driver",
        "broker_pid": 0 if broker is None else broker.pid,
    }
    for start in range(STARTS_MAX):
        place = min(start, 1)
        arguments = [bootstrap, source, target, str(checkpoint), str(plan.cores[place])]
        with open(folder / f"start-{start}.log", "w") as log:
            driver = subprocess.Popen(
                [sys.executable, str(PROGRAM), *arguments, str(plan.shuffles[place])],
                env={
                    **os.environ,
                    "SINK_KILL": json.dumps(hook),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": os.pathsep.join((str(HOOK), *sys.path)),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = await_end(driver, broker)
        if code == 0:
            return faults(bootstrap, target)
    return Counter({f"the query did not succeed in {STARTS_MAX} starts": 1})


def await_end(driver: subprocess.Popen[bytes], broker: Any) -> int:
    """Waits for the end of a driver, and starts a killed broker again; returns the exit code."""
    deadline = time.monotonic() + RUN_S_MAX
    while (code := driver.poll()) is None:
        if broker is not None and not broker.running:
            broker.start()
        if time.monotonic() > deadline:
            os.killpg(driver.pid, signal.SIGKILL)
        time.sleep(0.1)
    return code


def faults(bootstrap: str, topic: str) -> Counter[str]:
    """Returns the differences between the source and what each reader gets."""
    expected = Counter(str(number) for number in range(MESSAGES))
    found: Counter[str] = Counter()
    for name, read in READERS.items():
        got = read(bootstrap, topic)
        for value, count in (expected - got).items():
            found[f"{name} misses {value}"] += count
        for value, count in (got - expected).items():
            found[f"{name} has {value} too often"] += count
    return found


def with_librdkafka(bootstrap: str, topic: str) -> Counter[str]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: Counter[str] = Counter()
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(20)
        if message is None:
            break
        if message.error():
            ended += 1
        else:
            found[message.value().decode()] += 1
    consumer.close()
    return found


def with_kafka_python(bootstrap: str, topic: str) -> Counter[str]:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    found: Counter[str] = Counter()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and sum(found.values()) < MESSAGES + 1:
        for records in consumer.poll(500).values():
            found.update(one.value.decode() for one in records)
        if sum(found.values()) >= MESSAGES:
            deadline = min(deadline, time.monotonic() + 1)
    consumer.close()
    return found


def with_tidemill(bootstrap: str, topic: str) -> Counter[str]:
    """Also waits until the last stable offset is the high watermark."""
    from tidemill.client import Admin, Consumer
    from tidemill.model.types import TopicPartition

    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: Counter[str] = Counter()
    with Admin(bootstrap) as admin, Consumer(bootstrap, isolation_level="read_committed") as consumer:
        specs = dict.fromkeys(partitions, "latest")
        deadline = time.monotonic() + 20
        while True:
            ends = {one: place.offset for one, place in admin.list_offsets(specs).items()}
            stable = admin.list_offsets(specs, committed_only=True)
            if all(stable[one].offset == ends[one] for one in partitions):
                break
            if time.monotonic() > deadline:
                return Counter({f"stable offsets {stable} below the ends {ends}": 1})
            time.sleep(0.1)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any(consumer.position(one) < ends[one] for one in partitions):
            found.update(record.value.decode() for record in consumer.poll(1) if record.value is not None)
    return found


READERS = {
    "tidemill": with_tidemill,
    "librdkafka": with_librdkafka,
    "kafka-python": with_kafka_python,
}


@contextmanager
def a_cluster() -> Iterator[tuple[str, Any]]:
    """Yields the address of a cluster, and its broker if that may be killed."""
    given = os.environ.get("TIDEMILL_TEST_BOOTSTRAP")
    if given:
        yield given, None
        return
    from tidemill.testing.broker import Broker

    with Broker() as broker:
        yield broker.bootstrap, broker


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    options = parser.parse_args()
    failed = 0
    with a_cluster() as (bootstrap, broker):
        for seed in range(options.seed, options.seed + options.runs):
            plan = plan_of(seed, kills_brokers=broker is not None)
            begun_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="tidemill-sink-") as folder:
                found = run(bootstrap, plan, Path(folder), broker)
                starts = len(list(Path(folder).glob("start-*.log")))
            failed += bool(found)
            text = ", ".join(f"{what} ({count})" for what, count in found.most_common(5)) or "kept"
            print(f"{seed}: {plan}: {starts} starts, {time.monotonic() - begun_s:.0f} s: {text}", flush=True)
    print(f"{options.runs - failed} of {options.runs} runs kept the promise")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
