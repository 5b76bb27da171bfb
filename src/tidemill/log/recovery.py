"""Opens the log of a partition: takes stock of its directory, and recovers it after an unclean stop.

After a clean stop nothing is read but names, sizes and the end of the last segment. After an unclean one
every batch from the recovery point on is checked; the log is cut at the first byte that is not part of a
good batch, what lies behind it is removed, and indexes, leader epochs and producer state are made anew.
The check begins with the segment of the recovery point, or within it where that spares much
(:data:`SPARED_BYTES_MIN`).

Two faults are told apart in the report: truncation (the tail never reached the disk, the usual trace of a
crash) and corruption (something else is written there). Neither makes the partition unusable, and no fault
of a file other than the log loses a record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from tidemill.log.aborted_recovery import index_damage, index_path, open_ones, remake, take_walked
from tidemill.log.checkpoints import CheckpointDamaged
from tidemill.log.config import INT64_MAX, LogConfig
from tidemill.log.errors import is_disk_full, storage_error
from tidemill.log.leader_epoch_recovery import begin_where_the_log_ended, find_earlier, runs_of
from tidemill.log.leader_epochs import EpochRun, LeaderEpochs, in_order
from tidemill.log.log import Log
from tidemill.log.losses import cut_segment
from tidemill.log.names import (
    CUT,
    DELETED,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    offset_of,
)
from tidemill.log.producer_loading import load_producers
from tidemill.log.producer_state import ProducerState
from tidemill.log.removals import Removals
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment
from tidemill.log.store import write_snapshot
from tidemill.log.tidying import tidy
from tidemill.log.walk import Progress, Resumption, Walk, resumption, walk_segment, zeros_to_end
from tidemill.model.ports import Files
from tidemill.model.types import ZERO_ID, TopicPartition

SPARED_BYTES_MIN: Final = 64 * 1024 * 1024
"""Less than this before the recovery point is checked again, with its segment: that takes no time, and finds
what the disk did to it."""


class Opening:
    """One opening of one log; :attr:`warnings` and :attr:`progress` tell what it met."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        removals: Removals,
        now_ms: int,
        topic_id: bytes = ZERO_ID,
        recovery_point: int = 0,
        start_offset: int = 0,
        clean: bool = False,
        names: list[str] | None = None,
        lost_unsynced: bool = False,
        cleaned_behind_checkpoint: bool = True,
    ) -> None:
        """``names``: what is in the directory, when somebody has just looked.

        ``lost_unsynced``: the machine went down, or a sync had failed, since the log was open.
        ``cleaned_behind_checkpoint``: compaction left what is at or above ``recovery_point`` alone. Kafka's
        does not look at that.
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
        self.clean = clean
        self.lost_unsynced = lost_unsynced
        self.cleaned_behind_checkpoint = cleaned_behind_checkpoint
        self._keeps_cut = clean
        self.warnings: list[str] = []
        self.cut_warning = -1
        """Which of the warnings tells of the end of the log, as it was cut or is damaged; -1: none does."""
        self.progress = Progress()
        self.has_lost = False
        """Whether more is gone than the end of a last write, which is all that a kill may cost."""
        self.before_loss: Callable[[], None] = lambda: None
        """Called when more is gone, before anything is cut: after the cut nothing shows the loss."""
        self.producers = ProducerState(str(topic_partition))
        self.leader_epochs = LeaderEpochs(files, f"{directory}/{LEADER_EPOCHS}")
        self._tail_warning = ""
        self._first_base = 0
        self._has_aborts = False
        self._names = names or []

    @property
    def recovered_bytes(self) -> int:
        """Bytes of log files that were checked."""
        return int(self.progress.checked_bytes)

    def open(self) -> Log:
        """The log, ready. Raises StorageError when the directory cannot be read or written, and Stopped."""
        try:
            return self._open()
        except OSError as problem:
            raise storage_error("open", problem.filename or self.directory, problem) from problem

    def _open(self) -> Log:
        found = self._names or self.files.list(self.directory)
        names = tidy(self.files, self.directory, found, self.warnings)
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
        find_earlier(self.leader_epochs, segments, start, end)
        self.leader_epochs.fit(start, end)
        if self.producers.end_offset != end or self.clean:
            self.warnings += load_producers(
                self.files, self.directory, segments, self.producers, start, end, self.now_ms
            )
        self._remove_old_snapshots(names, segments)
        log = Log(
            self.files,
            self.directory,
            self.topic_partition,
            self.topic_id,
            self.config,
            segments,
            start,
            end,
            min(self.recovery_point, end) if not self.clean else end,
            self.producers,
            self.leader_epochs,
            self.removals,
            self.now_ms,
        )
        log.has_aborts = self._has_aborts or any(offset_of(name, TRANSACTION_INDEX) >= 0 for name in names)
        if self.clean and not self.warnings:
            log.settle()
        elif not is_new:
            # By a process that was killed, or just now, and the disk may not have that.
            log.truncations += 1
            self.leader_epochs.changes += 1
        self.warnings += open_ones(self.producers)
        return log

    def _restart_at_start(self, segments: list[Segment], end: int) -> Segment:
        """Offsets before the start offset were deleted by request: they are not given out again."""
        self._note_loss()
        self.warnings.append(
            f"{self.directory}: the log ends at offset {end}, before its start offset {self.start_offset}: "
            "what is left of it was deleted by request; it begins anew there"
        )
        for segment in segments:
            self._put_away(segment)
        # Later records of a producer are gone: by an old state its next ones would be out of order.
        self._remove_snapshots_after(-1)
        fresh = self._segment(self.start_offset, 0)
        fresh.create(self.now_ms)
        return fresh

    def _note_loss(self) -> None:
        if not self.has_lost:
            self.before_loss()
            self.has_lost = True

    # -- taking stock

    def _segment(self, base_offset: int, size: int) -> Segment:
        segment = Segment(
            self.files,
            self.directory,
            base_offset,
            size,
            self.config.segment_index_bytes,
            self.config.index_interval_bytes,
        )
        segment.created_ms = self.now_ms
        return segment

    def _segments(self, names: set[str]) -> list[Segment]:
        bases = sorted(base for base in (offset_of(name, LOG) for name in names) if base >= 0)
        known = set(bases)
        for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX):
            for name in sorted(names):
                base = offset_of(name, suffix)
                if base >= 0 and base not in known:
                    self.warnings.append(f"{self.directory}/{name} has no log file beside it: it is removed")
                    self.files.remove(f"{self.directory}/{name}")
        segments = []
        for base in bases:
            path = f"{self.directory}/{offset_name(base, LOG)}"
            segment = self._segment(base, self.files.size(path))
            if offset_name(base, INDEX) not in names or offset_name(base, TIME_INDEX) not in names:
                if self.clean and segment.size:
                    self.warnings.append(f"{path}: an index file is missing, both are made anew")
                segment.rebuild_indexes()
            segments.append(segment)
        self._drop_empty(segments)
        return segments

    def _drop_empty(self, segments: list[Segment]) -> None:
        """Drops empty segments between others: what a roll that failed left, while the old one went on."""
        for at in range(len(segments) - 1, 0, -1):
            segment = segments[at]
            if segment.size:
                continue
            if at == len(segments) - 1 and segments[at - 1].last_offset_end() <= segment.base_offset:
                continue
            self._put_away(segment)
            del segments[at]

    def _put_away(self, segment: Segment) -> None:
        segment.release()
        for suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX):
            path = f"{self.directory}/{offset_name(segment.base_offset, suffix)}"
            if suffix == LOG and segment.size and self._keeps_cut:
                self.files.rename(path, f"{path}.0{CUT}")
            elif self.files.exists(path):
                self.files.rename(path, path + DELETED)
                self.removals.add(path + DELETED, self.now_ms + self.config.file_delete_delay_ms)

    def _load_epochs(self, segments: list[Segment]) -> None:
        try:
            self.leader_epochs.load()
        except CheckpointDamaged as problem:
            self.warnings.append(f"{problem}; the leader epochs are read from the log")
            for epoch, start, _ in runs_of(segments, int(segments[0].base_offset), INT64_MAX):
                self.leader_epochs.assign(epoch, start, save=False)
            self.leader_epochs.save()

    # -- clean stop

    def _check_tail(self, segments: list[Segment]) -> int:
        """The end offset, from the last segment's end; -1 when that does not look like a clean stop."""
        last = segments[-1]
        if last.size == 0:
            return last.base_offset
        last_position = last.index.last_position()
        last.bytes_since_index = last.size - last_position
        scan = BatchScan(last.file(), last_position, last.size)
        end = last.base_offset
        while scan.step():
            end = scan.last_offset + 1
        if not scan.fault and last_position < last.size and end > last.base_offset:
            last.release()
            return end
        self._tail_warning = (
            f"{last.path}: the last stop was a clean one, but its end is damaged "
            f"({scan.fault or 'its index points beyond it'}): it is recovered"
        )
        self.cut_warning = len(self.warnings)
        self.warnings.append(self._tail_warning)
        self.recovery_point = min(self.recovery_point, last.base_offset)
        self.clean = False
        return -1

    # -- unclean stop

    def _recover(self, segments: list[Segment]) -> int:
        """Checks the segments from the recovery point on, and cuts what is bad; the end offset."""
        self._first_base = int(segments[0].base_offset)
        first = len(segments) - 1
        while first > 0 and segments[first].base_offset > self.recovery_point:
            first -= 1
        if self.lost_unsynced and self.cleaned_behind_checkpoint:
            first = self._first_overlapped(segments, first)
        if self.lost_unsynced and first > 0 and segments[first].base_offset == self.recovery_point:
            # It was rolled after the last sync, which wrote its records, and not what its indexes then got.
            segments[first - 1].rebuild_indexes()
        for at, (segment, following) in enumerate(pairwise(segments[: first + 1])):
            self._check_indexes(segments[:at], segment, int(following.base_offset))
        # A sync may have failed just before the process was killed, and nobody could note that.
        for segment in segments[first:]:
            self.files.forget_written(segment.path)
        resumed = self._resumption(segments[first])
        base = int(resumed.offset if resumed is not None else segments[first].base_offset)
        self._load_producers(segments[: first if resumed is None else first + 1], base)
        self._remove_snapshots_after(base)
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
                resumed,
                self.config.unpacked_bytes_max,
            )
            resumed = None
            if not walk.fault and self._is_end_missing(walk, limit, last):
                walk.fault = f"the records up to offset {limit - 1} are missing"
                walk.truncated = True
            if walk.fault:
                self._cut(segments, at, walk)
                if walk.again:
                    self._load_producers(segments[:at], int(segment.base_offset))
                    continue
            runs += begin_where_the_log_ended(walk.epochs, walked_from, end)
            end = int(walk.next_offset)
            self._has_aborts = self._has_aborts or bool(walk.aborted)
            take_walked(self.files, segment, walked_from, walk.aborted, self.warnings)
            if at + 1 < len(segments):
                segment.close_indexes()
                self._snapshot(segments[at + 1].base_offset)
            segment.release()
            at += 1
        self._take_epochs(runs)
        return int(segments[-1].base_offset if segments[-1].size == 0 else self.producers.end_offset)

    def _first_overlapped(self, segments: list[Segment], first: int) -> int:
        """Where the check begins, not behind a segment that reaches into the next one; else ``first``.

        The log was cut there, and the power failed before the cut was on the disk, but not what came then.
        """
        for at in range(1, first + 1):
            if segments[at - 1].last_offset_end() > segments[at].base_offset:
                return at - 1
        return first

    def _is_end_missing(self, walk: Walk, limit: int, last: bool) -> bool:
        """Whether whole batches at the end of a segment did not reach the disk, while the next segment did.

        A segment begins where the one before it ends, unless compaction has left nothing there.
        """
        is_unsynced = self.lost_unsynced and limit > self.recovery_point
        may_be_cleaned = self.config.compact and not self.cleaned_behind_checkpoint
        return is_unsynced and not last and not may_be_cleaned and walk.next_offset < limit

    def _load_producers(self, segments: list[Segment], end_offset: int) -> None:
        self.warnings += load_producers(
            self.files,
            self.directory,
            segments,
            self.producers,
            int(max(self.start_offset, self._first_base)),
            end_offset,
            self.now_ms,
        )

    def _take_epochs(self, runs: list[EpochRun]) -> None:
        """Takes over the leader epochs that the file does not know yet, from the batches."""
        believed, others = in_order(runs)
        known = self.leader_epochs
        before = list(known.epochs), list(known.starts)
        if self.lost_unsynced:
            # A power cut may have brought back an older file, with epochs whose records were cut since.
            known.truncate_end(max(int(self.recovery_point), self.start_offset), save=False)
        for run in believed:
            epoch, start, _ = run
            if epoch > known.latest:
                known.assign(epoch, start, save=False)
            elif not known.may_begin(epoch, start):
                others.append(run)
        for epoch, start, _ in others:
            self.warnings.append(
                f"{self.directory}: the batch at offset {start} says that it is of leader epoch {epoch}, "
                "others and the leader epochs' file say otherwise: it is not believed"
            )
        # A full disk is not written to without need: its logs can be read all the same.
        if (known.epochs, known.starts) != before:
            known.save()
        known.unsaved = False

    def _resumption(self, segment: Segment) -> Resumption | None:
        """From where in the segment of the recovery point the check begins; None: at its first byte."""
        if self.recovery_point <= segment.base_offset or segment.size < SPARED_BYTES_MIN:
            return None
        if index_damage(self.files, segment, INT64_MAX):
            return None
        known = self.recovery_point
        segment.index.keep_growing()
        if segment.time_index.keep_growing():
            known = min(known, int(segment.time_index.last_offset()) + 1)
        return resumption(segment, known, SPARED_BYTES_MIN)

    def _cut(self, segments: list[Segment], at: int, walk: Walk) -> None:
        """Cuts the log where a walk found it bad, and puts the segments after that away."""
        segment = segments[at]
        gone = segments[at + 1 :]
        kind = "truncation" if walk.truncated else "corruption"
        position = int(walk.position)
        lost = segment.size - position
        if gone or not walk.truncated or self._is_synced(walk) or zeros_to_end(segment, walk.position):
            self._note_loss()
        text = f"{self.topic_partition}: {self._cut_offsets(segment, gone, walk)}"
        if self._tail_warning:
            # Each cut gets one warning.
            self.warnings.remove(self._tail_warning)
            self._tail_warning = ""
            text += ", although the last stop was a clean one"
        text += f": {segment.path}: {kind} at byte {position} (offset {walk.next_offset}): {walk.fault}"
        text += f"; {lost} bytes are cut"
        if gone:
            text += f", and {len(gone)} later segments removed"
        # As in a truncation the last goes first: a stop in between leaves no hole.
        for later in reversed(gone):
            self._put_away(later)
        if gone:
            # Nor does a power cut after the file is cut: their former names may not come back.
            self.files.sync_directory(self.directory)
        del segments[at + 1 :]
        self.cut_warning = len(self.warnings)
        self.warnings.append(text + cut_segment(self.files, segment, position, keep=self._keeps_cut))

    def _is_synced(self, walk: Walk) -> bool:
        """Whether a walk ends at what a clean stop had brought to the disk: no write was under way then.

        The stop wrote down where the log ended, and what lies behind that is no record.
        """
        return self._keeps_cut and not 0 < self._synced_end <= walk.next_offset

    def _cut_offsets(self, segment: Segment, gone: list[Segment], walk: Walk) -> str:
        """Describes the records that are cut, from the headers behind the fault and the checkpoint."""
        first = int(walk.next_offset)
        end = self._synced_end
        for later in gone:
            end = max(end, int(later.last_offset_end()))
        scan = BatchScan(segment.file(), walk.position, segment.size)
        while scan.step():
            end = max(end, int(scan.last_offset) + 1)
        if end <= first:
            return f"the end from offset {first} on is cut, no whole record is known there"
        return f"the records of offsets {first} to {end - 1} are cut"

    def _check_indexes(self, before: list[Segment], segment: Segment, end_offset: int) -> None:
        """A segment before the recovery point is safe on the disk; its indexes are checked for sense."""
        damage = segment.index.damage(segment.size)
        if damage:
            damage = f"{segment.index.path}: {damage}"
        else:
            damage = segment.time_index.damage(end_offset)
            if damage:
                damage = f"{segment.time_index.path}: {damage}"
        if damage:
            self.warnings.append(f"{damage}; both indexes are made anew")
            segment.rebuild_indexes()
        damage = index_damage(self.files, segment, end_offset)
        if damage:
            self.warnings.append(f"{index_path(segment)}: {damage}; it is made anew")
            start = int(max(self.start_offset, self._first_base))
            remake(self.files, before, segment, start, self.now_ms, str(self.topic_partition))
        segment.release()

    def _remove_old_snapshots(self, names: set[str], segments: list[Segment]) -> None:
        """Of the snapshots only the latest is of use, and those where segments begin: the log may be cut."""
        kept = {int(segment.base_offset) for segment in segments} | {self.producers.snapshot_offset, -1}
        for name in names:
            if offset_of(name, SNAPSHOT) not in kept:
                with contextlib.suppress(FileNotFoundError):
                    self.files.remove(f"{self.directory}/{name}")

    def _remove_snapshots_after(self, offset: int) -> None:
        for name in self.files.list(self.directory):
            if offset_of(name, SNAPSHOT) > offset:
                self.files.remove(f"{self.directory}/{name}")

    def _snapshot(self, offset: int) -> None:
        """Spares later starts to read what comes before ``offset``; where a disk is full they read it."""
        self.producers.end_offset = offset
        path = f"{self.directory}/{offset_name(offset, SNAPSHOT)}"
        try:
            write_snapshot(self.files, path, self.producers.encode())
        except OSError as problem:
            if not is_disk_full(problem):
                raise
        else:
            self.producers.snapshot_offset = offset


def open_log(
    files: Files,
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    removals: Removals | None = None,
    now_ms: int = 0,
    topic_id: bytes = ZERO_ID,
    recovery_point: int = 0,
    start_offset: int = 0,
    clean: bool = False,
) -> Log:
    """Opens one log by itself, as tests and tools need it; see :class:`Opening`."""
    opening = Opening(
        files,
        directory,
        topic_partition,
        config,
        removals=Removals() if removals is None else removals,
        now_ms=now_ms,
        topic_id=topic_id,
        recovery_point=recovery_point,
        start_offset=start_offset,
        clean=clean,
    )
    return opening.open()
