"""Lookups of offsets with brokers of earlier versions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.client import Admin, Producer
from tidemill.client.connection import Connection
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey

LAST_WITHOUT_MAX_TIMESTAMP = 6
"""The last version of ListOffsets without a lookup of the largest timestamp: Apache Kafka 2.8."""


def test_only_the_largest_timestamp_needs_a_recent_broker(
    broker_address: str, admin: Admin, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = TopicPartition(new_topic(1), 0)
    with Producer(broker_address) as producer:
        producer.send(item.topic, b"first", timestamp_ms=2000)
        producer.send(item.topic, b"second", timestamp_ms=1000).result()
    assert admin.list_offsets({item: "max-timestamp"})[item].offset == 0
    version = Connection.version

    def earlier(self: Connection, key: ApiKey, at_most: int = 32767) -> int:
        if key == ApiKey.LIST_OFFSETS:
            at_most = min(at_most, LAST_WITHOUT_MAX_TIMESTAMP)
        return version(self, key, at_most)

    monkeypatch.setattr(Connection, "version", earlier)
    assert [admin.list_offsets({item: at})[item].offset for at in ("earliest", "latest")] == [0, 2]
    failures = admin.list_offsets_or_failures({item: "max-timestamp"}).failures
    assert failures[item].code == ErrorCode.UNSUPPORTED_VERSION
    assert str(failures[item]).startswith("cannot look up the largest timestamp"), "refused by the client"


def test_offsets_are_looked_up_in_version_0(
    broker_address: str, admin: Admin, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = TopicPartition(new_topic(1), 0)
    with Producer(broker_address) as producer:
        producer.send(item.topic, b"message").result()
    version = Connection.version

    def first(self: Connection, key: ApiKey, at_most: int = 32767) -> int:
        return 0 if key == ApiKey.LIST_OFFSETS else version(self, key, at_most)

    monkeypatch.setattr(Connection, "version", first)
    assert [admin.list_offsets({item: at})[item].offset for at in ("earliest", "latest")] == [0, 1]
