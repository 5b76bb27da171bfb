"""Mirrors topics while they are written and processes are killed, and compares both clusters.

    python tests/pipeline/mirror_kills.py --runs 20 [--seed 1] [--cluster "three brokers"]

In each run a mirror with the same offsets copies three topics of three partitions each: an ordinary one, one
written in transactions of which some are aborted, and a compacted one. Meanwhile the seed kills the driver, a
Python worker, and brokers of both clusters, half of the time while batches are copied; a killed driver is
started again. The source returns few batches in a response, so that several requests to the target are in
flight. Positions of a group move forward and back at the source all the time.

Promise: once the writers have ended, every record that librdkafka reads in the source, of committed records
and of all, has the same offset, key, value, timestamp and headers in the target; every acknowledged message
is among them; logs that are not compacted are the same batch by batch; positions of the group are the same.
Compaction runs in both clusters on its own: there each record of one is compared with what was written at its
offset, and the last value of each key with the other's.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from mirrored_logs import assert_same_logs, bounds
from sink_kill_clusters import KAFKA, ONE, THREE, Target, started
from sink_kill_processes import await_true

PARTITIONS = 3
WRITE_S = 45.0
"""How long the writers write after the first copy; kills come meanwhile."""
STARTED_S_MAX = 600.0
APPEND_S_MAX = 5.0
"""How long a kill waits for a batch that is copied."""
SOURCE_CONFIG = {"fetch.max.bytes": "2048"}
FLUSH_S_MAX = 240.0
CAUGHT_UP_S_MAX = 240.0
EVENTS = (
    "kill driver",
    "kill worker",
    "kill source leader",
    "kill target leader",
    "kill source controller",
    "kill target controller",
)
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


class Place(NamedTuple):
    """The place of a record."""

    partition: int
    offset: int


class Record(NamedTuple):
    """What a reader gets at a place."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]


class Writers:
    """Threads that write to the topics with librdkafka until they are stopped."""

    def __init__(self, bootstrap: str, ordinary: str, transactional: str, compacted: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self.acknowledged: dict[str, dict[Place, tuple[bytes, bytes]]] = {}
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._write_plain, ordinary, 10**9)),
            threading.Thread(target=self._guarded, args=(self._write_transactions, transactional, 0)),
            threading.Thread(target=self._guarded, args=(self._write_plain, compacted, 20)),
        ]
        for topic in (ordinary, transactional, compacted):
            self.acknowledged[topic] = {}
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for failure in self.failures:
            raise failure

    def _guarded(self, write: Callable[[str, int], None], topic: str, keys: int) -> None:
        try:
            write(topic, keys)
        except BaseException as problem:  # noqa: BLE001 - raised in stop()
            self.failures.append(problem)

    def _producer(self, **more: Any) -> Any:
        from confluent_kafka import Producer

        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 5,
                "log_level": 0,
                **more,
            }
        )

    def _note(self, topic: str) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            if error is None:
                place = Place(message.partition(), message.offset())
                self.acknowledged[topic][place] = (message.key(), message.value())

        return note

    def _write_plain(self, topic: str, keys: int) -> None:
        producer = self._producer()
        number = 0
        while not self._stopping.is_set():
            key = str(number % keys).encode()
            value = f"{topic} {number} ".encode() * 5
            headers = [("n", str(number).encode())]
            partition = number % PARTITIONS
            producer.produce(topic, value, key, partition, headers=headers, on_delivery=self._note(topic))
            number += 1
            producer.poll(0)
            time.sleep(0.001)
        if producer.flush(FLUSH_S_MAX):
            raise RuntimeError(f"{topic}: messages were not acknowledged")

    def _write_transactions(self, topic: str, _: int) -> None:
        from confluent_kafka import KafkaException

        number = 0
        while not self._stopping.is_set():
            producer = self._producer(**{"transactional.id": topic, "transaction.timeout.ms": 20_000})
            try:
                producer.init_transactions(60)
                while not self._stopping.is_set():
                    number = self._transaction(producer, topic, number)
            except KafkaException as problem:
                # A killed coordinator may leave a transaction whose end the producer does not know.
                error = problem.args[0]
                if not (error.fatal() or error.retriable() or error.txn_requires_abort()):
                    raise

    def _transaction(self, producer: Any, topic: str, number: int) -> int:
        from confluent_kafka import KafkaException

        noted: dict[Place, tuple[bytes, bytes]] = {}

        def note(error: Any, message: Any) -> None:
            if error is None:
                noted[Place(message.partition(), message.offset())] = (message.key(), message.value())

        producer.begin_transaction()
        for _ in range(7):
            number += 1
            text = str(number).encode()
            producer.produce(topic, text, text, partition=number % PARTITIONS, on_delivery=note)
        producer.flush(30)
        try:
            if number % 3:
                producer.commit_transaction(60)
                self.acknowledged[topic].update(noted)
            else:
                producer.abort_transaction(60)
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(60)
        return number


def records_of(bootstrap: str, topic: str, isolation: str) -> dict[Place, Record]:
    """Reads a topic with librdkafka."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: dict[Place, Record] = {}
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        if message is None:
            raise RuntimeError(f"{topic} at {bootstrap} was not read to its end")
        if message.error():
            ended += 1
            continue
        found[Place(message.partition(), message.offset())] = Record(
            message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ())
        )
    consumer.close()
    return found


class MirrorProcess:
    """The command ``tidemill pipeline mirror``, which is started again after a kill."""

    def __init__(self, source: str, target: str, topics: list[str], group: str, folder: Path) -> None:
        self._arguments = [
            *("--source", f"east={source}", "--target", f"west={target}", "--allow", ",".join(topics)),
            *("--groups", group, "--checkpoint", str(folder / "checkpoint")),
        ]
        self._folder = folder
        self._starts = 0
        self.process = self.start("0 seconds")

    def start(self, trigger: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f"mirror-{self._starts}.log", "w") as log:
            self._starts += 1
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tidemill", "pipeline", "mirror", *self._arguments),
                    *("--trigger", trigger, "--master", "local[2]"),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def supervise(self) -> None:
        """Starts a mirror again that was started while no broker could be reached.

        Raises RuntimeError if it has ended by itself for another reason.
        """
        if self.process.poll() is None:
            return
        if "no broker can be reached" not in self.log:
            raise RuntimeError(f"the mirror ended by itself: {self.log}")
        self.start("0 seconds")

    def kill_worker(self, random: Random) -> None:
        """Kills a Python process of Spark: a worker of a task, or the one that plans."""
        workers = [pid for pid in self._below() if _is_worker(pid)]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(random.choice(workers), signal.SIGKILL)

    def _below(self) -> list[int]:
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError, ProcessLookupError):
                if os.getpgid(int(entry)) == self.process.pid or os.getsid(int(entry)) == self.process.pid:
                    found.append(int(entry))
        return found

    @property
    def log(self) -> str:
        """The output of the last start."""
        return (self._folder / f"mirror-{self._starts - 1}.log").read_text()[-2_000:]


def _is_worker(pid: int) -> bool:
    with suppress(OSError):
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class Run:
    """One mirror, while topics are written and processes killed."""

    def __init__(self, source: Target, target: Target, seed: int, folder: Path) -> None:
        self._source = source
        self._target = target
        self._random = Random(seed)
        self._folder = folder
        name = uuid.uuid4().hex[:8]
        self.events: list[str] = []
        self._ordinary, self._transactional, self._compacted = self._topics = [
            f"{kind}-{name}" for kind in ("ordinary", "transactional", "compacted")
        ]
        self._group = f"readers-{name}"

    def faults(self) -> list[str]:
        """Returns the broken promises."""
        self._create()
        writers = Writers(self._source.bootstrap, *self._topics)
        mirror = MirrorProcess(
            self._source.bootstrap,
            self._target.inter_broker_bootstrap,
            self._topics,
            self._group,
            self._folder,
        )
        try:
            try:
                self._cause_events(mirror)
            finally:
                writers.stop()
            self._source.await_recovered()
            self._target.await_recovered()
            self._move_positions()
            if await_true(lambda: self._is_caught_up(mirror), CAUGHT_UP_S_MAX):
                return self._differences(writers)
            return [
                *self._differences_of_ends(),
                *self._differences_of_positions(),
                f"the mirror did not catch up: {mirror.process.poll()}, {mirror.log}",
            ]
        finally:
            mirror.kill()

    def _create(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._source.bootstrap, "log_level": 0})
        replicas = 3 if len(self._source.bootstrap.split(",")) > 1 else 1
        settings = {"min.insync.replicas": "2"} if replicas > 1 else {}
        wanted = [
            NewTopic(
                topic,
                PARTITIONS,
                replicas,
                config={**settings, **(COMPACTED if topic == self._compacted else {})},
            )
            for topic in self._topics
        ]
        for done in admin.create_topics(wanted, operation_timeout=20).values():
            done.result(30)

    def _cause_events(self, mirror: MirrorProcess) -> None:
        random = self._random
        self._await_first_copy(mirror)
        end = time.monotonic() + WRITE_S
        while time.monotonic() < end:
            time.sleep(random.uniform(0.5, 8))
            with suppress(Exception):  # the source has no leader
                self._move_positions()
            mirror.supervise()
            event = random.choice(EVENTS)
            self.events.append(event)
            if random.random() < 0.5:
                self._await_append((self._ordinary, random.randrange(PARTITIONS)), APPEND_S_MAX)
            if event == "kill driver":
                mirror.kill()
                mirror.start("0 seconds")
                end += 15
            elif event == "kill worker":
                mirror.kill_worker(random)
            else:
                _, side, role = event.split()
                cluster = self._source if side == "source" else self._target
                place = random.choice(self._topics), random.randrange(PARTITIONS)
                with suppress(Exception):  # the target has no topic yet, or no leader
                    cluster.kill(role, place, None)

    def _await_first_copy(self, mirror: MirrorProcess) -> None:
        """Waits until Spark has started. Raises RuntimeError if the mirror copies nothing."""
        deadline = time.monotonic() + STARTED_S_MAX
        while not self._await_append((self._ordinary, 0), APPEND_S_MAX):
            mirror.supervise()
            if time.monotonic() >= deadline:
                raise RuntimeError(f"the mirror has copied nothing in {STARTED_S_MAX:.0f} s: {mirror.log}")

    def _await_append(self, place: tuple[str, int], timeout_s: float) -> bool:
        """Waits until the target has further batches of a partition. Returns whether it has in time."""
        from tidemill.client.range_reader import RangeReader
        from tidemill.model.types import TopicPartition
        from tidemill.wire.list_offset_timestamps import LATEST

        before: int | None = None
        deadline = time.monotonic() + timeout_s
        with RangeReader(self._target.bootstrap, default_api_timeout_ms=1000) as reader:
            while time.monotonic() < deadline:
                with suppress(Exception):  # the topic is created, or has no leader
                    end = reader.list_offsets({TopicPartition(*place): LATEST})[TopicPartition(*place)]
                    before = end if before is None else before
                    if end > before:
                        return True
                time.sleep(0.005)
        return False

    def _move_positions(self) -> None:
        """Moves the group forward or back, to any offset."""
        from tidemill.client import Admin
        from tidemill.model.types import TopicPartition

        with Admin(self._source.bootstrap) as admin:
            for topic in self._topics:
                for partition, (start, end) in bounds(self._source.bootstrap, topic).items():
                    offset = self._random.randint(start, end)
                    admin.alter_group_offsets(self._group, {TopicPartition(topic, partition): offset})

    def _is_caught_up(self, mirror: MirrorProcess) -> bool:
        mirror.supervise()
        time.sleep(1)
        with suppress(Exception):  # topics are created, or have no leader
            return not self._differences_of_ends() and not self._differences_of_positions()
        return False

    def _differences_of_ends(self) -> list[str]:
        found = [
            (topic, _ends(self._source.bootstrap, topic), _ends(self._target.bootstrap, topic))
            for topic in self._topics
        ]
        return [
            f"{topic} ends at {here} in the source, and at {there} in the target"
            for topic, here, there in found
            if here != there
        ]

    def _differences_of_positions(self) -> list[str]:
        from tidemill.client import Admin

        with Admin(self._source.bootstrap) as here, Admin(self._target.bootstrap) as there:
            expected, found = here.group_offsets(self._group), there.group_offsets(self._group)
        return [
            f"the group has the position {place.offset} in {item} of the source, and in the target "
            f"{found[item].offset if item in found else 'none'}"
            for item, place in expected.items()
            if item not in found or found[item].offset != place.offset
        ]

    def _differences(self, writers: Writers) -> list[str]:
        source, target = self._source.bootstrap, self._target.bootstrap
        faults: list[str] = []
        for topic in (self._ordinary, self._transactional):
            try:
                assert_same_logs(source, target, topic)
            except AssertionError as problem:
                faults.append(f"{topic}: the logs differ: {str(problem)[:500]}")
            for isolation in ("read_committed", "read_uncommitted"):
                faults += _compared(topic, isolation, source, target, writers.acknowledged[topic])
        return faults + self._differences_of_compacted(writers.acknowledged[self._compacted])

    def _differences_of_compacted(self, written: dict[Place, tuple[bytes, bytes]]) -> list[str]:
        topic = self._compacted
        here = records_of(self._source.bootstrap, topic, "read_committed")
        there = records_of(self._target.bootstrap, topic, "read_committed")
        faults = [
            f"{topic} {place}: {record.key!r} {record.value!r} was written as {written[place]!r}"
            for place, record in there.items()
            if place in written and (record.key, record.value) != written[place]
        ]
        faults += [
            f"{topic} {place}: {record!r} in the source, {there[place]!r} in the target"
            for place, record in here.items()
            if place in there and record != there[place]
        ]
        if _last_of_keys(here) != _last_of_keys(there):
            faults.append(f"{topic}: the last records of the keys differ")
        return faults


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    return {partition: end for partition, (_, end) in bounds(bootstrap, topic).items()}


def _last_of_keys(records: dict[Place, Record]) -> dict[tuple[int, bytes | None], tuple[Place, Record]]:
    return {
        (place.partition, record.key): (place, record)
        for place, record in sorted(records.items(), key=lambda item: item[0])
    }


def _compared(
    topic: str, isolation: str, source: str, target: str, acknowledged: dict[Place, tuple[bytes, bytes]]
) -> list[str]:
    here, there = records_of(source, topic, isolation), records_of(target, topic, isolation)
    faults = []
    if here != there:
        place = min(place for place in {*here, *there} if here.get(place) != there.get(place))
        faults.append(
            f"{topic}, {isolation}: {place} is {here.get(place)!r} in the source and {there.get(place)!r} in "
            f"the target ({len(here)} and {len(there)} records)"
        )
    lost = [place for place, pair in acknowledged.items() if there.get(place, (None, None))[:2] != pair]
    if lost:
        faults.append(
            f"{topic}, {isolation}: {len(lost)} acknowledged messages are lost, the first at {lost[0]}"
        )
    return faults


@contextmanager
def both(kind: str, folder: Path) -> Iterator[tuple[Target, Target]]:
    """Yields a source of this kind, and a target of three brokers, or of one for a source of one."""
    with ExitStack() as stack:
        source = stack.enter_context(started(kind, folder / "source", SOURCE_CONFIG))
        target = stack.enter_context(started(ONE if kind == ONE else THREE, folder / "target"))
        yield source, target


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--cluster", choices=(ONE, THREE, KAFKA), help="of the source; default: all")
    options = parser.parse_args()
    chosen = [options.cluster] if options.cluster else [ONE, THREE, KAFKA]
    kept = 0
    for seed in range(options.seed, options.seed + options.runs):
        kind = chosen[seed % len(chosen)]
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tidemill-mirror-") as name:
            folder = Path(name)
            for part in ("source", "target", "run"):
                (folder / part).mkdir()
            with both(kind, folder) as (source, target):
                run = Run(source, target, seed, folder / "run")
                faults = run.faults()
        kept += not faults
        text = "; ".join(faults[:5]) or "kept"
        spent = time.monotonic() - begun_s
        print(f"{seed}: {kind}, {', '.join(run.events)}: {spent:.0f} s: {text}", flush=True)
    print(f"{kept} of {options.runs} runs kept the promise")
    return int(kept < options.runs)


if __name__ == "__main__":
    sys.exit(main())
