"""The retention policies, which select the segments to delete.

A policy gets the segments of a log that have records, as plain data, and decides for each of them; the last
may be the active one. Only a prefix of the oldest segments is deleted, so a segment that is kept keeps all
later ones.
:class:`~tidemill.log.log_manager.LogManager` accepts any number of policies; one of them suffices to delete a
segment.

Records after the high watermark do not count: a leader change may truncate them, and ``retention.bytes`` of
committed records must then remain. Apache Kafka counts them
(``UnifiedLog.deleteRetentionSizeBreachedSegments``), and may keep less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig


class SegmentFacts(NamedTuple):
    """A segment for a policy. ``last_ms``: its largest timestamp, or the last write of its file."""

    base_offset: int
    end_offset: int
    size_bytes: int
    last_ms: int
    is_active: bool = False
    """Whether it is the active segment."""


class Policy(Protocol):
    """Selects the segments to delete from those that have records, oldest first."""

    def __call__(
        self,
        segments: Sequence[SegmentFacts],
        log_bytes: int,
        start_offset: int,
        config: LogConfig,
        now_ms: int,
    ) -> Sequence[bool]:
        """Returns one decision per segment. ``log_bytes`` counts all committed records."""


def by_time(
    segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
) -> Sequence[bool]:
    """``retention.ms``: the newest record of the segment is older."""
    if config.retention_ms < 0 or not config.has_retention:
        return [False] * len(segments)
    return [now_ms - segment.last_ms > config.retention_ms for segment in segments]


def by_size(
    segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
) -> Sequence[bool]:
    """``retention.bytes``: without the segment, at least as many bytes of committed records remain."""
    if config.retention_bytes < 0 or not config.has_retention:
        return [False] * len(segments)
    excess = log_bytes - config.retention_bytes
    answers = []
    for segment in segments:
        excess -= segment.size_bytes
        answers.append(excess >= 0)
    return answers


def by_start_offset(
    segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
) -> Sequence[bool]:
    """DeleteRecords: the whole segment is before the log start offset."""
    return [segment.end_offset <= start_offset for segment in segments]


POLICIES: tuple[Policy, ...] = (by_time, by_size, by_start_offset)


def expired_segments(
    log: Log, high_watermark: int, now_ms: int, policies: Iterable[Policy] = POLICIES
) -> int:
    """The number of oldest segments to delete now, all before the high watermark.

    The active segment counts if it has records. Before its deletion, the log rolls to a new one.
    """
    facts = segment_facts(log)
    candidates = facts if facts[-1].size_bytes > 0 else facts[:-1]
    log_bytes = committed_bytes(log, high_watermark)
    goes = [False] * len(candidates)
    for policy in policies:
        answers = policy(tuple(candidates), log_bytes, log.start_offset, log.config, now_ms)
        goes = [either or answer for either, answer in zip(goes, answers, strict=True)]
    count = 0
    for segment, gone in zip(candidates, goes, strict=True):
        if not gone or segment.end_offset > high_watermark:
            break
        count += 1
    return count


def committed_bytes(log: Log, high_watermark: int) -> int:
    """The size of the batches before the high watermark. May read one segment: raises OSError."""
    if high_watermark >= log.end_offset:
        return log.size_bytes
    at = log.segment_list.at(high_watermark)
    segment = log.segments[at]
    position = segment.recent_position(high_watermark)
    if position < 0:
        position = segment.translate_offset(high_watermark)
    return sum(before.size for before in log.segments[:at]) + position


def segment_facts(log: Log) -> list[SegmentFacts]:
    """The segments of a log for a policy, the active one last."""
    facts = []
    for at, segment in enumerate(log.segments):
        end = log.segments[at + 1].base_offset if at + 1 < len(log.segments) else log.end_offset
        last_ms = segment.max_timestamp()
        if last_ms < 0:
            last_ms = log.segment_list.files.modified_ms(segment.path)
        is_active = at + 1 == len(log.segments)
        facts.append(SegmentFacts(segment.base_offset, end, segment.size, last_ms, is_active))
    return facts
