"""Positions, seeks, lookups by time, pause and resume with each client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from client_peers import PATIENCE_S, Message, write_confluent
from group_members import wait_until

COUNT = 50
STEP_MS = 1000

NewTopic = Callable[..., str]


@pytest.fixture
def start_ms() -> int:
    return int(time.time() * 1000) - 3_600_000


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic, start_ms: int) -> str:
    """A topic with one partition and fifty messages, one second apart, in batches of ten."""
    from confluent_kafka import Producer

    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.num.messages": 10})
    for n in range(COUNT):
        producer.produce(topic, b"value %d" % n, b"%d" % n, timestamp=start_ms + n * STEP_MS)
    assert producer.flush(PATIENCE_S) == 0
    return topic


def test_confluent_kafka_reads_and_seeks(bootstrap: str, filled: str, start_ms: int) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"of-{filled}", "enable.auto.commit": False}
    )

    def read(count: int) -> list[int]:
        found = [one for one in consumer.consume(count, PATIENCE_S) if not one.error()]
        return [one.offset() for one in found]

    def at(offset: int) -> TopicPartition:
        return TopicPartition(filled, 0, offset)

    try:
        assert consumer.get_watermark_offsets(at(0), timeout=20) == (0, COUNT)
        consumer.assign([at(OFFSET_BEGINNING)])
        assert read(3) == [0, 1, 2]
        assert consumer.position([at(0)])[0].offset == 3
        consumer.seek(at(40))
        assert read(2) == [40, 41]
        consumer.pause([at(0)])
        assert consumer.consume(1, 0.3) == []
        consumer.resume([at(0)])
        assert read(2) == [42, 43]
        asked = [at(start_ms + 7 * STEP_MS), at(start_ms + 7 * STEP_MS + 1), at(start_ms + 99 * STEP_MS)]
        answers = [consumer.offsets_for_times([one], timeout=20)[0].offset for one in asked]
        assert answers[:2] == [7, 8]
        assert answers[2] in (-1, COUNT)  # Beyond the end; librdkafka returns its end of the log.
    finally:
        consumer.close()


def test_kafka_python_reads_and_seeks(bootstrap: str, filled: str, start_ms: int) -> None:
    from kafka import KafkaConsumer, TopicPartition

    partition = TopicPartition(filled, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=2)

    def read(count: int) -> list[int]:
        offsets: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(offsets) < count and time.monotonic() < deadline:
            for batch in consumer.poll(timeout_ms=500, max_records=count - len(offsets)).values():
                offsets += [one.offset for one in batch]
        return offsets

    try:
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: COUNT}
        assert read(3) == [0, 1, 2]
        assert consumer.position(partition) == 3
        consumer.seek(partition, 40)
        assert read(2) == [40, 41]
        consumer.pause(partition)
        assert consumer.poll(timeout_ms=300) == {}
        consumer.resume(partition)
        assert read(2) == [42, 43]
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == COUNT
        consumer.seek_to_beginning(partition)
        assert read(1) == [0]
        found = consumer.offsets_for_times({partition: start_ms + 7 * STEP_MS + 1})[partition]
        assert (found.offset, found.timestamp) == (8, start_ms + 8 * STEP_MS)
        assert consumer.offsets_for_times({partition: start_ms + 99 * STEP_MS}) == {partition: None}
    finally:
        consumer.close()


def test_aiokafka_reads_and_seeks(bootstrap: str, filled: str, start_ms: int) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    partition = TopicPartition(filled, 0)

    async def work() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")

        async def read(count: int) -> list[int]:
            return [(await consumer.getone()).offset for _ in range(count)]

        await consumer.start()
        try:
            consumer.assign([partition])
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: COUNT}
            assert await read(3) == [0, 1, 2]
            assert await consumer.position(partition) == 3
            consumer.seek(partition, 40)
            assert await read(2) == [40, 41]
            consumer.pause(partition)
            assert await consumer.getmany(timeout_ms=300) == {}
            consumer.resume(partition)
            assert await read(2) == [42, 43]
            await consumer.seek_to_end(partition)
            assert await consumer.position(partition) == COUNT
            await consumer.seek_to_beginning(partition)
            assert await read(1) == [0]
            found = (await consumer.offsets_for_times({partition: start_ms + 7 * STEP_MS + 1}))[partition]
            assert (found.offset, found.timestamp) == (8, start_ms + 8 * STEP_MS)
            late = await consumer.offsets_for_times({partition: start_ms + 99 * STEP_MS})
            assert late == {partition: None}
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_a_position_beyond_the_log_is_reset(bootstrap: str, filled: str) -> None:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    def first_offset(reset: str) -> int | str:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reset", "auto.offset.reset": reset})
        try:
            consumer.assign([TopicPartition(filled, 0, 1_000_000)])
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._AUTO_OFFSET_RESET
                return str(error)
            return int(message.offset())
        finally:
            consumer.close()

    assert first_offset("earliest") == 0
    assert "out of range" in str(first_offset("error")).lower()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_confluent_kafka_writes_with_every_acks(bootstrap: str, new_topic: NewTopic, acks: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks})
    for n in range(COUNT):
        producer.produce(topic, b"%d" % n)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    wait_until(
        lambda: consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20) == (0, COUNT), "written"
    )
    consumer.close()


def test_consumers_receive_the_log_append_time(bootstrap: str, new_topic: NewTopic) -> None:
    from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, TopicPartition

    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    for codec in ("none", "zstd"):
        rows = [Message(b"%d" % n, b"v" * 100, (), 1000 + n) for n in range(5)]
        write_confluent(bootstrap, topic, 0, codec, rows)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "times"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, int]] = []
    wait_until(
        lambda: found.extend(one.timestamp() for one in consumer.consume(10, 0.2)) or len(found) == 10, "read"
    )
    consumer.close()
    assert {kind for kind, _ in found} == {TIMESTAMP_LOG_APPEND_TIME}
    assert all(before_ms <= at_ms <= time.time() * 1000 for _, at_ms in found)


def test_confluent_kafka_reads_hundreds_of_partitions(bootstrap: str, new_topic: NewTopic) -> None:
    from confluent_kafka import Consumer, Producer

    topic = new_topic(300)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for n in range(900):
        producer.produce(topic, b"%d" % n, partition=n % 300)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: set[tuple[int, int]] = set()
    wait_until(
        lambda: (
            found.update((one.partition(), one.offset()) for one in consumer.consume(900, 0.2))
            or len(found) == 900
        ),
        "read from all partitions",
    )
    consumer.close()
