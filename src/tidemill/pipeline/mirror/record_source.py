"""The data source ``tidemill-mirror-records``: the committed records of a source that are to be mirrored.

Its rows are those of the format ``tidemill``. It differs in its plans (:mod:`.record_planning`): a topic is
read once it exists in the target, with enough partitions, and a cluster that cannot be reached ends no query
that waits for records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition
from tidemill.pipeline.available_now import SupportsTriggerAvailableNow
from tidemill.pipeline.batch_planning import (
    Advance,
    ClusterView,
    Offsets,
    end_position,
    limit_rows,
    waiting_rows,
    with_begin,
)
from tidemill.pipeline.batch_reader import read_range
from tidemill.pipeline.client_pool import OpenedOnce
from tidemill.pipeline.mirror.cluster_outages import Outages
from tidemill.pipeline.mirror.copy_options import CopyOptions, parse_copy_options
from tidemill.pipeline.mirror.copy_source import API_TIMEOUT_MS
from tidemill.pipeline.mirror.reachable_partition_offsets import ReachableOffsets
from tidemill.pipeline.mirror.record_planning import (
    MirrorDataLoss,
    changes_of,
    ends_before,
    loss_text,
    moved_partitions,
    moved_topics,
    plan_advance,
    plan_batch,
    waiting_for_target,
    without,
)
from tidemill.pipeline.mirror.source_truncation import ShorterSources
from tidemill.pipeline.mirror.topic_sync import TopicSync
from tidemill.pipeline.options import SourceOptions, parse_source_options
from tidemill.pipeline.source_columns import requested_columns, schema_text
from tidemill.pipeline.stream_offsets import StreamPosition, parse_position, position_of
from tidemill.pipeline.stream_reader import IDLE_PAUSE_S_MAX, IDLE_PAUSE_S_MIN
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("tidemill.pipeline")

FORMAT: Final = "tidemill-mirror-records"
OFFSETS_MAX: Final = 1_000_000
"""Offsets of a micro-batch: its transactions are open while it is written, and it is repeated as a whole."""
LOSS_TRIES: Final = 5
"""How often the source is asked before records count as lost: a broker may not know a new topic yet."""
LOSS_PAUSE_S: Final = 1.0
PLAN_S: Final = 60.0
"""How long a micro-batch whose end is fixed waits for the source before the query fails."""


class RecordOptions(NamedTuple):
    """The settings of a mirror with new offsets."""

    copy: CopyOptions
    offsets_max: int = OFFSETS_MAX
    fail_on_data_loss: bool = True
    follows_configs: bool = True
    """Whether the settings of topics follow this source's: of sources that are merged, only the first's."""

    def to_options(self) -> dict[str, str]:
        """Returns the options of the data source."""
        return {
            **self.copy.to_options(),
            "offsetsMax": str(self.offsets_max),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "followsConfigs": str(self.follows_configs).lower(),
        }


def parse_record_options(options: Mapping[str, str]) -> RecordOptions:
    """Parses :meth:`RecordOptions.to_options`."""
    given = {name.lower(): value for name, value in options.items()}
    return RecordOptions(
        parse_copy_options(options),
        int(given.get("offsetsmax", OFFSETS_MAX)),
        given.get("failondataloss", "true") == "true",
        given.get("followsconfigs", "true") == "true",
    )


def committed_only(client: Mapping[str, str]) -> dict[str, str]:
    """Returns client settings to read what consumers of committed records get."""
    return {"default.api.timeout.ms": API_TIMEOUT_MS, **client, "isolation.level": "read_committed"}


def _reading(options: RecordOptions) -> SourceOptions:
    """Returns the options with which tasks read their ranges."""
    return parse_source_options(
        {
            **{f"kafka.{key}": value for key, value in committed_only(options.copy.source).items()},
            "subscribePattern": ".*",
            "includeHeaders": "true",
            "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        },
        streaming=True,
    )


class RecordDataSource(DataSource):
    """Registered by the job; its options are those of :class:`RecordOptions`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_text(include_headers=True)

    def streamReader(self, schema: StructType) -> RecordStreamReader:  # noqa: N802 - Spark's name
        return RecordStreamReader(parse_record_options(self.options), schema)


class RecordStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in a process of the driver, and reads in tasks."""

    def __init__(self, options: RecordOptions, schema: StructType) -> None:
        self._options = options
        self._reading = _reading(options)
        self._columns = requested_columns(schema, include_headers=True)
        self._clusters = OpenedOnce(partial(RecordClusters, options))
        self._position = StreamPosition({})
        self._target: Offsets | None = None
        self._noted: frozenset[str] = frozenset()
        self._last_read_s = 0.0
        self._idle_pause_s = 0.0
        self._outages = Outages()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns a position without topics: each one begins at its earliest record."""
        return position_of({}, {}).to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Returns the end of the next micro-batch. Raises MirrorDataLoss."""
        position = self._position if start is None else parse_position(start)
        self._pause_if_idle()
        try:
            view, ahead = self._advance(position)
        except (ClientError, OSError) as problem:
            self._outages.wait(problem)
            return position.to_json()
        finally:
            self._last_read_s = time.monotonic()
        self._outages.end()
        self._note(changes_of(position, view))
        end = limit_rows(ahead.begin, self._limited(ahead), self._options.offsets_max)
        # A source that has become shorter moves the position back, so that its new records are not skipped.
        if not waiting_rows(ahead.begin, end) and not ahead.losses:
            self._idle_pause_s = min(max(2 * self._idle_pause_s, IDLE_PAUSE_S_MIN), IDLE_PAUSE_S_MAX)
            return position.to_json()
        self._idle_pause_s = 0.0
        return with_begin(end_position(end, ahead.absent, view, position), position, ahead.begin).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end of the query: later records are for the next one."""
        self._target = self._clusters.get().view().latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Returns a task for each partition: its records stay in their order. Raises MirrorDataLoss."""
        first, last = parse_position(start), parse_position(end)
        self._position = last
        if first == last:
            return []
        planned = moved_topics(first, last)
        moved = moved_partitions(first, last)
        view = self._view_of_plan(planned, moved)
        ranges, losses = plan_batch(first, last, view)
        for _ in range(LOSS_TRIES):
            # A broker that does not know a new topic yet must not pass for its deletion.
            if not losses and planned <= view.topic_ids.keys():
                break
            time.sleep(LOSS_PAUSE_S)
            view = self._view_of_plan(planned, moved)
            ranges, losses = plan_batch(first, last, view)
        self._report(losses)
        return list(ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._reading, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint has the position."""

    def stop(self) -> None:
        self._clusters.close()

    def _advance(self, position: StreamPosition) -> tuple[ClusterView, Advance]:
        view = self._view(position)
        ahead = plan_advance(position, view)
        self._report(ahead.losses)
        return view, ahead

    def _view(self, position: StreamPosition) -> ClusterView:
        """Returns the source's offsets, without the partitions that end before their position, and that may
        have lost no records. A query that ends waits for them.
        """
        while True:
            view = self._clusters.get().view()
            shorter = ends_before(position, view)
            undecided = shorter.keys() - self._clusters.get().shorter.lost(shorter)
            if not undecided or self._target is None:
                return without(view, undecided)
            time.sleep(LOSS_PAUSE_S)

    def _limited(self, ahead: Advance) -> Offsets:
        """Returns the end, at most that of the query."""
        if self._target is None:
            return ahead.end
        fixed = self._target
        return {
            item: max(ahead.begin[item], min(end, fixed.get(item, ahead.begin[item])))
            for item, end in ahead.end.items()
        }

    def _view_of_plan(self, planned: Collection[str], moved: Collection[TopicPartition]) -> ClusterView:
        """Returns the source's offsets: no range of a planned micro-batch may be left out.

        ``planned`` are its topics, some of which may not be selected any more, and ``moved`` its partitions.
        """
        deadline = time.monotonic() + PLAN_S
        while True:
            try:
                view = self._clusters.get().view(planned, moved)
            except (ClientError, OSError) as problem:
                if time.monotonic() >= deadline:
                    raise
                self._outages.wait(problem)
            else:
                self._outages.end()
                return view

    def _report(self, losses: Sequence[str]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise MirrorDataLoss(loss_text(losses))
        self._note(losses)

    def _note(self, texts: Sequence[str]) -> None:
        """Logs each text once."""
        for text in texts:
            if text not in self._noted:
                logger.warning("%s", text)
        self._noted |= frozenset(texts)

    def _pause_if_idle(self) -> None:
        left_s = self._last_read_s + self._idle_pause_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


class RecordClusters:
    """The clients of both clusters that planning uses."""

    def __init__(self, given: RecordOptions) -> None:
        self._options = options = given.copy
        self._source = ReachableOffsets(RangeReader(None, committed_only(options.source)))
        self._target = RangeReader(None, committed_only(options.target))
        self.shorter = ShorterSources(self._source.reader)
        self._source_admin = Admin(None, options.source)
        self._target_admin = Admin(None, options.target)
        self._topics = TopicSync(
            self._source_admin,
            self._target_admin,
            options.wanted,
            options.names,
            replication_factor=options.replication_factor,
            same_offsets=False,
            follows_configs=given.follows_configs,
        )
        self._names: dict[str, str] = {}
        self._partitions: dict[str, int] = {}
        """Partitions of the source's topics that those of the target have at least."""
        self._next_sync_s = 0.0

    def view(self, planned: Collection[str] = (), needed: Collection[TopicPartition] = ()) -> ClusterView:
        """Reads the source, after it has made the topics of the target follow the source's. Raises
        ClientError.

        Omits partitions without a leader in one of the clusters, except for those of a planned micro-batch:
        ``planned`` are topics that are read even if they are refused, or not selected, any more, and
        ``needed`` partitions whose error is raised.
        """
        is_due = time.monotonic() >= self._next_sync_s
        described = self._source.describe(sorted(self._names))
        while is_due or any(
            seen.partitions > self._partitions.get(topic, 0) for topic, seen in described.items()
        ):
            is_due = False
            self._partitions = {topic: seen.partitions for topic, seen in described.items()}
            self._names = self._topics.run().mirrored
            self._next_sync_s = time.monotonic() + self._options.topics_interval_s
            described = self._source.describe(sorted(self._names))
        described |= self._source.describe(sorted(set(planned).difference(described)))
        held_back = waiting_for_target(
            described, self._names, self._target.describe(sorted(self._names.values()))
        )
        items = [
            item
            for topic, seen in described.items()
            for number in range(seen.partitions)
            if (item := TopicPartition(topic, number)) not in held_back or item in needed
        ]
        earliest = self._source.list(items, EARLIEST)
        latest = self._source.list(earliest, LATEST)
        for item in needed:
            if item in self._source.held_back:
                raise self._source.held_back[item]
        return ClusterView({topic: seen.topic_id for topic, seen in described.items()}, earliest, latest)

    def close(self) -> None:
        """Closes the connections."""
        for client in (self._source.reader, self._target, self._source_admin, self._target_admin):
            client.close()
