"""The number of partitions of ``__consumer_offsets``, whatever other programs write to ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.metadata import ClusterImage, Delta, MetadataCache, PartitionImage, TopicImage
from tidemill.broker.offsets_topic import ClusterOffsetsTopic
from tidemill.model.configs import BrokerConfig
from tidemill.model.types import ZERO_ID

OFFSETS = "__consumer_offsets"
FIRST, SECOND = b"1" * 16, b"2" * 16
CONFIGURED = 7


class Cluster:
    """The metadata of a broker, and its view of the topic."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        config = BrokerConfig.of({"offsets.topic.num.partitions": str(CONFIGURED)})
        broker: Any = SimpleNamespace(metadata=self.metadata, config=config)
        self.topic = ClusterOffsetsTopic(broker)

    def hear(self, partition_count: int, topic_id: bytes = FIRST) -> None:
        """The topic has so many partitions; with 0 it is not there."""
        partitions = tuple(PartitionImage(number, 1, 0, [1], [1]) for number in range(partition_count))
        topics = {OFFSETS: TopicImage(OFFSETS, topic_id, partitions, {})} if partition_count else {}
        asyncio.run(self.metadata.publish(Delta.between(self.metadata.image, ClusterImage(topics=topics))))

    def after(self, partition_count: int, topic_id: bytes = FIRST) -> int:
        """As :meth:`hear`; the number that groups go by then."""
        self.hear(partition_count, topic_id)
        return self.topic.partition_count()


def test_groups_keep_their_positions_when_another_program_adds_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    assert cluster.topic.partition_count() == CONFIGURED
    assert cluster.after(5) == 5
    with caplog.at_level(logging.ERROR):
        assert [cluster.after(12), cluster.after(12)] == [5, 5]
    assert len(caplog.records) == 1
    assert "has 12 partitions now, and had 5" in caplog.text
    assert "stop all brokers and take the others out of /brokers/topics/__consumer_offsets" in caplog.text


def test_partitions_that_were_added_before_any_group_came_do_not_count() -> None:
    cluster = Cluster()
    cluster.hear(5)
    cluster.hear(12)
    assert cluster.topic.partition_count() == 5


def test_groups_stay_where_they_are_while_the_topic_is_out_of_sight() -> None:
    cluster = Cluster()
    assert [cluster.after(5), cluster.after(0), cluster.after(5)] == [5, 5, 5]


def test_a_topic_that_is_made_anew_has_its_own_number_of_partitions() -> None:
    cluster = Cluster()
    assert [cluster.after(5), cluster.after(0), cluster.after(3, SECOND), cluster.after(4)] == [5, 5, 3, 4]


def test_a_topic_that_is_given_its_id_keeps_its_number_of_partitions() -> None:
    cluster = Cluster()
    assert [cluster.after(5, ZERO_ID), cluster.after(12), cluster.after(12, SECOND)] == [5, 5, 12]
