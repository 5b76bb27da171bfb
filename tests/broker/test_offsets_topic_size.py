"""The partition count of ``__consumer_offsets`` stays when other programs change it in ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.coordinator_topic import ClusterCoordinatorTopic
from tidemill.broker.metadata_cache import ClusterImage, Delta, MetadataCache, PartitionImage, TopicImage
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.model.configs import BrokerConfig
from tidemill.model.types import ZERO_ID

OFFSETS = "__consumer_offsets"
FIRST, SECOND = b"1" * 16, b"2" * 16
CONFIGURED = 7


class Cluster:
    """The metadata cache of a broker, and its offsets topic."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        config = BrokerConfig.of({"offsets.topic.num.partitions": str(CONFIGURED)})
        broker: Any = SimpleNamespace(metadata_cache=self.metadata, config=config)
        self.topic = ClusterCoordinatorTopic(broker, OFFSETS_TOPIC, "offsets.topic.num.partitions")

    def publish(self, partition_count: int, topic_id: bytes = FIRST) -> None:
        """Publishes metadata with ``partition_count`` partitions of the topic; 0: without the topic."""
        partitions = tuple(PartitionImage(number, 1, 0, [1], [1]) for number in range(partition_count))
        topics = {OFFSETS: TopicImage(OFFSETS, topic_id, partitions, {})} if partition_count else {}
        asyncio.run(self.metadata.publish(Delta.between(self.metadata.image, ClusterImage(topics=topics))))

    def after(self, partition_count: int, topic_id: bytes = FIRST) -> int:
        """As :meth:`publish`. Returns the partition count that the coordinator uses then."""
        self.publish(partition_count, topic_id)
        return self.topic.partition_count()


def test_the_partition_count_stays_when_another_program_adds_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    assert cluster.topic.partition_count() == CONFIGURED
    assert cluster.after(5) == 5
    with caplog.at_level(logging.ERROR):
        assert [cluster.after(12), cluster.after(12)] == [5, 5]
    assert len(caplog.records) == 1
    assert "has 12 partitions now, and had 5" in caplog.text
    assert "stop all brokers and remove the others from /brokers/topics/__consumer_offsets" in caplog.text


def test_partitions_added_before_the_first_use_are_ignored() -> None:
    cluster = Cluster()
    cluster.publish(5)
    cluster.publish(12)
    assert cluster.topic.partition_count() == 5


@pytest.mark.parametrize(
    ("published", "used"),
    [
        pytest.param([(5,), (0,), (5,)], [5, 5, 5], id="stays while the topic is missing"),
        pytest.param([(5,), (0,), (3, SECOND), (4,)], [5, 5, 3, 4], id="is that of the recreated topic"),
        pytest.param([(5, ZERO_ID), (12,), (12, SECOND)], [5, 5, 12], id="stays when the topic gets its id"),
    ],
)
def test_the_partition_count_changes_only_with_the_topic(
    published: list[tuple[Any, ...]], used: list[int]
) -> None:
    cluster = Cluster()
    assert [cluster.after(*metadata) for metadata in published] == used
