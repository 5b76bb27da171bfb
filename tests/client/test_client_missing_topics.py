"""A producer and a topic that does not exist."""

from __future__ import annotations

import uuid

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


def test_topics_are_created_unless_only_validated(admin: Admin) -> None:
    topic = f"made-by-admin-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)
    assert topic not in [one.name for one in admin.list_topics()]
    admin.create_topics([NewTopic(topic, 1, 1)])
    assert topic in [one.name for one in admin.list_topics()]
    admin.delete_topics([topic])
