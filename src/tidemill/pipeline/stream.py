"""Streaming reads: which offsets each micro-batch takes, and what a restart needs.

Spark calls a stream reader differently by version. 4.2 and later: ``latestOffset(start, limit)``, and a
query with Trigger.AvailableNow announces itself. 4.0 and 4.1: ``latestOffset()``, so the position is the
end that ``partitions()`` was called with last; after a restart Spark calls ``partitions(end, end)`` first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemill.model.errors import TidemillError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.columns import requested_columns
from tidemill.pipeline.connect import open_cluster
from tidemill.pipeline.options import SourceOptions
from tidemill.pipeline.planning import (
    Advance,
    ClusterView,
    advance,
    end_position,
    limit_rows,
    plan_ranges,
    split_ranges,
    waiting_rows,
)
from tidemill.pipeline.position import StreamPosition, parse_position, position_of
from tidemill.pipeline.reader import read_range
from tidemill.pipeline.targets import look, report_losses, resolve_bound

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in where PySpark has no such thing."""

    ReadAllAvailable = None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("tidemill.pipeline")


class TidemillStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; lives in a process of the driver for as long as the query runs."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = requested_columns(schema, options.include_headers)
        self._cluster: Cluster | None = None
        self._initial: StreamPosition | None = None
        self._position: StreamPosition | None = None
        self._target: ClusterView | None = None
        self._latest: StreamPosition | None = None
        self._committed: StreamPosition | None = None
        self._batch_since_s = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins; resolved once, since ``latest`` moves."""
        return self._initial_position().to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next micro-batch, never before its start. Raises DataLoss."""
        position = parse_position(start) if start is not None else self._last_position()
        self._note_committed(position)
        view, ahead = self._advance(position)
        self._latest = end_position(ahead.end, view)
        report_losses(ahead.losses, self._options)
        end = self._limited(ahead, limit)
        if end is None:
            return position.to_json()
        if waiting_rows(ahead.begin, end):
            self._batch_since_s = time.monotonic()
        return end_position(end, view).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limits of the options as Spark's own types (4.2 and later); it takes one of them."""
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the whole query: what comes later is for the next one."""
        self._target = look(self._connected(), self._options, strict=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The end of the log as last seen, for the query's progress (4.2 and later)."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; the same again when it is repeated after a restart."""
        first, last = parse_position(start), parse_position(end)
        self._position = last
        if first.offsets() == last.offsets():
            return []
        ranges, losses = plan_ranges(first, last, look(self._connected(), self._options))
        report_losses(losses, self._options)
        return list(
            split_ranges(ranges, self._options.partitions_min, self._options.records_per_partition_max)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._note_committed(parse_position(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = open_cluster(self._options.client)
        return self._cluster

    def _last_position(self) -> StreamPosition:
        return self._initial_position() if self._position is None else self._position

    def _initial_position(self) -> StreamPosition:
        if self._initial is None:
            cluster, options = self._connected(), self._options
            view = look(cluster, options, strict=True)
            begin, losses = resolve_bound(
                cluster, options.starting, view, latest_without_match=options.latest_without_match
            )
            report_losses(losses, options)
            self._initial = position_of(begin, view.topic_ids)
        return self._initial

    def _advance(self, position: StreamPosition) -> tuple[ClusterView, Advance]:
        """Asks the cluster again before it believes a loss: a new leader may be behind for a moment."""
        view = self._target or look(self._connected(), self._options)
        ahead = advance(position, view)
        for _ in range(self._options.retries):
            if not ahead.losses or self._target is not None:
                break
            time.sleep(self._options.retry_interval_s)
            view = look(self._connected(), self._options)
            ahead = advance(position, view)
        return view, ahead

    def _limited(self, ahead: Advance, limit: ReadLimit | None) -> Mapping[TopicPartition, int] | None:
        """The end under the limits; None while fewer than ``minOffsetsPerTrigger`` wait.

        Spark gives back the limit of :meth:`getDefaultReadLimit`, or tells to read all (Trigger.Once).
        """
        if limit is not None and isinstance(limit, ReadAllAvailable):
            return ahead.end
        if self._holds_back(ahead):
            return None
        rows_max = self._options.offsets_per_trigger_max
        return ahead.end if rows_max is None else limit_rows(ahead.begin, ahead.end, rows_max)

    def _holds_back(self, ahead: Advance) -> bool:
        rows_min = self._options.offsets_per_trigger_min
        if rows_min is None or self._target is not None:
            return False
        waited_s = time.monotonic() - self._batch_since_s
        enough = waiting_rows(ahead.begin, ahead.end) >= rows_min
        return not enough and waited_s < self._options.trigger_delay_max_s

    def _note_committed(self, position: StreamPosition) -> None:
        """Shows a finished micro-batch in the consumer group. Spark's checkpoint is what counts."""
        group = self._options.commit_group
        if group is None or position == self._committed:
            return
        try:
            self._connected().commit(group, position.offsets())
            self._committed = position
        except (TidemillError, OSError) as problem:
            log.warning("group %s does not show the stream's offsets: %s", group, problem)
