"""Brokers with unreadable nodes in ZooKeeper, with broker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from broker_cluster import Brokers, start_cluster, until, zookeeper_client
from confluent_kafka import Consumer, Producer, TopicPartition

from tidemill.client import ClientError
from tidemill.testing.zookeeper import ZooKeeper


def produce(cluster: Brokers, topic: str, values: range) -> None:
    living = ",".join(one.bootstrap for one in cluster.brokers.values() if one.running)
    producer = Producer({"bootstrap.servers": living, "acks": "all", "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=0)
    assert producer.flush(30) == 0


def consumed(cluster: Brokers, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []

    def more() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(int(message.value() or b""))
        return len(values) >= count

    try:
        until(more, f"{count} messages of {topic}")
        consumer.commit(offsets=[TopicPartition(topic, 0, count)], asynchronous=False)
    finally:
        consumer.close()
    return values


def committed(cluster: Brokers, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    finally:
        consumer.close()
    offset: int = found.offset
    return offset


def log_files(cluster: Brokers, topic: str) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for broker in cluster.brokers.values()
        for path in Path(broker.data_dir).glob(f"{topic}-0/*.log")
    }


@pytest.mark.parametrize(
    "path", ["/brokers/topics/bad", "/brokers/topics/bad/partitions/0/state", "/config/topics/bad"]
)
def test_an_unreadable_node_affects_only_its_topic_until_it_is_corrected(
    zookeeper_server: ZooKeeper, path: str
) -> None:
    address = f"{zookeeper_server.address}/test-unreadable-{abs(hash(path))}"
    settings = {
        "min.insync.replicas": "1",
        "auto.create.topics.enable": "false",
        "tidemill.metrics.port": "0",
    }
    with start_cluster(address, 2, **settings) as cluster, zookeeper_client(cluster.address) as zookeeper:
        with cluster.admin() as admin:
            admin.create_topic("bad", 1, 2)
            admin.create_topic("good", 1, 2)
        for topic in ("bad", "good"):
            produce(cluster, topic, range(20))
            assert consumed(cluster, topic, 20) == list(range(20))
        files = log_files(cluster, "bad")
        assert len(files) == 2

        good, _ = zookeeper.get(path)
        zookeeper.set(path, b'{"version":-5')
        for number in (1, 2):  # Each broker becomes the controller once, and starts with the unreadable node.
            cluster.brokers[number].kill()
            with cluster.admin(3 - number) as admin:
                until(lambda admin=admin: "bad" not in topics_of(admin), "a new controller sets it aside")  # type: ignore[misc]
                produce(cluster, "good", range(20))
            cluster.brokers[number].start()
            until(lambda: len(in_sync(cluster, "good")) == 2, "both replicas of the other are in sync")
        assert unreadable(cluster) == 1
        with cluster.admin() as admin, pytest.raises(ClientError, match=path):
            admin.create_topic("bad", 1, 2)
        with cluster.admin() as admin, pytest.raises(ClientError, match="is set aside"):
            admin.delete_topic("bad")
        assert zookeeper.get(path)[0] == b'{"version":-5'
        assert log_files(cluster, "bad") == files
        lines = [
            line for one in cluster.brokers.values() for line in one.log.splitlines() if "set aside" in line
        ]
        assert lines
        assert all(f"{path} holds" in line and "Correct" in line for line in lines if "ERROR" in line)

        zookeeper.set(path, good)
        until(lambda: len(in_sync(cluster, "bad")) == 2, "the mended topic is served again")
        assert unreadable(cluster) == 0
        assert committed(cluster, "bad") == 20
        assert consumed(cluster, "bad", 20) == list(range(20))
        produce(cluster, "bad", range(20, 30))
        assert consumed(cluster, "bad", 30) == list(range(30))
        assert consumed(cluster, "good", 60) == list(range(20)) * 3


def unreadable(cluster: Brokers) -> float:
    """The number of unreadable nodes in the metrics of the controller."""
    total = 0.0
    for broker in cluster.brokers.values():
        with urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(
            float(line.split()[1]) for line in lines if line.startswith("tidemill_unreadable_nodes ")
        )
    return total


def topics_of(admin: Any) -> set[str]:
    return {topic.name for topic in admin.list_topics()}


def in_sync(cluster: Brokers, topic: str) -> list[int]:
    try:
        with cluster.admin() as admin:
            found: list[int] = admin.describe_topic(topic).partitions[0].isr
            return found
    except ClientError:
        return []
