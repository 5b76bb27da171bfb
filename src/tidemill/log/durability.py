"""The durability of a log: its recovery point, and the flushes that advance it. Compiled.

Everything below the recovery point is synced, so recovery begins there. A flush is a
:class:`~tidemill.log.flush_job.FlushJob`: it is started on the event loop, run in any thread and finished on
the event loop. The indexes of the active segment are not synced: recovery rebuilds them.
"""

from __future__ import annotations

from mypy_extensions import i64

from tidemill.log.file_names import PARTITION_METADATA
from tidemill.log.flush_job import FlushJob
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.producer_snapshots import ProducerSnapshots
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.log.segment_list import SegmentList


class Durability:
    """Tracks which part of a log is on disk."""

    def __init__(
        self,
        segments: SegmentList,
        leader_epochs: LeaderEpochFileCache,
        snapshots: ProducerSnapshots,
        recovery_point: i64,
        end_offset: i64,
        now_ms: i64,
    ) -> None:
        self.segments = segments
        self.leader_epochs = leader_epochs
        self.snapshots = snapshots
        self.recovery_point: i64 = recovery_point
        self.last_flush_ms: i64 = now_ms
        self.names_synced: i64 = 0
        """The value of :attr:`SegmentList.names_changed` at the last sync of the directory."""
        self.parent_unsynced: bool = recovery_point == 0
        self.id_changed: i64 = recovery_point == 0
        """Counts the writes of ``partition.metadata``. If a power failure lost it, the records would belong
        to an unknown topic: a topic created with the same name would begin with them.
        """
        self.id_synced: i64 = 0
        """The value of :attr:`id_changed` at the last sync of ``partition.metadata``."""
        self.truncations: i64 = 0
        """Counts the truncations of the log."""
        self.truncations_synced: i64 = 0
        """The value of :attr:`truncations` at the start of the last finished flush."""
        self.flushes: list[FlushJob] = []
        """The flushes in progress, and some finished ones."""
        self._clean_end_offset: i64 = -1
        self._synced_base: i64 = segments.active.base_offset
        self._synced_position: i64 = segments.active.size if recovery_point >= end_offset else 0

    def mark_synced(self, end_offset: i64) -> None:
        """Records that the log was opened after a clean shutdown: everything is synced until it changes."""
        self._clean_end_offset = end_offset
        self.names_synced = self.segments.names_changed
        self.id_synced = self.id_changed
        self.parent_unsynced = False

    def is_synced(self, end_offset: i64) -> bool:
        """Whether nothing has changed since :meth:`mark_synced`."""
        is_same = self.names_synced == self.segments.names_changed and self.id_synced == self.id_changed
        return is_same and self._clean_end_offset == end_offset and not self.leader_epochs.is_unsynced

    def truncate(self, end_offset: i64, base_offset: i64, position: i64) -> None:
        """Applies a truncation to ``end_offset``, at ``position`` of the segment with this base offset."""
        self.truncations += 1
        self._clean_end_offset = -1  # The log may reach the same end again with other records.
        self.recovery_point = min(self.recovery_point, end_offset)
        if base_offset == self._synced_base:
            self._synced_position = min(self._synced_position, position)

    def begin_empty(self, base_offset: i64) -> None:
        """Applies the removal of all records; the only segment begins at ``base_offset``."""
        self.truncations += 1
        self._clean_end_offset = -1
        self.recovery_point = min(self.recovery_point, base_offset)
        self._synced_position = 0

    @property
    def is_flushing(self) -> bool:
        """Whether a thread may be syncing the log."""
        return any(not job.ended for job in self.flushes)

    def is_flush_due(self, end_offset: i64, now_ms: i64, flush_ms: i64) -> bool:
        """Whether ``flush.ms`` requires a flush now. Starts the interval again if the clock was set back."""
        if now_ms < self.last_flush_ms:
            self.last_flush_ms = now_ms
        return end_offset > self.recovery_point and now_ms - self.last_flush_ms >= flush_ms

    def unsynced_bytes(self, end_offset: i64) -> i64:
        """The bytes that a recovery would have to read now."""
        if self.recovery_point >= end_offset:
            return 0
        segments = self.segments.all
        at: i64 = self.segments.at(self.recovery_point)
        total: i64 = 0
        if segments[at].base_offset == self._synced_base:
            total = -self._synced_position
        while at < len(segments):
            total += segments[at].size
            at += 1
        return total

    def begin_flush(
        self, end_offset: i64, producers: ProducerStateManager, whole: bool, is_safe_point: bool
    ) -> FlushJob:
        """Collects the files to sync for all records, or without ``whole`` for those before the active
        segment.

        Raises OSError if a file cannot be opened.
        """
        segments = self.segments
        end: i64 = end_offset if whole else segments.active.base_offset
        job = FlushJob(
            segments.files,
            segments.directory,
            offset=int(end),
            base_offset=int(segments.active.base_offset),
            position=int(segments.active.size) if whole else 0,
            is_safe_point=is_safe_point,
            truncations=int(self.truncations),
            names_changed=int(segments.names_changed),
            epochs_changed=self.leader_epochs.changes,
            id_changed=int(self.id_changed),
            is_truncated=self.truncations != self.truncations_synced,
            sync_directory=(
                segments.names_changed != self.names_synced
                or self.leader_epochs.is_unsynced
                or self.id_changed != self.id_synced
            ),
            sync_parent=self.parent_unsynced,
        )
        if self.id_changed != self.id_synced:
            job.add_path(f"{segments.directory}/{PARTITION_METADATA}")
        self.flushes = [one for one in self.flushes if not one.ended]
        self.flushes.append(job)
        self._add_segments(job, whole)
        if self.leader_epochs.is_unsynced:
            job.add_path(self.leader_epochs.path)
        if segments.names_changed != self.names_synced and producers.snapshot_offset >= 0:
            job.add_path(self.snapshots.path(producers.snapshot_offset))
        return job

    def _add_segments(self, job: FlushJob, whole: bool) -> None:
        segments = self.segments
        listed = segments.all
        at: i64 = segments.at(self.recovery_point)
        if at > 0 and listed[at].base_offset == self.recovery_point:
            # At the last sync the previous segment was active, and its indexes were omitted. It may have been
            # truncated since, also by a process that was killed before it synced that.
            self._add_closed(job, at - 1)
        while at < len(listed):
            segment = listed[at]
            if segment is not segments.active:
                self._add_closed(job, at)
                if segments.has_aborts:
                    job.add_path(segment.transaction_index_path)
            elif whole and (segment.size > 0 or self.truncations > 0):
                job.add(segment.file())
                if segments.has_aborts:
                    # Unlike the other indexes it must be complete: recovery rebuilds it from the recovery
                    # point on.
                    job.add_path(segment.transaction_index_path)
            at += 1

    def _add_closed(self, job: FlushJob, at: i64) -> None:
        segment = self.segments.all[at]
        job.add(segment.file())
        job.add_path(segment.index.path)
        job.add_path(segment.time_index.path)

    def finish_flush(self, job: FlushJob, now_ms: i64) -> bool:
        """Applies a successful flush. Returns whether the recovery point has advanced."""
        self.last_flush_ms = now_ms
        self.parent_unsynced = False
        self.id_synced = job.id_changed
        self.names_synced = job.names_changed
        self.leader_epochs.synced = job.epochs_changed
        self.truncations_synced = job.truncations
        if job.truncations != self.truncations:
            return False  # The synced records may have been truncated and replaced.
        if job.offset <= self.recovery_point:
            return False
        self.recovery_point = job.offset
        self._synced_base = job.base_offset
        self._synced_position = job.position
        return True
