"""Compares three Tidemill brokers with three Kafka brokers: the same settings and clients; one table.

    python bench/cluster.py [--rounds 3] [--quick] [--only NAME] [--against kafka|nobody]

produce      acks=all, to three partitions of three replicas; and processor time of the three brokers per GB
synchronous  acks=all, one message at a time
idle         the cost of a small produce with acks=all on the three brokers, besides 2,000 idle partitions
catch-up     a partition on two brokers gets a third, empty replica: bytes per second
topics       1,000 topics of three replicas are created, until each has leaders
leader       the leader of a partition is killed: the longest time without an acknowledged write
controller   the controller is killed, with 2,000 partitions: the time until all have leaders, as both others
             report, and a topic can be created
memory       resident memory of the three brokers, before and after the other measurements

Figures are medians of the rounds. The client and all six brokers share the processors, so only ratios are
reliable. Logs are on tmpfs. The Tidemill brokers have a separate ZooKeeper, which does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load import small_produce
from peers import CallCount, Figures, end_in_order, load, warm_memory
from trios import KafkaTrio, TidemillTrio, Trio, await_rest, until

IDLE_PARTITIONS = 2000
IDLE_LOOKS = 5
TOPICS = 1000
LOOK_EVERY_S = 0.005
WRITE_S = 30.0


class Bench:
    """The measurements of one trio; each method yields the figures of one round."""

    def __init__(self, trio: Trio, quick: bool) -> None:
        self.trio = trio
        self.scale = 4 if quick else 1
        self._made = 0

    def name(self, what: str) -> str:
        """Returns the name of a new topic."""
        self._made += 1
        return f"{what}-{self._made}"

    def produce(self, size: int, count: int) -> Figures:
        count //= self.scale
        warm_memory(4 * size * count)
        before = self.trio.cpu_s()
        rate = load("replicated", self.trio.bootstrap, count, size)["produce"]
        used = self.trio.cpu_s() - before
        topics = self.trio.admin().list_topics(timeout=30).topics
        self.trio.delete(*(name for name in topics if name.startswith("replicated-")))
        return {"produce": rate, "cpu": used / (size * count / 1e9), "cpu us": used / count * 1e6}

    def synchronous(self) -> Figures:
        count = 4000 // self.scale
        before = self.trio.cpu_s()
        figures = load("latency", self.trio.bootstrap, count, 3)
        return {**figures, "cpu us": (self.trio.cpu_s() - before) / count * 1e6}

    def _cost(self, topic: str) -> Figures:
        """Returns processor microseconds of the three brokers, and their system calls, of one small produce.

        The result is the median of several samples: single ones differ by a third while other processes run.
        """
        seconds = 2.0 / self.scale
        leader = self.trio.partitions(topic)[0].leader
        arguments = (self.trio.peers[leader].bootstrap, topic, 1, 4, 1, seconds, -1)
        load("spread", *arguments)
        looks = []
        for _ in range(IDLE_LOOKS):
            before = self.trio.cpu_s()
            made = load("spread", *arguments)["requests"] * seconds
            looks.append({"cpu": (self.trio.cpu_s() - before) / made * 1e6, "requests": made / seconds})
        figures = {key: statistics.median(look[key] for look in looks) for key in looks[0]}
        # In a separate turn, since counting takes time, too.
        calls = CallCount(*(peer.pid for peer in self.trio.peers.values()))
        counted = load("spread", *arguments)["requests"] * seconds
        return {**figures, "calls": calls.end() / counted}

    def idle(self) -> Figures:
        """Measures the same partition before and after 2,000 others exist; they stay for the next
        measurements.
        """
        topic = self.name("busy")
        self.trio.make({topic: 1})
        self.trio.await_in_sync(topic)
        alone = self._cost(topic)
        self.with_idle()
        return {**alone, **{f"{key} beside": value for key, value in self._cost(topic).items()}}

    def with_idle(self) -> None:
        """Creates 2,000 partitions, unless they exist."""
        if "idle" not in self.trio.admin().list_topics(timeout=30).topics:
            self.trio.make({"idle": IDLE_PARTITIONS // (4 if self.scale > 1 else 1)})
        self.trio.await_in_sync("idle")

    def catch_up(self) -> Figures:
        from confluent_kafka import Producer

        from tidemill.client import Admin
        from tidemill.model.types import TopicPartition

        topic, size = self.name("catch-up"), 10_000
        count = 200_000 // self.scale
        warm_memory(3 * size * count)
        self.trio.make({topic: 1}, replica_assignment=[[1, 2]])
        producer = Producer(
            {"bootstrap.servers": self.trio.bootstrap, "batch.size": 1_000_000, "linger.ms": 5}
        )
        value = os.urandom(size)
        for number in range(count):
            producer.produce(topic, value, partition=0)
            if number % 1000 == 999:
                producer.flush()
        producer.flush()
        self.trio.await_in_sync(topic, 2)
        before, began = self.trio.cpu_s(), time.perf_counter()
        with Admin(self.trio.bootstrap) as admin:
            for problem in admin.alter_reassignments({TopicPartition(topic, 0): [1, 2, 3]}).values():
                if problem is not None:
                    raise SystemExit(f"bench: {self.trio.name} does not add a replica: {problem}")
        self.trio.await_in_sync(topic)
        took, used = time.perf_counter() - began, self.trio.cpu_s() - before
        self.trio.delete(topic)
        return {"GB/s": size * count / 1e9 / took, "cpu": used / (size * count / 1e9)}

    def topics(self) -> Figures:
        run = self.name("many")
        names = {f"{run}-{number}": 1 for number in range(TOPICS // self.scale)}
        before = self.trio.cpu_s()
        took = self.trio.make(names)
        used = self.trio.cpu_s() - before
        self.trio.delete(*names)
        return {"seconds": took, "cpu": used}

    def leader(self) -> Figures:
        """Returns the seconds between the last acknowledged write before the kill and the first after it."""
        topic = self.name("failover")
        self.trio.make({topic: 1})
        self.trio.await_in_sync(topic)
        leader = self.trio.partitions(topic)[0].leader
        writes = Writes(self.trio, topic, leader)
        writes.wait(1.0)
        killed = time.perf_counter()
        self.trio.peers[leader].kill()
        until(lambda: writes.acknowledged[-1] > killed + 0.05, "a write after the kill")
        writes.wait(1.0)
        writes.stop()
        longest = max(
            after - before
            for before, after in zip(writes.acknowledged, writes.acknowledged[1:], strict=False)
            if after > killed
        )
        self._bring_back(leader, topic)
        return {"gap": longest}

    def controller(self) -> Figures:
        """Returns the seconds from the kill of the controller until its partitions have leaders and a topic
        can be created.
        """
        self.with_idle()
        controller = self.trio.controller()
        self.trio.peers[controller].kill()
        began = time.perf_counter()
        for number in self.trio.living:
            admin = self.trio.admin(number)
            until(
                lambda asked=admin: all(one.leader not in (controller, -1) for one in self._idle_told(asked)),
                "every partition is led by those that live",
            )
        led = time.perf_counter() - began
        self.trio.make({self.name("after"): 1}, replica_assignment=[self.trio.living])
        took = time.perf_counter() - began
        self._bring_back(controller, "idle")
        return {"led": led, "topic made": took}

    def _idle_told(self, admin: Any) -> Sequence[Any]:
        try:
            return self.trio.partitions("idle", admin)
        except Exception:  # noqa: BLE001 - a broker that cannot tell just now is asked again
            return [Nobody]

    def _bring_back(self, number: int, topic: str) -> None:
        self.trio.peers[number].start()
        self.trio.await_in_sync(topic)


class Nobody:
    """A partition whose leader no broker knows."""

    leader = -1


class Writes:
    """Writes to partition 0 with ``acks=all``, one message after the other, in a thread, until it is stopped.

    It sends a metadata request to other brokers when a broker refuses a write or fails. A client would
    measure its own timers: librdkafka looks up a lost leader once a second.
    """

    def __init__(self, trio: Trio, topic: str, first: int) -> None:
        self.acknowledged: list[float] = [time.perf_counter()]
        self._ports = [trio.peers[number].port for number in (first, *trio.peers) if number in trio.living]
        self._frame = small_produce(topic, 0, -1)
        self._error_at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for port in itertools.cycle(self._ports):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as to:
                to.settimeout(WRITE_S)
                to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._write(to)
            if self._stopped.wait(LOOK_EVERY_S):
                return

    def _write(self, to: socket.socket) -> None:
        """Writes until an error; then another broker is used."""
        while not self._stopped.is_set():
            to.sendall(self._frame)
            answer = b""
            while len(answer) < self._error_at + 2:
                piece = to.recv(4096)
                if not piece:
                    return
                answer += piece
            if answer[self._error_at : self._error_at + 2] != bytes(2):
                return
            self.acknowledged.append(time.perf_counter())

    def wait(self, seconds: float) -> None:
        """Waits during the writes."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Stops the writes."""
        self._stopped.set()
        self._thread.join()


Axis = tuple[str, Callable[[Bench], Figures]]
AXES: list[Axis] = [
    # Some seconds each: in one second, a third would be the start of the client, and its own memory.
    ("produce 100 B", lambda bench: bench.produce(100, 3_000_000)),
    ("produce 1 KB", lambda bench: bench.produce(1000, 900_000)),
    ("produce 10 KB", lambda bench: bench.produce(10_000, 90_000)),
    ("synchronous", Bench.synchronous),
    ("catch-up", Bench.catch_up),
    ("topics", Bench.topics),
    ("leader", Bench.leader),
    ("controller", Bench.controller),
]
Gathered = dict[str, dict[str, dict[str, list[float]]]]


def measure(trios: list[Trio], rounds: int, quick: bool, only: str) -> Gathered:
    """Returns all figures of all rounds: by broker, by axis, by name."""
    gathered: Gathered = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    benches = {trio.name: Bench(trio, quick) for trio in trios}

    def note(trio: Trio, name: str, figures: Figures) -> None:
        for key, value in figures.items():
            gathered[trio.name][name][key].append(value)

    for trio in trios:
        note(trio, "memory", {"idle": trio.resident_mb()})
    for name, axis in AXES:
        if only not in name:
            continue
        # The first round warms up both and does not count; if a broker is restarted each time, all count.
        warm = name.split()[0] in ("produce", "synchronous")
        for turn in range(rounds + warm):
            for trio in trios:
                await_rest(trios)
                figures = axis(benches[trio.name])
                if turn or not warm:
                    note(trio, name, figures)
        told = {trio: dict(names[name]) for trio, names in gathered.items()}
        print(f"{name}: {json.dumps(told)}", file=sys.stderr, flush=True)
        if name == "synchronous":
            for trio in trios:
                note(trio, "memory", {"after": trio.resident_mb()})
    if only in "idle":
        for trio in trios:
            if "idle" in trio.admin().list_topics(timeout=30).topics:
                trio.delete("idle")
            note(trio, "idle", benches[trio.name].idle())
            print(f"idle: {dict(gathered[trio.name]['idle'])}", file=sys.stderr, flush=True)
    return gathered


ROWS = (
    ("produce acks=all 100 B, messages/s", "≥ 2", "produce 100 B", "produce", "{:,.0f}"),
    ("produce acks=all 1 KB, messages/s", "≥ 2.5", "produce 1 KB", "produce", "{:,.0f}"),
    ("produce acks=all 10 KB, messages/s", "≥ 2.5", "produce 10 KB", "produce", "{:,.0f}"),
    ("CPU seconds of the three per GB, 100 B", "", "produce 100 B", "cpu", "{:.2f}"),
    ("CPU seconds of the three per GB, 1 KB", "", "produce 1 KB", "cpu", "{:.2f}"),
    ("CPU seconds of the three per GB, 10 KB", "", "produce 10 KB", "cpu", "{:.2f}"),
    ("synchronous acks=all p50, µs", "≤ 1", "synchronous", "p50", "{:,.0f}"),
    ("synchronous acks=all p99, µs", "≤ 1", "synchronous", "p99", "{:,.0f}"),
    ("CPU µs of the three per synchronous produce", "", "synchronous", "cpu us", "{:,.0f}"),
    ("leader killed, no write for, s", "< 1 s", "leader", "gap", "{:.2f}"),
    ("catch-up of an empty replica, GB/s", "≥ 1.5", "catch-up", "GB/s", "{:.2f}"),
    ("CPU seconds of the three per GB caught up", "", "catch-up", "cpu", "{:.2f}"),
    ("create 1,000 topics, s", "≤ 0.5", "topics", "seconds", "{:.2f}"),
    ("controller killed, 2,000 partitions led, s", "≤ 0.5", "controller", "led", "{:.2f}"),
    ("controller killed, a topic made, s", "≤ 0.5", "controller", "topic made", "{:.2f}"),
    ("resident memory of the three, idle, MB", "< 200 MB", "memory", "idle", "{:.0f}"),
    ("resident memory of the three, after, MB", "< 200 MB", "memory", "after", "{:.0f}"),
)
HEAD = "| three brokers | goal | Tidemill | Apache Kafka | ratio |\n|---|---|---|---|---|"


def lines_of(gathered: Gathered) -> list[str]:
    """Returns the table in Markdown."""
    ours, theirs = gathered["tidemill"], gathered["kafka"]
    lines = []
    for axis, goal, name, key, form in ROWS:
        if key not in ours[name]:
            continue
        a = statistics.median(ours[name][key])
        b = statistics.median(theirs[name][key]) if theirs[name][key] else float("nan")
        lines.append(f"| {axis} | {goal} | {form.format(a)} | {form.format(b)} | {a / b:.2f} |")
    for key, form in (("cpu", "CPU, µs"), ("calls", "system calls")):
        for name, names in gathered.items():
            if f"{key} beside" in names["idle"]:
                a, b = names["idle"][f"{key} beside"][0], names["idle"][key][0]
                axis = f"{name}: a produce acks=all beside 2,000 idle partitions, {form}"
                lines.append(f"| {axis} | ≤ 1.1 | {a:.1f} | {b:.1f} without | {a / b:.2f} |")
    return lines


def rows(rounds: int, quick: bool, only: str, against: bool = True) -> list[str]:
    """Starts both trios, measures, and removes them; returns the lines of the table."""
    from tidemill import _build_mode

    if not _build_mode.compiled:
        print(f"bench: our brokers run as plain Python ({_build_mode.reason}): make setup", file=sys.stderr)
    base = Path("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir())
    data = Path(tempfile.mkdtemp(prefix="tidemill-cluster-", dir=base))
    with ExitStack() as stack:
        stack.callback(_take_away, data)
        trios: list[Trio] = [stack.enter_context(TidemillTrio(data / "tidemill"))]
        if against:
            trios.append(stack.enter_context(KafkaTrio(data / "kafka")))
        return lines_of(measure(trios, rounds, quick, only))


def _take_away(data: Path) -> None:
    import shutil

    shutil.rmtree(data, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smaller loads, for a first look")
    parser.add_argument("--only", default="", help="axes with this in their name")
    parser.add_argument("--against", choices=["kafka", "nobody"], default="kafka")
    options = parser.parse_args()
    end_in_order()
    found = rows(options.rounds, options.quick, options.only, options.against == "kafka")
    print("\n".join([HEAD, *found]))


if __name__ == "__main__":
    main()
