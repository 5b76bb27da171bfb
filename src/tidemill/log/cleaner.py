"""Compacts one log: reads the dirty part into a map of latest offsets, then rewrites the segments.

The log itself is only read. Each group of segments becomes one new segment under ``.cleaned`` names, which is
complete and synced when :meth:`Cleaner.run` yields it. The caller replaces the old segments
(:mod:`tidemill.log.segment_swap`) before it continues, so that the disk needs space for one more segment
only.

This module has no clock: the caller controls the pace, and ends a cleaning by an exception.

Source: Apache Kafka, ``LogCleaner.scala`` (``Cleaner``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from tidemill.log.batch_scan import BatchScan
from tidemill.log.cleaned_segment import CleanedSegment
from tidemill.log.cleaned_transaction_metadata import CleanedTransactions
from tidemill.log.cleaner_messages import CleanCounts, CleanedGroup, CleanJob, ClosedSegment
from tidemill.log.cleaner_passes import Walk
from tidemill.log.file_names import INDEX, LOG, TIME_INDEX, offset_name
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.transaction_index import Aborted, read_all
from tidemill.model.errors import CorruptMessage, InvalidRecord, KafkaError
from tidemill.model.system_interfaces import Files

GROUP_SEGMENTS_MAX: Final = 100
"""The maximum number of merged segments: the broker opens the files of all of them at the same time."""


class SegmentFile(NamedTuple):
    """A closed segment and the sizes of its files in bytes."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int
    modified_ms: int


class Cleaner:
    """One cleaning of one log. ``pace`` is called with read or written bytes, and may wait or raise.

    :meth:`run` raises CorruptMessage and InvalidRecord for an invalid log, OSError for file errors.
    """

    def __init__(self, files: Files, job: CleanJob, pace: Callable[[int], None]) -> None:
        self.files = files
        self.job = job
        self.pace = pace
        self.walk = Walk(job, pace)
        self.written_bytes = 0

    def run(self) -> Generator[CleanedGroup, None, None]:
        """Cleans group by group; the caller must replace the old segments before it continues."""
        self._build_map()
        segments = [self._measured(one) for one in self.job.segments]
        horizon = self._old_format_horizon(segments)
        transactions = CleanedTransactions(self._aborted())
        cleaned = [one for one in segments if one.base_offset <= self.walk.map.latest_offset]
        for group in groups(cleaned, self.job):
            output = CleanedSegment(self.files, self.job, group[0].base_offset, self._wrote)
            try:
                self._clean_group(group, output, transactions, horizon)
                yield CleanedGroup(tuple(one.base_offset for one in group), int(output.size))
            except BaseException:
                # Also if the caller ends the run instead of replacing the old segments.
                output.discard()
                raise

    @property
    def counts(self) -> CleanCounts:
        """The counts so far."""
        walk = self.walk
        batches, entries, offsets = walk.batches, walk.entries, walk.map
        return CleanCounts(
            end_offset=int(offsets.latest_offset) + 1,
            mapped_bytes=int(walk.mapped_bytes),
            read_bytes=int(walk.read_bytes),
            written_bytes=self.written_bytes,
            records_read=int(batches.records_read + entries.records_read),
            records_kept=int(batches.records_kept + entries.records_kept),
            records_without_key=int(batches.records_without_key + entries.records_without_key),
            keys=int(offsets.count),
            map_bytes=int(offsets.memory_bytes),
            map_utilization=offsets.utilization,
        )

    # The map

    def _build_map(self) -> None:
        """Reads the dirty segments into the map until the map is full."""
        job, offsets = self.job, self.walk.map
        # Earlier transactions of a producer have ended, and their markers are before the dirty part.
        dirty = [one for one in self._aborted() if one.last_offset >= job.first_dirty]
        transactions = CleanedTransactions(dirty)
        for at, segment in enumerate(job.segments):
            end = job.segments[at + 1].base_offset if at + 1 < len(job.segments) else job.upper_bound
            if end <= job.first_dirty:
                continue
            with self._scan(segment) as scan:
                mapped = self.walk.map_segment(scan, transactions)
            if not mapped:
                if offsets.latest_offset < job.first_dirty:
                    raise KafkaError(
                        f"{job.name}: the first dirty batch needs a map larger than {job.map_bytes} bytes: "
                        "increase log.cleaner.dedupe.buffer.size"
                    )
                return
            # Offsets at the end of a closed segment may be missing; no record will get them.
            offsets.latest_offset = max(offsets.latest_offset, end - 1)

    @contextmanager
    def _scan(self, segment: ClosedSegment | SegmentFile) -> Iterator[BatchScan]:
        """A scan of the batches of a segment. Raises CorruptMessage for its fault."""
        path = f"{self.job.directory}/{offset_name(segment.base_offset, LOG)}"
        with self.files.open(path, read_only=True) as file:
            scan = BatchScan(file, 0, segment.size, self.job.chunk_bytes)
            try:
                yield scan
                if scan.fault:
                    raise CorruptMessage(scan.fault)
            except (CorruptMessage, InvalidRecord) as problem:
                raise CorruptMessage(f"{path}: {problem} (at byte {scan.position})") from problem

    def _aborted(self) -> list[Aborted]:
        """The aborted transactions in the indexes of the segments."""
        return read_all(self.files, self.job.directory)

    def _measured(self, segment: ClosedSegment) -> SegmentFile:
        path = f"{self.job.directory}/{offset_name(segment.base_offset, LOG)}"
        sizes = []
        for suffix in (INDEX, TIME_INDEX):
            index = f"{self.job.directory}/{offset_name(segment.base_offset, suffix)}"
            sizes.append(int(self.files.size(index)) if self.files.exists(index) else 0)
        return SegmentFile(
            segment.base_offset, segment.size, sizes[0], sizes[1], int(self.files.modified_ms(path))
        )

    def _old_format_horizon(self, segments: Sequence[SegmentFile]) -> int:
        """Segments modified after this time (ms) keep their tombstones of formats v0 and v1."""
        clean = [one for one in segments if one.base_offset < self.job.first_dirty]
        return clean[-1].modified_ms - self.job.delete_retention_ms if clean else 0

    # The new segments

    def _clean_group(
        self,
        group: Sequence[SegmentFile],
        output: CleanedSegment,
        transactions: CleanedTransactions,
        horizon: int,
    ) -> None:
        kept_before = len(transactions.kept)
        for segment in group:
            with self._scan(segment) as scan:
                self.walk.clean_segment(scan, transactions, segment.modified_ms > horizon, output)
        output.finish(transactions.kept[kept_before:], group[-1].modified_ms)

    def _wrote(self, count: int) -> None:
        self.written_bytes += count
        self.pace(count)


def groups(segments: Sequence[SegmentFile], job: CleanJob) -> list[list[SegmentFile]]:
    """Groups of consecutive segments that fit into one: by number, size, index sizes and relative offsets."""
    made: list[list[SegmentFile]] = []
    at = 0
    while at < len(segments):
        group = [segments[at]]
        size = segments[at].size
        index_bytes, time_index_bytes = segments[at].index_bytes, segments[at].time_index_bytes
        at += 1
        while at < len(segments):
            one = segments[at]
            end = segments[at + 1].base_offset if at + 1 < len(segments) else job.upper_bound
            size += one.size
            index_bytes += one.index_bytes
            time_index_bytes += one.time_index_bytes
            if (
                len(group) >= GROUP_SEGMENTS_MAX
                or size > job.segment_bytes
                or index_bytes > job.index_bytes_max
                or time_index_bytes > job.index_bytes_max
                or (one.size > 0 and end - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX)
            ):
                break
            group.append(one)
            at += 1
        made.append(group)
    return made
