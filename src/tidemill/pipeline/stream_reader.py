"""Streaming reads: plans the offsets of each micro-batch, and restarts from a checkpoint.

The calls to a stream reader depend on Spark's version. 4.2 and later: ``latestOffset(start, limit)``, and a
query with Trigger.AvailableNow announces itself. 4.0 and 4.1: ``latestOffset()``, so the position is the
last end that was passed to ``partitions()``; after a restart Spark calls ``partitions(end, end)`` first.

With the default trigger Spark requests the latest offset every 10 ms. An idle reader waits between its
requests to the cluster, twice as long each time, up to ``IDLE_PAUSE_S_MAX``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemill.model.errors import TidemillError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.available_now import SupportsTriggerAvailableNow
from tidemill.pipeline.batch_planning import (
    Advance,
    ClusterView,
    advance,
    end_position,
    limit_rows,
    plan_ranges,
    split_ranges,
    waiting_rows,
    with_begin,
)
from tidemill.pipeline.batch_reader import read_range
from tidemill.pipeline.client_pool import open_for_planning
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.offset_ranges import read_view, report_losses, resolve_bound
from tidemill.pipeline.options import SourceOptions
from tidemill.pipeline.source_columns import requested_columns
from tidemill.pipeline.stream_offsets import StreamPosition, parse_position, position_of

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
    )
except ImportError:  # before 4.2
    ReadAllAvailable = None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("tidemill.pipeline")

IDLE_PAUSE_S_MIN = 0.01
IDLE_PAUSE_S_MAX = 0.1
"""Bounds of the pause between two requests without new records; it doubles each time."""
COMMIT_S = 5.0
"""How long a micro-batch waits for the commit of its offsets for the consumer group."""
COMMIT_AGAIN_S = 10.0
"""Pause after a failed commit before an idle reader commits the same position again."""


class TidemillStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; runs in a process of the driver for as long as the query runs."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = requested_columns(schema, options.include_headers)
        self._cluster: Cluster | None = None
        self._initial: StreamPosition | None = None
        self._position: StreamPosition | None = None
        self._target: ClusterView | None = None
        self._latest: StreamPosition | None = None
        self._committed: StreamPosition | None = None
        self._commit_failed: StreamPosition | None = None
        self._commit_again_s = -math.inf
        self._absent: frozenset[str] = frozenset()
        self._reported: frozenset[str] = frozenset()
        self._was_called = False
        self._batch_since_s = -math.inf
        self._last_read_s = -math.inf
        self._idle_pause_s = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the start of a query without a checkpoint; resolved once, since ``latest`` moves."""
        return self._initial_position().to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Returns the end of the next micro-batch, never before its start. Raises DataLoss."""
        if start is None and not self._was_called:
            self._warn_of_limits()
        self._was_called = True
        position = parse_position(start) if start is not None else self._last_position()
        if position != self._commit_failed or time.monotonic() >= self._commit_again_s:
            self._commit_position(position)
        self._pause_if_idle()
        view, ahead = self._advance(position)
        self._absent = frozenset(partition.topic for partition in ahead.absent)
        self._latest = end_position(ahead.end, ahead.absent, view, position)
        self._report_new_losses(ahead.losses)
        end = self._limited(ahead, limit)
        if end is not None and waiting_rows(ahead.begin, end):
            self._batch_since_s = time.monotonic()
            self._idle_pause_s = 0.0
        else:
            self._idle_pause_s = min(max(2 * self._idle_pause_s, IDLE_PAUSE_S_MIN), IDLE_PAUSE_S_MAX)
        if end is None:
            return position.to_json()
        planned = end_position(end, ahead.absent, view, position)
        if self._initial is not None and position.offsets() == self._initial.offsets():
            # Spark does not store it, and resolves it again if it repeats the first batch.
            planned = with_begin(planned, StreamPosition({}), ahead.begin)
        return planned.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the limit of the options as Spark's type (4.2 and later), which accepts only one."""
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the query: later records are for the next one.

        A topic that does not exist is a loss if the position has it. A query without a position reports the
        missing topic in ``initialOffset``.
        """
        self._target = self._read_view()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Returns the last known log end offsets, for the query's progress (4.2 and later)."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns the tasks of a micro-batch; the same ones when it is repeated after a restart."""
        first, last = parse_position(start), parse_position(end)
        self._position = last
        if first == last:  # compares the ids too: a recreated topic may have equal offsets
            return []
        ranges, losses = plan_ranges(first, last, self._read_view())
        for _ in range(self._options.retries):
            if not losses:
                break
            time.sleep(self._options.retry_interval_s)
            ranges, losses = plan_ranges(first, last, self._read_view())
        report_losses(losses, self._options)
        return list(
            split_ranges(ranges, self._options.partitions_min, self._options.records_per_partition_max)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_position(parse_position(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = open_for_planning(self._options.client)
        return self._cluster

    def _last_position(self) -> StreamPosition:
        return self._initial_position() if self._position is None else self._position

    def _initial_position(self) -> StreamPosition:
        if self._initial is None:
            cluster, options = self._connected(), self._options
            view = read_view(cluster, options, strict=True)
            begin, losses = resolve_bound(
                cluster, options.starting, view, latest_without_match=options.latest_without_match
            )
            report_losses(losses, options)
            self._initial = position_of(begin, view.topic_ids)
        return self._initial

    def _advance(self, position: StreamPosition) -> tuple[ClusterView, Advance]:
        """Retries before it reports a loss: a new leader may be behind for a moment."""
        view = self._target or self._read_view()
        ahead = advance(position, view)
        for _ in range(self._options.retries):
            if self._reported.issuperset(ahead.losses):
                break
            time.sleep(self._options.retry_interval_s)
            view = self._read_view()
            if self._target is not None:
                self._target = view
            ahead = advance(position, view)
        return view, ahead

    def _read_view(self) -> ClusterView:
        view = read_view(self._connected(), self._options)
        self._last_read_s = time.monotonic()
        return view

    def _pause_if_idle(self) -> None:
        """Pauses before the next request to the cluster: Spark calls again at once if nothing is new."""
        left_s = self._last_read_s + self._idle_pause_s - time.monotonic()
        if left_s > 0 and self._target is None:
            time.sleep(left_s)

    def _report_new_losses(self, losses: Sequence[str]) -> None:
        """Reports each loss once: a topic that stays absent is a loss in each micro-batch."""
        new = [loss for loss in losses if loss not in self._reported]
        self._reported = frozenset(losses)
        report_losses(new, self._options)

    def _warn_of_limits(self) -> None:
        """Warns that PySpark before 4.2 passes neither limits nor the trigger to a source.

        The first micro-batch of a start is never delayed, so ``minOffsetsPerTrigger`` needs no warning.
        """
        rows_max = self._options.offsets_per_trigger_max
        if rows_max is not None:
            logger.warning(
                "maxOffsetsPerTrigger=%d with PySpark %s: Trigger.AvailableNow ends after one micro-batch of "
                "this size, and Trigger.Once keeps the limit, since this PySpark does not pass its trigger "
                "to a source. For these triggers omit the option, start the query again until it reads "
                "nothing, or use PySpark 4.2 or later",
                rows_max,
                pyspark.__version__,
            )

    def _limited(self, ahead: Advance, limit: ReadLimit | None) -> Mapping[TopicPartition, int] | None:
        """Applies the limits to the end; returns None while fewer than ``minOffsetsPerTrigger`` wait.

        Spark passes the limit of :meth:`getDefaultReadLimit`, or the limit to read all (Trigger.Once).
        """
        if limit is not None and isinstance(limit, ReadAllAvailable):
            return ahead.end
        if self._is_delayed(ahead):
            return None
        rows_max = self._options.offsets_per_trigger_max
        return ahead.end if rows_max is None else limit_rows(ahead.begin, ahead.end, rows_max)

    def _is_delayed(self, ahead: Advance) -> bool:
        rows_min = self._options.offsets_per_trigger_min
        if rows_min is None or self._target is not None:
            return False
        waited_s = time.monotonic() - self._batch_since_s
        enough = waiting_rows(ahead.begin, ahead.end) >= rows_min
        return not enough and waited_s < self._options.trigger_delay_max_s

    def _commit_position(self, position: StreamPosition) -> None:
        """Commits a finished micro-batch for the consumer group. Only Spark's checkpoint is authoritative."""
        group = self._options.commit_group
        if group is None or position == self._committed:
            return
        # No offset can be committed for a topic that does not exist.
        offsets = {
            partition: offset
            for partition, offset in position.offsets().items()
            if partition.topic not in self._absent
        }
        try:
            self._connected().commit(group, offsets, COMMIT_S)
            self._committed = position
        except (TidemillError, OSError) as problem:
            logger.warning("cannot commit the stream's offsets for group %s: %s", group, problem)
            self._commit_failed = position
            self._commit_again_s = time.monotonic() + COMMIT_AGAIN_S
