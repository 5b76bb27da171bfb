"""A mirror of clusters without one of their brokers, with Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mirrored_logs import assert_same_logs
from record_mirrors import RecordMirror
from running_mirror import Running

from tidemill.client import Admin, Producer
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.mirror_settings import MirrorSource
from tidemill.testing.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("mirror"),
]

PARTITIONS = 4
ALONE = {
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
}


@pytest.fixture(scope="module")
def source() -> Iterator[Cluster]:
    with Cluster(2, ALONE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[Cluster]:
    with Cluster(2, ALONE) as cluster:
        yield cluster


def produce(bootstrap: str, topic: str, partitions: set[int], count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            for partition in partitions:
                producer.send(topic, str(number).encode(), partition=partition)


def items(topic: str, partitions: set[int]) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in partitions}


def led_by(bootstrap: str, topic: str, broker: int) -> set[int]:
    with Admin(bootstrap) as admin:
        return {one.partition for one in admin.describe_topic(topic).partitions if one.leader == broker}


@pytest.mark.parametrize(("side", "same_offsets"), [("source", True), ("target", True), ("source", False)])
def test_the_partitions_of_the_brokers_that_are_left_are_mirrored(
    spark: SparkSession, source: Cluster, target: Cluster, tmp_path: Path, side: str, same_offsets: bool
) -> None:
    """Broker 2 fails, so that half of the partitions have no leader."""
    mirrored = RecordMirror(spark, source[1].bootstrap, target[1].bootstrap, tmp_path, PARTITIONS)
    mirrored.partitions = PARTITIONS
    topic, every = mirrored.topic, set(range(PARTITIONS))
    sources = [MirrorSource("east", {"bootstrap.servers": source[1].bootstrap})]
    west = MirrorSource("west", {"bootstrap.servers": target[1].inter_broker_bootstrap})
    produce(source.bootstrap, topic, every, 10)
    more: dict[str, Any] = {"sources": sources, "target": west, "same_offsets": same_offsets}
    with Running(mirrored, **more) as running:
        running.wait_for(running.is_up_to_date)
        failing = source if side == "source" else target
        gone = led_by(failing[1].bootstrap, topic, 2)
        left = every - gone
        assert gone
        assert left
        failing[2].kill()
        try:
            produce(source[1].bootstrap, topic, left if side == "source" else every, 10)
            running.wait_for(lambda: running.held_back() == items(topic, gone))
            for _ in range(2):
                produce(source[1].bootstrap, topic, left, 10)
                running.wait_for_copies(items(topic, left))
        finally:
            failing[2].start()
        produce(source.bootstrap, topic, every, 10)
        running.wait_for_copies(items(topic, every))
        assert not running.held_back()
    if same_offsets:
        assert_same_logs(source.bootstrap, target.bootstrap, topic)
    else:
        mirrored.assert_same_rows()
