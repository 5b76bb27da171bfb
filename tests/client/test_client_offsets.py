"""Lookups of offsets with brokers of earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemill.client import Admin, Producer
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey

LimitVersions = Callable[[Mapping[ApiKey, int]], None]

LAST_WITHOUT_MAX_TIMESTAMP = 6
"""The last version of ListOffsets without a lookup of the largest timestamp: Apache Kafka 2.8."""


def test_only_the_largest_timestamp_needs_a_recent_broker(
    broker_address: str, admin: Admin, new_topic: Callable[..., str], limit_versions: LimitVersions
) -> None:
    item = TopicPartition(new_topic(1), 0)
    with Producer(broker_address) as producer:
        producer.send(item.topic, b"first", timestamp_ms=2000)
        producer.send(item.topic, b"second", timestamp_ms=1000).result()
    assert admin.list_offsets({item: "max-timestamp"})[item].offset == 0
    limit_versions({ApiKey.LIST_OFFSETS: LAST_WITHOUT_MAX_TIMESTAMP})
    assert [admin.list_offsets({item: at})[item].offset for at in ("earliest", "latest")] == [0, 2]
    failures = admin.list_offsets_or_failures({item: "max-timestamp"}).failures
    assert failures[item].code == ErrorCode.UNSUPPORTED_VERSION
    assert str(failures[item]).startswith("cannot look up the largest timestamp"), "refused by the client"


def test_offsets_are_looked_up_in_version_0(limit_versions: LimitVersions) -> None:
    item = TopicPartition("t", 0)
    # A broker of its own, because Apache Kafka 4 does not support the version.
    with Broker() as broker, Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        admin.create_topic(item.topic, 1, 1)
        producer.send(item.topic, b"message").result()
        limit_versions({ApiKey.LIST_OFFSETS: 0})
        assert [admin.list_offsets({item: at})[item].offset for at in ("earliest", "latest")] == [0, 1]
