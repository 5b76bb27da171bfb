"""Selects the next log to compact, and creates the job for a cleaner.

A log is dirty from its clean end, where the last compaction ended. The cleanable part ends before the active
segment, before the last stable offset (and thus the high watermark), before the first segment with a record
younger than ``min.compaction.lag.ms``, and before the recovery point: a power failure may lose later records,
and the older records that they replace would then be missing. It ends at a segment boundary.

This module reads no clock and changes nothing.

Source: Apache Kafka, ``LogCleanerManager.scala``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.log.cleaner_messages import CleanJob, ClosedSegment, LastBatch
from tidemill.log.log import Log
from tidemill.records.varint import INT64_MAX


class CleanerSettings(NamedTuple):
    """The ``log.cleaner.*`` settings of the broker. ``bytes_per_second`` limits reads and writes together."""

    map_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    chunk_bytes: int = 256 * 1024
    bytes_per_second: float = float("inf")


class Candidate(NamedTuple):
    """The compaction state of a log. ``overdue``: ``max.compaction.lag.ms`` has passed."""

    log: Log
    first_dirty: int
    upper_bound: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    truncations: int
    """The number of truncations of the log at the time of this state."""

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of the cleanable part: 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_cleanable(self) -> bool:
        """Whether the log is to be compacted now."""
        if self.overdue:
            return self.dirty_bytes > 0
        return self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def candidate(log: Log, high_watermark: int, now_ms: int) -> Candidate:
    """The compaction state of a log. Raises OSError if its files cannot be read."""
    first_dirty = int(log.clean_end)
    if not log.start_offset <= first_dirty <= log.end_offset:
        first_dirty = int(log.start_offset)
    stable = min(int(log.last_stable_offset(high_watermark)), _first_recent_segment(log, first_dirty, now_ms))
    stable = min(max(first_dirty, stable), int(log.active.base_offset), int(log.recovery_point))
    # The segment with this offset is omitted as a whole.
    upper_bound = int(log.segments[log.segment_list.at(stable)].base_offset)
    clean_bytes = dirty_bytes = 0
    for at, segment in enumerate(log.segments):
        if segment.base_offset >= upper_bound:
            break
        following = log.segments[at + 1].base_offset
        if segment.base_offset < first_dirty:
            clean_bytes += int(segment.size)
        if following > first_dirty:
            dirty_bytes += int(segment.size)
    overdue = upper_bound > first_dirty and _is_overdue(log, first_dirty, now_ms)
    return Candidate(log, first_dirty, upper_bound, clean_bytes, dirty_bytes, overdue, int(log.truncations))


def _first_recent_segment(log: Log, first_dirty: int, now_ms: int) -> int:
    """The base offset of the first dirty segment with a record within ``min.compaction.lag.ms``."""
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in log.segments[log.segment_list.at(first_dirty) : -1]:
            if segment.max_timestamp() > now_ms - lag_ms:
                return int(segment.base_offset)
    return int(log.active.base_offset)


def _is_overdue(log: Log, first_dirty: int, now_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= INT64_MAX:
        return False
    times = [int(one.rolling_timestamp()) for one in log.segments[log.segment_list.at(first_dirty) : -1]]
    return min((one for one in times if one > 0), default=now_ms) < now_ms - lag_ms


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """The dirtiest log to compact now; None if there is none."""
    return max((one for one in candidates if one.is_cleanable), key=lambda one: one.dirty_ratio, default=None)


def job_for(chosen: Candidate, settings: CleanerSettings, now_ms: int) -> CleanJob:
    """The job for a cleaner. Accesses no files."""
    log = chosen.log
    config = log.config
    return CleanJob(
        name=str(log.topic_partition),
        directory=log.directory,
        segments=tuple(
            ClosedSegment(int(one.base_offset), int(one.size))
            for one in log.segments
            if one.base_offset < chosen.upper_bound
        ),
        first_dirty=chosen.first_dirty,
        upper_bound=chosen.upper_bound,
        producers={
            int(one.producer_id): LastBatch(int(one.last_offset), int(one.epoch)) for one in log.producers()
        },
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_bytes_max=config.segment_index_bytes,
        interval_bytes=config.index_interval_bytes,
        map_bytes=settings.map_bytes,
        load_factor=settings.load_factor,
        chunk_bytes=settings.chunk_bytes,
        bytes_per_second=settings.bytes_per_second,
        unpacked_bytes_max=config.unpacked_bytes_max,
    )
