"""Transactions of librdkafka, kafka-python and aiokafka, each read by the consumers of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tidemill.client import Admin

NewTopic = Callable[..., str]
NewName = Callable[[str], str]

TIMEOUT_S = 20
WITHIN_MS = 3_000
"""How long readers wait for messages that must not come."""
TRANSACTION_TIMEOUT_MS = 60_000
TIMED_OUT_WITHIN_S = 40
"""Brokers look for transactions that timed out every 10 s."""


class Confluent:
    """librdkafka."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> None:
        config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
        }
        self.producer = Producer(config)
        self.producer.init_transactions(TIMEOUT_S)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, values: Iterable[bytes]) -> None:
        for value in values:
            self.producer.produce(topic, value)
        self.producer.flush(TIMEOUT_S)

    def send_offset(self, topic: str, offset: int, group: str, bootstrap: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": group}
        consumer = Consumer(config)
        self.producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), TIMEOUT_S
        )
        consumer.close()

    def commit(self) -> None:
        self.producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self.producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        """Closes nothing: the producer ends with its last reference."""

    @staticmethod
    def read(bootstrap: str, topic: str, isolation_level: str, count: int) -> list[bytes]:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation_level,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(config)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, TIMEOUT_S) + consumer.consume(1, WITHIN_MS / 1000)
        consumer.close()
        return [message.value() for message in found if message.error() is None]


class Python:
    """kafka-python."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> None:
        from kafka import KafkaProducer

        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, values: Iterable[bytes]) -> None:
        for future in [self.producer.send(topic, value) for value in values]:
            future.get(TIMEOUT_S)

    def send_offset(self, topic: str, offset: int, group: str, bootstrap: str) -> None:
        from kafka.structs import OffsetAndMetadata
        from kafka.structs import TopicPartition as PythonPartition

        offsets = {PythonPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(1)

    @staticmethod
    def read(bootstrap: str, topic: str, isolation_level: str, count: int) -> list[bytes]:
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition as PythonPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
            consumer_timeout_ms=WITHIN_MS,
        )
        consumer.assign([PythonPartition(topic, 0)])
        found = [message.value for message in consumer]
        consumer.close()
        return found


class Aio:
    """aiokafka."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> None:
        self.loop = asyncio.new_event_loop()

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self.producer = self.loop.run_until_complete(start())

    def begin(self) -> None:
        self.loop.run_until_complete(self.producer.begin_transaction())

    def send(self, topic: str, values: Iterable[bytes]) -> None:
        async def send_all() -> None:
            for value in values:
                await self.producer.send_and_wait(topic, value)

        self.loop.run_until_complete(send_all())

    def send_offset(self, topic: str, offset: int, group: str, bootstrap: str) -> None:
        offsets = {AioPartition(topic, 0): offset}
        self.loop.run_until_complete(self.producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self.loop.run_until_complete(self.producer.commit_transaction())

    def abort(self) -> None:
        self.loop.run_until_complete(self.producer.abort_transaction())

    def close(self) -> None:
        try:
            self.loop.run_until_complete(self.producer.stop())
        finally:
            self.loop.close()

    @staticmethod
    def read(bootstrap: str, topic: str, isolation_level: str, count: int) -> list[bytes]:
        async def read_all() -> list[bytes]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap, isolation_level=isolation_level, auto_offset_reset="earliest"
            )
            await consumer.start()
            consumer.assign([AioPartition(topic, 0)])
            found: list[bytes] = []
            while records := await consumer.getmany(timeout_ms=WITHIN_MS):
                found += [message.value for some in records.values() for message in some]
            await consumer.stop()
            return found

        return asyncio.run(read_all())


CLIENTS = {"confluent": Confluent, "kafka-python": Python, "aiokafka": Aio}


def errors() -> tuple[type[Exception], ...]:
    """The errors of all clients."""
    from kafka.errors import KafkaError as PythonError

    return (KafkaException, PythonError, AioError)


@pytest.mark.parametrize("client", list(CLIENTS))
def test_committed_and_aborted_transactions(
    bootstrap: str, new_topic: NewTopic, new_name: NewName, client: str
) -> None:
    topic = new_topic()
    writer = CLIENTS[client](bootstrap, new_name("transactional"))
    writer.begin()
    writer.send(topic, [b"a", b"b"])
    writer.commit()
    writer.begin()
    writer.send(topic, [b"aborted"])
    writer.abort()
    writer.begin()
    writer.send(topic, [b"c"])
    writer.commit()
    writer.begin()
    writer.send(topic, [b"open"])
    for reader in CLIENTS.values():
        assert reader.read(bootstrap, topic, "read_committed", 3) == [b"a", b"b", b"c"]
        uncommitted = [b"a", b"b", b"aborted", b"c", b"open"]
        assert reader.read(bootstrap, topic, "read_uncommitted", 5) == uncommitted
    writer.abort()
    writer.close()


@pytest.mark.parametrize("client", list(CLIENTS))
def test_a_second_producer_fences_the_first(
    bootstrap: str, new_topic: NewTopic, new_name: NewName, client: str
) -> None:
    topic, name = new_topic(), new_name("transactional")
    first = CLIENTS[client](bootstrap, name)
    first.begin()
    first.send(topic, [b"zombie"])
    second = CLIENTS[client](bootstrap, name)
    second.begin()
    second.send(topic, [b"second"])
    second.commit()
    with pytest.raises(errors()):
        first.commit()
    with contextlib.suppress(*errors()):
        first.close()
    second.close()
    assert Confluent.read(bootstrap, topic, "read_committed", 1) == [b"second"]


@pytest.mark.parametrize("client", list(CLIENTS))
def test_a_transaction_is_aborted_after_its_timeout(
    bootstrap: str, new_topic: NewTopic, new_name: NewName, client: str
) -> None:
    topic, name = new_topic(), new_name("transactional")
    slow = CLIENTS[client](bootstrap, name, timeout_ms=1_000)
    slow.begin()
    slow.send(topic, [b"slow"])
    with Admin(bootstrap) as admin:
        end_s = time.monotonic() + TIMED_OUT_WITHIN_S
        while (state := admin.describe_transaction(name).state) != "CompleteAbort":
            assert time.monotonic() < end_s, state
            time.sleep(0.1)
    with pytest.raises(errors()):
        slow.commit()
    with contextlib.suppress(*errors()):
        slow.close()
    following = CLIENTS[client](bootstrap, name)
    following.begin()
    following.send(topic, [b"following"])
    following.commit()
    following.close()
    for reader in CLIENTS.values():
        assert reader.read(bootstrap, topic, "read_committed", 1) == [b"following"]
        assert reader.read(bootstrap, topic, "read_uncommitted", 2) == [b"slow", b"following"]


@pytest.mark.parametrize("client", list(CLIENTS))
def test_offsets_in_a_transaction(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName, client: str
) -> None:
    topic, group = new_topic(), new_name("group")
    writer = CLIENTS[client](bootstrap, new_name("transactional"))

    def committed() -> int:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        consumer.close()
        offset: int = found.offset
        return offset

    writer.begin()
    writer.send(topic, [b"x"])
    writer.send_offset(topic, 7, group, bootstrap)
    writer.commit()
    assert committed() == 7
    writer.begin()
    writer.send_offset(topic, 9, group, bootstrap)
    writer.abort()
    assert committed() == 7
    writer.close()
