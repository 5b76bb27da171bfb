"""Which segments go, and what happens to those that do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.retention import POLICIES, SegmentFacts, by_size, by_time, expired_segments
from tidemill.records.batch import Batch

NOW = 1_700_000_000_000
DAY = 86_400_000
MakeBatch = Callable[..., Batch]
MakeLog = Callable[..., Log]


def filled(log_of: MakeLog, batch: MakeBatch, days: int = 10, **settings: object) -> Log:
    """A segment a day, the last ``days`` of them; the newest is the active one."""
    log = log_of({"segment_ms": DAY // 2, **settings})
    for day in range(days, 0, -1):
        for hour in range(3):
            log.append([batch(1, timestamp=NOW - day * DAY + hour)], 0, NOW)
    assert len(log.segments) == days
    return log


def facts(*sizes: int) -> list[SegmentFacts]:
    return [
        SegmentFacts(at * 10, at * 10 + 10, size, NOW - (len(sizes) - at) * DAY)
        for at, size in enumerate(sizes)
    ]


def test_segments_older_than_retention_ms_go(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=4 * DAY)
    log.remove_segments(expired_segments(log, log.end_offset, NOW), NOW)
    assert (log.start_offset, len(log.segments)) == (18, 4)


def test_nothing_beyond_the_high_watermark_goes(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=4 * DAY)
    assert expired_segments(log, 8, NOW) == 2


@pytest.mark.parametrize(("high_watermark", "gone"), [(9, 1), (10, 1), (12, 2), (29, 7), (30, 8)])
def test_bytes_that_are_not_committed_take_no_committed_ones_away(
    log_of: MakeLog, batch: MakeBatch, high_watermark: int, gone: int
) -> None:
    log = filled(log_of, batch, retention_ms=-1)
    retention_bytes = 2 * log.segments[0].size
    log.config.retention_bytes = retention_bytes
    assert expired_segments(log, high_watermark, NOW) == gone
    log.remove_segments(gone, NOW)
    log.truncate_to(high_watermark, NOW)  # As a follower, by what another leader has.
    assert log.size_bytes >= retention_bytes


def test_unlimited_retention_keeps_everything(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=-1)
    assert expired_segments(log, log.end_offset, NOW + 1000 * DAY) == 0


def test_a_compacted_topic_keeps_its_segments(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=DAY, retention_bytes=1, cleanup_policy=("compact",))
    assert expired_segments(log, log.end_offset, NOW) == 0


def test_size_goes_by_whole_segments_and_keeps_at_least_the_bytes() -> None:
    config = LogConfig(retention_bytes=250)
    assert by_size(facts(100, 100, 100), 400, 0, config, NOW) == [True, False, False]
    assert by_size(facts(100, 100, 100), 349, 0, config, NOW) == [False, False, False]
    assert by_size(facts(100, 100, 100), 450, 0, config, NOW) == [True, True, False]


def test_time_counts_from_the_newest_record_of_a_segment() -> None:
    assert by_time(facts(1, 1, 1), 3, 0, LogConfig(retention_ms=2 * DAY), NOW) == [True, False, False]


def test_records_without_a_time_go_by_when_the_file_was_written(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"retention_ms": DAY})
    log.append([batch(1, timestamp=-1)], 0, NOW)
    log.roll(NOW)
    log.append([batch(1, timestamp=-1)], 0, NOW)
    os.utime(log.segments[0].path, (0, (NOW - 2 * DAY) / 1000))
    os.utime(log.segments[1].path, (0, NOW / 1000))
    assert expired_segments(log, 2, NOW) == 1


def test_when_all_is_old_a_new_segment_begins_at_the_end(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=DAY)
    log.remove_segments(expired_segments(log, log.end_offset, NOW + 30 * DAY), NOW)
    assert (log.start_offset, log.end_offset, len(log.segments), log.size_bytes) == (30, 30, 1, 0)
    assert expired_segments(log, log.end_offset, NOW + 60 * DAY) == 0
    assert log.append([batch(1)], 0, NOW).base_offset == 30


def test_records_deleted_by_request_take_whole_segments_along(log_of: MakeLog, batch: MakeBatch) -> None:
    log = filled(log_of, batch, retention_ms=-1)
    log.append([batch(1)], 4, NOW)
    assert log.advance_start(7)
    assert not log.advance_start(7)
    log.remove_segments(expired_segments(log, log.end_offset, NOW), NOW)
    assert (log.start_offset, log.segments[0].base_offset) == (7, 6)
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 4], [6, 30])


def test_a_policy_plugs_in(log_of: MakeLog, batch: MakeBatch) -> None:
    def at_most_three(
        segments: Sequence[SegmentFacts], log_bytes: int, start_offset: int, config: LogConfig, now_ms: int
    ) -> Sequence[bool]:
        return [at < len(segments) - 3 for at in range(len(segments))]

    log = filled(log_of, batch, retention_ms=-1)
    assert expired_segments(log, log.end_offset, NOW, (*POLICIES, at_most_three)) == 7


def test_removed_segments_serve_open_ranges_and_go_after_their_delay(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = filled(log_of, batch, retention_ms=DAY, file_delete_delay_ms=500)
    part = log.read(0, 1000, 30, True)
    assert part is not None
    before = part.read()
    log.remove_segments(2, NOW)
    assert sorted(path.name[-8:] for path in Path(directory).glob("*.log.deleted")) == [".deleted"] * 2
    assert log.removals.take_due(NOW + 499) == []
    for path in log.removals.take_due(NOW + 500):
        os.unlink(path)
    assert part.read() == before
    assert not list(Path(directory).glob("*.deleted"))
