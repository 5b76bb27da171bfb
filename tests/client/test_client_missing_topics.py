"""A producer and a topic that does not exist, or has more partitions than before."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tidemill.client import Admin, NewTopic, Producer
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode


def test_a_producer_creates_a_topic_unless_disabled(broker_address: str, admin: Admin) -> None:
    topic = f"made-by-producer-{uuid.uuid4().hex[:8]}"
    with Producer(broker_address, {"allow.auto.create.topics": "false"}) as producer:
        with pytest.raises(ClientError, match=f"cannot use topic '{topic}'.*create the topic") as caught:
            producer.send(topic, b"v")
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in [one.name for one in admin.list_topics()]
    with Producer(broker_address) as producer:
        assert producer.send(topic, b"v").result().offset == 0
    assert topic in [one.name for one in admin.list_topics()]
    admin.delete_topics([topic])


def test_a_producer_writes_to_partitions_that_were_added(
    broker_address: str, admin: Admin, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    with Producer(broker_address) as producer:
        producer.send(topic, b"v").result(10)
        admin.create_partitions(topic, 3)
        assert producer.send(topic, b"v", partition=2).result(10).partition == 2


def test_topics_are_created_unless_only_validated(admin: Admin) -> None:
    topic = f"made-by-admin-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)
    assert topic not in [one.name for one in admin.list_topics()]
    admin.create_topics([NewTopic(topic, 1, 1)])
    assert topic in [one.name for one in admin.list_topics()]
    admin.delete_topics([topic])
