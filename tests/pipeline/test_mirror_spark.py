"""A mirror with the same offsets, with Spark and two brokers of their own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from mirrored_logs import assert_same_logs, bounds
from running_mirror import Running

from tidemill.cli.main import command
from tidemill.client import Admin, Consumer, Producer
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.client.mirror_appender import MirrorAppender
from tidemill.client.range_reader import RangeReader
from tidemill.model.errors import ConfigError, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.mirror_job import SourceProgress, mirror
from tidemill.pipeline.mirror.mirror_lag import MirrorMetrics
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.spark_errors import explained
from tidemill.records.mirrored_batch import empty_batches, mirrored_batches
from tidemill.testing.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("mirror")]

PARTITIONS = 3
MIRROR_STATE = "tidemill.mirror.state"


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker(faults=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    with Broker(faults=True) as broker:
        yield broker


class Mirrored:
    """Two clusters, a topic of the source, and the jobs that mirror it."""

    def __init__(self, spark: SparkSession, source: Broker, target: Broker, directory: Path) -> None:
        self.spark = spark
        self.source = source
        self.target = target
        self.checkpoint = directory / "checkpoint"
        self.topic = f"mirrored-{uuid.uuid4().hex[:8]}"
        with Admin(source.bootstrap) as admin:
            admin.create_topic(self.topic, PARTITIONS, configs={"retention.ms": "-1"})

    def job(self, **more: Any) -> MirrorJob:
        given: dict[str, Any] = {
            "sources": [MirrorSource("east", {"bootstrap.servers": self.source.bootstrap})],
            "target": MirrorSource("west", {"bootstrap.servers": self.target.bootstrap}),
            "checkpoint": str(self.checkpoint),
            "topics": TopicFilter(self.topic),
            "groups": TopicFilter(f"{self.topic}-.*"),
            "trigger": "available-now",
            "topics_interval_s": 0.2,
            "groups_interval_s": 0.2,
        }
        return MirrorJob(**{**given, **more})

    def run(self, **more: Any) -> SourceProgress:
        """Copies what is there."""
        (result,) = mirror(self.spark, self.job(**more))
        return result

    def fill(self, count: int, *, start: int = 0, **settings: Any) -> None:
        with Producer(self.source.bootstrap, linger_ms=2, **settings) as producer:
            for number in range(start, start + count):
                producer.send(self.topic, str(number).encode(), key=str(number % 50).encode())

    def item(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition)


@pytest.fixture
def mirrored(spark: SparkSession, source: Broker, target: Broker, tmp_path: Path) -> Mirrored:
    return Mirrored(spark, source, target, tmp_path)


def test_topics_transactions_and_group_positions_are_copied_with_their_offsets(mirrored: Mirrored) -> None:
    topic, source, target = mirrored.topic, mirrored.source.bootstrap, mirrored.target.bootstrap
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        mirrored.fill(300, compression_type=codec)
    with Producer(source, transactional_id=f"{topic}-writer") as producer:
        for number in range(4):
            producer.begin()
            for partition in range(PARTITIONS):
                producer.send(topic, b"in a transaction", partition=partition)
            producer.flush()
            producer.abort() if number % 2 else producer.commit()
    is_open = Producer(source, transactional_id=f"{topic}-open")
    is_open.begin()
    is_open.send(topic, b"in an open transaction", partition=1)
    is_open.flush()
    positions = {mirrored.item(partition): 10 + partition for partition in range(PARTITIONS)}
    with Admin(source) as admin:
        admin.delete_records({mirrored.item(2): 7})
        admin.alter_group_offsets(f"{topic}-readers", positions)

    # The setting of a consumer has no effect: open and aborted transactions are copied as well.
    settings = {"bootstrap.servers": source, "isolation.level": "read_committed"}
    result = mirrored.run(sources=[MirrorSource("east", settings)])

    # 1,500 messages and 13 in transactions; seven were deleted, and their batches may not be copied.
    assert 1_400 < result.records <= 1_513
    assert (result.topics, result.positions) == (1, PARTITIONS)
    assert_same_logs(source, target, topic)
    with Admin(target) as admin:
        configs = admin.topic_configs(topic)
        assert (configs["retention.ms"].value, configs[MIRROR_STATE].value) == ("-1", "active")
        copied = admin.group_offsets(f"{topic}-readers")
    assert {item: place.offset for item, place in copied.items()} == positions
    assert mirrored.run().records == 0
    is_open.abort()
    is_open.close()
    assert mirrored.run().records == 0
    assert_same_logs(source, target, topic)


@pytest.mark.matrix
def test_a_running_mirror_follows_new_partitions_settings_and_log_starts(mirrored: Mirrored) -> None:
    topic, source, target = mirrored.topic, mirrored.source.bootstrap, mirrored.target.bootstrap
    metrics = MirrorMetrics()
    with Running(mirrored, metrics) as running, Admin(source) as admin, Admin(target) as there:
        mirrored.fill(500)
        running.wait_for(lambda: bounds_or_none(target, topic) == bounds(source, topic))
        admin.create_partitions(topic, PARTITIONS + 1)
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, topic), {"segment.ms": "86400000"})
        admin.delete_records({mirrored.item(0): 20})
        mirrored.fill(500)
        running.wait_for(lambda: bounds_or_none(target, topic) == bounds(source, topic))
        running.wait_for(lambda: there.topic_configs(topic)["segment.ms"].value == "86400000")
        running.wait_for(running.is_up_to_date)
        assert_same_logs(source, target, topic)
        labels = {"source": "east", "topic": topic, "partition": "0"}
        assert metrics.registry.get_sample_value("tidemill_mirror_lag_messages", labels) == 0
        copied = metrics.registry.get_sample_value("tidemill_mirror_records_total", {"source": "east"})
        assert copied == running.progress[0].records


def bounds_or_none(bootstrap: str, topic: str) -> dict[int, tuple[int, int]] | None:
    with Admin(bootstrap) as admin:
        if topic not in [listing.name for listing in admin.list_topics()]:
            return None
    return bounds(bootstrap, topic)


@pytest.mark.parametrize(
    ("side", "how"), [("source", "silent"), ("target", "silent"), ("source", "reset"), ("target", "reset")]
)
@pytest.mark.matrix
def test_a_cut_link_is_survived_and_caught_up(mirrored: Mirrored, side: str, how: str) -> None:
    topic = mirrored.topic
    broker = mirrored.source if side == "source" else mirrored.target
    settings = {"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"}
    sources = [MirrorSource("east", {"bootstrap.servers": mirrored.source.bootstrap, **settings})]
    west = MirrorSource("west", {"bootstrap.servers": mirrored.target.bootstrap, **settings})
    mirrored.fill(100)
    with Running(mirrored, sources=sources, target=west) as running:
        running.wait_for(running.is_up_to_date)
        broker.cut(how)
        try:
            running.wait_for(lambda: bool(running.progress[0].waiting))
            time.sleep(3)
        finally:
            broker.heal()
        mirrored.fill(200, start=100)
        running.wait_for(
            lambda: (
                bounds_or_none(mirrored.target.bootstrap, topic) == bounds(mirrored.source.bootstrap, topic)
            )
        )
        running.wait_for(lambda: not running.progress[0].waiting)
    assert_same_logs(mirrored.source.bootstrap, mirrored.target.bootstrap, topic)


@pytest.mark.matrix
def test_a_killed_target_and_source_are_caught_up(mirrored: Mirrored) -> None:
    with Running(mirrored) as running:
        for number, broker in enumerate((mirrored.target, mirrored.source, mirrored.target)):
            mirrored.fill(400, start=1000 * number)
            broker.kill()
            time.sleep(0.5)
            broker.start()
        running.wait_for(
            lambda: (
                bounds_or_none(mirrored.target.bootstrap, mirrored.topic)
                == bounds(mirrored.source.bootstrap, mirrored.topic)
            )
        )
    assert_same_logs(mirrored.source.bootstrap, mirrored.target.bootstrap, mirrored.topic)


@pytest.mark.matrix
def test_a_recreated_source_stops_the_mirror(mirrored: Mirrored) -> None:
    mirrored.fill(10)
    mirrored.run()
    with Admin(mirrored.source.bootstrap) as admin:
        admin.delete_topic(mirrored.topic)
        while mirrored.topic in [listing.name for listing in admin.list_topics()]:
            time.sleep(0.05)
        admin.create_topic(mirrored.topic, PARTITIONS)
    mirrored.fill(100)
    with pytest.raises(Exception, match="was deleted and recreated") as caught:
        mirrored.run()
    assert "start with a new checkpoint" in explained(caught.value)


def append(mirrored: Mirrored, partition: int, batches: bytes) -> None:
    """Appends batches to a mirror."""
    appender = MirrorAppender(mirrored.target.bootstrap)
    try:
        item = mirrored.item(partition)
        appender.wait(item, appender.send(item, batches))
    finally:
        appender.close()


@pytest.mark.matrix
def test_a_source_that_is_shorter_stops_the_mirror(mirrored: Mirrored, monkeypatch: Any) -> None:
    mirrored.fill(10)
    mirrored.run()
    end = bounds(mirrored.target.bootstrap, mirrored.topic)[0][1]
    append(mirrored, 0, empty_batches(end, end + 5))
    with pytest.raises(Exception, match=f"ends at {end + 5}, and its source .* at {end}"):
        mirrored.run()


@pytest.mark.matrix
def test_a_source_with_other_records_stops_the_mirror(mirrored: Mirrored) -> None:
    """As after an unclean election, in which the source loses records, and gets others at their offsets."""
    mirrored.fill(50)
    other = Mirrored(mirrored.spark, mirrored.source, mirrored.target, mirrored.checkpoint)
    other.fill(10, start=500)
    with Admin(mirrored.target.bootstrap) as admin:
        admin.create_topic(mirrored.topic, PARTITIONS, configs={MIRROR_STATE: "active"})
    for partition, (_, end) in bounds(mirrored.source.bootstrap, other.topic).items():
        with RangeReader(mirrored.source.bootstrap) as reader:
            for response in reader.fetch(other.topic, partition, 0, end):
                append(mirrored, partition, mirrored_batches(response.records(), 0))
    with pytest.raises(Exception, match="has another batch before offset") as caught:
        mirrored.run()
    assert "delete it in the target" in explained(caught.value)


@pytest.mark.matrix
def test_an_ordinary_topic_of_the_target_is_left_alone(mirrored: Mirrored) -> None:
    mirrored.fill(10)
    with Admin(mirrored.target.bootstrap) as admin:
        admin.create_topic(mirrored.topic, PARTITIONS)
    result = mirrored.run(prefixed=False)
    assert (result.records, result.topics) == (0, 0)
    assert "is not a mirror" in result.refused[mirrored.topic]
    assert all(end == 0 for _, end in bounds(mirrored.target.bootstrap, mirrored.topic).values())
    assert mirrored.run(prefixed=True, checkpoint=str(mirrored.checkpoint) + "2").records == 10
    assert_same_logs(
        mirrored.source.bootstrap, mirrored.target.bootstrap, mirrored.topic, f"east.{mirrored.topic}"
    )


@pytest.mark.matrix
def test_two_jobs_with_one_checkpoint_are_refused(mirrored: Mirrored) -> None:
    with Running(mirrored) as running:
        running.wait_for(lambda: bool(running.progress))
        with pytest.raises(ConfigError, match="another mirror runs with the checkpoint"):
            mirrored.run()


@pytest.mark.matrix
def test_two_mirrors_of_one_topic_copy_each_batch_once(mirrored: Mirrored) -> None:
    other = str(mirrored.checkpoint) + "2"
    again = [MirrorSource("east2", {"bootstrap.servers": mirrored.source.bootstrap})]
    with Running(mirrored) as first, Running(mirrored, checkpoint=other, sources=again) as second:
        mirrored.fill(2_000)
        for running in (first, second):
            running.wait_for(
                lambda: (
                    bounds_or_none(mirrored.target.bootstrap, mirrored.topic)
                    == bounds(mirrored.source.bootstrap, mirrored.topic)
                )
            )
    assert_same_logs(mirrored.source.bootstrap, mirrored.target.bootstrap, mirrored.topic)


@pytest.mark.matrix
def test_positions_follow_their_groups_and_leave_active_ones_alone(mirrored: Mirrored) -> None:
    group = f"{mirrored.topic}-readers"
    mirrored.fill(300)
    with (
        Admin(mirrored.source.bootstrap) as here,
        Admin(mirrored.target.bootstrap) as there,
        Running(mirrored) as running,
    ):

        def copied() -> int:
            return there.group_offsets(group).get(mirrored.item(), (-1,))[0]

        for offset in (50, 80, 20):
            here.alter_group_offsets(group, {mirrored.item(): offset})
            running.wait_for(lambda offset=offset: copied() == offset)  # type: ignore[misc]
        there.alter_group_offsets(group, {mirrored.item(): 90})
        here.alter_group_offsets(group, {mirrored.item(): 30})
        time.sleep(3)
        assert copied() == 90


def test_a_promoted_mirror_is_an_ordinary_topic(mirrored: Mirrored) -> None:
    topic, source, target = mirrored.topic, mirrored.source.bootstrap, mirrored.target.bootstrap
    mirrored.fill(100)
    with Producer(source, transactional_id=f"{topic}-open") as transaction:
        transaction.begin()
        transaction.send(topic, b"open", partition=0)
        transaction.flush()
        mirrored.run()
        with (
            Producer(target, delivery_timeout_ms=5000, request_timeout_ms=2000) as producer,
            pytest.raises(KafkaError, match="is a mirror"),
        ):
            producer.send(topic, b"too early", partition=0).result(20)

        promotion = ["topic", "promote", topic, "-b", target]
        # The mirror runs on: the promoted topic is left alone.
        with Running(mirrored) as running:
            running.wait_for(lambda: bool(running.progress and running.progress[0].lag))
            done = CliRunner().invoke(command, promotion)
            assert done.exit_code == 0, done.output
            running.wait_for(lambda: not running.progress[0].topics)
            mirrored.fill(10)
            time.sleep(2)
        again = CliRunner().invoke(command, promotion)
        assert f"{topic} is promoted already" in again.output
        transaction.abort()

    with Producer(target, transactional_id=f"{topic}-writer") as producer:
        producer.begin()
        producer.send(topic, b"promoted", partition=0)
        producer.commit()
    with Consumer(target, isolation_level="read_committed") as consumer:
        consumer.assign([mirrored.item()])
        consumer.seek_to_beginning()
        values: list[bytes | None] = []
        while b"promoted" not in values:
            values += [record.value for record in consumer.poll(5)]
    assert b"open" not in values
    assert len(values) > 1
