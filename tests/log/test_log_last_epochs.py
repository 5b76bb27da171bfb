"""The leader epoch of the last record outlives the record.

The epoch of an emptied log is compared with those of other replicas.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from faulty_files import FaultyFiles
from log_stage import NOW, MakeBatch, MakeLog

from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.file_names import LEADER_EPOCHS, LOG
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.retention import expired_segments
from tidemill.log.system_files import SystemFiles


def emptied(log_of: MakeLog, batch: MakeBatch, **settings: Any) -> Log:
    """A log of six records in two epochs, all deleted by request."""
    log = log_of({"segment_ms": 1, "file_delete_delay_ms": 0, **settings})
    log.append(batch(2), 1, NOW)
    log.append(batch(4), 3, NOW + 10)
    assert log.advance_start(6)
    log.delete_old_segments(expired_segments(log, log.end_offset, NOW + 20), NOW + 20)
    for path in log.segment_list.removals.pop_due(NOW + 1000):
        log.segment_list.files.remove(path)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (6, 6, 0)
    return log


def state(log: Log) -> tuple[int, int, int]:
    return int(log.start_offset), int(log.end_offset), log.leader_epochs.latest


def test_an_emptied_log_keeps_the_leader_epoch_of_its_last_record(log_of: MakeLog, batch: MakeBatch) -> None:
    assert state(emptied(log_of, batch)) == (6, 6, 3)


@pytest.mark.parametrize("clean", [True, False])
def test_an_emptied_log_keeps_its_last_epoch_after_each_start(
    log_of: MakeLog, batch: MakeBatch, clean: bool
) -> None:
    emptied(log_of, batch).close(NOW)
    for _ in range(2):
        log = log_of(start_offset=6, clean=clean)
        assert state(log) == (6, 6, 3)
        log.close(NOW)


def test_an_expired_log_keeps_its_last_epoch_after_a_start(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"retention_ms": 1000})
    log.append(batch(2), 1, NOW)
    log.append(batch(4), 3, NOW)
    log.delete_old_segments(expired_segments(log, log.end_offset, NOW + 10_000), NOW)
    log.close(NOW)
    assert state(log_of(clean=True)) == (6, 6, 3)


def test_a_leader_epoch_without_records_is_not_the_last_epoch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = emptied(log_of, batch)
    log.begin_leader_epoch(7)
    assert log.leader_epochs.latest == 7
    log.leader_epochs.save()
    log.close(NOW)
    assert state(log_of(start_offset=6, clean=True)) == (6, 6, 3)


@pytest.mark.parametrize("lost_unsynced", [True, False])
def test_the_last_epoch_survives_a_kill_and_a_power_cut(
    log_of: MakeLog, batch: MakeBatch, directory: str, lost_unsynced: bool
) -> None:
    log = emptied(log_of, batch)
    opening = LogLoader(
        SystemFiles(),
        directory,
        log.topic_partition,
        LogConfig(),
        removals=DelayedFileRemoval(),
        now_ms=NOW,
        recovery_point=2,
        start_offset=6,
        lost_unsynced=lost_unsynced,
    )
    assert state(opening.open()) == (6, 6, 3)


def test_a_log_emptied_by_kafka_has_its_last_epoch(log_of: MakeLog, batch: MakeBatch, directory: str) -> None:
    """In Apache Kafka the last epoch starts at the log start offset."""
    emptied(log_of, batch).close(NOW)
    file = Path(directory, LEADER_EPOCHS)
    file.write_text("0\n1\n3 6\n")
    log = log_of(start_offset=6, clean=True)
    assert state(log) == (6, 6, 3)
    assert file.read_text() == "0\n1\n3 5\n"


def emptied_after_a_kill(log_of: MakeLog, batch: MakeBatch, files: FaultyFiles) -> Log:
    """The process that wrote the records was killed before a sync. The next process deleted the records."""
    log = log_of(files=files, directory="/data")
    log.append(batch(6), 3, NOW)
    files.kill()
    log = log_of({"retention_ms": 1000}, files=files, directory="/data", clean=False)
    log.delete_old_segments(expired_segments(log, log.end_offset, NOW + 10_000), NOW)
    return log


def emptied_by_kafka(log_of: MakeLog, batch: MakeBatch, files: FaultyFiles) -> Log:
    """The start writes the file again."""
    log = log_of({"retention_ms": 1000}, files=files, directory="/data")
    log.append(batch(6), 3, NOW)
    log.delete_old_segments(expired_segments(log, log.end_offset, NOW + 10_000), NOW)
    log.close(NOW)
    files.replace(f"/data/{LEADER_EPOCHS}", b"0\n1\n3 6\n")
    return log_of(files=files, directory="/data", start_offset=6, clean=True)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("empty", [emptied_after_a_kill, emptied_by_kafka])
def test_the_last_epoch_survives_a_power_cut_after_a_clean_shutdown(
    log_of: MakeLog, batch: MakeBatch, empty: MakeLog, seed: int
) -> None:
    files = FaultyFiles()
    files.make_directory("/data")
    log = empty(log_of, batch, files)
    assert state(log) == (6, 6, 3)
    log.close(NOW)
    files.sync_directory("/data")  # Names may reach the disk without a sync.
    files.power_cut(Random(seed) if seed else None)
    assert state(log_of(files=files, directory="/data", start_offset=6, clean=True)) == (6, 6, 3)


def test_a_log_without_records_ever_has_no_last_epoch(log_of: MakeLog, directory: str) -> None:
    log_of().close(NOW)
    Path(directory, LEADER_EPOCHS).write_text("0\n1\n3 0\n")
    assert state(log_of(clean=True)) == (0, 0, -1)


def test_a_log_truncated_to_its_start_keeps_its_last_epoch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(batch(2), 1, NOW)
    log.append(batch(2), 1, NOW)
    log.advance_start(2)
    log.truncate_to(2, NOW)
    assert state(log) == (2, 2, 1)


def test_an_emptied_log_continues_in_its_last_epoch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = emptied(log_of, batch)
    assert log.append(batch(1), 3, NOW).base_offset == 6
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([3], [5])
    assert log.append(batch(1), 4, NOW).base_offset == 7
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([3, 4], [5, 7])


def test_a_log_that_starts_within_a_batch_keeps_its_last_epoch(
    log_of: MakeLog, batch: MakeBatch, directory: str
) -> None:
    log = emptied(log_of, batch)
    log.begin_at_batch(4, NOW)
    assert state(log) == (6, 6, 3)
    assert Path(directory, f"{4:020d}{LOG}").exists()


def test_a_log_restarted_at_another_offset_has_no_earlier_epoch(log_of: MakeLog, batch: MakeBatch) -> None:
    log = emptied(log_of, batch)
    log.truncate_fully_and_start_at(9, NOW)
    assert state(log) == (9, 9, -1)
    log.set_epoch_before_start(5)
    assert state(log) == (9, 9, 5)
    log.set_epoch_before_start(8)
    assert state(log) == (9, 9, 5), "it is known"


def test_a_log_that_starts_at_offset_0_has_no_last_epoch(log_of: MakeLog) -> None:
    log = log_of()
    log.set_epoch_before_start(5)
    assert state(log) == (0, 0, -1)
