"""A cluster on ZooKeeper moves from Apache Kafka 3.9 to Tidemill, and from Tidemill to Kafka."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from broker_cluster import zookeeper_client
from confluent_kafka import Producer
from kafka_peer import CODECS, check_same, fill, see, wait_led
from kafka_trio import all_gone, kafka_trio, lagging, states, until
from kazoo.client import KazooClient

from tidemill.client import Admin, ConfigResource, ResourceType
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.segment.bytes": "1048576",
    "log.index.interval.bytes": "1000",
}


@contextmanager
def ours(address: str, directories: dict[int, Path]) -> Iterator[dict[int, Broker]]:
    """Three Tidemill brokers with these directories."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(
                Broker(
                    {**SETTINGS, "zookeeper.connect": address, "node.id": str(number)},
                    data_dir=data,
                    timeout_s=120,
                )
            )
            for number, data in directories.items()
        }


def all_addresses(brokers: dict[int, Broker]) -> str:
    return ",".join(broker.bootstrap for broker in brokers.values())


def write_more(bootstrap: str, topic: str, count: int) -> None:
    """Writes with acks=all; fails unless every message is acknowledged."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(
            topic, b"later %d" % number, partition=0, on_delivery=lambda error, message: errors.append(error)
        )
    assert producer.flush(60) == 0
    assert errors == [None] * count


def content(data: Path, partition: str) -> bytes:
    """Returns all batches of a replica."""
    return b"".join(path.read_bytes() for path in sorted((data / partition).glob("*.log")))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_three_tidemill_brokers_serve_the_data_of_three_kafka_brokers(
    zookeeper_server: ZooKeeper, tmp_path: Path, how: signal.Signals
) -> None:
    address = f"{zookeeper_server.address}/taken-{how.name}"
    directories = {number: tmp_path / f"data-{number}" for number in (1, 2, 3)}
    with kafka_trio(address, directories, tmp_path) as trio:
        fill(trio.bootstrap, replicas=3)
        wanted = see(trio.bootstrap)
        trio.end(how)
    with zookeeper_client(address) as client:
        all_gone(client)
        with ours(address, directories) as brokers:
            until(lambda: not lagging(client), lambda: lagging(client))
            check_same(see(all_addresses(brokers)), wanted)
            write_more(all_addresses(brokers), "t-zstd", 100)
            for partition in (f"t-{codec}-{number}" for codec in CODECS for number in (0, 1)):
                assert len({content(data, partition) for data in directories.values()}) == 1, partition
            assert all("Traceback" not in broker.log for broker in brokers.values())


MOVED, SLOW_BYTES_S = "moved", 20_000


def set_rate(bootstrap: str, bytes_a_second: int) -> None:
    """Sets the rate at which each broker may copy throttled partitions."""
    rate = {"follower.replication.throttled.rate": str(bytes_a_second)}
    with Admin(bootstrap) as admin:
        for number in (1, 2, 3):
            admin.alter_configs(ConfigResource(ResourceType.BROKER, str(number)), rate)


def begin_to_move(bootstrap: str) -> None:
    """Starts a reassignment that is so slow that it is still in progress when all brokers stop."""
    with Admin(bootstrap) as admin:
        admin.create_topic(
            MOVED, assignments={0: [1, 2]}, configs={"follower.replication.throttled.replicas": "0:3"}
        )
    set_rate(bootstrap, SLOW_BYTES_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(4000):
        producer.produce(MOVED, b"%d" % number + bytes(1000), partition=0)
    assert producer.flush(60) == 0
    with Admin(bootstrap) as admin:
        admin.alter_reassignments({TopicPartition(MOVED, 0): [3, 2]})


def is_moved(client: KazooClient) -> bool:
    node = json.loads(client.get(f"/brokers/topics/{MOVED}")[0])
    return not node["adding_replicas"] and not node["removing_replicas"]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_three_kafka_brokers_serve_the_data_of_three_tidemill_brokers(
    zookeeper_server: ZooKeeper, tmp_path: Path, how: str
) -> None:
    address = f"{zookeeper_server.address}/given-{how}"
    directories = {number: tmp_path / f"data-{number}" for number in (1, 2, 3)}
    with zookeeper_client(address) as client:
        with ours(address, directories) as brokers:
            fill(all_addresses(brokers), replicas=3, transactions=False)
            begin_to_move(all_addresses(brokers))
            wanted = see(all_addresses(brokers))
            assert not is_moved(client)
            for broker in brokers.values():
                broker.stop() if how == "stopped" else broker.kill()
        all_gone(client)
        assert not is_moved(client)
        with kafka_trio(address, directories, tmp_path) as trio:
            for kafka in trio.kafkas.values():
                wait_led(kafka.bootstrap, wanted.records)
            check_same(see(trio.bootstrap), wanted)
            set_rate(trio.bootstrap, 1_000_000_000)
            until(lambda: is_moved(client), "the move that we began ends")
            until(lambda: not lagging(client), lambda: lagging(client))
            write_more(trio.bootstrap, "t-zstd", 100)
            assert states(client)[f"{MOVED}-0"]["replicas"] == [3, 2]
