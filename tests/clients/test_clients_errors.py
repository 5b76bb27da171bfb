"""Each client gets the error from which it determines its next step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_peers import PATIENCE_S
from group_members import KAFKA_PYTHON_POLL_MS, wait_until

from tidemill.testing import Broker

NewTopic = Callable[..., str]
NewName = Callable[[str], str]

LARGE = 900_000
PROMPTLY_S = 10.0


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    """A broker without automatic topic creation."""
    with Broker({"auto.create.topics.enable": False}) as broker:
        yield broker


def confluent_error(bootstrap: str, topic: str, value: bytes, **config: Any) -> str | None:
    """Writes a message with confluent-kafka; returns the name of the error, or None."""
    from confluent_kafka import Producer

    told: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 10_000_000, **config})
    producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(PATIENCE_S) == 0
    (error,) = told
    return None if error is None else str(error.name())


def kafka_python_error(bootstrap: str, topic: str, value: bytes, **config: Any) -> str | None:
    """As above, with kafka-python: returns the name of the exception."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, max_request_size=10_000_000, max_block_ms=3000, **config
    )
    try:
        producer.send(topic, value).get(PATIENCE_S)
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close(1)
    return None


def aiokafka_error(bootstrap: str, topic: str, value: bytes, **config: Any) -> str | None:
    """As above, with aiokafka."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def work() -> str | None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, max_request_size=10_000_000, request_timeout_ms=3000, **config
        )
        await producer.start()
        try:
            await producer.send_and_wait(topic, value)
        except KafkaError as error:
            return type(error).__name__
        finally:
            await producer.stop()
        return None

    return asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


WRITERS = {
    "confluent-kafka": confluent_error,
    "kafka-python": kafka_python_error,
    "aiokafka": aiokafka_error,
}


@pytest.mark.parametrize("client", WRITERS)
def test_all_clients_write_large_messages(bootstrap: str, new_topic: NewTopic, client: str) -> None:
    assert WRITERS[client](bootstrap, new_topic(), b"x" * LARGE) is None


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("confluent-kafka", "MSG_SIZE_TOO_LARGE"),
        ("kafka-python", "MessageSizeTooLargeError"),
        ("aiokafka", "MessageSizeTooLargeError"),
    ],
)
@pytest.mark.parametrize("limited_by", ["topic", "broker"])
def test_the_error_of_a_too_large_message_is_that_of_each_client(
    bootstrap: str, new_topic: NewTopic, client: str, expected: str, limited_by: str
) -> None:
    if limited_by == "topic":
        assert WRITERS[client](bootstrap, new_topic(**{"max.message.bytes": 1000}), b"x" * 2000) == expected
    else:
        assert WRITERS[client](bootstrap, new_topic(), b"x" * 3_000_000) == expected


@pytest.mark.parametrize("client", WRITERS)
def test_a_topic_is_created_by_a_producer(bootstrap: str, new_name: NewName, client: str) -> None:
    assert WRITERS[client](bootstrap, new_name("made"), b"first") is None


@pytest.mark.parametrize(
    ("client", "expected", "config"),
    [
        ("confluent-kafka", "UNKNOWN_TOPIC_OR_PART", {"topic.metadata.propagation.max.ms": 500}),
        ("kafka-python", "KafkaTimeoutError", {}),
        ("aiokafka", "UnknownTopicOrPartitionError", {}),
    ],
)
def test_the_error_of_a_missing_topic_is_that_of_each_client(
    strict_broker: Broker, new_name: NewName, client: str, expected: str, config: dict[str, Any]
) -> None:
    assert WRITERS[client](strict_broker.bootstrap, new_name("missing"), b"first", **config) == expected


def test_confluent_kafka_reports_an_invalid_topic_name(bootstrap: str) -> None:
    assert confluent_error(bootstrap, "no topic", b"first") == "TOPIC_EXCEPTION"


def test_a_consumer_creates_topics_if_it_is_configured(bootstrap: str, new_name: NewName) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(new_name("made"), bootstrap_servers=bootstrap, allow_auto_create_topics=True)
    try:
        wait_until(
            lambda: not consumer.poll(timeout_ms=KAFKA_PYTHON_POLL_MS) and bool(consumer.assignment()), "made"
        )
    finally:
        consumer.close()


def test_a_consumer_gets_an_error_for_a_missing_topic(bootstrap: str, new_name: NewName) -> None:
    from confluent_kafka import Consumer, KafkaError

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": new_name("group")})
    consumer.subscribe([new_name("missing")])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_timestamp_out_of_bounds(bootstrap: str, new_topic: NewTopic) -> None:
    from confluent_kafka import Producer

    topic = new_topic(**{"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 1000})
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for at_ms in (1, int(time.time() * 1000)):
        producer.produce(topic, b"v", timestamp=at_ms, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(PATIENCE_S) == 0
    assert told[0].name() == "INVALID_TIMESTAMP"
    assert told[1] is None


def test_a_compacted_topic_requires_keys(bootstrap: str, new_topic: NewTopic) -> None:
    assert confluent_error(bootstrap, new_topic(**{"cleanup.policy": "compact"}), b"v") == "INVALID_RECORD"
