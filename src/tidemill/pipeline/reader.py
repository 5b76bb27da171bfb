"""Batch reads: planned on the driver, read by executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemill.client.errors import DataLoss, TopicRecreated
from tidemill.model.types import TopicPartition
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.columns import BatchBuilder, requested_columns
from tidemill.pipeline.connect import borrowed, open_cluster
from tidemill.pipeline.options import EARLIEST, SourceOptions
from tidemill.pipeline.planning import OffsetRange, deleted, split_ranges
from tidemill.pipeline.targets import look, report_losses, resolve_bound

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


def read_range(
    options: SourceOptions, columns: tuple[tuple[str, bool], ...], task: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The Arrow batches of one task, in the order of the offsets.

    Where records were deleted after the planning: DataLoss, or with ``failOnDataLoss=false`` a warning, and
    the rest.
    """
    if not isinstance(task, OffsetRange):
        return  # Spark's stand-in for a plan without any range
    builder = BatchBuilder(columns, task.topic, task.partition, options.batch_rows)
    start = task.start
    with borrowed(options.client) as cluster:
        while start < task.end:
            try:
                for batch in _fetch(cluster, options, task, start, "headers" in builder.names):
                    if batch.num_rows:
                        start = batch.column("offset")[-1].as_py() + 1
                        yield builder.build(batch)
                return
            except DataLoss as problem:
                start = _after_loss(cluster, options, task, start, problem)


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
    cluster: Cluster, options: SourceOptions, task: OffsetRange, start: int, problem: DataLoss
) -> int:
    """Where to go on: at the first offset that is still there, or nowhere (the task's end)."""
    if isinstance(problem, TopicRecreated):
        report_losses([str(problem)], options)
        return task.end
    partition = TopicPartition(task.topic, task.partition)
    earliest = cluster.list_offsets({partition: EARLIEST}).get(partition, task.end)
    if earliest <= start:  # not a deletion: the log ends before the planned end
        report_losses([str(problem)], options)
        return task.end
    report_losses([deleted(partition, start, min(earliest, task.end), earliest)], options)
    return min(earliest, task.end)
