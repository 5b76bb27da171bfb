"""Reassignments and leader changes between three broker processes while clients write."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, start_cluster, until
from confluent_kafka import Consumer, ElectionType, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from tidemill.client import ConfigResource, ResourceType
from tidemill.client.admin_types import PartitionDescription
from tidemill.coordination.coordination_store import Create
from tidemill.coordination.nodes import REASSIGN_PARTITIONS, ReassignmentNode
from tidemill.coordination.zookeeper_settings import ZooKeeperSettings
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper

CHROOT = "/test-moves"
THROTTLED_BYTES = 3_000_000
THROTTLED_BYTES_S = 500_000
FETCH_BYTES_MAX = 1024 * 1024


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers for all tests of this module. Each test leaves them running."""
    quiet = {"auto__leader__rebalance__enable": "false", "tidemill__metrics__port": "0"}
    with start_cluster(f"{zookeeper_server.address}{CHROOT}", **quiet) as found:
        yield found


class Writer:
    """Writes 0, 1, 2 ... to one partition in a thread with an idempotent producer."""

    def __init__(self, cluster: Brokers, topic: str) -> None:
        self.topic = topic
        self.errors: list[object] = []
        self.acknowledged = 0
        self._bootstrap = cluster.bootstrap
        self._producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )
        self._stopped = threading.Event()
        self._written = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.002):
            self._producer.produce(
                self.topic, str(self._written).encode(), partition=0, on_delivery=self._delivered
            )
            self._written += 1
            self._producer.poll(0)
        self._producer.flush(60)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(error)
        self.acknowledged += 1

    def some(self) -> None:
        """Waits until some more messages are acknowledged."""
        wanted = self.acknowledged + 50
        until(lambda: self.acknowledged >= wanted, "more is acknowledged")

    def check(self) -> None:
        """Stops, and checks that all messages were acknowledged and are in the log once and in order."""
        self._stopped.set()
        self._thread.join()
        assert self.errors == []
        assert self.acknowledged == self._written
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "none", "log_level": 0})
        reader.assign([ClientPartition(self.topic, 0, 0)])
        values: list[int] = []

        def read() -> bool:
            values.extend(int(one.value()) for one in reader.consume(1000, 0.2) if one.error() is None)
            return len(values) >= self._written

        until(read, f"all {self._written} messages are there")
        reader.close()
        assert values == list(range(self._written))


def described(cluster: Brokers, topic: str) -> PartitionDescription:
    """The first partition of the topic, from any broker."""
    with cluster.admin() as admin:
        return admin.describe_topic(topic).partitions[0]


def moved(cluster: Brokers, topic: str, replicas: list[int]) -> None:
    """Waits until all brokers report these replicas as in sync."""

    def is_reported() -> bool:
        found = described(cluster, topic)
        return list(found.replicas) == replicas and sorted(found.isr) == sorted(replicas)

    until(is_reported, f"{topic} is on {replicas}")


def reassign(cluster: Brokers, topic: str, replicas: list[int]) -> None:
    """Writes a reassignment to ZooKeeper, and waits until it is complete."""

    async def scenario() -> None:
        address = cluster.address.removesuffix(CHROOT)
        store = await ZooKeeperStore.open(ZooKeeperSettings(address, CHROOT))
        try:
            data = ReassignmentNode.encode({TopicPartition(topic, 0): replicas})
            gone = asyncio.Event()
            watch = await store.watch(REASSIGN_PARTITIONS, lambda event: gone.set())
            await store.transact([Create(REASSIGN_PARTITIONS, data)])
            async with asyncio.timeout(60):
                while await store.exists(REASSIGN_PARTITIONS):
                    await gone.wait()
                    gone.clear()
            watch.cancel()
        finally:
            await store.close()

    asyncio.run(scenario())


def metric(cluster: Brokers, name: str, **labels: str) -> float:
    """The sum over all brokers."""
    total = 0.0
    for broker in cluster.brokers.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=30) as answer:
            body = answer.read().decode()
        for family in text_string_to_metric_families(body):
            total += sum(one.value for one in family.samples if one.name == name and one.labels == labels)
    return total


def test_reassigns_a_partition_during_writes(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic("moved", assignments={0: [1, 2]})
    writer = Writer(cluster, "moved")
    writer.some()
    for replicas in ([3, 2], [2, 3, 1], [1, 3]):
        reassign(cluster, "moved", replicas)
        writer.some()
        moved(cluster, "moved", replicas)
    writer.check()
    left = Path(cluster.brokers[2].data_dir, "moved-0")
    until(lambda: not left.exists(), "broker 2 keeps nothing")


@contextlib.contextmanager
def throttled(cluster: Brokers, key: str) -> Iterator[None]:
    """Sets a throttle on each broker, and waits until the brokers apply it."""
    with cluster.admin() as admin:
        resources = {number: ConfigResource(ResourceType.BROKER, str(number)) for number in cluster.brokers}

        def applied(number: int) -> bool:
            entries = admin.describe_configs(resources[number], [key], broker=number)
            return entries[key].value == str(THROTTLED_BYTES_S)

        for resource in resources.values():
            admin.alter_configs(resource, {key: str(THROTTLED_BYTES_S)})
        for number in resources:
            until(functools.partial(applied, number), f"broker {number} applies its rate")
        yield
        for resource in resources.values():
            admin.alter_configs(resource, remove=[key])


def test_a_throttled_follower_respects_its_rate(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic(
            "slow", assignments={0: [1, 2]}, configs={"follower.replication.throttled.replicas": "0:3"}
        )
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for _ in range(THROTTLED_BYTES // 1000):
        producer.produce("slow", bytes(1000), partition=0)
    assert producer.flush(30) == 0
    with throttled(cluster, "follower.replication.throttled.rate"):
        began = time.monotonic()
        reassign(cluster, "slow", [1, 3])
        took_s = time.monotonic() - began
    moved(cluster, "slow", [1, 3])
    # The last fetch of at most 1 MB waits for the earlier ones.
    assert took_s > (THROTTLED_BYTES - FETCH_BYTES_MAX) / THROTTLED_BYTES_S / 2


def test_a_throttled_leader_respects_its_rate_and_serves_other_replicas(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic(
            "held", assignments={0: [1, 2]}, configs={"leader.replication.throttled.replicas": "0:1"}
        )
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for _ in range(THROTTLED_BYTES // 1000):
        producer.produce("held", bytes(1000), partition=0)
    assert producer.flush(30) == 0
    assert metric(cluster, "tidemill_reassigning_partitions") == 0
    with throttled(cluster, "leader.replication.throttled.rate"):
        began = time.monotonic()
        moving = threading.Thread(target=reassign, args=(cluster, "held", [1, 2, 3]))
        moving.start()
        # Broker 2 is in sync, and receives new messages at once.
        meanwhile = 0
        while moving.is_alive():
            producer.produce("held", b"meanwhile", partition=0)
            assert producer.flush(30) == 0
            meanwhile += 1
            if meanwhile == 5:
                until(lambda: metric(cluster, "tidemill_reassigning_partitions") == 1, "it is counted")
            time.sleep(0.02)  # Without pauses the writes would exceed the rate.
        moving.join()
        took_s = time.monotonic() - began
    moved(cluster, "held", [1, 2, 3])
    assert metric(cluster, "tidemill_reassigning_partitions") == 0
    sent = metric(cluster, "tidemill_throttled_replication_bytes_total", side="leader")
    assert sent > 2 * THROTTLED_BYTES, "also what went to broker 2 counts"
    before = metric(cluster, "tidemill_preferred_replica_imbalance")
    reassign(cluster, "held", [2, 1, 3])
    assert metric(cluster, "tidemill_preferred_replica_imbalance") == before + 1, "broker 1 leads on"
    assert took_s > (THROTTLED_BYTES - FETCH_BYTES_MAX) / THROTTLED_BYTES_S / 2
    assert meanwhile > 10, "no write waited for the follower that is held back"


def test_a_rolling_restart_fails_no_write_and_preferred_leaders_return(
    cluster: Brokers,
) -> None:
    with cluster.admin() as admin:
        admin.create_topic("rolled", assignments={0: [1, 2, 3]})
    writer = Writer(cluster, "rolled")
    for number in (2, 3, 1):
        broker = cluster.brokers[number]
        writer.some()
        broker.stop()
        assert "other brokers lead all partitions that this broker led" in broker.log
        writer.some()
        broker.start()
        until(lambda: len(described(cluster, "rolled").isr) == 3, f"broker {number} is in sync again")
    writer.some()
    assert described(cluster, "rolled").leader != 1
    asked = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    results = asked.elect_leaders(ElectionType.PREFERRED, None).result(30)
    assert results[ClientPartition("rolled", 0)] is None
    until(lambda: described(cluster, "rolled").leader == 1, "every broker has heard of it")
    (again,) = asked.elect_leaders(ElectionType.PREFERRED, [ClientPartition("rolled", 0)]).result(30).values()
    assert again.name() == "ELECTION_NOT_NEEDED"
    writer.check()
