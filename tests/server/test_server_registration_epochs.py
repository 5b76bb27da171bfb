"""Broker epochs in Fetch and AlterPartition, with requests of the codec kio to three broker processes."""

from __future__ import annotations

import datetime
import importlib
import json
import shutil
import socket
import struct
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_cluster import Brokers, start_cluster, until
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from tidemill.model.errors import ErrorCode
from tidemill.testing.zookeeper import ZooKeeper

FETCH, FETCH_VERSION = 1, 15
ALTER_PARTITION, ALTER_PARTITION_VERSION = 56, 3
WAIT_S = 30.0
COUNT = 200


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers. Each test leaves them running."""
    with start_cluster(f"{zookeeper_server.address}/test-epochs") as found:
        yield found


def produce(cluster: Brokers, topic: str, count: int) -> None:
    """Writes ``count`` messages with ``acks=all``."""
    failures: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=0,
            on_delivery=lambda error, message: failures.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0
    assert not failures


class Sink(bytearray):
    """A buffer that kio writes to."""

    def write(self, data: bytes) -> None:
        self.extend(data)


def ask(cluster: Brokers, broker: int, key: int, version: int, message: Any) -> Any:
    """Sends a message of kio, and returns the response, parsed by kio. Both have flexible headers."""
    sink = Sink()
    entity_writer(type(message))(sink, message)
    frame = struct.pack(">hhih", key, version, 7, 4) + b"test" + b"\0" + bytes(sink)
    host, _, port = cluster.brokers[broker].bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
    assert struct.unpack_from(">i", answer) == (7,)
    found, read = entity_reader(load_response_schema(key, version))(answer, 5)
    assert 5 + read == len(answer)
    return found


class Known(NamedTuple):
    """The state of partition 0 in ZooKeeper."""

    topic_id: uuid.UUID
    controller: int
    leader: int
    leader_epoch: int
    isr: list[int]
    version: int
    epochs: dict[int, int]
    """Broker epochs: the ids of the transactions that created the registrations."""

    @property
    def follower(self) -> int:
        """An in-sync follower."""
        return next(one for one in self.isr if one != self.leader)


@contextmanager
def client(cluster: Brokers) -> Iterator[KazooClient]:
    """A ZooKeeper client with the chroot of the cluster."""
    zookeeper = KazooClient(cluster.address)
    zookeeper.start()
    try:
        yield zookeeper
    finally:
        zookeeper.stop()
        zookeeper.close()


def known(cluster: Brokers, topic: str) -> Known:
    """The current content of the nodes."""
    with client(cluster) as zookeeper:
        data, _ = zookeeper.get(f"/brokers/topics/{topic}")
        state, stat = zookeeper.get(f"/brokers/topics/{topic}/partitions/0/state")
        controller, _ = zookeeper.get("/controller")
        epochs = {number: zookeeper.get(f"/brokers/ids/{number}")[1].czxid for number in cluster.brokers}
    fields = json.loads(state)
    topic_id = uuid.UUID(bytes=urlsafe_b64decode(json.loads(data)["topic_id"] + "=="))
    return Known(
        topic_id,
        json.loads(controller)["brokerid"],
        fields["leader"],
        fields["leader_epoch"],
        fields["isr"],
        stat.version,
        epochs,
    )


def entity(name: str, schema: Any) -> Any:
    """A class from the module of a request class of kio."""
    return getattr(importlib.import_module(schema.__module__), name)


def fetched(cluster: Brokers, now: Known, epoch: int, offset: int) -> int:
    """The error in the leader's response to a fetch of the follower with a broker epoch."""
    schema = load_request_schema(FETCH, FETCH_VERSION)
    part = entity("FetchPartition", schema)(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    message = schema(
        replica_state=entity("ReplicaState", schema)(replica_id=now.follower, replica_epoch=epoch),
        max_wait=i32Timedelta.parse(datetime.timedelta(0)),
        min_bytes=0,
        topics=(entity("FetchTopic", schema)(topic_id=now.topic_id, partitions=(part,)),),
        forgotten_topics_data=(),
    )
    answer = ask(cluster, now.leader, FETCH, FETCH_VERSION, message)
    return int(answer.responses[0].partitions[0].error_code.value)


def altered(cluster: Brokers, now: Known, isr: list[int], epochs: dict[int, int]) -> Any:
    """The response of the controller to an AlterPartition request of the leader."""
    schema = load_request_schema(ALTER_PARTITION, ALTER_PARTITION_VERSION)
    state = entity("BrokerState", schema)
    part = entity("PartitionData", schema)(
        partition_index=0,
        leader_epoch=now.leader_epoch,
        new_isr_with_epochs=tuple(state(broker_id=one, broker_epoch=epochs[one]) for one in isr),
        partition_epoch=now.version,
    )
    message = schema(
        broker_id=now.leader,
        broker_epoch=now.epochs[now.leader],
        topics=(entity("TopicData", schema)(topic_id=now.topic_id, partitions=(part,)),),
    )
    answer = ask(cluster, now.controller, ALTER_PARTITION, ALTER_PARTITION_VERSION, message)
    assert answer.error_code.value == 0
    return answer.topics[0].partitions[0]


def test_rejects_fetches_and_isr_members_with_a_former_broker_epoch(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic("epochs", 1, 3)
    produce(cluster, "epochs", 5)
    now = known(cluster, "epochs")
    follower = now.follower
    # The leader knows the broker epoch of the follower from its own fetches.
    assert fetched(cluster, now, now.epochs[follower] - 1, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(cluster, now, now.epochs[follower], 5) == 0

    turned = now.isr[::-1]
    former = {**now.epochs, follower: now.epochs[follower] - 1}
    assert altered(cluster, now, turned, former).error_code.value == ErrorCode.INELIGIBLE_REPLICA
    assert known(cluster, "epochs") == now
    written = altered(cluster, now, turned, now.epochs)
    assert (written.error_code.value, list(written.isr)) == (0, turned)
    after = known(cluster, "epochs")
    assert (after.isr, after.version) == (turned, now.version + 1)
    # An unknown epoch is not checked.
    unknown = dict.fromkeys(now.epochs, -1)
    assert altered(cluster, after, now.isr, unknown).error_code.value == 0
    produce(cluster, "epochs", 5)


def test_a_broker_with_an_empty_disk_joins_the_isr_with_all_records(cluster: Brokers) -> None:
    with cluster.admin() as admin:
        admin.create_topic("disk", 1, 3)
    produce(cluster, "disk", COUNT)
    before = known(cluster, "disk")
    number = before.follower
    broker = cluster.brokers[number]
    broker.kill()
    for path in Path(broker.data_dir).iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    broker.start()
    until(lambda: number in known(cluster, "disk").isr, "the broker is in sync again")
    assert known(cluster, "disk").epochs[number] > before.epochs[number]
    others = [one for one in cluster.brokers if one != number]
    for other in others:
        cluster.brokers[other].kill()
    try:
        until(lambda: cluster.leaders("disk") == [number], "it leads, being all there is")
        assert read(cluster, number, "disk") == list(range(COUNT))
    finally:
        for other in others:
            cluster.brokers[other].start()

    def in_sync() -> bool:
        with cluster.admin() as admin:
            return len(admin.describe_topic("disk").partitions[0].isr) == 3

    until(in_sync, "all are in sync")


def read(cluster: Brokers, number: int, topic: str) -> list[int]:
    """All messages of the replica of one broker."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.brokers[number].bootstrap, "group.id": "none", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[int] = []

    def is_complete() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(int(message.value() or b""))
        return len(values) >= COUNT

    try:
        until(is_complete, f"{COUNT} messages of {topic}")
    finally:
        consumer.close()
    return values
