"""How a partition's log loses records: from an offset on, before one, or all of them.

A follower cuts from an offset on what its leader does not have; other records take these offsets, so that
indexes, producers and leader epochs are cut with the file. At the start only :attr:`start_offset` moves, and
whole segments before it go. A segment that goes loses its names at once, and its files a while later: readers
that are being sent from them are not disturbed.
"""

from __future__ import annotations

from mypy_extensions import i64

from tidemill.log.errors import OffsetOutOfRange, storage_error
from tidemill.log.names import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, offset_name, offset_of
from tidemill.log.producer_loading import load_producers
from tidemill.log.segment import Segment
from tidemill.log.store import LogStore
from tidemill.log.transaction_index import cut_entries


class CutStore(LogStore):
    """The segments of one partition, and how they are cut at both ends."""

    def truncate_to(self, offset: i64, now_ms: i64) -> bool:
        """Cuts everything from ``offset`` on; False when nothing is there. Raises StorageError."""
        if offset >= self.end_offset:
            self._forget_empty_epochs()
            return False
        self._settle_swap()
        if offset < self.segments[0].base_offset:
            self.truncate_fully(offset, now_ms)
            return True
        try:
            self._truncate(offset, now_ms)
        except OSError as problem:
            raise storage_error("truncate", self.directory, problem) from problem
        return True

    def _truncate(self, offset: i64, now_ms: i64) -> None:
        keep: i64 = self.segment_at(offset) + 1
        # The last goes first: a process that is killed at any moment leaves a log without a hole, and a start
        # cannot tell a hole from what compaction took.
        gone = self.segments[keep:]
        gone.reverse()
        self._remove_files(gone, now_ms)
        if gone and self._is_flushing():
            # It may bring the cut below to the disk, and not the names: see FlushJob.is_cut.
            self.files.sync_directory(self.directory)
        del self.segments[keep:]
        segment = self.segments[len(self.segments) - 1]
        self.active = segment
        self.truncations += 1
        position: i64 = segment.position_of(offset)
        # A batch that straddles the offset goes as a whole: the log ends where it began.
        cut_offset: i64 = segment.base_offset_at(position, self.config.unpacked_bytes_max)
        segment.truncate(position)
        cut_entries(self.files, self._transaction_index(segment), int(offset))
        self._limit_offset = -1
        self.end_offset = offset if cut_offset < 0 or cut_offset > offset else cut_offset
        self.start_offset = min(self.start_offset, self.end_offset)
        self.recovery_point = min(self.recovery_point, self.end_offset)
        self.clean_end = min(self.clean_end, self.end_offset)
        self.note_move()
        if segment.base_offset == self._synced_base:
            self._synced_position = min(self._synced_position, position)
        self.names_changed += 1
        self.leader_epochs.truncate_end(int(self.end_offset))
        self._leader_epoch = self.leader_epochs.latest
        self._remove_snapshots_after(self.end_offset)
        load_producers(
            self.files,
            self.directory,
            self.segments,
            self.producer_state,
            self.start_offset,
            self.end_offset,
            now_ms,
        )

    def _is_flushing(self) -> bool:
        """Whether a thread may be syncing the log."""
        return any(not job.ended for job in self.flushes)

    def _forget_empty_epochs(self) -> None:
        """An epoch that this broker led without writing is not in the log, and who leads now knows none."""
        try:
            self.leader_epochs.truncate_end(int(self.end_offset))
        except OSError as problem:
            raise storage_error("write", self.leader_epochs.path, problem) from problem
        self._leader_epoch = self.leader_epochs.latest

    def truncate_fully(self, offset: i64, now_ms: i64) -> None:
        """Removes every record, and begins anew at ``offset``. Raises StorageError."""
        self._settle_swap()
        gone = self.segments
        try:
            self._remove_files(gone, now_ms)
            self._remove_snapshots_after(-1)
            segment = self._new_segment(offset)
            segment.create(now_ms)
            self.leader_epochs.clear()
        except OSError as problem:
            raise storage_error("empty", self.directory, problem) from problem
        self.segments = [segment]
        self.active = segment
        self.truncations += 1
        self.names_changed += 1
        self.start_offset = offset
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.clean_end = min(self.clean_end, offset)
        self.note_move()
        self._synced_position = 0
        self._leader_epoch = -1
        self._limit_offset = -1
        self.producer_state.forget()
        self.producer_state.end_offset = offset
        self.producer_state.snapshot_offset = -1

    def begin_within(self, base_offset: i64, now_ms: i64) -> None:
        """Makes an empty log ready for a batch that begins at ``base_offset``, before the log's start.

        A segment is named by the first offset in it. The log starts and ends where it did: what the batch
        holds before that was deleted. Raises StorageError.
        """
        start: i64 = self.start_offset
        self.truncate_fully(base_offset, now_ms)
        self.start_offset = start
        self.end_offset = start
        self.note_move()
        self.producer_state.end_offset = start

    def skip_to(self, offset: i64, now_ms: i64) -> None:
        """Goes on at ``offset``, so that none below it is given out again. Raises StorageError.

        For a log that has lost records: what is left of it stays, and a gap follows.
        """
        if offset <= self.end_offset:
            return
        if self.start_offset == self.end_offset:
            self.truncate_fully(offset, now_ms)
        else:
            self._roll_over_gap(offset, now_ms)

    def advance_start(self, offset: i64) -> bool:
        """Moves the start offset up to ``offset``; False when it is there already.

        The records before it cannot be read any more; their segments go with the next retention run.
        """
        if offset > self.end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition} ends at {self.end_offset}: its start cannot move to {offset}"
            )
        if offset <= self.start_offset:
            return False
        self.start_offset = offset
        self.note_move()
        self.leader_epochs.truncate_start(int(offset))
        return True

    def remove_segments(self, count: i64, now_ms: i64) -> None:
        """Removes the ``count`` oldest segments; when that is all, a new one begins.

        Raises StorageError; those that were removed before that are gone.
        """
        if count <= 0:
            return
        self._settle_swap()
        is_all: bool = count >= len(self.segments)
        # The active one stays until there is another. That takes room, which the others may have to make.
        self._remove_oldest(i64(len(self.segments)) - 1 if is_all else count, now_ms)
        if is_all:
            self.roll(now_ms)
            self._remove_oldest(i64(len(self.segments)) - 1, now_ms)

    def _remove_oldest(self, count: i64, now_ms: i64) -> None:
        """Renames first, which takes no room. A start in between takes the first segment there for the begin.

        What could not be renamed stays in the list, and is tried again.
        """
        gone: i64 = 0
        try:
            while gone < count:
                self._remove_files([self.segments[gone]], now_ms)
                gone += 1
        except OSError as problem:
            if not self.files.exists(self.segments[gone].path):
                gone += 1  # The next start removes what else is left of it.
            raise storage_error("remove segments of", self.directory, problem) from problem
        finally:
            if gone > 0:
                del self.segments[:gone]
                self.start_offset = max(self.start_offset, self.segments[0].base_offset)
                self.note_move()
                self.leader_epochs.truncate_start(int(self.start_offset))

    def _remove_files(self, segments: list[Segment], now_ms: i64) -> None:
        """Renames files so that they do not count any more; they are removed after a while."""
        due_ms: i64 = now_ms + self.config.file_delete_delay_ms
        self.names_changed += 1
        for segment in segments:
            segment.release()
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
                path = f"{self.directory}/{offset_name(segment.base_offset, suffix)}"
                if self.files.exists(path):
                    self.files.rename(path, path + DELETED)
                    self.removals.add(path + DELETED, int(due_ms))

    def _remove_snapshots_after(self, offset: i64) -> None:
        for name in self.files.list(self.directory):
            if offset_of(name, SNAPSHOT) > offset:
                self.files.remove(f"{self.directory}/{name}")
        if self.producer_state.snapshot_offset > offset:
            self.producer_state.snapshot_offset = -1
