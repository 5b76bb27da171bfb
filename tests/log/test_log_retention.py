"""The segments that retention deletes, and the handling of their files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from log_stage import NOW, MakeBatch, MakeLog

from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.retention import POLICIES, SegmentFacts, by_size, by_time, expired_segments

DAY = 86_400_000


def filled(log_of: MakeLog, batch: MakeBatch, days: int = 10, **settings: object) -> Log:
    """One segment a day for the last ``days`` days; the newest is active."""
    log = log_of({"segment_ms": DAY // 2, **settings})
    for day in range(days, 0, -1):
        for hour in range(3):
            log.append(batch(1, timestamp=NOW - day * DAY + hour), 0, NOW)
    assert len(log.segments) == days
    return log


def facts(*sizes: int) -> list[SegmentFacts]:
    return [
        SegmentFacts(at * 10, at * 10 + 10, size, NOW - (len(sizes) - at) * DAY)
        for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("settings", "high_watermark", "later_ms", "gone"),
    [
        pytest.param({"retention_ms": 4 * DAY}, 30, 0, 6, id="segments older than retention.ms are deleted"),
        pytest.param({"retention_ms": 4 * DAY}, 8, 0, 2, id="no segment above the high watermark is deleted"),
        pytest.param({"retention_ms": -1}, 30, 1000 * DAY, 0, id="unlimited retention deletes nothing"),
        pytest.param(
            {"retention_ms": DAY, "retention_bytes": 1, "cleanup_policy": ("compact",)},
            30,
            0,
            0,
            id="retention keeps the segments of a compacted topic",
        ),
        *(
            pytest.param(
                {"retention_ms": DAY, "retention_bytes": 1, "mirror_state": state},
                30,
                0,
                0,
                id=f"the log start of a mirror follows that of its source ({state})",
            )
            for state in ("active", "promoting")
        ),
    ],
)
def test_expired_segments_are_deleted(
    log_of: MakeLog,
    batch: MakeBatch,
    settings: dict[str, Any],
    high_watermark: int,
    later_ms: int,
    gone: int,
) -> None:
    log = filled(log_of, batch, **settings)
    assert expired_segments(log, high_watermark, NOW + later_ms) == gone
    log.delete_old_segments(gone, NOW)
    assert (log.start_offset, len(log.segments)) == (3 * gone, 10 - gone)


@pytest.mark.parametrize(("high_watermark", "gone"), [(9, 1), (10, 1), (12, 2), (29, 7), (30, 8)])
def test_uncommitted_bytes_do_not_delete_committed_segments(
    log_of: MakeLog, batch: MakeBatch, high_watermark: int, gone: int
) -> None:
    log = filled(log_of, batch, retention_ms=-1)
    retention_bytes = 2 * log.segments[0].size
    log.set_config(log.config._replace(retention_bytes=retention_bytes))
    assert expired_segments(log, high_watermark, NOW) == gone
    log.delete_old_segments(gone, NOW)
    log.truncate_to(high_watermark, NOW)  # As a follower with the offsets of another leader.
    assert log.size_bytes >= retention_bytes


def test_size_retention_deletes_whole_segments_and_keeps_retention_bytes() -> None:
    config = LogConfig(retention_bytes=250)
    assert by_size(facts(100, 100, 100), 400, 0, config, NOW) == [True, False, False]
    assert by_size(facts(100, 100, 100), 349, 0, config, NOW) == [False, False, False]
    assert by_size(facts(100, 100, 100), 450, 0, config, NOW) == [True, True, False]


def test_time_retention_uses_the_newest_timestamp_of_a_segment() -> None:
    assert by_time(facts(1, 1, 1), 3, 0, LogConfig(retention_ms=2 * DAY), NOW) == [True, False, False]


def test_records_without_a_timestamp_expire_by_the_file_modification_time(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of({"retention_ms": DAY})
    log.append(batch(1, timestamp=-1), 0, NOW)
    log.roll(NOW)
    log.append(batch(1, timestamp=-1), 0, NOW)
    os.utime(log.segments[0].path, (0, (NOW - 2 * DAY) / 1000))
    os.utime(log.segments[1].path, (0, NOW / 1000))
    assert expired_segments(log, 2, NOW) == 1


def test_an_expired_log_gets_a_new_segment_at_its_end(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=DAY)
    log.delete_old_segments(expired_segments(log, log.end_offset, NOW + 30 * DAY), NOW)
    assert (log.start_offset, log.end_offset, len(log.segments), log.size_bytes) == (30, 30, 1, 0)
    assert expired_segments(log, log.end_offset, NOW + 60 * DAY) == 0
    assert log.append(batch(1), 0, NOW).base_offset == 30


def test_deleting_records_removes_whole_segments(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=-1)
    log.append(batch(1), 4, NOW)
    assert log.advance_start(7)
    assert not log.advance_start(7)
    log.delete_old_segments(expired_segments(log, log.end_offset, NOW), NOW)
    assert (log.start_offset, log.segments[0].base_offset) == (7, 6)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 4], [6, 30])


def test_a_retention_policy_can_be_plugged_in(log_of: MakeLog, batch: MakeBatch) -> None:
    def at_most_three(
        segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
    ) -> Sequence[bool]:
        return [at < len(segments) - 3 for at in range(len(segments))]

    log = filled(log_of, batch, retention_ms=-1)
    assert expired_segments(log, log.end_offset, NOW, (*POLICIES, at_most_three)) == 7


def test_removed_segments_serve_open_ranges_until_file_delete_delay(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = filled(log_of, batch, retention_ms=DAY, file_delete_delay_ms=500)
    part = log.read(0, 1000, 30, True)
    assert part is not None
    before = part.read()
    log.delete_old_segments(2, NOW)
    assert sorted(path.name[-8:] for path in Path(directory).glob("*.log.deleted")) == [".deleted"] * 2
    assert log.segment_list.removals.pop_due(NOW + 499) == []
    for path in log.segment_list.removals.pop_due(NOW + 500):
        os.unlink(path)
    assert part.read() == before
    assert not list(Path(directory).glob("*.deleted"))
