"""The files of one partition's log: how segments begin, are exchanged for cleaned ones, synced and closed.

:class:`~tidemill.log.cutting.CutStore` adds how they are cut and go, :class:`~tidemill.log.log.Log` what a
data path needs: append and read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from mypy_extensions import i64

from tidemill.log.config import LogConfig
from tidemill.log.errors import storage_error
from tidemill.log.flush import FlushJob
from tidemill.log.leader_epochs import LeaderEpochs
from tidemill.log.names import PARTITION_METADATA, SNAPSHOT, TRANSACTION_INDEX, offset_name
from tidemill.log.producer_state import ProducerState
from tidemill.log.removals import Removals
from tidemill.log.segment import Segment
from tidemill.log.swap import Swap, pin_all, unpin_all
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition


class Cut:
    """What is to be done with the files of a log that was cut.

    ``gone`` are the segments that go, in this order; ``is_whole`` says that the log was emptied, so that the
    active segment is to be made; ``now_ms`` is when that was.
    """

    def __init__(self, gone: list[Segment], is_whole: bool, now_ms: i64) -> None:
        self.gone = gone
        self.is_whole: bool = is_whole
        self.now_ms: i64 = now_ms


class LogStore:
    """The segments of one partition, the last of them written to.

    ``segments`` is never empty and sorted; opened by :class:`tidemill.log.recovery.Opening`.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: LogConfig,
        segments: list[Segment],
        start_offset: i64,
        end_offset: i64,
        recovery_point: i64,
        producers: ProducerState,
        leader_epochs: LeaderEpochs,
        removals: Removals,
        now_ms: i64,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments = segments
        self.active = segments[len(segments) - 1]
        self.start_offset: i64 = start_offset
        self.end_offset: i64 = end_offset
        self.recovery_point: i64 = recovery_point
        self.producer_state = producers
        self.leader_epochs = leader_epochs
        self.removals = removals
        self.last_flush_ms: i64 = now_ms
        self.closed: bool = False
        self.names_changed: i64 = 1
        """Counts the changes of names in the directory."""
        self.names_synced: i64 = 0
        """What :attr:`names_changed` was when the directory was synced last."""
        self.parent_unsynced: bool = recovery_point == 0
        self.id_changed: i64 = recovery_point == 0
        """Counts how often ``partition.metadata`` was written. A power cut that took it would leave records
        of which nobody knows the topic: one made anew under the name would begin with them."""
        self.id_synced: i64 = 0
        """What :attr:`id_changed` was when ``partition.metadata`` was synced last."""
        self._synced_base: i64 = self.active.base_offset
        self._synced_position: i64 = self.active.size if recovery_point >= end_offset else 0
        self.truncations: i64 = 0
        self.truncations_synced: i64 = 0
        """What :attr:`truncations` was when the last flush that is done began."""
        self.flushes: list[FlushJob] = []
        """Those that were begun, and some that have ended."""
        self.aborts_noted: i64 = 0
        """Counts the entries that indexes of aborted transactions got."""
        self.has_aborts: bool = False
        """Whether there may be such an index."""
        self.cleaning: bool = False
        """Whether compaction reads the log: its segments stay meanwhile."""
        self.clean_end: i64 = -1
        """Up to where compaction came; -1: it never was here."""
        self.on_moved: Callable[[TopicPartition], None] | None = None
        """Called when an offset moved that a checkpoint holds: the data directory's."""
        self._swap: Swap | None = None
        self._cut: Cut | None = None
        """A cut of which the files do not know yet, or not all of them."""
        self.settled_end: i64 = -1
        self._doubted_end: i64 = -1
        """Where a batch of an earlier epoch than the last came from a leader, and was not taken."""
        self._leader_epoch: i64 = leader_epochs.latest
        self._limit_offset: i64 = -1
        self._limit_base: i64 = -1
        self._limit_position: i64 = -1
        self.set_config(config)

    def set_config(self, config: LogConfig) -> None:
        """Takes over changed settings; those of the index apply from the next segment on."""
        self.config = config
        self._segment_bytes: i64 = config.segment_bytes
        self._segment_ms: i64 = config.segment_ms
        if config.compact and config.max_compaction_lag_ms < config.segment_ms:
            # Only closed segments are cleaned.
            self._segment_ms = config.max_compaction_lag_ms
        self._segment_jitter_ms: i64 = config.segment_jitter_ms
        self._flush_messages: i64 = config.flush_messages
        self._append_time: bool = config.message_timestamp_type == "LogAppendTime"

    # -- segments

    def roll(self, now_ms: i64) -> None:
        """Begins a new segment at the end offset; nothing when the active one is empty and begins there.

        Raises StorageError; the log goes on with its old segment then.
        """
        old = self.active
        if old.base_offset == self.end_offset:
            if old.size == 0:
                try:
                    old.index.create()
                    old.time_index.create()
                except OSError as problem:
                    raise storage_error("empty the indexes of", old.path, problem) from problem
                return
            raise KafkaError(
                f"{self.topic_partition}: segment {old.path} holds records but ends at its base offset"
            )
        segment = self._new_segment(self.end_offset)
        try:
            # First: where another segment follows, a start after a kill takes these indexes for ended.
            old.close_indexes()
            segment.create(now_ms)
            self.take_producer_snapshot()
        except OSError as problem:
            self._undo_roll(segment)
            raise storage_error("roll to", segment.path, problem) from problem
        self.segments.append(segment)
        self.active = segment
        self.names_changed += 1

    def roll_over_gap(self, offset: i64, now_ms: i64) -> None:
        """Ends the log at ``offset``, where a segment begins: compaction left nothing before that.

        Where more comes so, the active segment cannot name its offsets: they reach 2^31 far. Raises
        StorageError; the log is as before then.
        """
        end: i64 = self.end_offset
        self.end_offset = offset
        self.producer_state.end_offset = offset
        try:
            self.roll(now_ms)
        except StorageError:
            self.end_offset = end
            self.producer_state.end_offset = end
            raise

    def _segment_for(
        self, size: i64, last_offset: i64, timestamp: i64, now_ms: i64, is_stored: bool = False
    ) -> Segment:
        """The segment that takes the next batch. Raises StorageError when its files cannot be opened.

        ``is_stored``: the batch is in the leader's log. Where ``segment.bytes`` was lowered since it came
        there, it gets a segment of its own.
        """
        try:
            return self._choose_segment(size, last_offset, timestamp, now_ms, is_stored)
        except OSError as problem:
            raise storage_error("open", self.active.path, problem) from problem

    def _choose_segment(
        self, size: i64, last_offset: i64, timestamp: i64, now_ms: i64, is_stored: bool
    ) -> Segment:
        """The active one, or a new one when that is due."""
        segment = self.active
        if not segment.is_full(size, last_offset, self._segment_bytes):
            if segment.size == 0:
                return segment
            first: i64 = segment.rolling_timestamp()
            waited: i64 = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
            if waited <= self._segment_ms - self._jitter_ms(segment):
                return segment
        if size > self._segment_bytes:
            if is_stored and segment.size == 0:
                return segment
            if not is_stored:
                raise KafkaError(
                    f"{self.topic_partition}: a batch of {size} bytes is larger than a segment may be "
                    f"(segment.bytes={self._segment_bytes})",
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                )
        self.roll(now_ms)
        return self.active

    def _jitter_ms(self, segment: Segment) -> i64:
        """By how much the segment rolls earlier: spread over segments, the same after a restart."""
        span: i64 = self._segment_jitter_ms
        if span <= 0:
            return 0
        if span > self._segment_ms:
            span = self._segment_ms
        return i64(zlib.crc32(segment.path.encode())) % (span + 1)

    def _undo_roll(self, segment: Segment) -> None:
        """Removes what a failed roll made; what cannot be removed is empty, and dropped at the next start."""
        segment.release()
        for path in (segment.path, segment.index.path, segment.time_index.path):
            try:
                self.files.remove(path)
            except OSError:
                continue

    def _new_segment(self, base_offset: i64) -> Segment:
        return Segment(
            self.files,
            self.directory,
            base_offset,
            0,
            self.config.segment_index_bytes,
            self.config.index_interval_bytes,
        )

    def _transaction_index(self, segment: Segment) -> str:
        return f"{self.directory}/{offset_name(segment.base_offset, TRANSACTION_INDEX)}"

    def take_producer_snapshot(self) -> None:
        """Writes the producer state at the end offset, unless that has been done. Raises OSError."""
        offset: i64 = self.producer_state.end_offset
        if offset <= self.producer_state.snapshot_offset:
            return
        write_snapshot(self.files, self._snapshot_path(offset), self.producer_state.encode())
        before: i64 = self.producer_state.snapshot_offset
        self.producer_state.snapshot_offset = offset
        self.names_changed += 1
        if before >= 0 and self.segments[self.segment_at(before)].base_offset != before:
            # Only where segments begin are older ones of use: the log may be cut there.
            path = self._snapshot_path(before)
            if self.files.exists(path):
                self.files.remove(path)

    def _snapshot_path(self, offset: i64) -> str:
        return f"{self.directory}/{offset_name(offset, SNAPSHOT)}"

    def segment_at(self, offset: i64) -> i64:
        """The place in :attr:`segments` of the one that holds ``offset``: the last that begins before it."""
        low: i64 = 0
        high: i64 = len(self.segments)
        while low < high:
            middle: i64 = (low + high) >> 1
            if self.segments[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > 0 else 0

    # -- compaction

    def begin_swap(self, old: list[int], size: i64) -> Swap | None:
        """A cleaned segment of ``size`` bytes is to stand for the segments that begin at ``old``.

        ``swap.run()`` may be called in a thread; then ``finish_swap(swap)`` here. None when the log is not
        any more what was cleaned. Raises StorageError when a file cannot be opened.
        """
        at: i64 = self._place_of(old)
        if at < 0 or self._swap is not None:
            return None
        pin_all(self.segments[at : at + len(old)])
        self._swap = Swap(self.files, self.directory, old, int(size))
        return self._swap

    def finish_swap(self, swap: Swap, now_ms: i64) -> bool:
        """Takes the new segment into the list, once the files have their names; False when that is off."""
        if self._swap is not swap:
            return swap.done
        self._swap = None
        done = swap.settle()
        at: i64 = self._place_of(list(swap.old))
        count: i64 = len(swap.old)
        if at < 0:
            return False
        if not done:
            unpin_all(self.segments[at : at + count])
            return False
        gone = self.segments[at : at + count]
        fresh = self._new_segment(gone[0].base_offset)
        fresh.size = swap.size
        fresh.created_ms = gone[0].created_ms
        self.segments = [*self.segments[:at], fresh, *self.segments[at + count :]]
        self._limit_offset = -1
        self.names_changed += 1
        for segment in gone:
            segment.release()
        due_ms: i64 = now_ms + self.config.file_delete_delay_ms
        for path in swap.deleted:
            self.removals.add(path, int(due_ms))
        return True

    def _settle_swap(self) -> None:
        """Before segments are cut or go: ends a swap whose renames have begun, calls off one that waits."""
        swap = self._swap
        if swap is not None:
            self.finish_swap(swap, self.last_flush_ms)

    def _place_of(self, old: list[int]) -> i64:
        """Where the segments that begin at ``old`` follow each other, before the active one; else -1."""
        if self.closed or not old:
            return -1
        at: i64 = self.segment_at(old[0])
        count: i64 = len(old)
        if at + count >= len(self.segments):
            return -1
        place: i64 = at
        for base in old:
            if self.segments[place].base_offset != base:
                return -1
            place += 1
        return at

    # -- durability

    @property
    def has_unfinished_cut(self) -> bool:
        """Whether a cut failed half way: the next write finishes it first."""
        return self._cut is not None

    @property
    def needs_flush(self) -> bool:
        """Whether ``flush.messages`` asks that the log be synced before the append is acknowledged."""
        return self.end_offset - self.recovery_point >= self._flush_messages

    def needs_flush_by(self, now_ms: i64) -> bool:
        """Whether ``flush.ms`` asks that the log be synced now. A clock that was set back begins it anew."""
        if now_ms < self.last_flush_ms:
            self.last_flush_ms = now_ms
        return self.end_offset > self.recovery_point and now_ms - self.last_flush_ms >= self.config.flush_ms

    def begin_flush(self, whole: bool = True) -> FlushJob:
        """What must be synced so that everything up to now (``whole``), or up to the active segment, is safe.

        ``job.run()`` may be called in a thread; then ``finish_flush(job)`` here. Raises StorageError when a
        file cannot be opened.
        """
        try:
            return self._make_flush(whole)
        except OSError as problem:
            raise storage_error("open for a sync", problem.filename or self.directory, problem) from problem

    @property
    def unsynced_bytes(self) -> i64:
        """Bytes that a recovery would have to read now."""
        if self.recovery_point >= self.end_offset:
            return 0
        at: i64 = self.segment_at(self.recovery_point)
        total: i64 = 0
        if self.segments[at].base_offset == self._synced_base:
            total = -self._synced_position
        while at < len(self.segments):
            total += self.segments[at].size
            at += 1
        return total

    def begin_safe_point(self) -> FlushJob:
        """As :meth:`begin_flush`, so that a recovery finds indexes and producers as they are now, too."""
        try:
            self.take_producer_snapshot()
        except OSError as problem:
            raise storage_error("write the producers of", self.directory, problem) from problem
        job = self.begin_flush()
        job.is_safe_point = True
        job.add_path(self.active.index.path)
        job.add_path(self.active.time_index.path)
        return job

    def _make_flush(self, whole: bool) -> FlushJob:
        end: i64 = self.end_offset if whole else self.active.base_offset
        job = FlushJob(self.files, self.directory, int(end), int(self.truncations))
        job.names_changed = int(self.names_changed)
        job.epochs_changed = self.leader_epochs.changes
        job.sync_directory = (
            self.names_changed != self.names_synced
            or self.leader_epochs.is_unsynced
            or self.id_changed != self.id_synced
        )
        job.id_changed = int(self.id_changed)
        if self.id_changed != self.id_synced:
            job.add_path(f"{self.directory}/{PARTITION_METADATA}")
        job.is_cut = self.truncations != self.truncations_synced
        job.sync_parent = self.parent_unsynced
        self.flushes = [one for one in self.flushes if not one.ended]
        self.flushes.append(job)
        at: i64 = self.segment_at(self.recovery_point)
        if at > 0 and self.segments[at].base_offset == self.recovery_point:
            # The segment before this one was active at the last sync: its indexes were left out. It may have
            # been cut since, also by a process that was killed before it synced that.
            job.add(self.segments[at - 1].file())
            job.add_path(self.segments[at - 1].index.path)
            job.add_path(self.segments[at - 1].time_index.path)
        while at < len(self.segments):
            segment = self.segments[at]
            if segment is not self.active:
                job.add(segment.file())
                job.add_path(segment.index.path)
                job.add_path(segment.time_index.path)
                if self.has_aborts:
                    job.add_path(self._transaction_index(segment))
            elif whole and (segment.size > 0 or self.truncations > 0):
                job.add(segment.file())
                if self.has_aborts:
                    # Unlike the others it must be whole: recovery makes it anew from the recovery point on.
                    job.add_path(self._transaction_index(segment))
            at += 1
        job.base_offset = int(self.active.base_offset)
        job.position = int(self.active.size) if whole else 0
        if self.leader_epochs.is_unsynced:
            job.add_path(self.leader_epochs.path)
        if self.names_changed != self.names_synced and self.producer_state.snapshot_offset >= 0:
            job.add_path(self._snapshot_path(self.producer_state.snapshot_offset))
        return job

    def finish_flush(self, job: FlushJob, now_ms: i64) -> None:
        """Takes in that a flush is done: recovery begins after it. For one that failed it is not called."""
        self.last_flush_ms = now_ms
        self.parent_unsynced = False
        self.id_synced = job.id_changed
        self.names_synced = job.names_changed
        self.leader_epochs.synced = job.epochs_changed
        self.truncations_synced = job.truncations
        if job.truncations != self.truncations:
            return  # what was synced may be gone, and other records in its place
        if job.offset > self.recovery_point:
            self.recovery_point = job.offset
            self.note_move()
            self._synced_base = job.base_offset
            self._synced_position = job.position

    def flush(self, now_ms: i64) -> None:
        """Syncs everything, and waits for it. Raises StorageError."""
        job = self.begin_flush()
        job.run()
        self.finish_flush(job, now_ms)

    # -- the rest

    def note_move(self) -> None:
        """The start, the recovery point or the clean end is another than was written down."""
        if self.on_moved is not None:
            self.on_moved(self.topic_partition)

    @property
    def size_bytes(self) -> i64:
        """Bytes of all log files."""
        total: i64 = 0
        for segment in self.segments:
            total += segment.size
        return total

    def close(self, now_ms: i64) -> None:
        """Syncs and ends the files: a start after this needs no recovery. Raises StorageError."""
        job = self.begin_close()
        if job is not None:
            job.run()
        self.finish_close(job, now_ms)

    def begin_close(self) -> FlushJob | None:
        """Ends the files but for the syncs: the job that does them, in any thread; None when none is needed.

        ``finish_close(job)`` comes after it. Raises StorageError.
        """
        self._settle_swap()
        if self.closed or self._is_settled():
            return None
        try:
            if self.truncations > 0 and self._end_on_disk() < self.end_offset:
                # What compaction had left before the cut ends earlier: the name of a segment tells the end.
                self.roll(self.last_flush_ms)
            self.take_producer_snapshot()
            self.active.close_indexes()
        except OSError as problem:
            raise storage_error("close", self.directory, problem) from problem
        if self._is_untouched():
            return None
        job = self.begin_flush()
        job.add_path(self.active.index.path)
        job.add_path(self.active.time_index.path)
        return job

    def _end_on_disk(self) -> i64:
        """The end offset that a start would find."""
        return self.active.base_offset if self.active.size == 0 else self.active.last_offset_end()

    def finish_close(self, job: FlushJob | None, now_ms: i64) -> None:
        """Lets the files go, once ``job`` is done. Where it failed this is not called."""
        if self.closed:
            return
        if job is not None:
            self.finish_flush(job, now_ms)
        self.release()
        self.closed = True

    def settle(self) -> None:
        """Says that the log was opened after a clean stop: until something happens to it, all is synced."""
        self.settled_end = self.end_offset
        self.names_synced = self.names_changed
        self.id_synced = self.id_changed
        self.parent_unsynced = False

    def _is_settled(self) -> bool:
        is_same = self.names_synced == self.names_changed and self.id_synced == self.id_changed
        return is_same and self.settled_end == self.end_offset and not self.leader_epochs.is_unsynced

    def _is_untouched(self) -> bool:
        """Whether nothing was ever stored here: a power cut has nothing to take."""
        return self.end_offset == 0 and self.truncations == 0 and self.leader_epochs.changes == 0

    def release(self) -> None:
        """Closes all files until they are needed again."""
        self._settle_swap()
        for segment in self.segments:
            segment.release()


def write_snapshot(files: Files, path: str, data: bytes) -> None:
    """Writes a producer snapshot beside its place, and renames it. Raises OSError."""
    temporary = path + ".tmp"
    file = files.open(temporary, True)
    try:
        if file.size():
            file.truncate(0)
        file.append([data])
    finally:
        file.close()
    files.rename(temporary, path)
