"""The lag of a streaming query, which Spark's own connector reports in ``sources[].metrics``.

PySpark has no such metrics for Python sources. A listener computes the same numbers from the offsets in each
progress report of a query::

    from tidemill.pipeline import LagListener

    listener = LagListener(on_lag=lambda lag: print(lag.metrics))
    spark.streams.addListener(listener)

Each progress has the end offsets of the micro-batch and, from PySpark 4.2 on, the latest offsets at that
time. Before 4.2 a Python source cannot report the latest offsets, and the listener requests them from the
cluster. With a group, the listener commits the offsets of each finished micro-batch, including the last one
of a query, so that tools for consumer lag show it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidemill.model.errors import ConfigError, TidemillError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import Offsets
from tidemill.pipeline.client_pool import open_cluster
from tidemill.pipeline.options import client_options
from tidemill.pipeline.stream_offsets import BadPosition, StreamPosition, parse_position
from tidemill.wire.list_offset_timestamps import LATEST

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

    from tidemill.pipeline.cluster import Cluster

logger = logging.getLogger("tidemill.pipeline")


class Lag(NamedTuple):
    """The offsets between the end of a micro-batch and the log end offset, by partition."""

    query_id: str
    """The id of the query, which a restart from its checkpoint keeps."""
    query: str | None
    """The query's name."""
    source: int
    """The index of the source in the query, from 0."""
    batch_id: int
    behind: Mapping[TopicPartition, int]

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics of Spark's Kafka connector, as text; empty if the source has no partition."""
        counts = list(self.behind.values())
        if not counts:
            return {}
        return {
            "minOffsetsBehindLatest": str(min(counts)),
            "maxOffsetsBehindLatest": str(max(counts)),
            "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
        }

    @property
    def total(self) -> int:
        """The lag of all partitions."""
        return sum(self.behind.values())


def lag_behind(end: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """Returns the offsets between ``end`` and ``latest`` for each partition of both; at least 0."""
    return {
        partition: max(0, offset - end[partition]) for partition, offset in latest.items() if partition in end
    }


class LagListener(StreamingQueryListener):
    """Computes the lag of each micro-batch, and optionally commits its offsets for a consumer group.

    ``options`` are those of the source. Only ``kafka.*`` is used; it is required with ``group`` and before
    PySpark 4.2. The offsets of each micro-batch are committed for ``group``, which must have no members.
    ``query`` limits the listener to the query of this name. ``on_lag`` is called with each :class:`Lag`, in
    the thread of Spark's listeners. Raises ConfigError for missing or invalid options.

    A failed request or commit, or an error in ``on_lag``, is logged and does not affect the query.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        group: str | None = None,
        query: str | None = None,
        on_lag: Callable[[Lag], object] | None = None,
    ) -> None:
        if options is None and (group is not None or _is_before_4_2()):
            reading = f"read the latest offsets on PySpark {pyspark.__version__}"
            what = reading if group is None else "commit to a group"
            raise ConfigError(
                f"a LagListener needs the brokers to {what}: pass it the options of the source, at least "
                "kafka.bootstrap.servers"
            )
        if group is not None and not group.strip():
            raise ConfigError("group is empty: name the consumer group that shows the offsets")
        self._client = None if options is None else client_options(options)
        self._group = group
        self._query = query
        self._on_lag = on_lag
        self._cluster: Cluster | None = None
        self._lags: dict[tuple[str, int], Lag] = {}

    def latest(self, query_id: str, source: int = 0) -> Lag | None:
        """Returns the lag after the last micro-batch of a query (``str(query.id)``); None without one."""
        return self._lags.get((str(query_id), source))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing: the lag is not known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Computes the lag of each Tidemill or Kafka source of the query."""
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        for number, source in enumerate(progress.sources):
            end = _position(source.endOffset)
            if end is None:
                continue
            try:
                latest = self._latest_offsets(source, end)
                lag = Lag(
                    str(progress.id),
                    progress.name,
                    number,
                    progress.batchId,
                    lag_behind(end.offsets(), latest),
                )
                self._lags[lag.query_id, number] = lag
                self._commit({partition: end.offsets()[partition] for partition in lag.behind})
                if self._on_lag is not None:
                    self._on_lag(lag)
            except Exception as problem:  # noqa: BLE001 - an error in the lag must not end the query
                logger.warning("the lag of query %s is not known: %s", progress.name or progress.id, problem)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Does nothing: no records were read, so the lag is unchanged."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Does nothing: the last lag remains available after the end."""

    def close(self) -> None:
        """Closes the connections; remove the listener from the session before."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _connected(self) -> Cluster:
        if self._client is None:
            raise ConfigError(
                "the progress has no latest offset: pass kafka.bootstrap.servers to the listener"
            )
        if self._cluster is None:
            self._cluster = open_cluster(self._client)
        return self._cluster

    def _latest_offsets(self, source: SourceProgress, end: StreamPosition) -> Offsets:
        """Returns the offsets in the progress, as of planning, or else the current ones of the cluster."""
        reported = _position(source.latestOffset)
        if reported is not None and not self._is_batch_end(source):
            return reported.offsets()
        cluster = self._connected()
        existing = cluster.describe(sorted(end.topics))
        return cluster.list_offsets(
            {
                partition: LATEST
                for partition in end.offsets()
                if partition.topic in existing and partition.partition < existing[partition.topic].partitions
            }
        )

    def _is_batch_end(self, source: SourceProgress) -> bool:
        """Whether Spark reports the end of the micro-batch instead: before 4.2, for a Python source."""
        return _is_before_4_2() and "version" in json.loads(source.latestOffset)

    def _commit(self, offsets: Offsets) -> None:
        if self._group is None or not offsets:
            return
        try:
            self._connected().commit(self._group, offsets)
        except (TidemillError, OSError) as problem:
            logger.warning("cannot commit the stream's offsets for group %s: %s", self._group, problem)


def _is_before_4_2() -> bool:
    return tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2)


def _position(text: str | None) -> StreamPosition | None:
    """Parses the offsets of a progress; returns None for those of another kind of source."""
    if not text:
        return None
    try:
        table = json.loads(text)
        return parse_position(table) if isinstance(table, dict) else None
    except (ValueError, BadPosition):
        return None
