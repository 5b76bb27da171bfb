"""Look-ups by time that would wait for the disk are done in a thread, over copies of the segments."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Thread

import pytest

from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.recovery import open_log
from tidemill.log.time_lookup import LARGEST, TimeLookup, is_warm
from tidemill.model.errors import StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.testing.files import FaultyFile, FaultyFiles

NOW = 1_700_000_000_000
PATH = "/disk/events-0"


def looked_up(log: Log, timestamp: int) -> TimeLookup:
    lookup = TimeLookup(log, timestamp)
    thread = Thread(target=lookup.run)
    thread.start()
    thread.join()
    return lookup


@pytest.mark.parametrize("seed", range(5))
def test_a_thread_finds_what_the_log_itself_finds(
    seed: int, log_of: Callable[..., Log], batch: Callable[..., Batch]
) -> None:
    luck = random.Random(seed)
    settings = {"segment_bytes": 600, "index_interval_bytes": 100}
    log = log_of(settings)
    for _ in range(60):
        log.append([batch(luck.randrange(1, 4), timestamp=NOW + luck.randrange(1000), step_ms=3)], 0, NOW)
    log.advance_start(luck.randrange(20))
    log.close(NOW)
    start = int(log.start_offset)
    again = log_of(settings, start_offset=start, clean=True, recovery_point=log.end_offset)
    for timestamp in [LARGEST, 0, NOW, NOW + 2000, *(NOW + luck.randrange(1010) for _ in range(30))]:
        lookup = looked_up(again, timestamp)
        assert lookup.is_true()
        inline = log_of(settings, start_offset=start, clean=True, recovery_point=log.end_offset)
        if timestamp == LARGEST:
            assert lookup.found == inline.max_timestamp_offset()
        else:
            assert lookup.found == inline.offset_for_timestamp(timestamp)
        assert is_warm(again, timestamp) or (timestamp == LARGEST and start)


class ColdFile(FaultyFile):
    def is_cached(self, position: int, count: int) -> bool:
        return False


def stored(files: FaultyFiles, batch: Callable[..., Batch]) -> Log:
    files.make_directory(PATH)
    config = LogConfig(segment_bytes=400, index_interval_bytes=0)
    log = open_log(files, PATH, TopicPartition("events", 0), config, now_ms=NOW)
    for at in range(20):
        log.append([batch(1, timestamp=NOW + at)], 0, NOW)
    return log


def test_what_is_not_in_memory_is_told(batch: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    log = stored(FaultyFiles(), batch)
    assert is_warm(log, NOW + 3)
    monkeypatch.setattr(FaultyFile, "is_cached", ColdFile.is_cached)
    assert not is_warm(log, NOW + 3)
    assert not is_warm(log, LARGEST)
    assert is_warm(log, NOW + 100)


def test_a_log_that_is_cut_or_shortened_meanwhile_is_looked_into_again(batch: Callable[..., Batch]) -> None:
    log = stored(FaultyFiles(), batch)
    lookup = TimeLookup(log, NOW + 15)
    log.truncate_to(3, NOW)
    lookup.run()
    assert not lookup.is_true()
    assert looked_up(log, NOW + 15).found is None

    log = stored(FaultyFiles(), batch)
    lookup = TimeLookup(log, NOW + 1)
    log.remove_segments(3, NOW)
    lookup.run()
    assert not lookup.is_true()
    found = looked_up(log, NOW + 1)
    assert found.is_true()
    assert found.found == (NOW + log.start_offset, log.start_offset)


def test_a_disk_that_fails_is_told(batch: Callable[..., Batch]) -> None:
    files = FaultyFiles()
    log = stored(files, batch)
    log.release()
    files.fail("open", PATH, 5, times=1000)
    lookup = looked_up(log, NOW + 1)
    assert isinstance(lookup.problem, StorageError)
