"""Three readers of committed messages: each returns how often it got each value."""

from __future__ import annotations

import time
import uuid
from collections import Counter


def with_librdkafka(bootstrap: str, topic: str, partitions: int, messages: int) -> Counter[str]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: Counter[str] = Counter()
    ended = 0
    while ended < partitions:
        message = consumer.poll(20)
        if message is None:
            break
        if message.error():
            ended += 1
        else:
            found[message.value().decode()] += 1
    consumer.close()
    return found


def with_kafka_python(bootstrap: str, topic: str, partitions: int, messages: int) -> Counter[str]:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    consumer.seek_to_beginning()
    found: Counter[str] = Counter()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and sum(found.values()) < messages + 1:
        for records in consumer.poll(500).values():
            found.update(one.value.decode() for one in records)
        if sum(found.values()) >= messages:
            deadline = min(deadline, time.monotonic() + 1)
    consumer.close()
    return found


def with_tidemill(bootstrap: str, topic: str, partitions: int, messages: int) -> Counter[str]:
    """Also waits until the last stable offset is the high watermark."""
    from tidemill.client import Admin, Consumer
    from tidemill.model.types import TopicPartition

    places = [TopicPartition(topic, number) for number in range(partitions)]
    found: Counter[str] = Counter()
    with Admin(bootstrap) as admin, Consumer(bootstrap, isolation_level="read_committed") as consumer:
        specs = dict.fromkeys(places, "latest")
        deadline = time.monotonic() + 20
        while True:
            ends = {one: place.offset for one, place in admin.list_offsets(specs).items()}
            stable = admin.list_offsets(specs, committed_only=True)
            if all(stable[one].offset == ends[one] for one in places):
                break
            if time.monotonic() > deadline:
                return Counter({f"stable offsets {stable} below the ends {ends}": 1})
            time.sleep(0.1)
        consumer.assign(places)
        consumer.seek_to_beginning()
        while any(consumer.position(one) < ends[one] for one in places):
            found.update(record.value.decode() for record in consumer.poll(1) if record.value is not None)
    return found


READERS = {
    "tidemill": with_tidemill,
    "librdkafka": with_librdkafka,
    "kafka-python": with_kafka_python,
}
