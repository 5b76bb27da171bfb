"""How a partition's log loses records: from an offset on, before one, or all of them.

A follower cuts from an offset on what its leader does not have; other records take these offsets, so that
indexes, producers and leader epochs are cut with the file. At the start only :attr:`start_offset` moves, and
whole segments before it go. A segment that goes loses its names at once, and its files a while later: readers
that are being sent from them are not disturbed.

A cut that fails half way (the disk is full, descriptors are lacking) is finished later. What is known of the
log is cut at once, with nothing that may fail; then the files are, in steps that may be repeated. Until that
is done, nothing is written: appends, syncs and further cuts try it again first, and fail if it does.
"""

from __future__ import annotations

import contextlib
from typing import Final

from mypy_extensions import i64

from tidemill.log.errors import OffsetOutOfRange, storage_error
from tidemill.log.flush import FlushJob
from tidemill.log.names import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, offset_name, offset_of
from tidemill.log.producer_loading import load_producers
from tidemill.log.producer_state import ProducerState
from tidemill.log.segment import Segment
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.store import Cut, LogStore
from tidemill.log.transaction_index import cut_entries
from tidemill.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from tidemill.records.builder import assemble

UNSAVED: Final[i64] = -2
"""As the epoch of the last batch: the next one has the epochs written, whichever epoch it has."""


class CutStore(LogStore):
    """The segments of one partition, and how they are cut at both ends."""

    def truncate_to(self, offset: i64, now_ms: i64) -> bool:
        """Cuts everything from ``offset`` on; False when nothing is there.

        Raises StorageError. Then the log is as before; or it is cut but for its files (:attr:`_cut`).
        """
        self.finish_cut()
        if offset >= self.end_offset:
            self._forget_empty_epochs()
            return False
        self._settle_swap()
        if offset < self.segments[0].base_offset:
            self.truncate_fully(offset, now_ms)
            return True
        try:
            self._begin_cut(offset, now_ms)
        except OSError as problem:
            raise storage_error("truncate", self.directory, problem) from problem
        self.finish_cut()
        return True

    def _begin_cut(self, offset: i64, now_ms: i64) -> None:
        """Cuts all but the files. Raises OSError, with nothing changed."""
        keep: i64 = self.segment_at(offset) + 1
        segment = self.segments[keep - 1]
        position: i64 = segment.position_of(offset)
        # A batch that straddles the offset goes as a whole: the log ends where it began.
        cut_offset: i64 = segment.base_offset_at(position, self.config.unpacked_bytes_max)
        # The last goes first: a process that is killed at any moment leaves a log without a hole, and a start
        # cannot tell a hole from what compaction took.
        gone = self.segments[keep:]
        gone.reverse()
        self._cut = Cut(gone, False, now_ms)
        del self.segments[keep:]
        self.active = segment
        segment.size = position
        self.truncations += 1
        self.settled_end = -1  # The log may end there again, with other records.
        self._limit_offset = -1
        self.end_offset = offset if cut_offset < 0 or cut_offset > offset else cut_offset
        self.start_offset = min(self.start_offset, self.end_offset)
        self.recovery_point = min(self.recovery_point, self.end_offset)
        self.clean_end = min(self.clean_end, self.end_offset)
        self.note_move()
        if segment.base_offset == self._synced_base:
            self._synced_position = min(self._synced_position, position)
        self.leader_epochs.truncate_end(int(self.end_offset), save=False)
        self._leader_epoch = self.leader_epochs.latest

    def finish_cut(self) -> None:
        """Does with the files what the last cut left undone, if anything. Raises StorageError.

        That comes before anything else is written: what is on the disk would be taken for what follows.
        """
        cut = self._cut
        if cut is None or self.closed:
            return
        self._settle_swap()
        try:
            self._remove_files(cut.gone, cut.now_ms)
            if cut.is_whole:
                self._remove_snapshots_after(-1)
                self.active.create(cut.now_ms)
                # A full disk lets the log be emptied. Until the file is written, a start takes the last epoch
                # in it for one that begins at the log's end.
                with contextlib.suppress(OSError):
                    self.leader_epochs.save_changed()
            else:
                self._cut_files(cut)
        except OSError as problem:
            raise storage_error("truncate", self.directory, problem) from problem
        self.names_changed += 1
        self._cut = None

    def _cut_files(self, cut: Cut) -> None:
        if cut.gone and self._is_flushing():
            # It may bring the cut below to the disk, and not the names: see FlushJob.is_cut.
            self.files.sync_directory(self.directory)
        segment = self.active
        segment.truncate(segment.size)
        cut_entries(self.files, self._transaction_index(segment), int(self.end_offset))
        self.leader_epochs.save_changed()
        self._remove_snapshots_after(self.end_offset)
        producers = ProducerState(self.producer_state.name)
        load_producers(
            self.files,
            self.directory,
            self.segments,
            producers,
            self.start_offset,
            self.end_offset,
            cut.now_ms,
        )
        self.producer_state = producers

    def begin_flush(self, whole: bool = True) -> FlushJob:
        """As :meth:`LogStore.begin_flush`, once a cut that failed half way is finished."""
        self.finish_cut()
        return super().begin_flush(whole)

    def begin_safe_point(self) -> FlushJob:
        """As :meth:`LogStore.begin_safe_point`, once a cut that failed half way is finished."""
        self.finish_cut()
        return super().begin_safe_point()

    def begin_close(self) -> FlushJob | None:
        """As :meth:`LogStore.begin_close`, once a cut that failed half way is finished."""
        self.finish_cut()
        return super().begin_close()

    def _is_flushing(self) -> bool:
        """Whether a thread may be syncing the log."""
        return any(not job.ended for job in self.flushes)

    def _forget_empty_epochs(self) -> None:
        """An epoch that this broker led without writing is not in the log, and who leads now knows none."""
        self._leader_epoch = UNSAVED
        try:
            self.leader_epochs.truncate_end(int(self.end_offset))
        except OSError as problem:
            raise storage_error("write", self.leader_epochs.path, problem) from problem
        self._leader_epoch = self.leader_epochs.latest

    def truncate_fully(self, offset: i64, now_ms: i64) -> None:
        """Removes every record, and begins anew at ``offset``. Raises StorageError.

        Then the log is as before; or it is empty but for its files (:attr:`_cut`).
        """
        self._empty(offset, offset, now_ms, -1)

    def _empty(self, base_offset: i64, start_offset: i64, now_ms: i64, epochs_end: i64) -> None:
        """``epochs_end``: epochs that begin before it stay known."""
        self.finish_cut()
        self._settle_swap()
        self._cut = Cut(self.segments, True, now_ms)
        segment = self._new_segment(base_offset)
        self.segments = [segment]
        self.active = segment
        self.truncations += 1
        self.settled_end = -1
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.recovery_point = min(self.recovery_point, base_offset)
        self.clean_end = min(self.clean_end, start_offset)
        self.note_move()
        self._synced_position = 0
        self._limit_offset = -1
        self.leader_epochs.truncate_end(int(epochs_end), save=False)
        self._leader_epoch = self.leader_epochs.latest
        self.producer_state = ProducerState(self.producer_state.name)
        self.producer_state.end_offset = start_offset
        self.finish_cut()

    def begin_within(self, base_offset: i64, now_ms: i64) -> None:
        """Makes an empty log ready for a batch that begins at ``base_offset``, before the log's start.

        A segment is named by the first offset in it. The log starts and ends where it did: what the batch
        holds before that was deleted. Raises StorageError.
        """
        self._empty(base_offset, self.start_offset, now_ms, self.start_offset)

    def skip_to(self, offset: i64, now_ms: i64) -> None:
        """Goes on at ``offset``, so that none below it is given out again. Raises StorageError.

        For a log that has lost records: what is left of it stays, and batches without records follow, as
        compaction leaves them. A gap would keep new replicas from the end of the log until more is written.
        """
        if offset <= self.end_offset:
            return
        self.finish_cut()
        if self.start_offset == self.end_offset:
            self.truncate_fully(offset, now_ms)
            return
        while self.end_offset < offset:
            self.roll(now_ms)
            self._append_empty(min(offset - self.end_offset, RELATIVE_OFFSET_MAX))

    def _append_empty(self, count: i64) -> None:
        """Appends a batch without records that takes ``count`` offsets. Raises StorageError."""
        begin: i64 = self.end_offset
        epoch: i64 = self.leader_epochs.latest
        data = assemble(
            b"",
            begin,
            epoch,
            0,
            count - 1,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            0,
        )
        try:
            self.active.append([data], len(data), begin, begin + count - 1, NO_TIMESTAMP)
        except OSError as problem:
            raise storage_error("append to", self.active.path, problem) from problem
        self.end_offset = begin + count
        self.producer_state.end_offset = begin + count

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
        self.finish_cut()
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
