"""Measures how long clients with default settings cannot write after a leader is killed; one table.

    python bench/leader_kill.py [--rounds 5] [--clients librdkafka,franz-go] [--against kafka|nobody]

The broker of three that leads a partition is killed, as by a crash, while a writer of each client writes to
that partition, a message each 20 ms. The figure is the longest time between two acknowledged messages after
the kill: the median of the rounds, and the longest. In one case the controller stays, in the other the killed
broker is the controller, and another has to be elected first.

librdkafka connects to the brokers that it needs. If it has used the leader as its bootstrap broker, it has no
other connection, sends no metadata request before its tick of a second, and its figure is 0.9 s.

librdkafka and kafka-python come from PyPI, franz-go through Go's modules, and the Java client with Apache
Kafka's jars. A client is omitted if its language is not installed.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import BUILD, end_in_order, kafka_jars
from trios import KafkaTrio, TidemillTrio, Trio, await_rest, until

EVERY_S = 0.02
BEFORE_S = 6.0
"""A writer writes for so long before the kill: franz-go asks for metadata at most once in 5 s."""
AFTER_S = 3.0
"""And so long after it has written again: a client may falter once more."""
WRITERS = Path(__file__).resolve().parent / "writers"
GOAL_S = 0.6


def franz_go() -> list[str]:
    """Builds the franz-go writer as a program; go downloads its modules."""
    program = BUILD / "writers" / "franz-go"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=WRITERS / "go", check=True)
    return [str(program)]


def java() -> list[str]:
    """The writer with the Java client, compiled at its start."""
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return ["java", quiet, "-cp", f"{kafka_jars()}/*", str(WRITERS / "Writer.java")]


def python(name: str) -> list[str]:
    """A writer of this program."""
    return [sys.executable, __file__, "--write", name]


NEEDS = {"franz-go": "go", "java": "java"}
COMMANDS: dict[str, Callable[[], list[str]]] = {
    "librdkafka": lambda: python("librdkafka"),
    "kafka-python": lambda: python("kafka-python"),
    "franz-go": franz_go,
    "java": java,
}


def write_librdkafka(bootstrap: str, topic: str) -> None:
    """Writes with confluent-kafka until it is killed."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    while True:
        producer.produce(topic, b"x", on_delivery=lambda error, _: _acknowledged(error))
        producer.poll(EVERY_S)


def write_kafka_python(bootstrap: str, topic: str) -> None:
    """Writes with kafka-python until it is killed."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    while True:
        sent = producer.send(topic, b"x")
        sent.add_callback(lambda _: _acknowledged(None)).add_errback(_acknowledged)
        time.sleep(EVERY_S)


def _acknowledged(error: object) -> None:
    if error is None:
        print(f"{time.time():.6f}", flush=True)
    else:
        print(error, file=sys.stderr, flush=True)


class Writer:
    """A client that writes to a topic, as a process."""

    def __init__(self, name: str, command: Sequence[str], bootstrap: str, topic: str) -> None:
        self.name = name
        self.acknowledged: list[float] = []
        """When messages were acknowledged, in seconds since the epoch."""
        self.process = subprocess.Popen(
            [*command, bootstrap, topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.acknowledged.append(float(line))

    def _read_errors(self) -> None:
        for line in self.process.stderr or ():
            self.errors.append(line)

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()

    def gap_s(self, since: float) -> float:
        """Returns the longest time without an acknowledged message after ``since``."""
        pairs = itertools.pairwise(self.acknowledged)
        return max(after - before for before, after in pairs if after > since)


@contextmanager
def writers(names: Sequence[str], bootstrap: str, topic: str) -> Iterator[list[Writer]]:
    """Returns all writers, once each has written."""
    with ExitStack() as stack:
        started = []
        for name in names:
            started.append(Writer(name, COMMANDS[name](), bootstrap, topic))
            stack.callback(started[-1].end)
        for one in started:
            until(lambda one=one: len(one.acknowledged) > 20, f"{one.name} writes ({one.errors[-1:]})")
        yield started


def kill_once(trio: Trio, names: Sequence[str], topic: str, is_controller: bool) -> dict[str, float]:
    """Returns the seconds without a write of each client."""
    controller = trio.controller()
    others = [number for number in trio.peers if number != controller]
    replicas = [controller, *others] if is_controller else [*others, controller]
    trio.make({topic: 1}, replica_assignment=[replicas])
    trio.await_in_sync(topic)
    with writers(names, trio.bootstrap, topic) as started:
        time.sleep(BEFORE_S)
        killed = time.time()
        trio.peers[replicas[0]].kill()
        for one in started:
            until(
                lambda one=one: one.acknowledged[-1] > killed + 0.05,
                f"{one.name} writes after the kill ({one.errors[-1:]})",
            )
        time.sleep(AFTER_S)
        gaps = {one.name: one.gap_s(killed) for one in started}
    trio.peers[replicas[0]].start()
    trio.await_in_sync(topic)
    return gaps


Gaps = dict[tuple[str, bool, str], list[float]]


def measure(trio: Trio, names: Sequence[str], rounds: int) -> Gaps:
    """Returns the seconds without a write: by brokers, by whether the controller was killed, by client."""
    gathered: Gaps = defaultdict(list)
    for turn in range(rounds):
        for is_controller in (False, True):
            await_rest([trio])
            gaps = kill_once(trio, names, f"killed-{turn}-{int(is_controller)}", is_controller)
            for name, gap_s in gaps.items():
                gathered[trio.name, is_controller, name].append(gap_s)
            told = ", ".join(f"{name} {gap_s:.2f}" for name, gap_s in gaps.items())
            what = "leader and controller" if is_controller else "leader"
            print(f"{trio.name}, {what} killed: {told}", file=sys.stderr, flush=True)
    return gathered


HEAD = "| three brokers | goal | Tidemill | Apache Kafka | ratio |\n|---|---|---|---|---|"


def lines_of(gathered: Gaps) -> list[str]:
    """The table in Markdown."""
    lines = []
    for (peer, is_controller, name), gaps in gathered.items():
        if peer != TidemillTrio.name:
            continue
        theirs = gathered.get((KafkaTrio.name, is_controller, name))
        what = "leader and controller" if is_controller else "leader"
        ours = statistics.median(gaps)
        against = f"{statistics.median(theirs):.2f} ({max(theirs):.2f})" if theirs else "–"
        ratio = f"{ours / statistics.median(theirs):.2f}" if theirs else "–"
        lines.append(
            f"| {what} killed, {name} writes nothing for, s (longest) | < {GOAL_S}"
            f" | {ours:.2f} ({max(gaps):.2f}) | {against} | {ratio} |"
        )
    return lines


def found_clients(wanted: Sequence[str]) -> list[str]:
    """Those of them whose language is there; says which are not."""
    found = []
    for name in wanted:
        need = NEEDS.get(name)
        if need is None or shutil.which(need) is not None:
            found.append(name)
        else:
            print(f"bench: {name} is left out, as there is no '{need}' here", file=sys.stderr)
    return found


def rows(rounds: int, against: str = "kafka", clients: Sequence[str] = tuple(COMMANDS)) -> list[str]:
    """The lines of the table, measured."""
    names = found_clients(clients)
    for name in names:
        COMMANDS[name]()  # What has to be brought or built for it is, before a clock runs.
    kinds: list[Any] = [TidemillTrio, KafkaTrio] if against == "kafka" else [TidemillTrio]
    base = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
    data = Path(tempfile.mkdtemp(prefix="tidemill-leader-kill-", dir=base))
    gathered: Gaps = {}
    try:
        # One after the other: three brokers that idle beside would take a client's time for a kill.
        for kind in kinds:
            with kind(data / kind.name) as trio:
                gathered |= measure(trio, names, rounds)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return lines_of(gathered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", default=",".join(COMMANDS), help="comma-separated")
    parser.add_argument("--against", choices=("kafka", "nobody"), default="kafka")
    parser.add_argument("--write", nargs=3, metavar=("CLIENT", "BOOTSTRAP", "TOPIC"), help="be a writer")
    options = parser.parse_args()
    if options.write:
        name, bootstrap, topic = options.write
        {"librdkafka": write_librdkafka, "kafka-python": write_kafka_python}[name](bootstrap, topic)
        return
    end_in_order()
    lines = rows(options.rounds, options.against, options.clients.split(","))
    print("\n".join([HEAD, *lines]), flush=True)


if __name__ == "__main__":
    main()
