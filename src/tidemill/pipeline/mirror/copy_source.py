"""The data source ``tidemill-mirror``: its tasks copy batches, and its rows are what they have copied.

The copy happens where Spark reads, in executors, so that no record passes through the JVM. A micro-batch that
Spark repeats copies what the target does not have yet.

Cut links end neither the query nor a task: the driver tries again while it plans, and a task that makes no
progress ends with a row that has the reason, after which the next micro-batch continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError, DataLoss, TopicRecreated
from tidemill.client.mirror_appender import MirrorAppender
from tidemill.client.range_reader import RangeReader
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.available_now import SupportsTriggerAvailableNow
from tidemill.pipeline.batch_planning import ClusterView, Offsets
from tidemill.pipeline.client_pool import ClientPool, OpenedOnce, pooled_cluster
from tidemill.pipeline.mirror.cluster_outages import Outages
from tidemill.pipeline.mirror.copy_options import CopyOptions, parse_copy_options
from tidemill.pipeline.mirror.copy_planning import (
    CopyTask,
    MirrorPosition,
    MirrorView,
    copied_beyond_source,
    log_starts_behind,
    longer_than_source,
    next_position,
    parse_mirror_position,
    ranges_behind,
    replaced_topics,
    tasks_of,
)
from tidemill.pipeline.mirror.range_copy import CopyRange, RangeCopy
from tidemill.pipeline.mirror.reachable_partition_offsets import ReachableOffsets
from tidemill.pipeline.mirror.source_truncation import ShorterSources
from tidemill.pipeline.mirror.topic_sync import TopicSync
from tidemill.pipeline.stream_offsets import StreamPosition
from tidemill.pipeline.stream_reader import IDLE_PAUSE_S_MAX, IDLE_PAUSE_S_MIN
from tidemill.pipeline.worker_process import prepare_for_next_task
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("tidemill.pipeline")

FORMAT = "tidemill-mirror"
SCHEMA = (
    "topic string, target string, partition int, end bigint, records bigint, bytes bigint, "
    "timestamp_ms bigint, code int, problem string"
)
"""The row of a copied range: the log end of the target, and what was appended."""
API_TIMEOUT_MS = "20000"
"""How long a call to a cluster is repeated; the mirror then tries again from the start."""
OUTAGE_PAUSE_S = 1.0
"""Pause after a failed request while the driver plans."""


def _open_appender(client: Mapping[str, str]) -> MirrorAppender:
    return MirrorAppender(None, client)


pooled_appender = ClientPool(_open_appender).borrow


class MirrorDataSource(DataSource):
    """Registered by the job; its options are those of :mod:`tidemill.pipeline.mirror.copy_options`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> MirrorStreamReader:  # noqa: N802 - Spark's name
        return MirrorStreamReader(parse_copy_options(self.options))


class MirrorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in a process of the driver, and copies in tasks."""

    def __init__(self, options: CopyOptions) -> None:
        self._options = options
        self._clusters = OpenedOnce(partial(MirroredClusters, options))
        self._position = MirrorPosition(0, StreamPosition({}))
        self._target: Offsets | None = None
        self._last_read_s = 0.0
        self._idle_pause_s = 0.0
        self._outages = Outages()
        self._planned_from: Offsets | None = None
        """The log ends of the target before the last micro-batch; None if it had nothing to copy."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the start: the log ends of the target say where the copy continues."""
        return MirrorPosition(0, StreamPosition({})).to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Returns the end of the next micro-batch. Raises DataLoss for a source that has lost records."""
        position = self._position if start is None else parse_mirror_position(start)
        self._pause_if_idle()
        try:
            view = self._clusters.get().view(position.source)
            self._outages.end()
        except (ClientError, OSError) as problem:
            self._outages.wait(problem)
            return position.to_json()
        finally:
            self._last_read_s = time.monotonic()
        ends = self._ends(view)
        end = next_position(position, view, ends)
        if end is position:
            self._idle_pause_s = min(max(2 * self._idle_pause_s, IDLE_PAUSE_S_MIN), IDLE_PAUSE_S_MAX)
            self._planned_from = None
        else:
            # The micro-batch before has copied nothing: the next one is not planned at once.
            is_stuck = self._planned_from == view.target.latest
            self._idle_pause_s = OUTAGE_PAUSE_S if is_stuck else 0.0
            self._planned_from = view.target.latest
        return end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the query: later records are for the next one.

        Waits until each source that is shorter than its mirror has reported its end, or counts as shorter.
        """
        view = self._clusters.get().view(self._position.source)
        while copied_beyond_source(view):
            time.sleep(OUTAGE_PAUSE_S)
            view = self._clusters.get().view(self._position.source)
        self._target = view.source.latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks of a micro-batch: what the target does not have yet."""
        self._position = parse_mirror_position(end)
        if start == end:
            return []
        try:
            view = self._clusters.get().view(self._position.source)
        except (ClientError, OSError) as problem:
            self._outages.wait(problem)
            return []
        planned = self._position.source.offsets()
        ends = {item: planned[item] for item in view.source.latest if item in planned}
        ranges = ranges_behind(view, ends)
        sizes = {
            span: span.end - view.target.latest[TopicPartition(span.topic, span.partition)] for span in ranges
        }
        return list(tasks_of(ranges, sizes, self._options.tasks_max))

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Copies the ranges of a task, and yields a row for each."""
        try:
            if isinstance(partition, CopyTask):
                for span in partition.ranges:
                    yield _copied_row(self._options, span)
        finally:
            prepare_for_next_task()

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the log ends of the target are the position."""

    def stop(self) -> None:
        self._clusters.close()

    def _ends(self, view: MirrorView) -> Offsets:
        if self._target is None:
            return view.source.latest
        fixed = self._target
        return {item: fixed[item] for item in view.source.latest if item in fixed}

    def _pause_if_idle(self) -> None:
        left_s = self._last_read_s + self._idle_pause_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


def _copied_row(options: CopyOptions, span: CopyRange) -> tuple[Any, ...]:
    with (
        pooled_cluster(every_record(options.source)) as source,
        pooled_cluster(every_record(options.target)) as mirror,
        pooled_appender(options.target) as target,
    ):
        copied = RangeCopy(source, mirror, target, span).run()
    return (
        span.topic,
        span.target_topic,
        span.partition,
        copied.end,
        copied.records,
        copied.bytes,
        copied.timestamp_ms,
        copied.code,
        copied.problem,
    )


def every_record(client: Mapping[str, str]) -> dict[str, str]:
    """Returns client settings to read a log up to its high watermark, with open and aborted transactions."""
    return {"default.api.timeout.ms": API_TIMEOUT_MS, **client, "isolation.level": "read_uncommitted"}


class MirroredClusters:
    """The clients of both clusters that planning uses."""

    def __init__(self, options: CopyOptions) -> None:
        self._options = options
        self._source = ReachableOffsets(RangeReader(None, every_record(options.source)))
        self._target = ReachableOffsets(RangeReader(None, every_record(options.target)))
        self._shorter = ShorterSources(self._source.reader)
        self._source_admin = Admin(None, options.source)
        self._target_admin = Admin(None, options.target)
        self._topics = TopicSync(
            self._source_admin,
            self._target_admin,
            options.wanted,
            options.names,
            replication_factor=options.replication_factor,
        )
        self._names: dict[str, str] = {}
        self._compacted: set[str] = set()
        self._next_sync_s = 0.0

    def view(self, known: StreamPosition) -> MirrorView:
        """Reads both clusters, after it has made the target's topics and log starts follow the source's.

        Raises TopicRecreated, and DataLoss if the source has lost records that the target has.
        """
        if time.monotonic() >= self._next_sync_s:
            self._sync_topics()
        view = self._read()
        if problems := replaced_topics(known, view):
            raise TopicRecreated("; ".join(problems))
        if self._shorter.lost(copied_beyond_source(view)):
            # A mirror that is promoted is longer, too.
            self._sync_topics()
            view = self._read()
            if lost := self._shorter.lost(copied_beyond_source(view)):
                raise DataLoss("; ".join(longer_than_source(view, lost)))
        if behind := log_starts_behind(view):
            self._move_log_starts(behind)
            view = self._read()
        return view

    def _sync_topics(self) -> None:
        changes = self._topics.run()
        self._names, self._compacted = changes.mirrored, changes.compacted
        self._next_sync_s = time.monotonic() + self._options.topics_interval_s

    def _move_log_starts(self, starts: Offsets) -> None:
        try:
            self._target_admin.delete_records(starts)
        except ClientError as problem:
            # Records above the high watermark cannot be deleted yet, and a mirror that is promoted is left
            # alone: the next plan tries again, or omits the topic.
            if problem.code not in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.POLICY_VIOLATION):
                raise
            logger.info("log starts of the source are not followed yet: %s", problem)

    def _read(self) -> MirrorView:
        """Reads the partitions that have leaders in both clusters.

        The target's ends are read first: the source only grows between the requests.
        """
        described = self._source.describe(sorted(self._names))
        names = {topic: self._names[topic] for topic in described}
        mirrors = self._target.describe(sorted(names.values()))
        items = {
            TopicPartition(names[topic], number): TopicPartition(topic, number)
            for topic, seen in described.items()
            if names[topic] in mirrors
            for number in range(min(seen.partitions, mirrors[names[topic]].partitions))
        }
        starts = self._target.list(items, EARLIEST)
        ends = self._target.list(starts, LATEST)
        target = ClusterView({}, _renamed(starts, items), _renamed(ends, items))
        earliest = self._source.list(target.latest, EARLIEST)
        latest = self._source.list(earliest, LATEST)
        topic_ids = {topic: seen.topic_id for topic, seen in described.items()}
        return MirrorView(names, self._compacted, ClusterView(topic_ids, earliest, latest), target)

    def close(self) -> None:
        """Closes the connections."""
        for client in (
            self._source.reader,
            self._target.reader,
            self._source_admin,
            self._target_admin,
        ):
            client.close()


def _renamed(offsets: Offsets, items: Mapping[TopicPartition, TopicPartition]) -> dict[TopicPartition, int]:
    return {items[item]: offset for item, offset in offsets.items()}
