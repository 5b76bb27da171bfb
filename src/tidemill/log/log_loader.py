"""Opens the log of a partition, and recovers it after an unclean shutdown.

After a clean shutdown only names, sizes and the end of the last segment are read. After an unclean one every
batch from the recovery point on is validated; the log is truncated at the first invalid byte, later segments
are removed, and indexes, leader epochs and producer state are rebuilt. Recovery begins at the start of the
segment that has the recovery point, or within it if that spares much (:data:`SPARED_BYTES_MIN`).

The report distinguishes truncation (the tail never reached the disk, the usual effect of a crash) from
corruption (other bytes were written). Neither makes the partition unusable, and a damaged file other than the
log loses no record.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Final

from tidemill.log.aborted_transaction_recovery import (
    index_damage,
    rebuild_index,
    save_recovered_aborts,
)
from tidemill.log.batch_scan import BatchScan, zeros_to_end
from tidemill.log.checkpoint_files import CheckpointDamaged
from tidemill.log.delayed_file_removal import DelayedFileRemoval, rename_deleted
from tidemill.log.errors import is_disk_full, storage_error
from tidemill.log.file_names import (
    CUT,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    offset_of,
)
from tidemill.log.interrupted_operations import clean_up
from tidemill.log.leader_epoch_file_cache import EpochRun, LeaderEpochFileCache, split_monotonic
from tidemill.log.leader_epoch_recovery import begin_at_log_end, recover_earlier_epochs, runs_of
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_segment import LogSegment
from tidemill.log.lost_records import (
    describe_loss,
    has_no_segment,
    has_valid_batch,
    mark_loss,
    truncate_segment,
)
from tidemill.log.producer_snapshots import remove_snapshots_after, write_snapshot
from tidemill.log.producer_state_loader import load_producers
from tidemill.log.producer_state_manager import ProducerStateManager
from tidemill.log.recovery_walk import (
    Progress,
    RecoveryWalk,
    Resumption,
    WalkEnd,
    resumption,
    walk_segment,
)
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.varint import INT64_MAX

SPARED_BYTES_MIN: Final = 64 * 1024 * 1024
"""With fewer bytes before the recovery point, the whole segment is validated: this takes little time and
finds damage by the disk.
"""


class LogLoader:
    """Opens one log. :attr:`warnings` and :attr:`progress` report the results."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        removals: DelayedFileRemoval,
        now_ms: int,
        topic_id: bytes = ZERO_ID,
        recovery_point: int = 0,
        start_offset: int = 0,
        high_watermark: int = 0,
        clean: bool = False,
        is_future: bool = False,
        names: list[str] | None = None,
        lost_unsynced: bool = False,
        cleaned_behind_checkpoint: bool = True,
    ) -> None:
        """``names``: the content of the directory, if known.

        ``recovery_point``, ``start_offset`` and ``high_watermark``: the offsets in the checkpoints.
        ``is_future``: the log is filled from the current log, so it cannot lose records.
        ``lost_unsynced``: the machine went down, or a sync failed, since the log was open.
        ``cleaned_behind_checkpoint``: compaction did not go beyond ``recovery_point``. Kafka's compaction
        does not observe that.
        """
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.removals = removals
        self.now_ms = now_ms
        self.topic_id = topic_id
        self.recovery_point = recovery_point
        self._synced_end = recovery_point
        self.start_offset = start_offset
        self.high_watermark = high_watermark
        self.clean = clean
        self.is_future = is_future
        self.lost_unsynced = lost_unsynced
        self.cleaned_behind_checkpoint = cleaned_behind_checkpoint
        self._was_clean = clean
        self.warnings: list[str] = []
        self.truncation_warning = -1
        """The index of the warning about the truncated or damaged end of the log; -1: none."""
        self.progress = Progress()
        self.has_lost = False
        """Whether more was lost than the end of the last write, which is all that a kill may lose.

        The directory of a partition then has the file ``records-lost``.
        """
        self.producers = ProducerStateManager(str(topic_partition))
        self.leader_epochs = LeaderEpochFileCache(files, f"{directory}/{LEADER_EPOCHS}")
        self._tail_warning = ""
        self._first_base = 0
        self._has_aborts = False
        self._names = names or []

    @property
    def recovered_bytes(self) -> int:
        """The number of validated bytes of log files."""
        return int(self.progress.checked_bytes)

    def open(self) -> Log:
        """Opens the log. Raises StorageError if the directory cannot be read or written, and Stopped."""
        try:
            return self._open()
        except OSError as problem:
            raise storage_error("open", problem.filename or self.directory, problem) from problem

    def _open(self) -> Log:
        found = self._names or self.files.list(self.directory)
        if has_no_segment(found) and self._describe_loss(found, self.start_offset):
            self._mark_loss()  # A segment is created now.
        names = clean_up(self.files, self.directory, found, self.warnings)
        segments = self._segments(names)
        is_new = not segments
        if is_new:
            segments = [self._segment(max(self.start_offset, 0), 0)]
            segments[0].create(self.now_ms)
        self._load_epochs(segments)
        end = self._check_tail(segments) if self.clean else -1
        if end < 0:
            end = self._recover(segments)
        if end < self.start_offset:
            segments = [self._restart_at_start(segments, end)]
            end = self.start_offset
        start = min(max(self.start_offset, segments[0].base_offset), end)
        recover_earlier_epochs(self.leader_epochs, segments, start, end)
        self.leader_epochs.truncate_to_range(start, end)
        if self.producers.end_offset != end or self.clean:
            self.warnings += load_producers(
                self.files, self.directory, segments, self.producers, start, end, self.now_ms
            )
        self._remove_old_snapshots(names, segments)
        log = Log(
            self.files,
            self.directory,
            self.topic_partition,
            topic_id=self.topic_id,
            config=self.config,
            segments=segments,
            start_offset=start,
            end_offset=end,
            recovery_point=min(self.recovery_point, end) if not self.clean else end,
            producers=self.producers,
            leader_epochs=self.leader_epochs,
            removals=self.removals,
            now_ms=self.now_ms,
        )
        log.segment_list.has_aborts = self._has_aborts or any(
            offset_of(name, TRANSACTION_INDEX) >= 0 for name in names
        )
        if self.clean and not self.warnings:
            log.mark_synced()
        elif not is_new:
            # A killed process, or this one, has changed the log, and the changes may not be on disk.
            log.durability.truncations += 1
            self.leader_epochs.changes += 1
        self._report_loss(self._describe_loss(found, end))
        return log

    def _restart_at_start(self, segments: list[LogSegment], end: int) -> LogSegment:
        """Restarts the log at its start offset, because lower offsets must not be assigned again."""
        self._mark_loss()
        self.warnings.append(
            f"{self.directory}: the log ends at offset {end}, before its start offset {self.start_offset}: "
            "its remaining records were deleted by request; it restarts there"
        )
        for segment in segments:
            self._rename_deleted(segment, keep=self._was_clean)
        # Later records of a producer are lost: with the old state its next batches would be out of order.
        remove_snapshots_after(self.files, self.directory, -1)
        fresh = self._segment(self.start_offset, 0)
        fresh.create(self.now_ms)
        return fresh

    def _describe_loss(self, names: list[str], end_offset: int) -> str:
        return describe_loss(
            self.directory,
            names,
            end_offset,
            self.high_watermark,
            self._synced_end,
            after_clean_stop=self._was_clean,
        )

    def _report_loss(self, loss: str) -> None:
        """Adds a loss that the checkpoints show to the warnings: later, they are overwritten."""
        if not loss or self.is_future:
            return
        self._mark_loss()
        if self.truncation_warning >= 0:
            # One warning per loss.
            self.warnings[self.truncation_warning] += f". {loss}"
        else:
            self.warnings.append(loss)

    def _mark_loss(self) -> None:
        """Records the loss durably before a truncation or an append hides it."""
        if not self.has_lost:
            self.has_lost = True
            if not self.is_future:
                mark_loss(self.files, self.directory)

    # Segments

    def _segment(self, base_offset: int, size: int) -> LogSegment:
        segment = LogSegment(
            self.files,
            self.directory,
            base_offset,
            size,
            self.config.segment_index_bytes,
            self.config.index_interval_bytes,
        )
        segment.created_ms = self.now_ms
        return segment

    def _segments(self, names: set[str]) -> list[LogSegment]:
        bases = sorted(base for base in (offset_of(name, LOG) for name in names) if base >= 0)
        known = set(bases)
        for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX):
            for name in sorted(names):
                base = offset_of(name, suffix)
                if base >= 0 and base not in known:
                    self.warnings.append(f"{self.directory}/{name} has no log file: it is removed")
                    self.files.remove(f"{self.directory}/{name}")
        segments = []
        for base in bases:
            path = f"{self.directory}/{offset_name(base, LOG)}"
            segment = self._segment(base, self.files.size(path))
            if offset_name(base, INDEX) not in names or offset_name(base, TIME_INDEX) not in names:
                if self.clean and segment.size:
                    self.warnings.append(f"{path}: an index file is missing: both are rebuilt")
                segment.rebuild_indexes()
            segments.append(segment)
        self._drop_empty(segments)
        return segments

    def _drop_empty(self, segments: list[LogSegment]) -> None:
        """Removes empty segments between others, which a failed roll has left."""
        for at in range(len(segments) - 1, 0, -1):
            segment = segments[at]
            if segment.size:
                continue
            if at == len(segments) - 1 and segments[at - 1].last_offset_end() <= segment.base_offset:
                continue
            self._rename_deleted(segment, keep=False)
            del segments[at]

    def _rename_deleted(self, segment: LogSegment, *, keep: bool) -> None:
        segment.close_handlers()
        for suffix in SEGMENT_SUFFIXES:
            path = f"{self.directory}/{offset_name(segment.base_offset, suffix)}"
            if suffix == LOG and segment.size and keep:
                self.files.rename(path, f"{path}.0{CUT}")
            elif renamed := rename_deleted(self.files, path):
                self.removals.add(renamed, self.now_ms + self.config.file_delete_delay_ms)

    def _load_epochs(self, segments: list[LogSegment]) -> None:
        try:
            self.leader_epochs.load()
        except CheckpointDamaged as problem:
            self.warnings.append(f"{problem}; the leader epochs are read from the log")
            for epoch, start, _ in runs_of(segments, int(segments[0].base_offset), INT64_MAX):
                self.leader_epochs.assign(epoch, start)
            self.leader_epochs.save()

    # Clean shutdown

    def _check_tail(self, segments: list[LogSegment]) -> int:
        """The log end offset, from the last segment; -1 if its end contradicts a clean shutdown."""
        last = segments[-1]
        if last.size == 0:
            return last.base_offset
        last_position = last.index.last_position()
        last.bytes_since_index = last.size - last_position
        scan = BatchScan(last.file(), last_position, last.size)
        end = scan.step_to_end(last.base_offset)
        if not scan.fault and last_position < last.size and end > last.base_offset:
            last.close_handlers()
            return end
        self._tail_warning = (
            f"{last.path}: the last shutdown was clean, but the end of the file is damaged "
            f"({scan.fault or 'its index points beyond the end'}): recovering it"
        )
        self.truncation_warning = len(self.warnings)
        self.warnings.append(self._tail_warning)
        self.recovery_point = min(self.recovery_point, last.base_offset)
        self.clean = False
        return -1

    # Unclean shutdown

    def _recover(self, segments: list[LogSegment]) -> int:
        """Validates and truncates the segments from the recovery point on. Returns the log end offset."""
        self._first_base = int(segments[0].base_offset)
        first = len(segments) - 1
        while first > 0 and segments[first].base_offset > self.recovery_point:
            first -= 1
        if self.lost_unsynced and self.cleaned_behind_checkpoint:
            first = self._first_overlapped(segments, first)
        if self.lost_unsynced and first > 0 and segments[first].base_offset == self.recovery_point:
            # It was rolled after the last sync, which synced its records but not later index entries.
            segments[first - 1].rebuild_indexes()
        for at, (segment, following) in enumerate(pairwise(segments[: first + 1])):
            self._check_indexes(segments[:at], segment, int(following.base_offset))
        # A sync may have failed just before the process was killed, without leaving a mark.
        for segment in segments[first:]:
            self.files.forget_written(segment.path)
        resumed = self._resumption(segments[first])
        base = int(resumed.offset if resumed is not None else segments[first].base_offset)
        self._load_producers(segments[: first if resumed is None else first + 1], base)
        remove_snapshots_after(self.files, self.directory, base)
        spared = resumed.position if resumed is not None else 0
        self.progress.bytes_to_check = sum(int(segment.size) for segment in segments[first:]) - spared
        at = first
        runs: list[EpochRun] = []
        end = int(segments[at - 1].last_offset_end()) if at > 0 and resumed is None else base
        while at < len(segments):
            segment = segments[at]
            last = at + 1 == len(segments)
            limit = INT64_MAX if last else int(segments[at + 1].base_offset)
            walked_from = int(segment.base_offset if resumed is None else resumed.offset)
            walk = walk_segment(
                segment,
                self.producers,
                self.now_ms,
                self.progress,
                limit,
                self.config.unpacked_bytes_max,
                resumed,
            )
            resumed = None
            if walk.end is WalkEnd.WHOLE and self._is_end_missing(walk, limit, last):
                walk.end = WalkEnd.TRUNCATION
                walk.fault = f"the records up to offset {limit - 1} are missing"
            if walk.end is not WalkEnd.WHOLE:
                self._truncate(segments, at, walk)
                if walk.end is WalkEnd.WRONG_LAST_BATCH:
                    self._load_producers(segments[:at], int(segment.base_offset))
                    continue
            runs += begin_at_log_end(walk.epochs, walked_from, end)
            end = int(walk.next_offset)
            self._has_aborts = self._has_aborts or bool(walk.aborted)
            save_recovered_aborts(self.files, segment, walked_from, walk.aborted, self.warnings)
            if at + 1 < len(segments):
                segment.close_indexes()
                self._snapshot(segments[at + 1].base_offset)
            segment.close_handlers()
            at += 1
        self._apply_epochs(runs)
        return int(segments[-1].base_offset if segments[-1].size == 0 else self.producers.end_offset)

    def _first_overlapped(self, segments: list[LogSegment], first: int) -> int:
        """The first segment to validate, not after a segment that overlaps the next one; else ``first``.

        The log was truncated there, and a power failure lost the truncation but not later appends.
        """
        for at in range(1, first + 1):
            if segments[at - 1].last_offset_end() > segments[at].base_offset:
                return at - 1
        return first

    def _is_end_missing(self, walk: RecoveryWalk, limit: int, last: bool) -> bool:
        """Whether complete batches at the end of a segment are missing on disk while the next segment exists.

        A segment begins where the previous one ends, unless compaction has removed its last records.
        """
        is_unsynced = self.lost_unsynced and limit > self.recovery_point
        may_be_cleaned = self.config.compact and not self.cleaned_behind_checkpoint
        return is_unsynced and not last and not may_be_cleaned and walk.next_offset < limit

    def _load_producers(self, segments: list[LogSegment], end_offset: int) -> None:
        self.warnings += load_producers(
            self.files,
            self.directory,
            segments,
            self.producers,
            int(max(self.start_offset, self._first_base)),
            end_offset,
            self.now_ms,
        )

    def _apply_epochs(self, runs: list[EpochRun]) -> None:
        """Adds the leader epochs of the batches that the file lacks."""
        kept, others = split_monotonic(runs)
        known = self.leader_epochs
        before = list(known.epochs), list(known.starts)
        if self.lost_unsynced:
            # A power failure may have restored an older file, with epochs of truncated records.
            known.truncate_from_end(max(int(self.recovery_point), self.start_offset))
        for run in kept:
            epoch, start, _ = run
            if epoch > known.latest:
                known.assign(epoch, start)
            elif not known.may_follow(epoch, start):
                others.append(run)
        for epoch, start, _ in others:
            self.warnings.append(
                f"{self.directory}: the batch at offset {start} has leader epoch {epoch}, which contradicts "
                "other batches or leader-epoch-checkpoint: the epoch is ignored"
            )
        # Do not write to a full disk without need: its logs can still be read.
        if (known.epochs, known.starts) != before:
            known.save()
        known.unsaved = False

    def _resumption(self, segment: LogSegment) -> Resumption | None:
        """Where validation begins in the segment that has the recovery point; None: at its first byte."""
        if self.recovery_point <= segment.base_offset or segment.size < SPARED_BYTES_MIN:
            return None
        if index_damage(self.files, segment, INT64_MAX):
            return None
        known = self.recovery_point
        segment.index.truncate_to_growing()
        if segment.time_index.truncate_to_growing():
            known = min(known, int(segment.time_index.last_offset()) + 1)
        return resumption(segment, known, SPARED_BYTES_MIN)

    def _truncate(self, segments: list[LogSegment], at: int, walk: RecoveryWalk) -> None:
        """Truncates the log at the fault that a walk found, and removes the later segments."""
        segment = segments[at]
        gone = segments[at + 1 :]
        is_truncation = walk.end is WalkEnd.TRUNCATION
        position = int(walk.position)
        offset = int(walk.next_offset)
        is_damage = offset < self._synced_end or has_valid_batch(segments[at:], position, offset)
        keep = self._was_clean or is_damage
        may_be_lost = gone or not is_truncation or is_damage or self._is_synced(walk)
        if may_be_lost or zeros_to_end(segment.file(), position, segment.size):
            self._mark_loss()
        text = f"{self.topic_partition}: {self._describe_truncation(segment, gone, walk)}"
        if self._tail_warning:
            # One warning per truncation.
            self.warnings.remove(self._tail_warning)
            self._tail_warning = ""
            text += ", although the last shutdown was clean"
        kind = "truncation" if is_truncation else "corruption"
        text += f": {segment.path}: {kind} at byte {position} (offset {offset}): {walk.fault}; "
        text += f"{segment.size - position} bytes are truncated"
        if gone:
            text += f"; {len(gone)} later segments are {'kept as .cut files' if keep else 'removed'}"
            # As in a truncation, the last segment first: an interruption leaves no hole.
            for later in reversed(gone):
                self._rename_deleted(later, keep=keep)
            # A power failure after the truncation of the file must not restore the removed segments.
            self.files.sync_directory(self.directory)
        del segments[at + 1 :]
        self.truncation_warning = len(self.warnings)
        self.warnings.append(text + truncate_segment(self.files, segment, position, keep=keep))

    def _is_synced(self, walk: RecoveryWalk) -> bool:
        """Whether the fault is in the part that a clean shutdown had synced, when no write was in progress.

        The shutdown recorded the log end offset; bytes after it are no records.
        """
        return self._was_clean and not 0 < self._synced_end <= walk.next_offset

    def _describe_truncation(self, segment: LogSegment, gone: list[LogSegment], walk: RecoveryWalk) -> str:
        """Describes the records that are truncated, from the headers after the fault and the checkpoint."""
        first = int(walk.next_offset)
        end = self._synced_end
        for later in gone:
            end = max(end, int(later.last_offset_end()))
        scan = BatchScan(segment.file(), walk.position, segment.size)
        while scan.step():
            end = max(end, int(scan.last_offset) + 1)
        if end <= first:
            return f"the end from offset {first} on is truncated, which has no complete record"
        return f"the records of offsets {first} to {end - 1} are truncated"

    def _check_indexes(self, before: list[LogSegment], segment: LogSegment, end_offset: int) -> None:
        """Validates the indexes of a segment before the recovery point, which is safely on disk."""
        damage = segment.index.damage(segment.size)
        if damage:
            damage = f"{segment.index.path}: {damage}"
        else:
            damage = segment.time_index.damage(end_offset)
            if damage:
                damage = f"{segment.time_index.path}: {damage}"
        if damage:
            self.warnings.append(f"{damage}; both indexes are rebuilt")
            segment.rebuild_indexes()
        damage = index_damage(self.files, segment, end_offset)
        if damage:
            self.warnings.append(f"{segment.transaction_index_path}: {damage}; it is rebuilt")
            start = int(max(self.start_offset, self._first_base))
            rebuild_index(self.files, before, segment, start, self.now_ms, str(self.topic_partition))
        segment.close_handlers()

    def _remove_old_snapshots(self, names: set[str], segments: list[LogSegment]) -> None:
        """Removes snapshots except the latest and those at segment starts, which a truncation may need."""
        kept = {int(segment.base_offset) for segment in segments} | {self.producers.snapshot_offset, -1}
        for name in names:
            if offset_of(name, SNAPSHOT) not in kept:
                with contextlib.suppress(FileNotFoundError):
                    self.files.remove(f"{self.directory}/{name}")

    def _snapshot(self, offset: int) -> None:
        """Writes a producer snapshot at ``offset``, unless the disk is full: later starts then read less."""
        self.producers.end_offset = offset
        path = f"{self.directory}/{offset_name(offset, SNAPSHOT)}"
        try:
            write_snapshot(self.files, path, self.producers.encode())
        except OSError as problem:
            if not is_disk_full(problem):
                raise
        else:
            self.producers.snapshot_offset = offset
