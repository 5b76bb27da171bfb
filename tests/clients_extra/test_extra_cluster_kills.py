"""Apache Kafka's Java client on three Tidemill brokers: killed leaders and coordinators, racks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from broker_cluster import Brokers, start_cluster, until
from confluent_kafka.admin import AdminClient
from kafka_desk import compiled
from kafka_peer import java, read_all

from tidemill.client import Producer
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

TOPIC, GROUP, PARTITIONS = "fire", "readers", 3
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)


@pytest.fixture(scope="module")
def programs(java_jars: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(java_jars, tmp_path_factory.mktemp("programs"), "UnderFire", "NearReader")


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    with start_cluster(f"{zookeeper_server.address}/extra-cluster-kills") as found:
        yield found


def in_sync(cluster: Brokers) -> bool:
    with cluster.admin() as admin:
        return all(len(one.isr) == 3 for one in admin.describe_topic(TOPIC).partitions)


def coordinator(cluster: Brokers) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    found = admin.describe_consumer_groups([GROUP])[GROUP].result(30).coordinator.id
    assert isinstance(found, int)
    return found


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the program after a failed test, which would wait for it otherwise."""
    try:
        yield
    finally:
        process.kill()


class JavaProgram:
    """The program that writes and reads, and its output."""

    def __init__(self, programs: str, bootstrap: str) -> None:
        command = java(programs, "UnderFire", bootstrap, TOPIC, str(PARTITIONS), GROUP, heap="256m")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: list[str] = []

    def some(self) -> None:
        """Waits until more messages are acknowledged."""
        while not self.line().startswith("acknowledged"):
            pass

    def line(self) -> str:
        """Returns its next line."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline().strip()
        assert text, f"it ended: {self.lines[-10:]}"
        assert not text.startswith("error"), text
        self.lines.append(text)
        return text

    def end(self) -> tuple[list[int], list[int]]:
        """Returns the numbers of sent and acknowledged messages, of read messages, reads and commits."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while not (said := self.line()).startswith("sent"):
            pass
        sent = [int(word) for word in said.split()[1:]]
        while not (said := self.line()).startswith("read"):
            pass
        self.process.wait(60)
        return sent, [int(word) for word in said.split()[1:]]


def test_java_loses_nothing_and_writes_nothing_twice_through_kills(cluster: Brokers, programs: str) -> None:
    with cluster.admin() as admin:
        admin.create_topic(TOPIC, PARTITIONS, 3)
    fire = JavaProgram(programs, cluster.bootstrap)
    with fire.process, ending(fire.process):
        fire.some()
        victims = [
            lambda: cluster.leaders(TOPIC)[0],
            lambda: coordinator(cluster),
            lambda: cluster.leaders(TOPIC)[1],
        ]
        for victim in victims:
            number = victim()
            fire.some()
            cluster.brokers[number].kill()
            fire.some()
            fire.some()
            cluster.brokers[number].start()
            until(lambda: in_sync(cluster), f"broker {number} is in sync")
            fire.some()
        (sent, acknowledged), (read, reads, commits) = fire.end()
    assert acknowledged == sent
    assert read == sent
    assert reads >= read
    assert commits > 0
    keys = [(TOPIC, number) for number in range(PARTITIONS)]
    records, _ = read_all(cluster.bootstrap, keys, "read_uncommitted")
    for _, number in keys:
        values = [int.from_bytes(one[3]) for one in records[TOPIC, number]]
        assert values == list(range(number, sent, PARTITIONS))
    assert all("Traceback" not in broker.log for broker in cluster.brokers.values())


def test_java_reads_from_the_replica_of_its_rack(zookeeper_server: ZooKeeper, programs: str) -> None:
    config = {
        "zookeeper.connect": f"{zookeeper_server.address}/extra-cluster-racks",
        "replica.selector.class": SELECTOR,
    }
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(
                Broker({**config, "node.id": str(number), "broker.rack": f"rack-{number}"})
            )
            for number in (1, 2, 3)
        }
        cluster = Brokers(config["zookeeper.connect"], brokers)
        with cluster.admin() as admin:
            admin.create_topic("near", assignments={0: [1, 2, 3]})
        with Producer(cluster.bootstrap, acks="all") as producer:
            for _ in range(2000):
                producer.send("near", bytes(1000), partition=0)
        for rack, expected in (("rack-3", "node-3"), ("rack-1", "node-1"), ("elsewhere", "node-1")):
            command = java(programs, "NearReader", cluster.bootstrap, "near", rack, "2000", heap="256m")
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            came = {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}
            assert came.pop(expected) > 1_900_000, (rack, done.stdout)
            assert all(count < 200_000 for count in came.values()), (rack, done.stdout)
