"""Sends one message with librdkafka, and reads a partition."""

from __future__ import annotations

from confluent_kafka import Producer as LibrdkafkaProducer

from tidemill.client import Consumer
from tidemill.model.types import TopicPartition

WAIT_S = 40.0


def outcome_of(producer: LibrdkafkaProducer, topic: str, value: bytes = b"x") -> str:
    """The delivery result of one message: ``stored``, or the name of the error."""
    told: list[str] = []
    producer.produce(
        topic, value, on_delivery=lambda error, _: told.append(error.name() if error else "stored")
    )
    assert producer.flush(WAIT_S) == 0
    return told[0]


def stored(bootstrap: str, topic: str) -> list[bytes | None]:
    with Consumer(bootstrap, enable_auto_commit=False) as consumer:
        item = TopicPartition(topic, 0)
        consumer.assign([item])
        consumer.seek_to_beginning(item)
        (end,) = consumer.end_offsets([item]).values()
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(5.0)]
        return found
