"""The cleaner's passes over the batches of a segment: adds keys to the map, writes the remaining records.

This module distinguishes formats, transactions and idle producers. :mod:`tidemill.log.cleaner` handles the
files of segments, their order and their groups.

Source: Apache Kafka, ``Cleaner.java`` (``buildOffsetMapForSegment``, ``cleanInto``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from tidemill.log.batch_scan import BatchScan
from tidemill.log.clean_batch import BatchCleaner
from tidemill.log.clean_message_set import EntryCleaner
from tidemill.log.cleaned_segment import CleanedSegment
from tidemill.log.cleaned_transaction_metadata import CleanedTransactions
from tidemill.log.cleaner_messages import CleanJob, LastBatch
from tidemill.log.offset_map import OffsetMap
from tidemill.records.batch import CURRENT_MAGIC, Batch, parse_batch

PACE_BYTES: Final = 64 * 1024
"""The number of bytes between two calls of the pace."""


class Walk:
    """The passes of one cleaning of one log. ``pace`` is called with the number of read bytes."""

    def __init__(self, job: CleanJob, pace: Callable[[int], None]) -> None:
        self.map = OffsetMap(job.map_bytes, job.load_factor, job.first_dirty)
        self.batches = BatchCleaner(self.map, job.now_ms, job.delete_retention_ms, job.unpacked_bytes_max)
        self.entries = EntryCleaner(self.map, job.unpacked_bytes_max)
        self.mapped_bytes: i64 = 0
        self.read_bytes: i64 = 0
        self._pace = pace
        self._unpaced: i64 = 0
        self._first_dirty: i64 = job.first_dirty
        self._upper_bound: i64 = job.upper_bound
        self._now_ms: i64 = job.now_ms
        self._producers: dict[int, LastBatch] = job.producers

    def map_segment(self, scan: BatchScan, transactions: CleanedTransactions) -> bool:
        """Adds the dirty keys of a segment to the map, up to its end or a fault. Returns False if it is full.

        Raises CorruptMessage and InvalidRecord for an invalid batch.
        """
        batches = self.batches
        while scan.step():
            size: i64 = scan.size
            self.mapped_bytes += size
            self._wait(size)
            if scan.last_offset < self._first_dirty:
                continue
            data, at = scan.whole()
            fits: bool = True
            if scan.magic < CURRENT_MAGIC:
                fits = batches.put_gathered() and self.entries.index(data, at, at + size, self._first_dirty)
            else:
                batch = parse_batch(data, at, at + size)
                if batch.is_control:
                    transactions.marker_may_go(batch)
                elif not (batch.is_transactional and transactions.is_aborted(batch)):
                    fits = batches.index(batch)
            if not fits:
                return False
            batches.indexed = scan.last_offset
        return batches.put_gathered()

    def clean_segment(
        self,
        scan: BatchScan,
        transactions: CleanedTransactions,
        keeps_tombstones: bool,
        output: CleanedSegment,
    ) -> None:
        """Writes the remaining records of a segment to ``output``; raises the errors of :meth:`map_segment`.

        ``keeps_tombstones`` applies to formats v0 and v1, which have no delete horizon.
        """
        batches = self.batches
        entries = self.entries
        while scan.step():
            size: i64 = scan.size
            self.read_bytes += size
            self._wait(size)
            data, at = scan.whole()
            if scan.magic < CURRENT_MAGIC:
                self._clean_run(output)
                kept = entries.clean(data, at, at + size, keeps_tombstones)
                if kept:
                    output.add(kept, entries.base_offset, entries.last_offset, entries.max_timestamp)
                continue
            batch = parse_batch(data, at, at + size)
            if not batch.is_control and not batch.is_transactional and batches.may_join(batch):
                if not batches.has_room_for(batch):
                    self._clean_run(output)
                batches.join(batch)
                continue
            self._clean_run(output)
            self._add(batch, self._clean_batch(batch, transactions), output)
        self._clean_run(output)

    def _clean_run(self, output: CleanedSegment) -> None:
        """Writes the remaining records of the collected batches."""
        batches = self.batches
        batches.look_up()
        first: i64 = 0
        for batch in batches.run:
            self._add(batch, batches.clean_joined(batch, first), output)
            first += batch.record_count
        batches.end_run()

    def _add(self, batch: Batch, kept: bytes, output: CleanedSegment) -> None:
        """Writes the remaining records of a batch, or without any its empty frame if that has to be kept."""
        if not kept and (self._is_last_of_producer(batch) or batch.next_offset == self._upper_bound):
            kept = self.batches.empty(batch)
        if kept:
            output.add(kept, batch.base_offset, batch.last_offset, self.batches.max_timestamp)

    def _clean_batch(self, batch: Batch, transactions: CleanedTransactions) -> bytes:
        """The remaining records of a batch that is not part of a run."""
        marker_may_go = False
        discarded = False
        control: bool = batch.is_control
        if control:
            marker_may_go = bool(transactions.marker_may_go(batch))
            discarded = marker_may_go and batch.has_delete_horizon and batch.base_timestamp <= self._now_ms
        elif batch.is_transactional:
            discarded = bool(transactions.is_aborted(batch))
        if discarded:
            return b""
        return self.batches.clean(batch, control, marker_may_go)

    def _is_last_of_producer(self, batch: Batch) -> bool:
        """Whether the batch has the state of a live producer: its last sequence, or its epoch."""
        if batch.producer_id < 0:
            return False
        last = self._producers.get(int(batch.producer_id))
        if last is None:
            return False
        if last.last_offset >= 0:
            return batch.last_offset == i64(last.last_offset)
        return batch.is_control and batch.producer_epoch == i64(last.epoch)

    def _wait(self, count: i64) -> None:
        self._unpaced += count
        if self._unpaced >= PACE_BYTES:
            self._pace(int(self._unpaced))
            self._unpaced = 0
