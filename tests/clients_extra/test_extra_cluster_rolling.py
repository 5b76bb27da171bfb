"""A rolling restart of the brokers while the Java client and confluent-kafka continue."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest
from broker_cluster import Brokers, start_cluster, until
from confluent_kafka import KafkaError, Producer
from kafka_desk import compiled
from kafka_peer import java, read_all
from test_extra_cluster_kills import JavaProgram, ending

from tidemill.testing.zookeeper import ZooKeeper

PARTITIONS = 3
TOPIC, ONCE, STEADY, GROUP = "fire", "tried-once", "steady", "readers"

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)


@pytest.fixture(scope="module")
def programs(java_jars: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(java_jars, tmp_path_factory.mktemp("programs"), "UnderFire", "TriedOnce")


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    with start_cluster(f"{zookeeper_server.address}/extra-cluster-rolling") as found:
        yield found


class NumberedProducer(threading.Thread):
    """An idempotent producer of confluent-kafka that numbers its messages."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.sent = 0
        self.acknowledged = 0
        self.errors: list[KafkaError] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )

    def run(self) -> None:
        """Writes until it is stopped."""
        while not self.ending.is_set():
            value = self.sent.to_bytes(4)
            self._producer.produce(
                STEADY, value, partition=self.sent % PARTITIONS, on_delivery=self._on_delivery
            )
            self.sent += 1
            self._producer.poll(0.002)
        self._producer.flush(60)

    def _on_delivery(self, error: KafkaError | None, message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)


def all_in_sync(cluster: Brokers) -> bool:
    with cluster.admin() as admin:
        topics = admin.describe_topics([TOPIC, ONCE, STEADY]).values()
        return all(len(one.isr) == 3 for topic in topics for one in topic.partitions)


def test_a_rolling_restart_fails_no_request_of_java_or_confluent_kafka_for_good(
    cluster: Brokers, programs: str
) -> None:
    with cluster.admin() as admin:
        for topic in (TOPIC, ONCE, STEADY):
            admin.create_topic(topic, PARTITIONS, 3)
    fire = JavaProgram(programs, cluster.bootstrap)
    command = java(programs, "TriedOnce", cluster.bootstrap, ONCE, str(PARTITIONS), heap="128m")
    once = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    steady = NumberedProducer(cluster.bootstrap)
    with fire.process, ending(fire.process), once, ending(once):
        steady.start()
        fire.some()
        for number, broker in cluster.brokers.items():
            assert broker.stop() == 0, f"broker {number}"
            fire.some()
            broker.start()
            until(lambda: all_in_sync(cluster), f"all is in sync after broker {number} is back")
            fire.some()
        steady.ending.set()
        steady.join(90)
        said, _ = once.communicate("\n", timeout=60)
        (sent, acknowledged), (read, _, commits) = fire.end()
    assert not steady.is_alive()
    assert steady.errors == []
    assert steady.acknowledged == steady.sent > 100
    assert acknowledged == read == sent > 100
    assert commits > 0
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("error")] == []
    assert int(lines[-1].split()[1]) > 100
    for topic, count in ((TOPIC, sent), (STEADY, steady.sent)):
        keys = [(topic, number) for number in range(PARTITIONS)]
        records, _ = read_all(cluster.bootstrap, keys, "read_uncommitted")
        for key in keys:
            values = [int.from_bytes(one[3]) for one in records[key]]
            assert values == list(range(key[1], count, PARTITIONS))
    assert all("Traceback" not in broker.log for broker in cluster.brokers.values())
