"""The leader epoch of the last record outlives the record: an emptied log is compared with others by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.log import Log
from tidemill.log.names import LEADER_EPOCHS, LOG
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals
from tidemill.log.retention import expired_segments
from tidemill.records.batch import Batch
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
MakeBatch = Callable[..., Batch]
MakeLog = Callable[..., Log]


def emptied(log_of: MakeLog, batch: MakeBatch, **settings: Any) -> Log:
    """A log of six records in two epochs that were all deleted by request."""
    log = log_of({"segment_ms": 1, "file_delete_delay_ms": 0, **settings})
    log.append([batch(2)], 1, NOW)
    log.append([batch(4)], 3, NOW + 10)
    assert log.advance_start(6)
    log.remove_segments(expired_segments(log, log.end_offset, NOW + 20), NOW + 20)
    for path in log.removals.take_due(NOW + 1000):
        log.files.remove(path)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (6, 6, 0)
    return log


def state(log: Log) -> tuple[int, int, int]:
    return int(log.start_offset), int(log.end_offset), log.leader_epochs.latest


def test_an_emptied_log_knows_the_epoch_of_its_last_record(log_of: MakeLog, batch: MakeBatch) -> None:
    assert state(emptied(log_of, batch)) == (6, 6, 3)


@pytest.mark.parametrize("clean", [True, False])
def test_an_emptied_log_knows_it_after_each_start(log_of: MakeLog, batch: MakeBatch, clean: bool) -> None:
    emptied(log_of, batch).close(NOW)
    for _ in range(2):
        log = log_of(start_offset=6, clean=clean)
        assert state(log) == (6, 6, 3)
        log.close(NOW)


def test_a_log_that_expired_knows_it_after_a_start(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"retention_ms": 1000})
    log.append([batch(2)], 1, NOW)
    log.append([batch(4)], 3, NOW)
    log.remove_segments(expired_segments(log, log.end_offset, NOW + 10_000), NOW)
    log.close(NOW)
    assert state(log_of(clean=True)) == (6, 6, 3)


def test_a_lead_without_records_is_not_taken_for_it(log_of: MakeLog, batch: MakeBatch) -> None:
    log = emptied(log_of, batch)
    log.lead(7)
    assert log.leader_epochs.latest == 7
    log.leader_epochs.save()
    log.close(NOW)
    assert state(log_of(start_offset=6, clean=True)) == (6, 6, 3)


@pytest.mark.parametrize("lost_unsynced", [True, False])
def test_a_start_after_a_kill_or_a_power_cut_knows_it(
    log_of: MakeLog, batch: MakeBatch, directory: str, lost_unsynced: bool
) -> None:
    log = emptied(log_of, batch)
    opening = Opening(
        SystemFiles(),
        directory,
        log.topic_partition,
        LogConfig(),
        removals=Removals(),
        now_ms=NOW,
        recovery_point=2,
        start_offset=6,
        lost_unsynced=lost_unsynced,
    )
    assert state(opening.open()) == (6, 6, 3)


def test_a_log_that_kafka_emptied_knows_it(log_of: MakeLog, batch: MakeBatch, directory: str) -> None:
    """Apache Kafka has the last epoch begin where the log does."""
    emptied(log_of, batch).close(NOW)
    file = Path(directory, LEADER_EPOCHS)
    file.write_text("0\n1\n3 6\n")
    log = log_of(start_offset=6, clean=True)
    assert state(log) == (6, 6, 3)
    assert file.read_text() == "0\n1\n3 5\n"


def emptied_after_a_kill(log_of: MakeLog, batch: MakeBatch, files: FaultyFiles) -> Log:
    """The process that wrote the records was killed before it synced anything; the next one deleted them."""
    log = log_of(files=files, directory="/data")
    log.append([batch(6)], 3, NOW)
    files.kill()
    log = log_of({"retention_ms": 1000}, files=files, directory="/data", clean=False)
    log.remove_segments(expired_segments(log, log.end_offset, NOW + 10_000), NOW)
    return log


def emptied_by_kafka(log_of: MakeLog, batch: MakeBatch, files: FaultyFiles) -> Log:
    """The start writes the file anew."""
    log = log_of({"retention_ms": 1000}, files=files, directory="/data")
    log.append([batch(6)], 3, NOW)
    log.remove_segments(expired_segments(log, log.end_offset, NOW + 10_000), NOW)
    log.close(NOW)
    files.replace(f"/data/{LEADER_EPOCHS}", b"0\n1\n3 6\n")
    return log_of(files=files, directory="/data", start_offset=6, clean=True)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("empty", [emptied_after_a_kill, emptied_by_kafka])
def test_a_power_cut_after_a_stop_in_order_does_not_take_it(
    log_of: MakeLog, batch: MakeBatch, empty: Callable[..., Log], seed: int
) -> None:
    files = FaultyFiles()
    files.make_directory("/data")
    log = empty(log_of, batch, files)
    assert state(log) == (6, 6, 3)
    log.close(NOW)
    files.sync_directory("/data")  # Names come to the disk unasked as well.
    files.power_cut(Random(seed) if seed else None)
    assert state(log_of(files=files, directory="/data", start_offset=6, clean=True)) == (6, 6, 3)


def test_a_log_that_never_had_records_has_no_epoch(log_of: MakeLog, directory: str) -> None:
    log_of().close(NOW)
    Path(directory, LEADER_EPOCHS).write_text("0\n1\n3 0\n")
    assert state(log_of(clean=True)) == (0, 0, -1)


def test_a_log_that_is_cut_down_to_its_start_knows_it(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append([batch(2)], 1, NOW)
    log.append([batch(2)], 1, NOW)
    log.advance_start(2)
    log.truncate_to(2, NOW)
    assert state(log) == (2, 2, 1)


def test_an_emptied_log_goes_on_in_its_last_epoch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = emptied(log_of, batch)
    assert log.append([batch(1)], 3, NOW).base_offset == 6
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([3], [5])
    assert log.append([batch(1)], 4, NOW).base_offset == 7
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([3, 4], [5, 7])


def test_a_log_that_begins_within_a_batch_keeps_it(log_of: MakeLog, batch: MakeBatch, directory: str) -> None:
    log = emptied(log_of, batch)
    log.begin_within(4, NOW)
    assert state(log) == (6, 6, 3)
    assert Path(directory, f"{4:020d}{LOG}").exists()


def test_a_log_that_begins_elsewhere_knows_no_epoch_of_before(log_of: MakeLog, batch: MakeBatch) -> None:
    log = emptied(log_of, batch)
    log.truncate_fully(9, NOW)
    assert state(log) == (9, 9, -1)
    log.begin_after(5)
    assert state(log) == (9, 9, 5)
    log.begin_after(8)
    assert state(log) == (9, 9, 5), "it is known"


def test_a_log_that_begins_at_0_is_told_no_epoch(log_of: MakeLog) -> None:
    log = log_of()
    log.begin_after(5)
    assert state(log) == (0, 0, -1)
