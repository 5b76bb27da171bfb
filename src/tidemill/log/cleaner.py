"""Cleans one log: reads what is dirty into a map of latest offsets, then writes the segments anew.

The log itself is only read. Each group of segments becomes one new segment under ``.cleaned`` names, which
is whole and on the disk when :meth:`Cleaner.run` yields it; whoever runs the cleaner puts it in the old ones'
place (:mod:`tidemill.log.swap`) before it goes on, so that no more room is needed than for one segment.

Nothing here has a clock: the pace is the caller's, who also ends a cleaning by raising from it.

Source: Apache Kafka, ``LogCleaner.scala`` (``Cleaner``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from tidemill.log.clean_batch import MAPPED, BatchCleaner
from tidemill.log.clean_job import CleanCounts, CleanedGroup, CleanJob, SegmentFile
from tidemill.log.clean_transactions import CleanedTransactions
from tidemill.log.index import RELATIVE_OFFSET_MAX
from tidemill.log.names import (
    CLEANED,
    LOG,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX,
    offset_name,
    offset_of,
)
from tidemill.log.offset_map import OffsetMap
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Segment
from tidemill.log.transaction_index import ABORTED_ENTRY, ABORTED_ENTRY_BYTES, Aborted, decode_aborted
from tidemill.model.errors import CorruptMessage, KafkaError
from tidemill.model.ports import Files
from tidemill.records.batch import Batch, parse_batch

WRITE_BYTES = 1024 * 1024
"""Written at a time."""

POSITION_MAX = 0x7FFFFFFF


class Cleaner:
    """One run over one log. ``pace`` is called with bytes that were read or written, and may wait or raise.

    :meth:`run` raises CorruptMessage and InvalidRecord for a log that cannot be cleaned, OSError as the
    files do.
    """

    def __init__(self, files: Files, job: CleanJob, pace: Callable[[int], None]) -> None:
        self.files = files
        self.job = job
        self.pace = pace
        self.map = OffsetMap(job.map_bytes, job.load_factor, job.first_dirty)
        self.batches = BatchCleaner(self.map, job.now_ms, job.delete_retention_ms)
        self.mapped_bytes = 0
        self.read_bytes = 0
        self.written_bytes = 0

    def run(self) -> Generator[CleanedGroup, None, None]:
        """Cleans group by group; each must be in its place before the next is asked for."""
        self._build_map()
        horizon = self._old_format_horizon()
        transactions = CleanedTransactions(self._aborted())
        cleaned = [one for one in self.job.segments if one.base_offset <= self.map.latest_offset]
        for group in groups(cleaned, self.job):
            output = _Output(self, group)
            try:
                self._clean_group(group, output, transactions, horizon)
                yield CleanedGroup(tuple(one.base_offset for one in group), output.size)
            except BaseException:
                # Also when the caller ends the run instead of putting the group in its place.
                output.discard()
                raise

    @property
    def counts(self) -> CleanCounts:
        """What was done so far."""
        return CleanCounts(
            end_offset=int(self.map.latest_offset) + 1,
            mapped_bytes=self.mapped_bytes,
            read_bytes=self.read_bytes,
            written_bytes=self.written_bytes,
            records_read=int(self.batches.records_read),
            records_kept=int(self.batches.records_kept),
            records_without_key=int(self.batches.records_without_key),
            keys=int(self.map.count),
            map_bytes=int(self.map.memory_bytes),
            map_utilization=self.map.utilization,
        )

    # -- the map

    def _build_map(self) -> None:
        """Takes in the dirty segments, as far as the map has room."""
        job = self.job
        transactions = CleanedTransactions(self._aborted())
        for at, segment in enumerate(job.segments):
            end = job.segments[at + 1].base_offset if at + 1 < len(job.segments) else job.upper_bound
            if end <= job.first_dirty:
                continue
            if not self._map_segment(segment, transactions):
                if self.map.latest_offset < job.first_dirty:
                    raise KafkaError(
                        f"{job.name}: the first dirty batch needs a map of more than {job.map_bytes} bytes: "
                        "raise log.cleaner.dedupe.buffer.size"
                    )
                return
            # Offsets at the end of a segment may be missing, and none comes there any more.
            self.map.latest_offset = max(self.map.latest_offset, end - 1)

    def _map_segment(self, segment: SegmentFile, transactions: CleanedTransactions) -> bool:
        """False when the map is full."""
        first_dirty = self.job.first_dirty
        for scan in self._scan(segment):
            self.mapped_bytes += int(scan.size)
            if scan.last_offset < first_dirty:
                continue
            batch = batch_of(scan)
            if batch.is_control:
                transactions.marker_may_go(batch)
            elif not transactions.is_aborted(batch):
                full_at = int(self.batches.index(batch, first_dirty))
                if full_at != MAPPED:
                    return False
            self.map.latest_offset = max(self.map.latest_offset, batch.last_offset)
        return True

    def _scan(self, segment: SegmentFile) -> Iterator[BatchScan]:
        path = f"{self.job.directory}/{offset_name(segment.base_offset, LOG)}"
        file = self.files.open(path, read_only=True)
        try:
            scan = BatchScan(file, 0, segment.size, self.job.chunk_bytes)
            while scan.step():
                self.pace(int(scan.size))
                yield scan
            if scan.fault:
                raise CorruptMessage(f"{path}: {scan.fault} (at byte {scan.position})")
        finally:
            file.close()

    def _aborted(self) -> list[Aborted]:
        """The aborted transactions that the segments' indexes know."""
        found = []
        for name in self.files.list(self.job.directory):
            if offset_of(name, TRANSACTION_INDEX) < 0:
                continue
            data = self.files.read(f"{self.job.directory}/{name}")
            for at in range(0, len(data) - ABORTED_ENTRY_BYTES + 1, ABORTED_ENTRY_BYTES):
                found.append(decode_aborted(data[at : at + ABORTED_ENTRY_BYTES]))
        return found

    def _old_format_horizon(self) -> int:
        """Tombstones of formats v0 and v1 stay in segments that were written after this (ms)."""
        clean = [one for one in self.job.segments if one.base_offset < self.job.first_dirty]
        return clean[-1].modified_ms - self.job.delete_retention_ms if clean else 0

    # -- the new segments

    def _clean_group(
        self,
        group: Sequence[SegmentFile],
        output: _Output,
        transactions: CleanedTransactions,
        horizon: int,
    ) -> None:
        kept_before = len(transactions.kept)
        for segment in group:
            keeps_tombstones = segment.modified_ms > horizon
            for scan in self._scan(segment):
                self.read_bytes += int(scan.size)
                if scan.magic < 2:
                    self._clean_old(scan, output, keeps_tombstones)
                    continue
                batch = batch_of(scan)
                data = self._clean_batch(batch, transactions)
                if data:
                    output.add(
                        data, int(batch.base_offset), int(batch.last_offset), int(self.batches.max_timestamp)
                    )
        output.finish(transactions.kept[kept_before:], group[-1].modified_ms)

    def _clean_batch(self, batch: Batch, transactions: CleanedTransactions) -> bytes:
        """The bytes that stay for a batch."""
        job = self.job
        retained_empty = self._is_last_of_producer(batch) or batch.next_offset == job.upper_bound
        marker_may_go = False
        if batch.is_control:
            marker_may_go = transactions.marker_may_go(batch)
            discarded = marker_may_go and batch.has_delete_horizon and batch.base_timestamp <= job.now_ms
        else:
            discarded = transactions.is_aborted(batch)
        data = b""
        if not discarded:
            data = self.batches.clean(batch, batch.is_control, marker_may_go)
        if not data and retained_empty:
            data = self.batches.empty(batch)
        return data

    def _is_last_of_producer(self, batch: Batch) -> bool:
        """Whether the batch tells the state of a living producer: its last sequence, or its epoch."""
        last = self.job.producers.get(int(batch.producer_id)) if batch.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return batch.last_offset == last.last_offset
        return batch.is_control and batch.producer_epoch == last.epoch

    def _clean_old(self, scan: BatchScan, output: _Output, keeps_tombstones: bool) -> None:
        raise NotImplementedError


class _Output:
    """The new segment of a group, under its ``.cleaned`` names."""

    def __init__(self, cleaner: Cleaner, group: Sequence[SegmentFile]) -> None:
        job = cleaner.job
        self._cleaner = cleaner
        self._files = cleaner.files
        self._base = group[0].base_offset
        self._directory = job.directory
        self._now_ms = job.now_ms
        self._chunk_bytes = max(job.chunk_bytes, WRITE_BYTES)
        self._buffers: list[bytes] = []
        self._buffered = 0
        self.size = 0
        self.discard()
        segment = Segment(self._files, job.directory, self._base, 0, job.index_bytes_max, job.interval_bytes)
        segment.path += CLEANED
        segment.index.path += CLEANED
        segment.time_index.path += CLEANED
        self._segment = segment
        segment.create(self._now_ms)

    def add(self, data: bytes, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Takes a batch."""
        if self.size + len(data) > POSITION_MAX:
            raise KafkaError(
                f"{self._segment.path} would become larger than 2 GiB: lower segment.bytes of the topic"
            )
        self._segment.note(self.size, len(data), base_offset, last_offset, max_timestamp)
        self.size += len(data)
        self._segment.size = self.size
        self._buffers.append(data)
        self._buffered += len(data)
        if self._buffered >= self._chunk_bytes:
            self._write()

    def _write(self) -> None:
        if not self._buffers:
            return
        count = self._buffered
        self._segment.file().append([b"".join(self._buffers)])
        self._buffers = []
        self._buffered = 0
        self._cleaner.written_bytes += count
        self._cleaner.pace(count)

    def finish(self, aborted: Sequence[Aborted], modified_ms: int) -> None:
        """Ends the files, with the time of the last old segment, and brings them to the disk."""
        segment = self._segment
        self._write()
        segment.close_indexes()
        segment.file().sync()
        self._sync(segment.index.path)
        self._sync(segment.time_index.path)
        if aborted:
            path = f"{self._directory}/{offset_name(self._base, TRANSACTION_INDEX)}{CLEANED}"
            file = self._files.open(path, create=True)
            try:
                file.append([b"".join(ABORTED_ENTRY.pack(*one) for one in aborted)])
                file.sync()
            finally:
                file.close()
        segment.release()
        self._files.set_modified(segment.path, modified_ms)

    def _sync(self, path: str) -> None:
        file = self._files.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def discard(self) -> None:
        """Removes what there is of the new segment."""
        for suffix in SEGMENT_SUFFIXES:
            path = f"{self._directory}/{offset_name(self._base, suffix)}{CLEANED}"
            if self._files.exists(path):
                self._files.remove(path)


def batch_of(scan: BatchScan) -> Batch:
    """The batch of format v2 at which a scan stands. Raises CorruptMessage."""
    data, at = scan.whole()
    return parse_batch(data, at, at + scan.size)


def groups(segments: Sequence[SegmentFile], job: CleanJob) -> list[list[SegmentFile]]:
    """Runs of segments that fit into one: by bytes, index bytes and relative offsets."""
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
                size > job.segment_bytes
                or index_bytes > job.index_bytes_max
                or time_index_bytes > job.index_bytes_max
                or (one.size > 0 and end - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX)
            ):
                break
            group.append(one)
            at += 1
        made.append(group)
    return made
