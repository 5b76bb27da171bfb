"""Real brokers beside nodes of ZooKeeper that somebody has spoilt: what is served, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from cluster_stage import Stage, cluster, nodes, until
from confluent_kafka import Consumer, Producer, TopicPartition

from tidemill.client import ClientError
from tidemill.testing.zookeeper import ZooKeeper


def produce(stage: Stage, topic: str, values: range) -> None:
    living = ",".join(one.bootstrap for one in stage.brokers.values() if one.running)
    producer = Producer({"bootstrap.servers": living, "acks": "all", "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=0)
    assert producer.flush(30) == 0


def consumed(stage: Stage, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": stage.bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
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


def committed(stage: Stage, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": "g", "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    finally:
        consumer.close()
    offset: int = found.offset
    return offset


def log_files(stage: Stage, topic: str) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for broker in stage.brokers.values()
        for path in Path(broker.data_dir).glob(f"{topic}-0/*.log")
    }


@pytest.mark.parametrize(
    "path", ["/brokers/topics/bad", "/brokers/topics/bad/partitions/0/state", "/config/topics/bad"]
)
def test_a_spoilt_node_costs_its_topic_until_it_is_mended_and_nothing_of_any_other(
    zookeeper_server: ZooKeeper, path: str
) -> None:
    address = f"{zookeeper_server.address}/test-unreadable-{abs(hash(path))}"
    settings = {
        "min.insync.replicas": "1",
        "auto.create.topics.enable": "false",
        "tidemill.metrics.port": "0",
    }
    with cluster(address, 2, **settings) as stage, nodes(stage.address) as zookeeper:
        with stage.admin() as admin:
            admin.create_topic("bad", 1, 2)
            admin.create_topic("good", 1, 2)
        for topic in ("bad", "good"):
            produce(stage, topic, range(20))
            assert consumed(stage, topic, 20) == list(range(20))
        files = log_files(stage, "bad")
        assert len(files) == 2

        good, _ = zookeeper.get(path)
        zookeeper.set(path, b'{"version":-5')
        for number in (1, 2):  # Each is the controller once, and each starts beside the spoilt node.
            stage.brokers[number].kill()
            with stage.admin(3 - number) as admin:
                until(lambda admin=admin: "bad" not in topics_of(admin), "a new controller sets it aside")  # type: ignore[misc]
                produce(stage, "good", range(20))
            stage.brokers[number].start()
            until(lambda: len(in_sync(stage, "good")) == 2, "both replicas of the other are in sync")
        assert unreadable(stage) == 1
        with stage.admin() as admin, pytest.raises(ClientError, match=path):
            admin.create_topic("bad", 1, 2)
        with stage.admin() as admin, pytest.raises(ClientError, match="is set aside"):
            admin.delete_topic("bad")
        assert zookeeper.get(path)[0] == b'{"version":-5'
        assert log_files(stage, "bad") == files
        lines = [
            line for one in stage.brokers.values() for line in one.log.splitlines() if "set aside" in line
        ]
        assert lines
        assert all(f"{path} holds" in line and "Correct" in line for line in lines if "ERROR" in line)

        zookeeper.set(path, good)
        until(lambda: len(in_sync(stage, "bad")) == 2, "the mended topic is served again")
        assert unreadable(stage) == 0
        assert committed(stage, "bad") == 20
        assert consumed(stage, "bad", 20) == list(range(20))
        produce(stage, "bad", range(20, 30))
        assert consumed(stage, "bad", 30) == list(range(30))
        assert consumed(stage, "good", 60) == list(range(20)) * 3


def unreadable(stage: Stage) -> float:
    """How many nodes the controller cannot read, by the brokers' metrics."""
    total = 0.0
    for broker in stage.brokers.values():
        with urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(
            float(line.split()[1]) for line in lines if line.startswith("tidemill_unreadable_nodes ")
        )
    return total


def topics_of(admin: Any) -> set[str]:
    return {topic.name for topic in admin.list_topics()}


def in_sync(stage: Stage, topic: str) -> list[int]:
    try:
        with stage.admin() as admin:
            found: list[int] = admin.describe_topic(topic).partitions[0].isr
            return found
    except ClientError:
        return []
