"""Offsets by timestamp, against a plain list."""

from __future__ import annotations

import os
from random import Random

import pytest
from log_stage import NOW, MakeBatch, MakeLog

from record_builders import build_message_set


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_first_record_at_or_after_a_timestamp_is_found(
    log_of: MakeLog, batch: MakeBatch, seed: int, codec: int
) -> None:
    random = Random(seed)
    settings = {"segment_bytes": 3000, "index_interval_bytes": 300}
    log = log_of(settings)
    times: list[int] = []
    for _ in range(80):
        count, base, step = random.randrange(1, 6), NOW + random.randrange(2000), random.randrange(-50, 50)
        log.append(batch(count, timestamp=base, step_ms=step, codec=codec), 0, NOW)
        times += [base + step * at for at in range(count)]
    start = 0
    for _ in range(3):
        for probe in [*random.sample(times, 20), NOW - 500, NOW + 1000, NOW + 5000]:
            expected = next(((t, at) for at, t in enumerate(times) if at >= start and t >= probe), None)
            assert log.offset_for_timestamp(probe) == expected
        newest = max(times[start:])
        assert log.max_timestamp_offset() == (newest, times.index(newest, start))
        start = random.randrange(len(times))
        log.advance_start(start)
        start = int(log.start_offset)
        log.close(NOW)
        log = log_of(settings, clean=True, start_offset=start)


@pytest.mark.parametrize("seed", range(8))
def test_timestamps_are_found_in_all_formats_except_v0(log_of: MakeLog, batch: MakeBatch, seed: int) -> None:
    random = Random(seed)
    settings = {"segment_bytes": 2000, "index_interval_bytes": 200}
    log = log_of(settings)
    times: list[int] = []
    for _ in range(80):
        base, count, magic = NOW + random.randrange(2000), random.randrange(1, 5), random.randrange(3)
        made = [base + at * random.randrange(-50, 50) for at in range(count)]
        codec = random.choice([0, 1, 2])
        if magic == 2:
            step = random.randrange(-50, 50)
            made = [base + step * at for at in range(count)]
            log.append(batch(count, timestamp=base, step_ms=step, codec=codec), 0, NOW)
        else:
            records = [(time, b"k", b"v" * 20) for time in made]
            log.append_copied(build_message_set(magic, records, codec, None, len(times)), NOW)
        times += made if magic else [-1] * count
    start = 0
    for stop in ("clean", "unclean", "clean"):
        for probe in [*random.sample([time for time in times if time >= 0], 20), NOW - 500, NOW + 5000]:
            expected = next(((t, at) for at, t in enumerate(times) if at >= start and t >= probe), None)
            assert log.offset_for_timestamp(probe) == expected
        newest = max(times[start:])
        assert log.max_timestamp_offset() == ((newest, times.index(newest, start)) if newest >= 0 else None)
        start = random.randrange(len(times) - 5)
        log.advance_start(start)
        start = int(log.start_offset)
        if stop == "clean":
            log.close(NOW)
        else:
            log.close_handlers()
        log = log_of(settings, clean=stop == "clean", start_offset=start)


def test_a_log_of_v0_messages_has_no_timestamps(log_of: MakeLog) -> None:
    log = log_of()
    log.append_copied(build_message_set(0, [(0, b"k", b"v")] * 9), NOW)
    assert (log.offset_for_timestamp(0), log.max_timestamp_offset()) == (None, None)


def test_log_append_time_applies_to_every_record_of_a_batch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"message_timestamp_type": "LogAppendTime"})
    for number in range(5):
        log.append(batch(3, timestamp=7), 0, NOW + number)
    assert log.offset_for_timestamp(NOW + 2) == (NOW + 2, 6)
    assert log.max_timestamp_offset() == (NOW + 4, 12)
    assert log.offset_for_timestamp(NOW + 5) is None


def test_the_first_of_equal_largest_timestamps_is_found_after_any_start(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    log = log_of()
    for times in ((NOW, NOW + 9, NOW + 9), (NOW + 9, NOW + 3)):
        for time in times:
            log.append(batch(1, timestamp=time), 0, NOW)
        log.roll(NOW)
    for start, expected in ((0, 1), (1, 1), (2, 2), (3, 3)):
        log.advance_start(start)
        assert log.max_timestamp_offset() == (NOW + 9, expected)
    log.advance_start(4)
    assert log.max_timestamp_offset() == (NOW + 3, 4)


def test_an_empty_log_has_no_timestamp(log_of: MakeLog) -> None:
    log = log_of()
    assert (log.offset_for_timestamp(0), log.max_timestamp_offset()) == (None, None)


def test_segments_report_their_base_offset_and_modification_time(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"segment_bytes": 400})
    assert [offset for offset, _ in log.segment_starts(NOW)] == [0]
    for _ in range(6):
        log.append(batch(4), 0, NOW)
    bases = [int(one.base_offset) for one in log.segments]
    assert len(bases) > 2
    for number, segment in enumerate(log.segments):
        os.utime(segment.path, (1000 + number, 1000 + number))
    written = [(base, 1_000_000 + 1000 * number) for number, base in enumerate(bases)]
    assert log.segment_starts(NOW) == [*written, (24, NOW)]
    log.advance_start(bases[1] + 1)
    assert log.segment_starts(NOW)[-len(bases[1:]) - 1] == (bases[1] + 1, written[1][1])
