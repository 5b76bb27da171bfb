"""Clients configured for brokers before Kafka 0.11: with message formats v0 and v1."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from client_peers import PATIENCE_S, lacking, one_batch_producer, read_aiokafka, read_confluent
from client_peers import Message as PlainMessage

Found = dict[int, list[tuple[int, PlainMessage]]]
"""By partition: offset and message; a timestamp of 0 is none."""
Version = tuple[int, ...]
FETCH_BYTES_MAX = 9000
"""Little more than the largest message, so that most replies end with a cut one."""


def write_kafka_python(
    version: Version, bootstrap: str, topic: str, partition: int, codec: str, messages: Sequence[PlainMessage]
) -> None:
    """kafka-python configured for ``version``: format v0 below 0.10, v1 below 0.11."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        api_version=version,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=False,
        linger_ms=20,
    )
    futures = [
        producer.send(topic, key=one.key, value=one.value, partition=partition, timestamp_ms=one.timestamp_ms)
        for one in messages
    ]
    producer.flush(PATIENCE_S)
    offsets = [future.get(PATIENCE_S).offset for future in futures]
    producer.close()
    assert offsets == list(range(offsets[0], offsets[0] + len(messages)))


def read_kafka_python(version: Version, bootstrap: str, topic: str, counts: dict[int, int]) -> Found:
    """kafka-python configured for ``version``."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        api_version=version,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES_MAX,
        check_crcs=True,
    )
    partitions = [TopicPartition(topic, partition) for partition in counts]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    found: Found = {partition: [] for partition in counts}
    plain: dict[int, list[PlainMessage]] = {partition: [] for partition in counts}
    deadline = time.monotonic() + PATIENCE_S
    while lacking(plain, counts, deadline):
        for batch in consumer.poll(timeout_ms=500).values():
            for one in batch:
                message = PlainMessage(one.key, one.value, (), max(one.timestamp or 0, 0))
                plain[one.partition].append(message)
                found[one.partition].append((one.offset, message))
    consumer.close()
    return found


def librdkafka(version: str) -> dict[str, Any]:
    """Returns the settings of librdkafka for a broker before 0.10; "" is a current broker."""
    if not version:
        return {}
    quiet = {"log_level": 0}
    return {"api.version.request": False, "broker.version.fallback": version, **quiet}


def write_librdkafka(
    version: str, bootstrap: str, topic: str, partition: int, codec: str, messages: Sequence[PlainMessage]
) -> None:
    """confluent-kafka configured for ``version``: format v0, or v2 for "". Not idempotent."""
    failures: list[Any] = []
    producer = one_batch_producer(bootstrap, topic, {"compression.type": codec, **librdkafka(version)})
    for one in messages:
        producer.produce(
            topic,
            key=one.key,
            value=one.value,
            partition=partition,
            timestamp=one.timestamp_ms,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not failures


def read_librdkafka(version: str, bootstrap: str, topic: str, counts: dict[int, int]) -> Found:
    """confluent-kafka configured for ``version``."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "old",
            "enable.auto.commit": False,
            "check.crcs": True,
            "max.partition.fetch.bytes": FETCH_BYTES_MAX,
            **librdkafka(version),
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in counts])
    found: Found = {partition: [] for partition in counts}
    plain: dict[int, list[PlainMessage]] = {partition: [] for partition in counts}
    deadline = time.monotonic() + PATIENCE_S
    while lacking(plain, counts, deadline):
        one = consumer.poll(0.5)
        if one is not None:
            assert one.error() is None, one.error()
            message = PlainMessage(one.key(), one.value(), (), max(one.timestamp()[1], 0))
            plain[one.partition()].append(message)
            found[one.partition()].append((one.offset(), message))
    consumer.close()
    return found


def in_order(
    read: Callable[[str, str, dict[int, int]], dict[int, list[PlainMessage]]],
    bootstrap: str,
    topic: str,
    counts: dict[int, int],
) -> Found:
    """Returns the messages that a current reader finds, with their numbers."""
    found = read(bootstrap, topic, counts)
    return {
        partition: list(
            enumerate(one._replace(timestamp_ms=max(one.timestamp_ms or 0, 0)) for one in messages)
        )
        for partition, messages in found.items()
    }


class Writer(NamedTuple):
    """A client that writes a message format, with its codecs."""

    magic: int
    codecs: tuple[str, ...]
    write: Callable[[str, str, int, str, Sequence[PlainMessage]], None]


class Reader(NamedTuple):
    """A client that reads, with the newest message format that it supports."""

    magic: int
    read: Callable[[str, str, dict[int, int]], Found]
    lz4_of_v0: bool = True
    """Whether it reads lz4 as the first clients wrote it."""


OLD_CODECS = ("none", "gzip", "snappy", "lz4")
WRITERS = {
    "kafka-python 0.8.2": Writer(0, OLD_CODECS, partial(write_kafka_python, (0, 8, 2))),
    "kafka-python 0.9": Writer(0, OLD_CODECS, partial(write_kafka_python, (0, 9))),
    "kafka-python 0.10": Writer(1, OLD_CODECS, partial(write_kafka_python, (0, 10, 0))),
    "librdkafka 0.8.2": Writer(0, OLD_CODECS[:3], partial(write_librdkafka, "0.8.2")),
    "librdkafka 0.9": Writer(0, OLD_CODECS[:3], partial(write_librdkafka, "0.9.0")),
    "librdkafka": Writer(2, OLD_CODECS, partial(write_librdkafka, "")),
}
READERS = {
    "kafka-python 0.8.2": Reader(0, partial(read_kafka_python, (0, 8, 2))),
    "kafka-python 0.9": Reader(0, partial(read_kafka_python, (0, 9))),
    "kafka-python 0.10.0": Reader(1, partial(read_kafka_python, (0, 10, 0))),
    "kafka-python 0.10.1": Reader(1, partial(read_kafka_python, (0, 10, 1))),
    "librdkafka 0.8.2": Reader(0, partial(read_librdkafka, "0.8.2")),
    "librdkafka 0.9": Reader(0, partial(read_librdkafka, "0.9.0")),
    "librdkafka": Reader(2, partial(in_order, read_confluent)),
    "aiokafka": Reader(2, partial(in_order, read_aiokafka), False),
}
