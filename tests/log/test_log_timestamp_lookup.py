"""Lookups by timestamp that would block on the disk run in a thread, on copies of the segments."""

from __future__ import annotations

import random
from threading import Thread

import pytest
from faulty_files import FaultyFile, FaultyFiles
from log_stage import NOW, MakeBatch, MakeLog

from log_start import open_log
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.timestamp_lookup_job import LARGEST, TimeLookup, is_cached_lookup
from tidemill.model.errors import StorageError
from tidemill.model.types import TopicPartition

PATH = "/disk/events-0"


def looked_up(log: Log, timestamp: int) -> TimeLookup:
    lookup = TimeLookup(log, timestamp)
    thread = Thread(target=lookup.run)
    thread.start()
    thread.join()
    return lookup


@pytest.mark.parametrize("seed", range(5))
def test_a_lookup_in_a_thread_equals_a_lookup_in_the_log(
    seed: int, log_of: MakeLog, batch: MakeBatch
) -> None:
    luck = random.Random(seed)
    settings = {"segment_bytes": 600, "index_interval_bytes": 100}
    log = log_of(settings)
    for _ in range(60):
        log.append(batch(luck.randrange(1, 4), timestamp=NOW + luck.randrange(1000), step_ms=3), 0, NOW)
    log.advance_start(luck.randrange(20))
    log.close(NOW)
    start = int(log.start_offset)
    again = log_of(settings, start_offset=start, clean=True, recovery_point=log.end_offset)
    for timestamp in [LARGEST, 0, NOW, NOW + 2000, *(NOW + luck.randrange(1010) for _ in range(30))]:
        lookup = looked_up(again, timestamp)
        assert lookup.is_valid()
        inline = log_of(settings, start_offset=start, clean=True, recovery_point=log.end_offset)
        if timestamp == LARGEST:
            assert lookup.found == inline.max_timestamp_offset()
        else:
            assert lookup.found == inline.offset_for_timestamp(timestamp)
        assert is_cached_lookup(again, timestamp) or (timestamp == LARGEST and start)


class ColdFile(FaultyFile):
    def is_cached(self, position: int, count: int) -> bool:
        return False


def stored(files: FaultyFiles, batch: MakeBatch) -> Log:
    files.make_directory(PATH)
    config = LogConfig(segment_bytes=400, index_interval_bytes=0)
    log = open_log(files, PATH, TopicPartition("events", 0), config, now_ms=NOW)
    for at in range(20):
        log.append(batch(1, timestamp=NOW + at), 0, NOW)
    return log


def test_a_lookup_reports_segments_that_are_not_in_memory(
    batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stored(FaultyFiles(), batch)
    assert is_cached_lookup(log, NOW + 3)
    monkeypatch.setattr(FaultyFile, "is_cached", ColdFile.is_cached)
    assert not is_cached_lookup(log, NOW + 3)
    assert not is_cached_lookup(log, LARGEST)
    assert is_cached_lookup(log, NOW + 100)


def test_a_lookup_that_reads_the_times_of_segments_runs_in_a_thread(
    log_of: MakeLog, batch: MakeBatch
) -> None:
    settings = {"segment_bytes": 400, "index_interval_bytes": 0}
    log = log_of(settings)
    for at in range(20):
        log.append(batch(1, timestamp=NOW + at), 0, NOW)
    log.close(NOW)
    again = log_of(settings, clean=True, recovery_point=log.end_offset)
    assert not is_cached_lookup(again, NOW + 3)
    assert again.offset_for_timestamp(NOW + 3) == (NOW + 3, 3)
    assert is_cached_lookup(again, NOW + 3)


def test_a_lookup_is_repeated_after_a_concurrent_truncation(batch: MakeBatch) -> None:
    log = stored(FaultyFiles(), batch)
    lookup = TimeLookup(log, NOW + 15)
    log.truncate_to(3, NOW)
    lookup.run()
    assert not lookup.is_valid()
    assert looked_up(log, NOW + 15).found is None

    log = stored(FaultyFiles(), batch)
    lookup = TimeLookup(log, NOW + 1)
    log.delete_old_segments(3, NOW)
    lookup.run()
    assert not lookup.is_valid()
    found = looked_up(log, NOW + 1)
    assert found.is_valid()
    assert found.found == (NOW + log.start_offset, log.start_offset)


def test_a_disk_failure_is_reported(batch: MakeBatch) -> None:
    files = FaultyFiles()
    log = stored(files, batch)
    log.close_handlers()
    files.fail("open", PATH, 5, times=1000)
    lookup = looked_up(log, NOW + 1)
    assert isinstance(lookup.problem, StorageError)
