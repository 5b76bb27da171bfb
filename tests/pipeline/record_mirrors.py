"""Two clusters, and jobs that mirror topics of one into the other as ordinary records.

Records are compared as librdkafka reads them: a peer that shares no code with the mirror.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.client import Admin
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.mirror_job import SourceProgress, mirror
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.topic_filter import TopicFilter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Row(NamedTuple):
    """A record as a consumer of committed records gets it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int


def committed_rows(bootstrap: str, topic: str, partition: int) -> dict[int, Row]:
    """Returns the committed records of a partition by offset."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([Place(topic, partition, 0)])
    found: dict[int, Row] = {}
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                return found
            # Dates before 1970 are not available in librdkafka's type for "no timestamp".
            found[message.offset()] = Row(
                message.key(), message.value(), message.headers(), message.timestamp()[1]
            )
    finally:
        consumer.close()


def rows_before(rows: Iterable[int], offset: int) -> int:
    """Returns how many of the offsets are before this one."""
    return sum(1 for one in rows if one < offset)


def group_offsets(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    with Admin(bootstrap) as admin:
        return {item: place.offset for item, place in admin.group_offsets(group).items()}


class RecordMirror:
    """A source, a target, a topic, and the jobs that mirror it."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        target: str,
        directory: Path,
        partitions: int = 3,
        **configs: str,
    ) -> None:
        self.spark = spark
        self.source = source
        self.target = target
        self.checkpoint = directory / "checkpoint"
        self.topic = f"records-{uuid.uuid4().hex[:8]}"
        self.partitions = partitions
        with Admin(source) as admin:
            admin.create_topic(self.topic, partitions, configs={"retention.ms": "-1", **configs})

    def reversed(self, checkpoint: Path) -> RecordMirror:
        """Returns the mirror of the same topic in the opposite direction."""
        back = copy.copy(self)
        back.source, back.target, back.checkpoint = self.target, self.source, checkpoint
        return back

    def item(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def job(self, **more: Any) -> MirrorJob:
        given: dict[str, Any] = {
            "sources": [MirrorSource("east", {"bootstrap.servers": self.source})],
            "target": MirrorSource("west", {"bootstrap.servers": self.target}),
            "checkpoint": str(self.checkpoint),
            "topics": TopicFilter(self.topic),
            "groups": TopicFilter(f"{self.topic}-.*"),
            "trigger": "available-now",
            "topics_interval_s": 0.5,
            "groups_interval_s": 0.5,
            "same_offsets": False,
        }
        return MirrorJob(**{**given, **more})

    def run(self, **more: Any) -> SourceProgress:
        """Copies what is there; returns the progress of the last source."""
        return mirror(self.spark, self.job(**more))[-1]

    def produce(
        self, count: int, *, start: int = 0, bootstrap: str | None = None, partition: int | None = None
    ) -> None:
        """Sends numbered records with keys."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": bootstrap or self.source, "linger.ms": 2, "log_level": 0})
        for number in range(start, start + count):
            place = number % self.partitions if partition is None else partition
            producer.produce(self.topic, str(number).encode(), str(number % 50).encode(), place)
        assert producer.flush(30) == 0

    def set_positions(self, positions: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Commits positions of groups at the source; their names get the topic in front."""
        with Admin(self.source) as admin:
            for group, offsets in positions.items():
                admin.alter_group_offsets(f"{self.topic}-{group}", offsets)

    def translated(self, group: str) -> dict[TopicPartition, int]:
        """Returns the positions of a group in the target."""
        return group_offsets(self.target, f"{self.topic}-{group}")

    def rows(
        self, bootstrap: str, name: str | None = None, partitions: int | None = None
    ) -> list[dict[int, Row]]:
        """Returns the records of each partition of the topic."""
        return [
            committed_rows(bootstrap, name or self.topic, number)
            for number in range(partitions or self.partitions)
        ]

    def assert_same_rows(self, name: str | None = None) -> None:
        """Asserts that each partition has the same records in both clusters, in the same order."""
        there = self.rows(self.target, name)
        for number, here in enumerate(self.rows(self.source)):
            assert list(here.values()) == list(there[number].values()), f"partition {number}"

    def set_all_positions(self) -> int:
        """Sets a group to each offset of the source, in all partitions; returns the number of groups."""
        with Admin(self.source) as admin:
            items = [self.item(number) for number in range(self.partitions)]
            found = admin.list_offsets(dict.fromkeys(items, "latest"))
        ends = {item: place.offset for item, place in found.items()}
        count = max(ends.values()) + 1
        self.set_positions(
            {str(at): {item: min(at, end) for item, end in ends.items()} for at in range(count)}
        )
        return count

    def assert_exact_positions(self, count: int, name: str | None = None) -> None:
        """Asserts that the groups of :meth:`set_all_positions` have as many records before them in both."""
        here, there = self.rows(self.source), self.rows(self.target, name)
        for at in range(count):
            translated = self.translated(str(at))
            for number in range(self.partitions):
                item = TopicPartition(name or self.topic, number)
                before = rows_before(here[number], at)
                assert rows_before(there[number], translated[item]) == before, (at, item, translated[item])
