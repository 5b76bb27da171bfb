"""Consumers that fetch from a follower in their rack, with broker processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from broker_cluster import Brokers, until
from confluent_kafka import Consumer, Producer

from tidemill.broker.replica_selector import RACK_AWARE
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Two brokers in different racks."""
    address = f"{zookeeper_server.address}/test-nearby"
    common = {
        "zookeeper.connect": address,
        "default.replication.factor": "2",
        "offsets.topic.replication.factor": "2",
        "replica.selector.class": RACK_AWARE,
    }
    with ExitStack() as stack:
        yield Brokers(
            address,
            {
                number: stack.enter_context(
                    Broker({**common, "node.id": str(number), "broker.rack": f"rack-{number}"})
                )
                for number in (1, 2)
            },
        )


class Reader:
    """A consumer in a rack, and the broker that it fetches from."""

    def __init__(self, cluster: Brokers, topic: str, rack: str) -> None:
        self.topic = topic
        self.reads_from = -1
        self.values: list[int] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"{topic}-{rack}",
                "auto.offset.reset": "earliest",
                "client.rack": rack,
                "statistics.interval.ms": 100,
                "stats_cb": self._seen,
                "log_level": 0,
            }
        )
        self.consumer.subscribe([topic])

    def _seen(self, text: str) -> None:
        topic = json.loads(text)["topics"].get(self.topic, {"partitions": {}})
        self.reads_from = topic["partitions"].get("0", {"broker": -1})["broker"]

    def read(self, count: int) -> list[int]:
        until(lambda: self._poll() >= count, f"{count} messages, {len(self.values)} came")
        return self.values

    def _poll(self) -> int:
        message = self.consumer.poll(0.2)
        if message is not None and message.error() is None:
            self.values.append(int(message.value() or b""))
        return len(self.values)


def produce(cluster: Brokers, topic: str, values: range) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )
    for value in values:
        producer.produce(topic, str(value).encode(), partition=0)
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_a_consumer_fetches_from_the_follower_in_its_rack_until_it_is_gone(
    cluster: Brokers,
) -> None:
    with cluster.admin() as admin:
        admin.create_topic("nearby", 1, 2)
    (leader,) = cluster.leaders("nearby")
    follower = 3 - leader
    produce(cluster, "nearby", range(100))
    near, far = Reader(cluster, "nearby", f"rack-{follower}"), Reader(cluster, "nearby", f"rack-{leader}")
    try:
        for reader, broker in ((near, follower), (far, leader)):
            assert reader.read(100) == list(range(100))
            until(lambda r=reader, b=broker: r._poll() >= 0 and r.reads_from == b, f"reading from {broker}")  # type: ignore[misc]
        # New messages are fetched there, too.
        for number in range(100, 105):
            produce(cluster, "nearby", range(number, number + 1))
            assert near.read(number + 1)[-1] == number
        assert near.reads_from == follower
        cluster.brokers[follower].kill()
        produce(cluster, "nearby", range(105, 110))
        assert near.read(110) == list(range(110))
        cluster.brokers[follower].start()
    finally:
        near.consumer.close()
        far.consumer.close()
