"""Which segments go: the deletion policies.

A policy looks at the segments of one log as plain data and says of each closed one whether it goes. Only
a run of the oldest goes, so a segment that stays keeps all that follow it. Policies plug in:
:class:`~tidemill.log.manager.LogManager` takes any number of them, and a segment goes when one lets it.

Records after the high watermark do not count as part of the log: a change of the leader may cut them, and
``retention.bytes`` of committed records have to be left then. Apache Kafka counts them
(``UnifiedLog.deleteRetentionSizeBreachedSegments``), and may be left with less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tidemill.log.config import LogConfig
from tidemill.log.log import Log


class SegmentFacts(NamedTuple):
    """What a policy sees of a segment. ``last_ms``: its largest timestamp, or when its file was written."""

    base_offset: int
    end_offset: int
    size_bytes: int
    last_ms: int
    is_active: bool = False
    """Whether records are still written to it."""


class Policy(Protocol):
    """Says of closed segments, oldest first, which go."""

    def __call__(
        self,
        segments: Sequence[SegmentFacts],
        log_bytes: int,
        start_offset: int,
        config: LogConfig,
        now_ms: int,
    ) -> Sequence[bool]:
        """One answer a segment; ``log_bytes`` counts all committed records, of the active segment too."""


def by_time(
    segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
) -> Sequence[bool]:
    """``retention.ms``: the segment's newest record is older."""
    if config.retention_ms < 0 or not config.delete:
        return [False] * len(segments)
    return [now_ms - segment.last_ms > config.retention_ms for segment in segments]


def by_size(
    segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
) -> Sequence[bool]:
    """``retention.bytes``: without the segment, at least that much of committed records is left."""
    if config.retention_bytes < 0 or not config.delete:
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
    """Records were deleted by request: everything in the segment is before the start offset."""
    return [segment.end_offset <= start_offset for segment in segments]


POLICIES: tuple[Policy, ...] = (by_time, by_size, by_start_offset)


def expired_segments(
    log: Log, high_watermark: int, now_ms: int, policies: Iterable[Policy] = POLICIES
) -> int:
    """How many of the oldest segments go now, all of them before the high watermark.

    The active segment goes by time and by start offset only when it holds records and nothing of it stays;
    the log then begins a new one.
    """
    facts = segment_facts(log)
    closed = len(facts) - 1
    if facts[-1].size_bytes > 0:
        closed += 1
    candidates = facts[:closed]
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
    """The size of the batches before the high watermark. It may read one segment: raises OSError."""
    if high_watermark >= log.end_offset:
        return log.size_bytes
    at = log.segment_at(high_watermark)
    segment = log.segments[at]
    position = segment.recent_position(high_watermark)
    if position < 0:
        position = segment.position_of(high_watermark)
    return sum(before.size for before in log.segments[:at]) + position


def segment_facts(log: Log) -> list[SegmentFacts]:
    """The segments of a log as a policy sees them, the active one last."""
    facts = []
    for at, segment in enumerate(log.segments):
        end = log.segments[at + 1].base_offset if at + 1 < len(log.segments) else log.end_offset
        last_ms = segment.max_timestamp()
        if last_ms < 0:
            last_ms = log.files.modified_ms(segment.path)
        is_active = at + 1 == len(log.segments)
        facts.append(SegmentFacts(segment.base_offset, end, segment.size, last_ms, is_active))
    return facts
