"""A producer and a topic that does not exist, or has more partitions than before."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest

from tidemill.client import Admin, NewTopic, Producer
from tidemill.client.coordinator_warnings import WARN_AFTER_S, WARN_AGAIN_S
from tidemill.client.errors import ClientError, RequestTimeout
from tidemill.client.missing_topic_warnings import MissingTopicWarnings
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


def test_the_commit_of_messages_for_a_deleted_topic_names_it(
    broker_address: str, admin: Admin, new_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """As the Java client, it waits for ``max.block.ms``: the topic may be created again."""
    topic = new_topic(1)
    config = {"transactional.id": topic, "linger.ms": 60_000, "max.block.ms": 6_000}
    with Producer(broker_address, config) as producer:
        producer.begin()
        producer.send(topic, b"v", partition=0)
        admin.delete_topics([topic])
        with pytest.raises(RequestTimeout, match=f"batch for {topic}-0 .*: UNKNOWN_TOPIC_OR_PART") as caught:
            producer.commit()
        assert (caught.value.topic, caught.value.partition) == (topic, 0)
        (warning,) = [line for line in caplog.messages if "wait for" in line]
        assert re.fullmatch(
            f"messages for topic {topic} wait for . s: UNKNOWN_TOPIC_OR_PARTITION; .*", warning
        )
        admin.create_topic(topic, 1, 1)
        producer.commit(20)
    assert f"topic {topic} exists again" in caplog.messages


def test_the_commit_of_acknowledged_messages_does_not_wait_for_a_deleted_topic(
    broker_address: str, admin: Admin, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    with Producer(broker_address, {"transactional.id": topic, "max.block.ms": 20_000}) as producer:
        producer.begin()
        producer.send(topic, b"v", partition=0).result(10)
        admin.delete_topics([topic])
        producer.commit()
    assert admin.describe_transaction(topic).state == "CompleteCommit"


def test_a_missing_topic_is_a_warning_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    trouble = MissingTopicWarnings(lambda: now)
    lines: list[tuple[float, str]] = []
    for second in range(2 * int(WARN_AGAIN_S)):
        now = float(second)
        trouble.is_missing("t", "why")
        lines += [(now, line) for line in caplog.messages]
        caplog.clear()
    again_s = WARN_AFTER_S + WARN_AGAIN_S
    assert lines == [
        (WARN_AFTER_S, "messages for topic t wait for 3 s: why"),
        (again_s, f"messages for topic t wait for {again_s:.0f} s: why"),
    ]
    assert trouble.topics == ("t",)
    trouble.exists("t")
    trouble.exists("t")
    assert caplog.messages == ["topic t exists again"]
    assert trouble.topics == ()


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
