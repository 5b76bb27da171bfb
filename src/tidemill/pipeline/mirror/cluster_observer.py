"""Observes both clusters from the process of the job: topics, lag, and positions of groups."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.client.range_reader import RangeReader
from tidemill.client.wait_reasons import Wait
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.copy_source import every_record
from tidemill.pipeline.mirror.group_sync import GroupSync, Positions, same_positions
from tidemill.pipeline.mirror.mirror_lag import (
    NO_LAG,
    MirrorLag,
    log_ends,
    measure_lag,
    measure_record_lag,
)
from tidemill.pipeline.mirror.mirror_loop_detection import TopicMarks
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.position_translation import MergedPositions, PositionTranslation
from tidemill.pipeline.mirror.preflight_checks import refuse_wrong_clusters
from tidemill.pipeline.mirror.reachable_partition_offsets import ReachableOffsets, no_leader
from tidemill.pipeline.mirror.record_planning import waiting_for_target
from tidemill.pipeline.mirror.record_query import RecordQuery
from tidemill.pipeline.mirror.record_source import committed_only
from tidemill.pipeline.mirror.target_names import ClaimedNames
from tidemill.pipeline.mirror.topic_sync import TopicSync, read_topics_named
from tidemill.pipeline.mirror.written_group_offsets import POSITIONS_FILE, WrittenPositions
from tidemill.wire.list_offset_timestamps import LATEST


class ClusterObserver:
    """The clients of the job's own process, for one source. Its methods raise ClientError."""

    def __init__(
        self,
        job: MirrorJob,
        source: MirrorSource,
        records: RecordQuery | None = None,
        merged: MergedPositions | None = None,
        claimed: ClaimedNames | None = None,
    ) -> None:
        self._job = job
        self._source = source
        self._claimed = claimed
        self._alias = source.alias
        self._merged = merged
        self._clusters_are_checked = False
        self._records = records
        settings = every_record if records is None else committed_only
        self._source_reader = RangeReader(None, settings(source.client))
        self._target_reader = RangeReader(None, settings(job.target.client))
        self._source_offsets = ReachableOffsets(self._source_reader)
        self._target_offsets = ReachableOffsets(self._target_reader)
        self._lag = NO_LAG
        self._source_admin = Admin(None, source.client)
        self._target_admin = Admin(None, job.target.client)
        self._topics = TopicSync(
            self._source_admin,
            self._target_admin,
            job.topics,
            job.names_of(source),
            same_offsets=job.same_offsets,
        )
        self._marks = TopicMarks(self._source_admin, self._target_admin)
        self._lock = threading.Lock()
        self._next_names_s = 0.0
        self.names: dict[str, str] = {}
        """The target's name of each mirrored topic that exists."""
        self.refused: dict[str, str] = {}
        self.outage = ""
        """Why the target of ordinary records cannot be reached; empty otherwise."""
        self._translation = (
            None
            if records is None
            else PositionTranslation(
                self._source_reader,
                self._target_reader,
                lambda: self.names,
                lambda: records.points,
                lambda: self._lag.held_back,
            )
        )
        if merged is not None and records is not None:
            merged.register(source.alias, records.starts)
        self._groups = (
            None
            if job.groups is None
            else GroupSync(
                self._source_admin,
                self._target_admin,
                job.groups,
                self._translate,
                WrittenPositions(Path(job.checkpoint) / source.alias / POSITIONS_FILE),
            )
        )

    def _translate(self, group: str, positions: Positions) -> Positions:
        if self._translation is None:
            return same_positions(self.names)(positions)
        translated = self._translation.translate(positions)
        if self._merged is None:
            return translated
        return self._merged.merge(self._alias, group, translated, self._translation.unknown(positions))

    def refuse_wrong_clusters(self) -> None:
        """Raises ConfigError for clusters that cannot be mirrored, once both can be reached."""
        with self._lock:
            if not self._clusters_are_checked:
                refuse_wrong_clusters(self._job, self._source, self._source_admin, self._target_admin)
                self._clusters_are_checked = True

    @property
    def selects_none(self) -> bool:
        """Whether the source had no topic last that the filter selects."""
        return self._topics.selects_none

    @property
    def knows_positions(self) -> bool:
        """Whether the positions of all sources that are merged are known."""
        return self._merged is None or self._merged.is_complete

    def measure(self) -> MirrorLag:
        """Measures the lag now."""
        with self._lock:
            if self._records is not None:
                self._lag = self._measure_records(self._records)
            else:
                self._compare_topics()
                self._lag = measure_lag(self._source_offsets, self._target_offsets, self.names, self._lag)
            return self._lag

    def _measure_records(self, records: RecordQuery) -> MirrorLag:
        """Measures the lag also while the target cannot be reached: :attr:`outage` is the reason then."""
        ends: dict[TopicPartition, int] = {}
        outage = ""
        try:
            self._compare_topics()
            ends = log_ends(self._target_offsets, self.names.values())
        except (ClientError, OSError) as problem:
            if not self.names:
                raise
            outage = str(problem)
        self.outage = outage
        lag = measure_record_lag(self._source_offsets, self.names, records.points.copied(), self._lag)
        held_back = {} if outage else self._waiting_for_target()
        return lag._replace(ends=ends, held_back={**held_back, **lag.held_back})

    def _waiting_for_target(self) -> dict[TopicPartition, str]:
        waiting = waiting_for_target(self._source_offsets.views, self.names, self._target_offsets.views)
        return {item: f"in the target, {no_leader(mirror)}" for item, mirror in waiting.items()}

    def _compare_topics(self) -> None:
        if time.monotonic() < self._next_names_s:
            return
        self._next_names_s = time.monotonic() + self._job.topics_interval_s
        self.names, self.refused = self._topics.existing()
        if self._claimed is not None:
            self._claimed.claim(self._alias, self.names.values())
        self._marks.commit(self.names, self._topics.loops)

    def goal(self) -> dict[TopicPartition, int]:
        """Returns the ends of the source now, also of topics that are to be created in the target.

        They are by partitions of the target for the same offsets, otherwise by those of the source.
        """
        with self._lock:
            names = self._topics.mirrored()
            topics = self._source_reader.describe(sorted(names))
            items = [
                TopicPartition(topic, n) for topic, seen in topics.items() for n in range(seen.partitions)
            ]
            latest = self._source_reader.list_offsets(dict.fromkeys(items, LATEST))
            if self._records is not None:
                return latest
            return {TopicPartition(names[item.topic], item.partition): end for item, end in latest.items()}

    def copy_positions(self, lag: MirrorLag) -> int:
        """Copies positions of groups; returns how many were copied so far."""
        if self._groups is None:
            return 0
        with self._lock:
            self._groups.run(lag.ends)
            if self._merged is not None:
                self._merged.finish(self._alias, self._groups.failures)
            return self._groups.copied

    @property
    def position_failure(self) -> ClientError | None:
        """Why positions of groups could not be copied; None if all coordinators have answered."""
        return None if self._groups is None else next(iter(self._groups.failures.values()), None)

    def is_mirror(self, name: str) -> bool:
        """Whether a topic of the target is an active mirror now."""
        with self._lock:
            state = read_topics_named(self._target_admin, [name]).get(name)
            return state is not None and state.is_mirror

    def waits(self) -> dict[str, Wait]:
        """Returns the oldest wait for each cluster that does not answer now, by its alias. For any thread."""
        clients = {
            self._alias: (self._source_reader, self._source_admin),
            self._job.target.alias: (self._target_reader, self._target_admin),
        }
        try:
            found = {alias: [wait for one in some for wait in one.waits()] for alias, some in clients.items()}
        except RuntimeError:
            return {}  # The waits changed during the reading: the next call reads them again.
        return {alias: min(waits, key=lambda one: one.since) for alias, waits in found.items() if waits}

    def interrupt(self) -> None:
        """Ends the calls of other threads with ClientClosed."""
        for reader in (self._source_reader, self._target_reader):
            reader.interrupt()
        for admin in (self._source_admin, self._target_admin):
            admin.close()

    def close(self) -> None:
        """Closes the connections."""
        for client in (
            self._source_reader,
            self._target_reader,
            self._source_admin,
            self._target_admin,
        ):
            client.close()
