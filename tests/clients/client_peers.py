"""Third-party clients behind the same two calls: write messages to a partition, read them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 30.0
"""How long a read may take before its test fails."""
LINGER_MS = 5_000
"""How long a producer of librdkafka collects a batch; ``flush`` ends the wait."""

Headers = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """A message as its producer sends it, and as every consumer must receive it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0


class TooFew(AssertionError):
    """A consumer did not receive all messages."""


# confluent-kafka, on librdkafka


def one_batch_producer(bootstrap: str, topic: str, settings: dict[str, Any]) -> Any:
    """Returns a producer that sends its messages in one batch of ``topic``, also on a slow machine.

    librdkafka sends a batch of a few small messages without compression. The producer reads the metadata of
    the topic before the first message: otherwise it queues the messages, and ``flush`` may send the first of
    them before it has sorted the others.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, **settings})
    producer.list_topics(topic, PATIENCE_S)
    return producer


def write_confluent(
    bootstrap: str, topic: str, partition: int, codec: str, messages: Sequence[Message]
) -> None:
    failures: list[Any] = []
    settings = {"compression.type": codec, "enable.idempotence": True, "message.max.bytes": 1_500_000}
    producer = one_batch_producer(bootstrap, topic, settings)
    for message in messages:
        producer.produce(
            topic,
            key=message.key,
            value=message.value,
            partition=partition,
            headers=list(message.headers),
            timestamp=message.timestamp_ms,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not failures


def read_confluent(bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Message]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
    found: dict[int, list[Message]] = {partition: [] for partition in counts}
    deadline = time.monotonic() + PATIENCE_S
    while lacking(found, counts, deadline):
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            headers = tuple((name, value) for name, value in message.headers() or ())
            taken = Message(message.key(), message.value(), headers, message.timestamp()[1])
            found[message.partition()].append(taken)
    consumer.close()
    return found


# kafka-python


def write_kafka_python(
    bootstrap: str, topic: str, partition: int, codec: str, messages: Sequence[Message]
) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=20,
        max_request_size=1_500_000,
    )
    futures = [
        producer.send(
            topic,
            key=message.key,
            value=message.value,
            partition=partition,
            headers=list(message.headers),
            timestamp_ms=message.timestamp_ms,
        )
        for message in messages
    ]
    producer.flush(PATIENCE_S)
    for future in futures:
        future.get(PATIENCE_S)
    producer.close()


def read_kafka_python(bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Message]]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, partition) for partition in counts])
    found: dict[int, list[Message]] = {partition: [] for partition in counts}
    deadline = time.monotonic() + PATIENCE_S
    while lacking(found, counts, deadline):
        for batch in consumer.poll(timeout_ms=500).values():
            for one in batch:
                taken = Message(one.key, one.value, tuple(one.headers), one.timestamp)
                found[one.partition].append(taken)
    consumer.close()
    return found


# aiokafka


def write_aiokafka(
    bootstrap: str, topic: str, partition: int, codec: str, messages: Sequence[Message]
) -> None:
    from aiokafka import AIOKafkaProducer

    async def work() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=20,
            max_request_size=1_500_000,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    key=message.key,
                    value=message.value,
                    partition=partition,
                    headers=list(message.headers),
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    run(work)


def read_aiokafka(bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Message]]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    found: dict[int, list[Message]] = {partition: [] for partition in counts}

    async def work() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in counts])
            deadline = time.monotonic() + PATIENCE_S
            while lacking(found, counts, deadline):
                for batch in (await consumer.getmany(timeout_ms=500)).values():
                    for one in batch:
                        taken = Message(one.key, one.value, tuple(one.headers), one.timestamp)
                        found[one.partition].append(taken)
        finally:
            await consumer.stop()

    run(work)
    return found


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Runs a coroutine function to its end, with the timeout of a test."""

    async def bounded() -> None:
        await asyncio.wait_for(work(), 2 * PATIENCE_S)

    asyncio.run(bounded())


# kcat, on the librdkafka of the system


KCAT = shutil.which("kcat") or shutil.which("kafkacat")
KCAT_MISSING = "kcat is not installed (Debian: apt-get install kcat)"


def kcat(*arguments: str, data: bytes = b"") -> bytes:
    """Runs kcat to its end; returns its standard output."""
    assert KCAT is not None
    outcome = subprocess.run([KCAT, *arguments], input=data, capture_output=True, timeout=PATIENCE_S)
    assert outcome.returncode == 0, outcome.stderr.decode()
    return outcome.stdout


def write_kcat(bootstrap: str, topic: str, partition: int, codec: str, messages: Sequence[Message]) -> None:
    """kcat accepts one set of headers per run, no timestamps, and no key or value with a separator."""
    for headers in dict.fromkeys(message.headers for message in messages):
        lines = [
            (message.key or b"") + b"\x1f" + (message.value or b"")
            for message in messages
            if message.headers == headers
        ]
        options = [f"-H{name}={(value or b'').decode()}" for name, value in headers]
        kcat(
            *("-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-z", codec, "-Z", *options),
            *("-K", "\x1f", "-D", "\x1e", "-X", "enable.idempotence=true"),
            data=b"\x1e".join(lines),
        )


def read_kcat(bootstrap: str, topic: str, counts: dict[int, int]) -> dict[int, list[Message]]:
    """Prints keys and values with their lengths, since they may contain any bytes; headers as kcat prints
    them.
    """
    found: dict[int, list[Message]] = {}
    for partition, count in counts.items():
        output = kcat(
            *("-C", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", "beginning"),
            *("-c", str(count), "-q", "-f", r"%T %K %S\n%k%s%h\n"),
        )
        found[partition] = parse_kcat(output)
    return found


def parse_kcat(output: bytes) -> list[Message]:
    """Parses kcat's output: a line with the lengths, then key, value and headers."""
    messages = []
    position = 0
    while position < len(output):
        line, _, _ = output[position:].partition(b"\n")
        timestamp_ms, key_size, value_size = map(int, line.split())
        position += len(line) + 1
        key = None if key_size < 0 else output[position : position + key_size]
        position += max(key_size, 0)
        value = None if value_size < 0 else output[position : position + value_size]
        position += max(value_size, 0)
        end = output.index(b"\n", position)
        headers = tuple(split_header(one) for one in output[position:end].split(b",") if one)
        position = end + 1
        messages.append(Message(key, value, headers, timestamp_ms))
    return messages


def split_header(text: bytes) -> tuple[str, bytes | None]:
    """Splits ``name=value`` as kcat prints it; kcat prints NULL for a null value."""
    name, _, value = text.partition(b"=")
    return name.decode(), None if value == b"NULL" else value


def lacking(found: dict[int, list[Message]], counts: dict[int, int], deadline: float) -> bool:
    """Whether messages are still missing. Fails the test after the timeout, or if there are too many."""
    have = {partition: len(messages) for partition, messages in found.items()}
    if have == counts:
        return False
    if time.monotonic() > deadline or any(have[partition] > counts[partition] for partition in counts):
        raise TooFew(f"got {have} messages by partition, {counts} were written")
    return True


class Peer(NamedTuple):
    """A client: its functions to write and to read."""

    write: Callable[[str, str, int, str, Sequence[Message]], None]
    read: Callable[[str, str, dict[int, int]], dict[int, list[Message]]]


PEERS = {
    "confluent-kafka": Peer(write_confluent, read_confluent),
    "kafka-python": Peer(write_kafka_python, read_kafka_python),
    "aiokafka": Peer(write_aiokafka, read_aiokafka),
    "kcat": Peer(write_kcat, read_kcat),
}
