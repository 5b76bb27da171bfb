"""The query that writes the records of a source as ordinary records, with offsets of the target.

Each micro-batch is written by the exactly-once sink, under the id that Spark's checkpoint gives the query: a
micro-batch that is repeated adds nothing. A partition of the source is one task, so that its records stay in
their order. They keep their partition where the target has as many as the source. Elsewhere the sink chooses
by the key.

Sync points (:mod:`.sync_points`) are stored before the first batch of a partition is written, and after each
batch. If the process ends between the two, the batch is repeated, and its points are made then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.client.range_reader import RangeReader
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.client_pool import OpenedOnce
from tidemill.pipeline.jobs.earlier_loads import last_position, position_after
from tidemill.pipeline.jobs.preflight_checks import AVAILABLE_NOW
from tidemill.pipeline.jobs.table_folder import query_of, sync_plan
from tidemill.pipeline.mirror.copy_options import CopyOptions
from tidemill.pipeline.mirror.copy_source import every_record
from tidemill.pipeline.mirror.reachable_partition_offsets import ReachableOffsets, no_leader
from tidemill.pipeline.mirror.record_source import FORMAT, RecordOptions, committed_only
from tidemill.pipeline.mirror.sync_points import NO_POINTS, SyncPoint, SyncPoints, TopicIds, parse_sync_points
from tidemill.pipeline.options import AT_LEAST_ONCE, EXACTLY_ONCE
from tidemill.pipeline.stream_offsets import StreamPosition
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger("tidemill.pipeline")

POINTS_FILE: Final = "tidemill-sync-points.json"
STABLE_S: Final = 5.0
"""How long a batch waits until the markers of its transactions are written in all partitions."""
STABLE_PAUSE_S: Final = 0.02
NO_TRANSACTION: Final = "tidemill-mirror-none"
"""A transactional id that no producer has: only whether brokers answer is of interest."""
SINK_SETTINGS: Final = {"max.request.size": str(32 * 1024 * 1024)}
"""Records that the source has accepted are not refused by the client; the target has a limit of its own."""


class BatchEnds(NamedTuple):
    """The start and the end of a micro-batch, at the source."""

    number: int
    start: StreamPosition
    end: StreamPosition

    def changed(self, topic: str) -> frozenset[int]:
        """Returns the partitions of a topic whose position moves in the batch."""
        part = self.end.topics[topic]
        before = self.first(topic)
        return frozenset(number for number, offset in part.next.items() if before.get(number) != offset)

    def first(self, topic: str) -> Mapping[int, int]:
        """Returns the start of the partitions that were read before."""
        before = self.start.topics.get(topic)
        return {} if before is None or before.topic_id != self.end.topics[topic].topic_id else before.next


class TargetTopic(NamedTuple):
    """A topic of a micro-batch, and its mirror."""

    name: str
    ids: TopicIds
    reached: Mapping[int, int]
    """The end of the batch, by the source's partition."""
    changed: frozenset[int]
    """The source's partitions whose position moves in the batch."""
    sources: int
    targets: int

    @property
    def is_spread(self) -> bool:
        """Whether the sink chooses the partition of each record.

        A source with more partitions than its mirror has just grown, and its mirror grows next.
        """
        return self.targets > self.sources

    def numbers(self) -> range:
        """Returns the numbers of the partitions of both."""
        return range(max(*self.reached, self.targets - 1) + 1)


class RecordQuery:
    """The query of one source. Spark calls :meth:`write_batch` in a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        options: RecordOptions,
        alias: str,
        checkpoint: Path,
        trigger: str,
        on_written: Callable[[int, int], None],
    ) -> None:
        self._spark = spark
        self._options = options
        self._alias = alias
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._on_written = on_written
        self._files = SystemFiles()
        self._clients = OpenedOnce(partial(RecordClients, options.copy))
        self._delivery = ""
        self.points = self._stored_points()
        """The current sync points; replaced as a whole."""
        planned = last_position(checkpoint).offsets().items() - self.points.copied().items()
        self._written = frozenset(item for item, _ in planned)
        """The source partitions with a batch that may be written, and has no sync point after it."""
        self.failure: BaseException | None = None
        """The error of the last batch."""

    def start(self) -> StreamingQuery:
        """Starts the query."""
        self.failure = None
        rows = self._spark.readStream.format(FORMAT).options(**self._options.to_options()).load()
        writer = (
            rows.writeStream.queryName(f"mirror-{self._alias}")
            .foreachBatch(self.write_batch)
            .option("checkpointLocation", str(self._checkpoint))
        )
        if self._trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self._trigger).start()

    def write_batch(self, frame: DataFrame, batch: int) -> None:
        """Writes a micro-batch, and stores its sync points."""
        try:
            # If the sink had a batch that the checkpoint has lost in a crash, the next plan of the batch
            # could have more records, and the sink would skip it.
            sync_plan(self._files, str(self._checkpoint), batch, is_first=not self.points.topics)
            self._write_batch(frame, self._ends(batch))
        except BaseException as problem:
            self.failure = problem
            self.close()
            raise

    def starts(self) -> dict[TopicPartition, int]:
        """Returns where the records of this source begin in the target, by its partitions."""
        return self.points.starts(self._written)

    def close(self) -> None:
        """Closes the connections."""
        self._clients.close()

    def _write_batch(self, frame: DataFrame, ends: BatchEnds) -> None:
        topics = self._clients.get().topics(ends)
        self._store(self._first_points(ends, topics))
        self._store(self._points_after_loss(ends, topics))
        self._written |= {
            TopicPartition(topic, number) for topic, one in topics.items() for number in one.changed
        }
        seen = Observation(f"mirror-{self._alias}-{ends.number}")
        self._write(self._renamed(frame.observe(seen, *_counts()), topics), ends.number)
        self._store(self._next_points(ends, topics))
        counted = seen.get
        self._on_written(int(counted["records"] or 0), int(counted["bytes"] or 0))

    def _renamed(self, frame: DataFrame, topics: Mapping[str, TargetTopic]) -> DataFrame:
        spread = [topic for topic, seen in topics.items() if seen.is_spread]
        partition = functions.col("partition")
        if spread:
            partition = functions.when(functions.col("topic").isin(spread), functions.lit(None)).otherwise(
                partition
            )
        prefix = self._options.copy.names.prefix
        return frame.select(
            "key",
            "value",
            "headers",
            "timestamp",
            functions.concat(functions.lit(prefix), functions.col("topic")).alias("topic"),
            partition.cast("int").alias("partition"),
        )

    def _write(self, rows: DataFrame, batch: int) -> None:
        if not self._delivery:
            self._delivery = delivery_for(self._options.copy.target)
        options = {
            f"kafka.{key}": value for key, value in {**SINK_SETTINGS, **self._options.copy.target}.items()
        }
        options["delivery"] = self._delivery
        if self._delivery == EXACTLY_ONCE:
            options |= {
                "writeId": f"mirror-{query_of(self._files, str(self._checkpoint))}",
                "batchId": str(batch),
            }
        rows.write.format("tidemill").options(**options).mode("append").save()

    def _ends(self, batch: int) -> BatchEnds:
        start = position_after(self._checkpoint, batch - 1) if batch > 0 else StreamPosition({})
        return BatchEnds(batch, start, position_after(self._checkpoint, batch))

    # -- sync points ---------------------------------------------------------------------------------------

    def _stored_points(self) -> SyncPoints:
        path = str(self._checkpoint / POINTS_FILE)
        return parse_sync_points(self._files.read(path)) if self._files.exists(path) else NO_POINTS

    def _store(self, points: SyncPoints) -> None:
        if points is not self.points:
            self._files.replace(str(self._checkpoint / POINTS_FILE), points.encode())
            self.points = points

    def _first_points(self, ends: BatchEnds, topics: Mapping[str, TargetTopic]) -> SyncPoints:
        """Adds points to partitions that have none, before anything is written to them.

        If earlier batches have written to a topic whose points are lost, the first point is at the start of
        both logs.
        """
        points, lacking = self.points, {}
        for topic, seen in topics.items():
            known = self.points.of(topic, seen.ids)
            if ends.first(topic) and not known.partitions:
                starts_of_logs = {
                    number: SyncPoint(
                        -1, 0 if number in seen.reached else None, 0 if number < seen.targets else None
                    )
                    for number in seen.numbers()
                }
                points = points.with_points(topic, seen.ids, starts_of_logs, is_spread=seen.is_spread)
            numbers = [
                number
                for number in seen.numbers()
                if known.lacks(number, source=number in seen.reached, target=number < seen.targets)
            ]
            if numbers:
                lacking[topic] = numbers
        if not lacking:
            return self.points
        clients = self._clients.get()
        starts = clients.starts(ends, lacking, topics)
        targets = clients.target_ends(_target_items(topics, lacking))
        for topic, some in lacking.items():
            lacking[topic] = [
                number for number in some if _has_both_ends(topics[topic], topic, number, starts, targets)
            ]
        return _added(points, ends.number - 1, topics, lacking, starts, targets)

    def _points_after_loss(self, ends: BatchEnds, topics: Mapping[str, TargetTopic]) -> SyncPoints:
        """Adds points to partitions of the target that have become shorter, before anything is written.

        The target has lost records, as in an unclean election: the offsets above its end will be those of
        later records, and points there would be beyond what a group has read.
        """
        last: dict[tuple[str, int], tuple[int, SyncPoint]] = {}
        for topic, seen in topics.items():
            stored = self.points.of(topic, seen.ids)
            for number, known in stored.partitions.items():
                with_target = [one for one in known if one.target is not None]
                is_written = number in seen.changed or (bool(seen.changed) and stored.is_spread)
                if is_written and with_target and number < seen.targets:
                    last[topic, number] = known[-1].batch, with_target[-1]
        current = self._clients.get().stable_ends(
            [TopicPartition(topics[topic].name, number) for topic, number in last]
        )
        points = self.points
        for (topic, number), (batch, point) in last.items():
            seen = topics[topic]
            end = current[TopicPartition(seen.name, number)]
            if point.target is not None and end < point.target:
                source = ends.first(topic).get(number, point.source)
                added = {number: SyncPoint(max(batch, ends.number - 1), source, end)}
                points = points.with_points(topic, seen.ids, added, is_spread=seen.is_spread)
        return points

    def _next_points(self, ends: BatchEnds, topics: Mapping[str, TargetTopic]) -> SyncPoints:
        """Adds the points after the batch."""
        wanted = {}
        for topic, seen in topics.items():
            is_spread = seen.is_spread or self.points.of(topic, seen.ids).is_spread
            if seen.changed:
                wanted[topic] = sorted(seen.numbers() if is_spread else seen.changed)
        reached = {
            TopicPartition(topic, number): offset
            for topic in wanted
            for number, offset in topics[topic].reached.items()
        }
        targets = self._clients.get().target_ends(_target_items(topics, wanted))
        return _added(self.points, ends.number, topics, wanted, reached, targets)


def _target_items(
    topics: Mapping[str, TargetTopic], numbers: Mapping[str, Sequence[int]]
) -> list[TopicPartition]:
    return [
        TopicPartition(topics[topic].name, number)
        for topic, some in numbers.items()
        for number in some
        if number < topics[topic].targets
    ]


def _has_both_ends(
    seen: TargetTopic,
    topic: str,
    number: int,
    starts: Mapping[TopicPartition, int],
    targets: Mapping[TopicPartition, int],
) -> bool:
    """Whether the first point of a partition can be made. Raises ClientError if the batch writes there."""
    item, mirror = TopicPartition(topic, number), TopicPartition(seen.name, number)
    is_known = (number not in seen.reached or item in starts) and (
        number >= seen.targets or mirror in targets
    )
    if not is_known and (number in seen.changed or (bool(seen.changed) and seen.is_spread)):
        raise no_leader(mirror if item in starts else item)
    return is_known


def _added(
    points: SyncPoints,
    batch: int,
    topics: Mapping[str, TargetTopic],
    numbers: Mapping[str, Sequence[int]],
    reached: Mapping[TopicPartition, int],
    targets: Mapping[TopicPartition, int],
) -> SyncPoints:
    """Adds points of these partitions, at the ends of the target; without those that have no leader."""
    for topic, some in numbers.items():
        seen = topics[topic]
        added = {
            number: SyncPoint(
                batch,
                reached.get(TopicPartition(topic, number)),
                targets.get(TopicPartition(seen.name, number)),
            )
            for number in some
        }
        points = points.with_points(topic, seen.ids, added, is_spread=seen.is_spread)
    return points


def _counts() -> list[Column]:
    sizes = [functions.coalesce(functions.octet_length(name), functions.lit(0)) for name in ("key", "value")]
    return [
        functions.count(functions.lit(1)).alias("records"),
        functions.sum(sizes[0] + sizes[1]).alias("bytes"),
    ]


def delivery_for(target: Mapping[str, str]) -> str:
    """Returns the delivery of the sink that the target supports. Raises ClientError.

    Exactly once needs ListTransactions, which Apache Kafka has from 3.0 on. Without it, a micro-batch that is
    repeated is in the target twice.
    """
    with Admin(None, target) as admin:
        try:
            admin.list_transactions(states=["Ongoing"], pattern=NO_TRANSACTION)
        except ClientError as problem:
            if problem.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            if not _lists_transactions(admin):
                logger.warning(
                    "the target has no transactions as the exactly-once sink needs them (Apache Kafka from "
                    "3.0 on): records that are written again after a failure are there twice"
                )
                return AT_LEAST_ONCE
    return EXACTLY_ONCE


def _lists_transactions(admin: Admin) -> bool:
    """Whether a broker lists transactions without a filter by name, which came later."""
    try:
        admin.list_transactions(states=["Ongoing"])
    except ClientError as problem:
        if problem.code is ErrorCode.UNSUPPORTED_VERSION:
            return False
        raise
    return True


class RecordClients:
    """The clients of both clusters that batches use. Its methods raise ClientError."""

    def __init__(self, options: CopyOptions) -> None:
        self._names = options.names
        self._source = ReachableOffsets(RangeReader(None, committed_only(options.source)))
        self._target = ReachableOffsets(RangeReader(None, committed_only(options.target)))
        self._target_ends = ReachableOffsets(RangeReader(None, every_record(options.target)))

    def topics(self, ends: BatchEnds) -> dict[str, TargetTopic]:
        """Returns the topics of a micro-batch and their mirrors; without those that nothing is written to and
        that have no mirror any more.
        """
        topics = sorted(ends.end.topics)
        sources = self._source.describe(topics)
        names = [self._names.target_of(topic) for topic in topics]
        mirrors = self._target.describe(names)
        self._target_ends.describe(names)
        found = {}
        for topic in topics:
            part, name, changed = ends.end.topics[topic], self._names.target_of(topic), ends.changed(topic)
            needed = max(part.next, default=-1) + 1
            mirror = mirrors.get(name)
            if mirror is None or mirror.partitions < needed:
                if changed:
                    raise ClientError(
                        f"the target has no topic {name} with {needed} partitions yet: the mirror creates it",
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        topic=name,
                    )
                continue
            if needed:
                count = max(needed, sources[topic].partitions if topic in sources else 0)
                ids = TopicIds(part.topic_id, mirror.topic_id)
                found[topic] = TargetTopic(name, ids, part.next, changed, count, mirror.partitions)
        return found

    def starts(
        self, ends: BatchEnds, numbers: Mapping[str, Sequence[int]], topics: Mapping[str, TargetTopic]
    ) -> dict[TopicPartition, int]:
        """Returns the starts of partitions: the planned one of those that were not read before, and the
        earliest offset of those that the checkpoint of an earlier version has no start of.

        Omits those whose leader does not answer.
        """
        found: dict[TopicPartition, int] = {}
        new: dict[TopicPartition, int] = {}
        there = self._source.describe(sorted(numbers))
        for topic, some in numbers.items():
            first = {**ends.end.topics[topic].begin, **ends.first(topic)}
            reached = topics[topic].reached
            for number in some:
                item = TopicPartition(topic, number)
                if number in first:
                    found[item] = first[number]
                elif number in reached and topic in there:
                    new[item] = reached[number]
                elif number in reached:
                    found[item] = 0
        earliest = self._source.list_some(new, EARLIEST)
        return {**found, **{item: min(offset, new[item]) for item, offset in earliest.items()}}

    def stable_ends(self, items: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the ends of partitions for readers of committed records now. All must have leaders."""
        ends = self._target.list_some(items, LATEST)
        for item in items:
            if item not in ends:
                raise self._target.held_back[item]
        return ends

    def target_ends(self, items: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the ends of partitions for readers of committed records; omits those without a leader.

        Waits until the markers of the batch's transactions are written. An open transaction of another
        producer ends the wait, and the ends are those before it.
        """
        deadline = time.monotonic() + STABLE_S
        while True:
            ends = self._target_ends.list_some(items, LATEST)
            stable = self._target.list_some(items, LATEST)
            is_stable = all(offset >= ends.get(item, 0) for item, offset in stable.items())
            if time.monotonic() >= deadline or is_stable:
                return stable
            time.sleep(STABLE_PAUSE_S)

    def close(self) -> None:
        """Closes the connections."""
        for offsets in (self._source, self._target, self._target_ends):
            offsets.reader.close()
