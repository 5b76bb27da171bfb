"""Three brokers on ZooKeeper, asked in words of another codec: whose fetch counts, and who may be in sync."""

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
from cluster_stage import Stage, cluster, until
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
def stage(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers; each test leaves all of them running."""
    with cluster(f"{zookeeper_server.address}/test-epochs") as found:
        yield found


def produce(stage: Stage, topic: str, count: int) -> None:
    """Writes so many messages, which all replicas in sync have then."""
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": stage.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
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
    """What kio writes to."""

    def write(self, data: bytes) -> None:
        self.extend(data)


def ask(stage: Stage, broker: int, key: int, version: int, message: Any) -> Any:
    """Sends a message of kio's; the answer, read by kio. Both have headers with tagged fields."""
    sink = Sink()
    entity_writer(type(message))(sink, message)
    frame = struct.pack(">hhih", key, version, 7, 4) + b"test" + b"\0" + bytes(sink)
    host, _, port = stage.brokers[broker].bootstrap.rpartition(":")
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
    """A partition 0 as the nodes of ZooKeeper have it."""

    topic_id: uuid.UUID
    controller: int
    leader: int
    leader_epoch: int
    isr: list[int]
    version: int
    epochs: dict[int, int]
    """Of registrations: the ids of the transactions that made their nodes."""

    @property
    def follower(self) -> int:
        """A follower that is in sync."""
        return next(one for one in self.isr if one != self.leader)


@contextmanager
def client(stage: Stage) -> Iterator[KazooClient]:
    """A client of ZooKeeper in the cluster's path."""
    zookeeper = KazooClient(stage.address)
    zookeeper.start()
    try:
        yield zookeeper
    finally:
        zookeeper.stop()
        zookeeper.close()


def known(stage: Stage, topic: str) -> Known:
    """What the nodes hold now."""
    with client(stage) as zookeeper:
        data, _ = zookeeper.get(f"/brokers/topics/{topic}")
        state, stat = zookeeper.get(f"/brokers/topics/{topic}/partitions/0/state")
        controller, _ = zookeeper.get("/controller")
        epochs = {number: zookeeper.get(f"/brokers/ids/{number}")[1].czxid for number in stage.brokers}
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
    """A class that stands beside that of a request of kio's."""
    return getattr(importlib.import_module(schema.__module__), name)


def fetched(stage: Stage, now: Known, epoch: int, offset: int) -> int:
    """The error with which the leader answers a fetch of the follower in an epoch."""
    schema = load_request_schema(FETCH, FETCH_VERSION)
    part = entity("FetchPartition", schema)(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    message = schema(
        replica_state=entity("ReplicaState", schema)(replica_id=now.follower, replica_epoch=epoch),
        max_wait=i32Timedelta.parse(datetime.timedelta(0)),
        min_bytes=0,
        topics=(entity("FetchTopic", schema)(topic_id=now.topic_id, partitions=(part,)),),
        forgotten_topics_data=(),
    )
    answer = ask(stage, now.leader, FETCH, FETCH_VERSION, message)
    return int(answer.responses[0].partitions[0].error_code.value)


def altered(stage: Stage, now: Known, isr: list[int], epochs: dict[int, int]) -> Any:
    """What the controller answers the leader that asks for an in-sync set."""
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
    answer = ask(stage, now.controller, ALTER_PARTITION, ALTER_PARTITION_VERSION, message)
    assert answer.error_code.value == 0
    return answer.topics[0].partitions[0]


def test_a_fetch_and_a_member_of_a_former_registration_are_refused(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.create_topic("epochs", 1, 3)
    produce(stage, "epochs", 5)
    now = known(stage, "epochs")
    follower = now.follower
    # The leader knows the follower by the epoch with which that fetches itself.
    assert fetched(stage, now, now.epochs[follower] - 1, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(stage, now, now.epochs[follower], 5) == 0

    turned = now.isr[::-1]
    former = {**now.epochs, follower: now.epochs[follower] - 1}
    assert altered(stage, now, turned, former).error_code.value == ErrorCode.INELIGIBLE_REPLICA
    assert known(stage, "epochs") == now
    written = altered(stage, now, turned, now.epochs)
    assert (written.error_code.value, list(written.isr)) == (0, turned)
    after = known(stage, "epochs")
    assert (after.isr, after.version) == (turned, now.version + 1)
    # Where an epoch is not known it is not held against anybody.
    unknown = dict.fromkeys(now.epochs, -1)
    assert altered(stage, after, now.isr, unknown).error_code.value == 0
    produce(stage, "epochs", 5)


def test_a_broker_with_an_empty_disk_has_it_all_before_it_is_in_sync(stage: Stage) -> None:
    with stage.admin() as admin:
        admin.create_topic("disk", 1, 3)
    produce(stage, "disk", COUNT)
    before = known(stage, "disk")
    number = before.follower
    broker = stage.brokers[number]
    broker.kill()
    for path in Path(broker.data_dir).iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    broker.start()
    until(lambda: number in known(stage, "disk").isr, "the broker is in sync again")
    assert known(stage, "disk").epochs[number] > before.epochs[number]
    others = [one for one in stage.brokers if one != number]
    for other in others:
        stage.brokers[other].kill()
    try:
        until(lambda: stage.leaders("disk") == [number], "it leads, being all there is")
        assert read(stage, number, "disk") == list(range(COUNT))
    finally:
        for other in others:
            stage.brokers[other].start()

    def in_sync() -> bool:
        with stage.admin() as admin:
            return len(admin.describe_topic("disk").partitions[0].isr) == 3

    until(in_sync, "all are in sync")


def read(stage: Stage, number: int, topic: str) -> list[int]:
    """All messages, as one broker has them."""
    consumer = Consumer(
        {"bootstrap.servers": stage.brokers[number].bootstrap, "group.id": "none", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[int] = []

    def enough() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(int(message.value() or b""))
        return len(values) >= COUNT

    try:
        until(enough, f"{COUNT} messages of {topic}")
    finally:
        consumer.close()
    return values
