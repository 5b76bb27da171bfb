"""Transactions of the Java client and of Kafka Streams have the results of Apache Kafka. Each message is
written once although brokers, coordinators and programs are killed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_cluster import Brokers, start_cluster, until
from kafka_desk import compiled
from kafka_peer import Kafka, class_path, java, read_all

from tidemill.client import Admin, Producer
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

KAFKA = "4.3.1"
ONE_REPLICA = """
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
INPUT, OUTPUT, PARTITIONS = "input", "output", 3
INTERNAL = "__transaction_state"
KILLS = 20
PER_KILL = 400
"""Messages of each partition between two kills."""
WAIT_S = 90

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)


@pytest.fixture(scope="module")
def programs(java_jars: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(java_jars, tmp_path_factory.mktemp("programs"), "Transactions", "WordCount")


@contextmanager
def kafka_address(place: Path) -> Iterator[str]:
    """``host:port`` of a broker of Apache Kafka."""
    home, data = place / "home", place / "data"
    home.mkdir()
    data.mkdir()
    kafka = Kafka(class_path(KAFKA), home, data, settings=ONE_REPLICA)
    kafka.start(form=True)
    try:
        yield kafka.bootstrap
    finally:
        kafka.end()


def results(programs: str, bootstrap: str) -> list[str]:
    """The output of the program with transactions."""
    with Admin(bootstrap) as admin:
        admin.create_topic("transactions", 2, 1)
    command = java(programs, "Transactions", bootstrap, "transactions", "group", heap="256m")
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_java_transactions_have_the_results_of_apache_kafka(programs: str, tmp_path: Path) -> None:
    with Broker() as broker:
        found = results(programs, broker.bootstrap)
        assert "Traceback" not in broker.log
    with kafka_address(tmp_path) as address:
        assert found == results(programs, address)
    assert len(found) == 11


def test_transactions_of_python_and_go_have_the_results_of_apache_kafka(
    go_tests: Path, tmp_path: Path
) -> None:
    """Other tests run the same programs with Tidemill."""
    tests = Path(__file__).parent.parent / "clients" / "test_clients_transactions.py"
    with kafka_address(tmp_path) as address:
        for command in (
            [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(tests)],
            [str(go_tests), "-test.v", "-test.count=1", "-test.run", "Transactions"],
        ):
            environment = {**os.environ, "TIDEMILL_TEST_BOOTSTRAP": address, "BOOTSTRAP": address}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
            assert done.returncode == 0, done.stdout + done.stderr
            assert re.search(r"12 passed|(--- PASS.*){4}", done.stdout, re.DOTALL), done.stdout


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper, request: pytest.FixtureRequest) -> Iterator[Brokers]:
    path = f"{zookeeper_server.address}/transactions-{abs(hash(request.node.name))}"
    settings = {"transaction__state__log__num__partitions": "6", "offsets__topic__num__partitions": "6"}
    with start_cluster(path, 3, **settings) as found:
        with found.admin() as admin:
            admin.create_topic(INPUT, PARTITIONS, 3)
            admin.create_topic(OUTPUT, PARTITIONS, 3)
        yield found
        assert all("Traceback" not in broker.log for broker in found.brokers.values())


class Copier:
    """Kafka's TransactionalMessageCopier for one partition: it copies up to the present end, and ends."""

    def __init__(self, jars: str, bootstrap: str, partition: int, log: Path, *options: str) -> None:
        self.command = java(
            jars,
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", bootstrap, "--input-topic", INPUT, "--output-topic", OUTPUT),
            *("--input-partition", str(partition), "--transactional-id", f"copier-{partition}"),
            *("--consumer-group", "copiers", "--transaction-size", "20", "--transaction-timeout", "20000"),
            "--enable-random-aborts",
            *options,
            heap="128m",
        )
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.is_killed = False

    def start(self) -> None:
        """Starts the program, unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        self.check_exit()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def check_exit(self) -> None:
        """The last run has ended without an error, or was killed."""
        if self.process is not None and not self.is_killed:
            assert self.process.returncode == 0, self.log.read_text("utf-8")[-3000:]
        self.is_killed = False

    def kill(self) -> None:
        """Kills the program, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.is_killed = True

    def finish(self) -> None:
        """Copies the rest."""
        if self.process is not None:
            self.process.wait(WAIT_S)
        self.start()
        assert self.process is not None
        self.process.wait(WAIT_S)
        self.check_exit()

    @property
    def progress(self) -> int:
        """The length of its output: it prints a line for each transaction."""
        return self.log.stat().st_size if self.log.exists() else 0


def controller(cluster: Brokers) -> int:
    """The node of the controller."""
    with cluster.admin() as admin:
        return admin.describe_cluster().controller_id


def kill_and_restart(cluster: Brokers, number: int, meanwhile: Callable[[], None]) -> None:
    """Kills a broker, and starts it again after some time."""
    cluster.brokers[number].kill()
    meanwhile()
    cluster.brokers[number].start()
    with cluster.admin() as admin:
        until(
            lambda: all(
                len(one.isr) == 3
                for topic in (INPUT, OUTPUT, INTERNAL)
                for one in admin.describe_topic(topic).partitions
            ),
            f"broker {number} is in sync",
            WAIT_S,
        )


@pytest.mark.parametrize("uses_group", [False, True], ids=["assigned", "group"])
def test_copies_are_equal_although_brokers_and_copiers_are_killed(
    cluster: Brokers, java_jars: str, tmp_path: Path, uses_group: bool
) -> None:
    chance = random.Random(KILLS)
    options = ["--group-mode", "--use-group-metadata"] if uses_group else ["--use-group-metadata"]
    copiers = [
        Copier(java_jars, cluster.bootstrap, number, tmp_path / f"copier-{number}", *options)
        for number in range(PARTITIONS)
    ]
    victims = [
        lambda: cluster.leaders(OUTPUT)[chance.randrange(PARTITIONS)],
        lambda: cluster.leaders(INTERNAL)[chance.randrange(6)],
        lambda: controller(cluster),
    ]
    count = 0
    try:
        with Producer(cluster.bootstrap) as producer:
            for kill in range(KILLS):
                for number in range(count, count + PER_KILL * PARTITIONS):
                    producer.send(INPUT, b"%d" % number, partition=number % PARTITIONS)
                producer.flush(WAIT_S)
                count += PER_KILL * PARTITIONS
                for copier in copiers:
                    copier.start()
                wait_for_output(copiers)
                if kill % 4 == 3:
                    copiers[kill // 4 % PARTITIONS].kill()
                    continue
                kill_and_restart(cluster, victims[kill % 4](), lambda: wait_for_output(copiers))
        for copier in copiers:
            copier.finish()
    finally:
        for copier in copiers:
            copier.kill()
    keys = [(OUTPUT, number) for number in range(PARTITIONS)]
    committed, _ = read_all(cluster.bootstrap, keys, "read_committed")
    values = sorted(int(one[3]) for records in committed.values() for one in records)
    assert values == list(range(count))
    uncommitted, _ = read_all(cluster.bootstrap, keys, "read_uncommitted")
    assert sum(map(len, uncommitted.values())) > count


def wait_for_output(copiers: list[Copier]) -> None:
    """Waits until a copier has printed something, or all have ended."""
    before = [copier.progress for copier in copiers]
    until(
        lambda: (
            [one.progress for one in copiers] != before
            or all(one.process is None or one.process.poll() is not None for one in copiers)
        ),
        "copiers go on, or end",
        WAIT_S,
    )


class WordCount:
    """A Streams program with its own state directory."""

    def __init__(self, programs: str, bootstrap: str, state: Path) -> None:
        self.command = java(
            programs, "WordCount", bootstrap, INPUT, OUTPUT, "word-count", str(state), heap="256m"
        )
        self.log = state / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program."""
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kills the program."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def close(self) -> None:
        """Ends the program; it commits before."""
        assert self.process is not None
        self.process.communicate(b"\n", timeout=WAIT_S)


def test_streams_count_each_word_once(cluster: Brokers, programs: str, tmp_path: Path) -> None:
    chance = random.Random(PARTITIONS)
    words = [f"word-{number}" for number in range(20)]
    expected: Counter[str] = Counter()
    counters = [WordCount(programs, cluster.bootstrap, tmp_path / f"state-{number}") for number in range(2)]

    def counts() -> dict[str, int]:
        keys = [(OUTPUT, number) for number in range(PARTITIONS)]
        records, _ = read_all(cluster.bootstrap, keys, "read_committed")
        return {(one[2] or b"").decode(): int(one[3]) for some in records.values() for one in some}

    def send(producer: Producer) -> None:
        for _ in range(300):
            line = chance.choices(words, k=4)
            expected.update(line)
            producer.send(INPUT, " ".join(line).encode())
        producer.flush(WAIT_S)

    try:
        for counter in counters:
            counter.start()
        with Producer(cluster.bootstrap) as producer:
            send(producer)
            until(lambda: counts() == expected, "all words are counted", WAIT_S)
            for kill in range(6):
                send(producer)
                if kill % 2:
                    counters[kill // 2 % 2].kill()
                    counters[kill // 2 % 2].start()
                else:
                    number = cluster.leaders((OUTPUT, INTERNAL)[kill // 2 % 2])[0]
                    kill_and_restart(cluster, number, lambda: send(producer))
            until(lambda: sum(counts().values()) >= expected.total(), "all words are counted", WAIT_S)
        for counter in counters:
            counter.close()
    finally:
        for counter in counters:
            counter.kill()
    assert counts() == expected
