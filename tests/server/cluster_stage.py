"""Several brokers on one real ZooKeeper, each a process of its own, for tests."""

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
from tidemill.log.names import BOOT
from tidemill.testing import Broker

WAIT_S = 30.0


class Stage:
    """``brokers[1]`` and so on: processes that can be killed and started again."""

    def __init__(self, address: str, brokers: dict[int, Broker]) -> None:
        self.address = address
        self.brokers = brokers

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def admin(self, *numbers: int) -> Admin:
        """An administration client that knows these brokers, or all."""
        known = [self.brokers[number] for number in numbers or self.brokers]
        return Admin(",".join(broker.bootstrap for broker in known))

    def leaders(self, topic: str) -> list[int]:
        """Who leads each partition, as the brokers that live say."""
        living = [number for number, broker in self.brokers.items() if broker.running]
        with self.admin(*living) as admin:
            return [partition.leader for partition in admin.describe_topic(topic).partitions]

    def described(self, topic: str, partition: int = 0) -> PartitionDescription:
        """A partition, as the brokers that live describe it."""
        living = [number for number, broker in self.brokers.items() if broker.running]
        with self.admin(*living) as admin:
            return admin.describe_topic(topic).partitions[partition]

    def until_in_sync(self, topic: str, replicas: list[int], partition: int = 0) -> None:
        """Returns once the partition has a leader, and exactly these replicas in sync."""
        until(
            lambda: (
                self.described(topic, partition).leader > 0
                and sorted(self.described(topic, partition).isr) == replicas
            ),
            f"the in-sync replicas of {topic}-{partition} are {replicas}",
        )


def cut_power(broker: Broker) -> None:
    """Kills a broker, and lets its next start find another boot of the system, as after a power cut.

    Which bytes are gone the test decides: here they all outlived it.
    """
    broker.kill()
    for path in Path(broker.data_dir).rglob(BOOT):
        path.write_text("an earlier boot")


def produce(stage: Stage, topic: str, values: range, partition: int = 0, **config: Any) -> list[int]:
    """Writes the numbers with ``acks=all``; the offsets that were acknowledged, in order.

    ``config`` are further keys of librdkafka, with ``__`` for their dots.
    """
    offsets: list[int] = []

    def told(error: object, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    keys = {key.replace("__", "."): value for key, value in config.items()}
    producer = Producer(
        {"bootstrap.servers": stage.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0, **keys}
    )
    for value in values:
        producer.produce(topic, str(value).encode(), partition=partition, on_delivery=told)
    assert producer.flush(30) == 0
    return offsets


def stored(stage: Stage, topic: str, partition: int = 0) -> list[int]:
    """All numbers that a partition holds."""
    consumer = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
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
    """Returns once it holds."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"it never came about: {what}")


@contextmanager
def nodes(address: str) -> Iterator[KazooClient]:
    """A client of ZooKeeper at a chroot."""
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
    """What all brokers of a cluster have. Keys have ``__`` for their dots."""
    return {
        "zookeeper.connect": address,
        "zookeeper.session.timeout.ms": "6000",
        "default.replication.factor": str(count),
        "offsets.topic.replication.factor": str(count),
        "min.insync.replicas": "2",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }


@contextmanager
def cluster(address: str, count: int = 3, **settings: str) -> Iterator[Stage]:
    """Brokers 1 to ``count`` on that path of ZooKeeper. Keys have ``__`` for their dots."""
    common = common_settings(address, count, **settings)
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(Broker({**common, "node.id": str(number)}))
            for number in range(1, count + 1)
        }
        yield Stage(address, brokers)
