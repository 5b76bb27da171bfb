"""Mirrored topics: batches of another cluster keep their offsets, and nothing else is accepted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.client import Admin, NewTopic, Producer
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.records.mirrored_batch import mirrored_batches
from tidemill.testing.broker import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import fetch, produce

pytestmark = pytest.mark.timeout(120)

FETCH_VERSION, PRODUCE_VERSION = 12, 12
MIRROR = {"tidemill.mirror.state": "active"}


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(source: Broker, target: Broker) -> str:
    """A topic of one partition, and its mirror."""
    name = f"mirrored-{uuid.uuid4().hex[:8]}"
    with Admin(source.bootstrap) as admin:
        admin.create_topic(name, 1, 1)
    with Admin(target.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, configs=MIRROR)])
    return name


def call(broker: Broker, key: ApiKey, request: Any, response_type: Any, version: int) -> Any:
    """Sends a request over a connection of its own."""
    host, port = broker.bootstrap.split(":")
    connection = Connection(host, int(port), ClientConfig("admin", {"bootstrap.servers": broker.bootstrap}))
    connection.open()
    try:
        return connection.call(key, request, response_type, version=version)
    finally:
        connection.close()


def fetched(broker: Broker, topic: str, offset: int = 0) -> bytes:
    """Returns the batches of a topic from an offset on."""
    request = fetch.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[
            fetch.FetchTopic(
                topic=topic,
                partitions=[
                    fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                ],
            )
        ],
    )
    response = call(broker, ApiKey.FETCH, request, fetch.FetchResponse, FETCH_VERSION)
    (part,) = response.responses[0].partitions
    assert part.error_code == 0
    return bytes(part.records or b"")


def sent(broker: Broker, topic: str, data: bytes, next_offset: int = 0) -> Any:
    """Sends batches that were fetched from an offset on; returns the response for the partition."""
    records = mirrored_batches(data, next_offset)
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            produce.TopicProduceData(
                name=topic, partition_data=[produce.PartitionProduceData(index=0, records=records)]
            )
        ],
    )
    response = call(broker, ApiKey.PRODUCE, request, produce.ProduceResponse, PRODUCE_VERSION)
    return response.responses[0].partition_responses[0]


def read(broker: Broker, topic: str, isolation: str) -> list[tuple[int, bytes]]:
    """Returns offset and value of each message, with librdkafka."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(20)) is not None and not message.error():
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


def fill(broker: Broker, topic: str) -> None:
    """Writes plain messages, and transactions that are committed, aborted and open."""
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"plain").result(10)
    for number, outcome in enumerate(("commit", "abort", "prepare")):
        producer = Producer(broker.bootstrap, {"transactional.id": f"{topic}-{number}"})
        producer.begin()
        producer.send(topic, outcome.encode()).result(10)
        if outcome == "prepare":
            producer.prepare(may_time_out=True)
        else:
            getattr(producer, outcome)()
        producer.close()


def test_a_mirror_has_the_messages_at_their_offsets(source: Broker, target: Broker, topic: str) -> None:
    fill(source, topic)
    data = fetched(source, topic)
    assert sent(target, topic, data).error_code == 0
    for isolation in ("read_uncommitted", "read_committed"):
        expected = read(source, topic, isolation)
        assert read(target, topic, isolation) == expected
    assert len(expected) == 2
    again = sent(target, topic, data)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert read(target, topic, "read_uncommitted") == read(source, topic, "read_uncommitted")


def test_a_mirror_accepts_no_batch_that_overlaps_its_end(source: Broker, target: Broker, topic: str) -> None:
    with Producer(source.bootstrap) as producer:
        producer.send_batch(topic, [b"one", b"two", b"three"], partitions=[0] * 3).result(10)
    data = fetched(source, topic)
    assert sent(target, topic, data).error_code == 0
    moved = (1).to_bytes(8, "big") + data[8:]
    assert sent(target, topic, moved).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(target, topic, "read_uncommitted") == [(0, b"one"), (1, b"two"), (2, b"three")]


def test_a_promoted_mirror_goes_on_as_an_ordinary_topic(source: Broker, target: Broker, topic: str) -> None:
    fill(source, topic)
    sent(target, topic, fetched(source, topic))
    committed = read(target, topic, "read_committed")
    with Admin(target.bootstrap) as admin:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin.alter_configs(resource, {"tidemill.mirror.state": "promoting"})
        deadline = time.monotonic() + 20
        partition = TopicPartition(topic, 0)
        while admin.describe_producers([partition])[partition]:
            assert time.monotonic() < deadline, "the producers of the source stay"
            time.sleep(0.1)
        assert sent(target, topic, fetched(source, topic)).error_code == ErrorCode.POLICY_VIOLATION
        admin.alter_configs(resource, remove=["tidemill.mirror.state"])
    with Producer(target.bootstrap) as producer:
        producer.send(topic, b"ours").result(10)
    assert [value for _, value in read(target, topic, "read_committed")] == [
        *(value for _, value in committed),
        b"ours",
    ], "the open transaction of the source was aborted"
