"""How far a streaming query is behind its topics: what Spark's own connector tells in ``sources[].metrics``.

PySpark has no such metrics for Python sources. A listener computes the same figures from the offsets in each
progress of a query::

    from tidemill.pipeline import LagListener

    listener = LagListener(on_lag=lambda lag: print(lag.metrics))
    spark.streams.addListener(listener)

Each progress has the offsets that the micro-batch ended at and, from PySpark 4.2 on, the latest offsets at
that time. Before 4.2 a Python source cannot tell these, and the listener asks the cluster for them. With a
group it commits the offsets of each finished micro-batch, the last one of a query included, so that tools for
the lag of groups show it.
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
from tidemill.pipeline.connect import open_cluster
from tidemill.pipeline.options import LATEST, client_options
from tidemill.pipeline.planning import Offsets
from tidemill.pipeline.position import BadPosition, StreamPosition, parse_position

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

    from tidemill.pipeline.cluster import Cluster

log = logging.getLogger("tidemill.pipeline")


class Lag(NamedTuple):
    """Offsets between the end of a micro-batch and the end of the log, by partition."""

    query_id: str
    """Of the query; it stays the same after a restart from its checkpoint."""
    query: str | None
    """The query's name."""
    source: int
    """Which of the query's sources, from 0."""
    batch_id: int
    behind: Mapping[TopicPartition, int]

    @property
    def metrics(self) -> dict[str, str]:
        """Names and texts of Spark's Kafka connector; empty when the source has no partition."""
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
        """Offsets behind in all partitions."""
        return sum(self.behind.values())


def lag_behind(end: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """How many offsets lie between ``end`` and ``latest``, for each partition of both; never below 0."""
    return {
        partition: max(0, offset - end[partition]) for partition, offset in latest.items() if partition in end
    }


class LagListener(StreamingQueryListener):
    """Computes the lag of each micro-batch, and shows the position in a consumer group if it has one.

    ``options`` are those of the source; only ``kafka.*`` is looked at, and it is needed for ``group`` and
    before PySpark 4.2. ``group`` gets the offsets of each micro-batch committed; it must have no members.
    ``query`` limits the listener to the query of this name. ``on_lag`` is called with each :class:`Lag`, in
    the thread of Spark's listeners. Raises ConfigError for options that are missing or of no use.

    A failure to ask, to commit or in ``on_lag`` is logged and does not touch the query.
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
            what = "commit to a group" if group is not None else f"ask for the latest offsets on {_version()}"
            raise ConfigError(
                f"a LagListener needs the brokers to {what}: give it the options of the source, at least "
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
        """The lag after the last micro-batch of a query (``str(query.id)``); None before its first one."""
        return self._lags.get((str(query_id), source))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Computes the lag of each source whose offsets are those of topics."""
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
            except Exception as problem:  # noqa: BLE001 - the query goes on, whatever is wrong with its figures
                log.warning("the lag of query %s is not known: %s", progress.name or progress.id, problem)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing was read: the lag is as it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """The last lag stays, for whoever asks after the end."""

    def close(self) -> None:
        """Gives the connections back; remove the listener from the session before."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _connected(self) -> Cluster:
        if self._client is None:
            raise ConfigError("the progress has no latest offset: give the listener kafka.bootstrap.servers")
        if self._cluster is None:
            self._cluster = open_cluster(self._client)
        return self._cluster

    def _latest_offsets(self, source: SourceProgress, end: StreamPosition) -> Offsets:
        """From the progress, as of the plan of the micro-batch, or else from the cluster, as of now."""
        told = _position(source.latestOffset)
        if told is not None and not self._is_end_again(source):
            return told.offsets()
        cluster = self._connected()
        there = cluster.describe(sorted(end.topics))
        return cluster.list_offsets(
            {
                partition: LATEST
                for partition in end.offsets()
                if partition.topic in there and partition.partition < there[partition.topic].partitions
            }
        )

    def _is_end_again(self, source: SourceProgress) -> bool:
        """Whether Spark shows the end of the micro-batch instead: before 4.2, for a Python source."""
        return _is_before_4_2() and "version" in json.loads(source.latestOffset)

    def _commit(self, offsets: Offsets) -> None:
        if self._group is None or not offsets:
            return
        try:
            self._connected().commit(self._group, offsets)
        except (TidemillError, OSError) as problem:
            log.warning("group %s does not show the stream's offsets: %s", self._group, problem)


def _is_before_4_2() -> bool:
    return tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2)


def _version() -> str:
    return f"PySpark {pyspark.__version__}"


def _position(text: str | None) -> StreamPosition | None:
    """The offsets of a progress; None for those of another kind of source."""
    if not text:
        return None
    try:
        table = json.loads(text)
        return parse_position(table) if isinstance(table, dict) else None
    except (ValueError, BadPosition):
        return None
