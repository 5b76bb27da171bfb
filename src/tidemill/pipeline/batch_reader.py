"""Batch reads: the driver plans them, executors read them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemill.client.errors import ClientError, DataLoss
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import ClusterView, OffsetRange, Offsets, deleted, split_ranges
from tidemill.pipeline.client_pool import open_for_planning, pooled_cluster
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.offset_ranges import is_gone, read_view, report_losses, resolve_bound
from tidemill.pipeline.options import SourceOptions
from tidemill.pipeline.source_columns import BatchBuilder, requested_columns
from tidemill.pipeline.worker_process import prepare_for_next_task
from tidemill.wire.list_offset_timestamps import EARLIEST

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TidemillReader(DataSourceReader):
    """Reads ranges of offsets, which are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = requested_columns(schema, options.include_headers)

    def partitions(self) -> list[InputPartition]:
        """Returns one task for each partition with records, or more with ``minPartitions``."""
        with open_for_planning(self._options.client) as cluster:
            ranges = plan_batch(cluster, self._options)
        return list(
            split_ranges(ranges, self._options.partitions_min, self._options.records_per_partition_max)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)


def plan_batch(cluster: Cluster, options: SourceOptions) -> list[OffsetRange]:
    """Returns the ranges from the starting to the ending offsets. Raises ConfigError and DataLoss."""
    view = read_view(cluster, options, strict=True)
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
    """Raises ConfigError for a start after its end, which would silently read nothing.

    Compares the offsets of the options: a start after the log end offset is not moved to it first.
    """
    by_time = options.starting.by_time
    for partition in sorted(end):
        if by_time:  # a record that was appended after the lookup may be the first of that time
            first = min(begin[partition], view.latest[partition])
        else:
            first = max(options.starting.partitions.get(partition, EARLIEST), begin[partition])
        # If retention has deleted records beyond the end, that is a loss and not a wrong start.
        if first > end[partition] and end[partition] >= view.earliest[partition]:
            raise ConfigError(
                f"{partition} would start at {first} ({options.starting.text}), after its end at "
                f"{end[partition]} ({options.ending.text}): the partition has {view.earliest[partition]} to "
                f"{view.latest[partition]}; start it earlier, or end it later"
            )


def read_range(
    options: SourceOptions, columns: tuple[tuple[str, bool], ...], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yields the Arrow batches of one task, in the order of the offsets.

    If records were deleted after planning, raises DataLoss, or with ``failOnDataLoss=false`` logs a warning
    and reads the rest.
    """
    try:
        if isinstance(task, OffsetRange):  # Otherwise it is Spark's placeholder for a plan without ranges.
            yield from _read_range(options, columns, task)
    finally:
        prepare_for_next_task()


def _read_range(
    options: SourceOptions, columns: tuple[tuple[str, bool], ...], task: OffsetRange
) -> Iterator[pa.RecordBatch]:
    builder = BatchBuilder(columns, task.topic, task.partition, options.batch_rows)
    start, tries = task.start, 0
    with pooled_cluster(options.client) as cluster:
        # A reused client may have outdated metadata of the topic.
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
    """Returns where to continue: at ``start``, at the first remaining offset, or at the task's end.

    A loss is reported only after retries: one broker's metadata may be behind another's.
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
    """Returns the partition's earliest offset; None if the partition was deleted meanwhile."""
    try:
        return cluster.list_offsets({partition: EARLIEST})[partition]
    except ClientError as problem:
        if is_gone(problem):
            return None
        raise
