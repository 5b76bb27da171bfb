"""The segments of a partition's log in order, and their files. Compiled.

Batches are appended to the last segment, the active one. A removed segment is renamed at once and its files
are removed after ``file.delete.delay.ms``: readers are not disturbed. Compaction replaces segments with a
cleaned one (:class:`~tidemill.log.segment_swap.SegmentSwap`).
"""

from __future__ import annotations

import zlib

from mypy_extensions import i64

from tidemill.log.delayed_file_removal import DelayedFileRemoval, rename_deleted
from tidemill.log.file_names import (
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    offset_name,
)
from tidemill.log.log_config import LogConfig
from tidemill.log.log_segment import LogRange, LogSegment
from tidemill.log.segment_swap import SegmentSwap, pin_all, unpin_all
from tidemill.model.system_interfaces import Files


class SegmentList:
    """The segments of one partition: never empty, sorted by base offset."""

    def __init__(
        self,
        files: Files,
        directory: str,
        segments: list[LogSegment],
        config: LogConfig,
        removals: DelayedFileRemoval,
    ) -> None:
        self.files = files
        self.directory = directory
        self.removals = removals
        self.all = segments
        self.active = segments[len(segments) - 1]
        self.names_changed: i64 = 1
        """Counts the changes of names in the directory."""
        self.has_aborts: bool = False
        """Whether an index of aborted transactions may exist."""
        self._swap: SegmentSwap | None = None
        self._limit_offset: i64 = -1
        self._limit_base: i64 = -1
        self._limit_position: i64 = -1
        self.set_config(config)

    def set_config(self, config: LogConfig) -> None:
        """Applies changed settings; those of indexes apply from the next segment on."""
        self._config = config
        self.segment_bytes: i64 = config.segment_bytes
        self._segment_ms: i64 = config.segment_ms
        if config.compact and config.max_compaction_lag_ms < config.segment_ms:
            # Only closed segments are compacted.
            self._segment_ms = config.max_compaction_lag_ms
        self._segment_jitter_ms: i64 = config.segment_jitter_ms

    @property
    def size_bytes(self) -> i64:
        """Bytes of all log files."""
        total: i64 = 0
        for segment in self.all:
            total += segment.size
        return total

    def at(self, offset: i64) -> i64:
        """The index in :attr:`all` of the segment for ``offset``: the last that begins at or before it."""
        low: i64 = 0
        high: i64 = len(self.all)
        while low < high:
            middle: i64 = (low + high) >> 1
            if self.all[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > 0 else 0

    # New segments

    def new_segment(self, base_offset: i64) -> LogSegment:
        """Creates a segment without files, which is not in the list."""
        return LogSegment(
            self.files,
            self.directory,
            base_offset,
            0,
            self._config.segment_index_bytes,
            self._config.index_interval_bytes,
        )

    def add(self, segment: LogSegment) -> None:
        """Adds ``segment``, whose files exist, as the active one."""
        self.all.append(segment)
        self.active = segment
        self.names_changed += 1

    def has_room(self, size: i64, last_offset: i64, timestamp: i64, now_ms: i64) -> bool:
        """Whether the next batch fits into the active segment, which is neither full nor too old."""
        segment = self.active
        if segment.is_full(size, last_offset, self.segment_bytes):
            return False
        if segment.size == 0:
            return True
        first: i64 = segment.rolling_timestamp()
        waited: i64 = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
        return waited <= self._segment_ms - self._jitter_ms(segment)

    def _jitter_ms(self, segment: LogSegment) -> i64:
        """The time by which the segment rolls earlier: differs between segments, but survives a restart."""
        span: i64 = self._segment_jitter_ms
        if span <= 0:
            return 0
        if span > self._segment_ms:
            span = self._segment_ms
        return i64(zlib.crc32(segment.path.encode())) % (span + 1)

    def undo_roll(self, segment: LogSegment) -> None:
        """Removes the files of a segment after a failed roll.

        A file that cannot be removed is empty; the next start removes it.
        """
        segment.close_handlers()
        for path in (segment.path, segment.index.path, segment.time_index.path):
            try:
                self.files.remove(path)
            except OSError:
                continue

    # Truncation and removal

    def begin_empty(self, base_offset: i64) -> None:
        """Replaces all segments with a new one without files."""
        segment = self.new_segment(base_offset)
        self.all = [segment]
        self.active = segment
        self._limit_offset = -1

    def truncate(self, count: i64, position: i64) -> list[LogSegment]:
        """Keeps the first ``count`` segments, the last of them up to ``position``.

        Returns the others, newest first. Does not change files.
        """
        # The newest is removed first: a kill at any moment leaves a log without a hole, which a start could
        # not distinguish from compacted records.
        gone = self.all[count:]
        gone.reverse()
        del self.all[count:]
        self.active = self.all[count - 1]
        self.active.size = position
        self._limit_offset = -1
        return gone

    def remove_oldest(self, count: i64) -> None:
        """Removes the ``count`` oldest segments from the list."""
        del self.all[:count]

    def remove_files(self, segments: list[LogSegment], now_ms: i64) -> None:
        """Renames the files of ``segments``, and schedules their removal."""
        due_ms: i64 = now_ms + self._config.file_delete_delay_ms
        self.names_changed += 1
        for segment in segments:
            segment.close_handlers()
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
                path = f"{self.directory}/{offset_name(segment.base_offset, suffix)}"
                renamed = rename_deleted(self.files, path)
                if renamed:
                    self.removals.add(renamed, int(due_ms))

    def close_handlers(self) -> None:
        """Closes all files until they are needed again. The caller has completed a swap."""
        for segment in self.all:
            segment.close_handlers()

    # Compaction

    def begin_swap(self, old: list[int], size: i64) -> SegmentSwap | None:
        """Begins to replace the segments with base offsets ``old`` by a cleaned one of ``size`` bytes.

        Call ``swap.run()`` in any thread, then ``finish_swap(swap)`` here. Returns None if these segments
        have changed. Raises StorageError if a file cannot be opened.
        """
        at: i64 = self._place_of(old)
        if at < 0 or self._swap is not None:
            return None
        pin_all(self.all[at : at + len(old)])
        self._swap = SegmentSwap(self.files, self.directory, old, int(size))
        return self._swap

    def finish_swap(self, swap: SegmentSwap, now_ms: i64) -> bool:
        """Adds the cleaned segment to the list, if its files have been renamed; else returns False."""
        if self._swap is not swap:
            return swap.done
        self._swap = None
        done = swap.finish_or_cancel()
        at: i64 = self._place_of(list(swap.old))
        count: i64 = len(swap.old)
        if at < 0:
            return False
        if not done:
            unpin_all(self.all[at : at + count])
            return False
        gone = self.all[at : at + count]
        fresh = self.new_segment(gone[0].base_offset)
        fresh.size = swap.size
        fresh.created_ms = gone[0].created_ms
        self.all = [*self.all[:at], fresh, *self.all[at + count :]]
        self._limit_offset = -1
        self.names_changed += 1
        for segment in gone:
            segment.close_handlers()
        due_ms: i64 = now_ms + self._config.file_delete_delay_ms
        for path in swap.deleted:
            self.removals.add(path, int(due_ms))
        return True

    def complete_swap(self, now_ms: i64) -> None:
        """Completes a swap whose renames have begun, or cancels it, before other changes of segments."""
        swap = self._swap
        if swap is not None:
            self.finish_swap(swap, now_ms)

    def _place_of(self, old: list[int]) -> i64:
        """The index of the consecutive closed segments with base offsets ``old``; else -1."""
        if not old:
            return -1
        at: i64 = self.at(old[0])
        count: i64 = len(old)
        if at + count >= len(self.all):
            return -1
        place: i64 = at
        for base in old:
            if self.all[place].base_offset != base:
                return -1
            place += 1
        return at

    # Reading

    def read(
        self, offset: i64, bytes_max: i64, limit_offset: i64, end_offset: i64, whole_first: bool
    ) -> LogRange | None:
        """The range of a log file from the batch with ``offset`` on; see :meth:`tidemill.log.log.Log.read`.

        ``end_offset`` is the log end offset. Raises OSError.
        """
        limited = limit_offset < end_offset
        segment = self.active
        position: i64
        if offset >= segment.base_offset:
            position = segment.recent_position(offset)
            if position >= 0:
                return self._range(segment, position, bytes_max, limit_offset, limited, whole_first, True)
        at: i64 = self.at(offset)
        count: i64 = len(self.all)
        while at < count:
            segment = self.all[at]
            position = segment.translate_offset(offset)
            if position < segment.size:
                return self._range(segment, position, bytes_max, limit_offset, limited, whole_first, False)
            at += 1
        return None

    def _range(
        self,
        segment: LogSegment,
        position: i64,
        bytes_max: i64,
        limit_offset: i64,
        limited: bool,
        whole_first: bool,
        recent: bool,
    ) -> LogRange | None:
        end: i64 = segment.size
        if limited:
            end = self._limit_in(segment, limit_offset)
        size: i64 = end - position
        if size <= 0:
            return None
        if size > bytes_max:
            size = segment.read_size(position, bytes_max, whole_first)
            if size > end - position:
                size = end - position
        return LogRange(segment.file(), position, size, recent)

    def _limit_in(self, segment: LogSegment, limit_offset: i64) -> i64:
        """The end position of the batches before ``limit_offset`` in this segment."""
        if limit_offset == self._limit_offset and segment.base_offset == self._limit_base:
            return self._limit_position
        if limit_offset <= segment.base_offset:
            return 0
        if segment is not self.active and self.all[self.at(limit_offset)] is not segment:
            return segment.size  # The limit is in a later segment.
        position: i64 = segment.recent_position(limit_offset)
        if position < 0:
            position = segment.translate_offset(limit_offset)
        if segment is not self.active or position < segment.size:
            self._limit_offset = limit_offset
            self._limit_base = segment.base_offset
            self._limit_position = position
        return position
