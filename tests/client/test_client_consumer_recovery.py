"""A consumer after errors of its listener, of the cluster, and after interrupted calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import pytest

from tidemill.client import Admin, Consumer, Producer, TopicPartition

QUICK = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000, "auto.offset.reset": "earliest"}


def fill(address: str, topic: str, count: int) -> None:
    with Producer(address) as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(count)], partitions=[0] * count).result(10)


def read(consumer: Consumer, count: int, seconds: float = 15) -> int:
    """Polls until ``count`` records were returned; returns their number."""
    deadline = time.monotonic() + seconds
    found = 0
    while found < count and time.monotonic() < deadline:
        found += len(consumer.poll(0.2))
    return found


def test_a_topic_that_was_listed_before_it_was_assigned_is_refreshed(
    broker_address: str, new_topic: Callable[..., str], admin: Admin
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 5)
    with Consumer(broker_address, {**QUICK, "metadata.max.age.ms": 200}) as consumer:
        assert topic in consumer.topics()
        consumer.assign([(topic, 0)])
        assert read(consumer, 5) == 5
        admin.delete_topics([topic])
        deadline = time.monotonic() + 10
        while topic in admin.list_topics() and time.monotonic() < deadline:
            time.sleep(0.05)
        admin.create_topic(topic, 1, 1)
        fill(broker_address, topic, 20)
        consumer.seek(TopicPartition(topic, 0), 0)
        assert read(consumer, 20) == 20
