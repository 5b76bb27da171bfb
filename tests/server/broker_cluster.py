"""Broker processes on a ZooKeeper server, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kazoo.client import KazooClient

from tidemill.client import Admin
from tidemill.client.admin_types import PartitionDescription
from tidemill.log.file_names import BOOT
from tidemill.testing import Broker

WAIT_S = 30.0


class Brokers:
    """``brokers[1]`` etc. are processes that a test can kill and start again."""

    def __init__(self, address: str, brokers: dict[int, Broker]) -> None:
        self.address = address
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self, *numbers: int) -> Admin:
        """An admin client that connects to the brokers ``numbers``, by default to all."""
        known = [self.brokers[number] for number in numbers or self.brokers]
        return Admin(",".join(broker.bootstrap for broker in known))

    def leaders(self, topic: str) -> list[int]:
        """The leader of each partition, from a running broker."""
        running = [number for number, broker in self.brokers.items() if broker.running]
        with self.admin(*running) as admin:
            return [partition.leader for partition in admin.describe_topic(topic).partitions]

    def described(self, topic: str, partition: int = 0) -> PartitionDescription:
        """The description of a partition, from a running broker."""
        running = [number for number, broker in self.brokers.items() if broker.running]
        with self.admin(*running) as admin:
            return admin.describe_topic(topic).partitions[partition]

    def until_in_sync(self, topic: str, replicas: list[int], partition: int = 0) -> None:
        """Waits until the partition has a leader, and its ISR is ``replicas``."""
        until(
            lambda: (
                self.described(topic, partition).leader > 0
                and sorted(self.described(topic, partition).isr) == replicas
            ),
            f"the in-sync replicas of {topic}-{partition} are {replicas}",
        )


def cut_power(broker: Broker) -> None:
    """Kills a broker, and changes the stored boot id, so that the next start assumes a power cut.

    The files stay unchanged; the test may truncate them.
    """
    broker.kill()
    for path in Path(broker.data_dir).rglob(BOOT):
        path.write_text("an earlier boot")


def produce(cluster: Brokers, topic: str, values: range, partition: int = 0, **config: Any) -> list[int]:
    """Writes the numbers with ``acks=all``. Returns the acknowledged offsets in order.

    ``config`` contains more keys of librdkafka, with ``__`` instead of dots.
    """
    offsets: list[int] = []

    def on_delivery(error: object, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    keys = {key.replace("__", "."): value for key, value in config.items()}
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **keys}
    )
    for value in values:
        producer.produce(topic, str(value).encode(), partition=partition, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    return offsets


def stored(cluster: Brokers, topic: str, partition: int = 0) -> list[int]:
    """All numbers in a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[int] = []

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                values.append(int(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                return True
        return False

    try:
        until(is_read, f"{topic}-{partition} is read to its end")
    finally:
        consumer.close()
    return values


def until(condition: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> None:
    """Waits until ``condition`` is true. Raises AssertionError with ``what`` after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not true within {wait_s:g} s: {what}")


@contextmanager
def zookeeper_client(address: str) -> Iterator[KazooClient]:
    """A ZooKeeper client with the chroot of ``address``."""
    server, _, path = address.partition("/")
    client = KazooClient(server)
    client.start()
    client.chroot = f"/{path}"
    try:
        yield client
    finally:
        client.stop()
        client.close()


def common_settings(address: str, count: int, **settings: str) -> dict[str, str]:
    """The settings of all brokers of a cluster. Keys have ``__`` instead of dots."""
    return {
        "zookeeper.connect": address,
        "zookeeper.session.timeout.ms": "6000",
        "default.replication.factor": str(count),
        "offsets.topic.replication.factor": str(count),
        "min.insync.replicas": "2",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }


@contextmanager
def start_cluster(address: str, count: int = 3, **settings: str) -> Iterator[Brokers]:
    """Starts brokers 1 to ``count`` on ZooKeeper at ``address``. Keys have ``__`` instead of dots."""
    common = common_settings(address, count, **settings)
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(Broker({**common, "node.id": str(number)}))
            for number in range(1, count + 1)
        }
        yield Brokers(address, brokers)
