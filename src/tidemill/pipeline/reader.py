"""Batch reads: planned on the driver, read by executors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemill.client.errors import ClientError, DataLoss
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.columns import BatchBuilder, requested_columns
from tidemill.pipeline.connect import borrowed, open_cluster
from tidemill.pipeline.options import EARLIEST, SourceOptions
from tidemill.pipeline.planning import ClusterView, OffsetRange, Offsets, deleted, split_ranges
from tidemill.pipeline.targets import is_gone, look, report_losses, resolve_bound
from tidemill.pipeline.worker_process import prepare_for_next_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("tidemill.pipeline")


class TidemillReader(DataSourceReader):
    """Reads ranges of offsets that are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = requested_columns(schema, options.include_headers)

    def partitions(self) -> list[InputPartition]:
        """One task for each partition with records, more where ``minPartitions`` asks for them."""
        with open_cluster(self._options.client) as cluster:
            ranges = plan_batch(cluster, self._options)
        pieces = split_ranges(ranges, self._options.partitions_min, self._options.records_per_partition_max)
        return list(pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)


def plan_batch(cluster: Cluster, options: SourceOptions) -> list[OffsetRange]:
    """The ranges from the starting to the ending offsets. Raises ConfigError and DataLoss."""
    view = look(cluster, options, strict=True)
    without_match = options.latest_without_match
    begin, start_losses = resolve_bound(cluster, options.starting, view, latest_without_match=without_match)
    end, end_losses = resolve_bound(cluster, options.ending, view, latest_without_match=without_match)
    _refuse_start_after_end(options, begin, end, view)
    report_losses([*start_losses, *end_losses], options)
    return [
        OffsetRange(
            partition.topic,
            partition.partition,
            begin[partition],
            end[partition],
            view.topic_ids[partition.topic],
        )
        for partition in sorted(end)
        if begin[partition] < end[partition]
    ]


def _refuse_start_after_end(options: SourceOptions, begin: Offsets, end: Offsets, view: ClusterView) -> None:
    """A start after its end is a mistake in the options, and would read nothing in silence.

    Offsets are compared as the options give them: a start behind the log's end is not moved to it before.
    """
    by_time = options.starting.by_time
    for partition in sorted(end):
        if by_time:  # a record that came after the look at the log may be the first one of that time
            first = min(begin[partition], view.latest[partition])
        else:
            first = max(options.starting.partitions.get(partition, EARLIEST), begin[partition])
        # Where retention has passed the end, the start is no mistake: that is a loss.
        if first > end[partition] and end[partition] >= view.earliest[partition]:
            raise ConfigError(
                f"{partition} would start at {first} ({options.starting.text}), after its end at "
                f"{end[partition]} ({options.ending.text}): the partition has {view.earliest[partition]} to "
                f"{view.latest[partition]}; start it earlier, or end it later"
            )


def read_range(
    options: SourceOptions, columns: tuple[tuple[str, bool], ...], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The Arrow batches of one task, in the order of the offsets.

    Where records were deleted after the planning: DataLoss, or with ``failOnDataLoss=false`` a warning, and
    the rest.
    """
    try:
        if isinstance(task, OffsetRange):  # Else it is Spark's stand-in for a plan without any range.
            yield from _read_range(options, columns, task)
    finally:
        prepare_for_next_task()


def _read_range(
    options: SourceOptions, columns: tuple[tuple[str, bool], ...], task: OffsetRange
) -> Iterator[pa.RecordBatch]:
    builder = BatchBuilder(columns, task.topic, task.partition, options.batch_rows)
    start, tries = task.start, 0
    with borrowed(options.client) as cluster:
        # A client that was lent out before knows the topic as it was then.
        cluster.describe([task.topic])
        while start < task.end:
            try:
                for batch in _fetch(cluster, options, task, start, "headers" in builder.names):
                    if batch.num_rows:
                        start, tries = batch.column("offset")[-1].as_py() + 1, 0
                        yield builder.build(batch)
                return
            except ClientError as problem:
                if not isinstance(problem, DataLoss) and not is_gone(problem):
                    raise
                tries += 1
                start = _after_loss(cluster, options, task, start, problem, tries)


def _fetch(
    cluster: Cluster, options: SourceOptions, task: OffsetRange, start: int, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    return cluster.read(
        task.topic,
        task.partition,
        start,
        task.end,
        topic_id=task.topic_id,
        include_headers=include_headers,
        rows_max=options.batch_rows,
        bytes_max=options.batch_bytes,
    )


def _after_loss(
    cluster: Cluster, options: SourceOptions, task: OffsetRange, start: int, problem: ClientError, tries: int
) -> int:
    """Where to go on: where it was, at the first offset that is left, or nowhere (the task's end).

    A loss is believed when it is seen again: one broker's metadata may be behind another's.
    """
    partition = TopicPartition(task.topic, task.partition)
    view = cluster.describe([task.topic]).get(task.topic)
    same = view is not None and (task.topic_id is None or view.topic_id in (None, task.topic_id))
    if view is not None and same and task.partition < view.partitions:
        earliest = _earliest(cluster, partition)
        if earliest is not None and earliest > start:
            report_losses([deleted(partition, start, min(earliest, task.end), earliest)], options)
            return min(earliest, task.end)
    if tries <= options.retries:
        time.sleep(options.retry_interval_s)
        return start
    report_losses([str(problem)], options)
    return task.end


def _earliest(cluster: Cluster, partition: TopicPartition) -> int | None:
    """The partition's first offset; None when it was deleted meanwhile."""
    try:
        return cluster.list_offsets({partition: EARLIEST})[partition]
    except ClientError as problem:
        if is_gone(problem):
            return None
        raise
