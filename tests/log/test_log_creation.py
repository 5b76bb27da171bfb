"""Logs of new partitions: created without opening a file, and loaded after a stop at any operation."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from log_stage import MakeBatch

from log_start import NOW, start_logs
from tidemill.log.checkpoint_files import read_partition_metadata
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Files
from tidemill.model.types import ZERO_ID, TopicPartition

KEY = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
NAMES = ["00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex"]


def manager_of(files: Files, path: str = "/data") -> LogManager:
    return start_logs(files, [path])


def test_a_created_log_equals_an_opened_log(tmp_path: Path, batch: MakeBatch) -> None:
    manager = manager_of(SystemFiles(), str(tmp_path))
    held = len(OPEN_FILES.held)
    made = manager.create(KEY, TOPIC_ID, LogConfig(), NOW)
    assert len(OPEN_FILES.held) == held, "an unused partition holds no descriptor"
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == [*NAMES, "partition.metadata"]
    (tmp_path / "u-0").mkdir()
    opened = manager.create(TopicPartition("u", 0), TOPIC_ID, LogConfig(), NOW)
    for log in (made, opened):
        state = (log.start_offset, log.end_offset, log.recovery_point, log.size_bytes, log.topic_id)
        assert state == (0, 0, 0, 0, TOPIC_ID)
        durability = log.durability
        assert (log.segment_list.names_changed, durability.names_synced) == (1, 0)
        assert durability.parent_unsynced
        assert (log.producer_state.end_offset, log.producer_state.snapshot_offset) == (0, -1)
        assert (log.leader_epochs.latest, log.segment_list.has_aborts) == (-1, False)
        assert not durability.is_synced(log.end_offset)
        assert (log.active.created_ms, log.active.rolling_timestamp(), log.active.max_timestamp()) == (
            NOW,
            -1,
            -1,
        )
        assert log.append(batch(3), 4, NOW).last_offset == 2


def test_indexes_of_a_new_log_are_preallocated_at_their_first_entry(tmp_path: Path, batch: MakeBatch) -> None:
    manager = manager_of(SystemFiles(), str(tmp_path))
    config = LogConfig(index_interval_bytes=1, segment_index_bytes=1200)
    log = manager.create(KEY, TOPIC_ID, config, NOW)
    sizes = [tmp_path / "t-0" / name for name in (NAMES[0], NAMES[2])]
    assert [path.stat().st_size for path in sizes] == [0, 0]
    for _ in range(3):
        log.append(batch(2), 4, NOW)
    assert [path.stat().st_size for path in sizes] == [1200, 1200]
    assert log.active.index.entries == 2
    again = manager_of_copy(tmp_path)
    assert again.logs[KEY].end_offset == 6
    assert again.dirs.warnings == []


def manager_of_copy(path: Path) -> LogManager:
    """Opens the directory as the next start after a kill."""
    manager = LogManager(SystemFiles(), [str(path)])
    manager.load(NOW, lambda topic: LogConfig())
    return manager


class StoppingFiles(FaultyFiles):
    """Every call fails after this number of calls."""

    left = 1_000_000

    def check(self, operation: str, path: str) -> None:
        if self.left <= 0:
            raise OSError(errno.EIO, "stopped", path)
        self.left -= 1
        super().check(operation, path)


@pytest.mark.parametrize("calls", range(10))
@pytest.mark.parametrize("ends", ["kill", "power cut"])
def test_a_partition_can_be_created_after_an_interrupted_creation(
    calls: int, ends: str, batch: MakeBatch
) -> None:
    files = StoppingFiles()
    manager = manager_of(files)
    files.left = calls
    with contextlib.suppress(StorageError):
        manager.create(KEY, TOPIC_ID, LogConfig(), NOW)
    files.left = 1_000_000
    files.kill() if ends == "kill" else files.power_cut()
    again = manager_of(files)
    log = again.create(KEY, TOPIC_ID, LogConfig(), NOW)
    if log.topic_id != TOPIC_ID:
        again.assign_topic_id(log, TOPIC_ID)
    assert log.append(batch(3), 4, NOW).last_offset == 2
    log.flush(NOW)
    files.power_cut()
    last = manager_of(files)
    assert last.logs[KEY].end_offset == 3
    assert last.logs[KEY].topic_id in (TOPIC_ID, ZERO_ID), "the metadata store has it, so it is not synced"


def test_a_failed_creation_succeeds_on_a_retry(batch: MakeBatch) -> None:
    files = FaultyFiles()
    manager = manager_of(files)
    files.fail("open", ".timeindex", errno.ENOSPC)
    with pytest.raises(StorageError, match="/data/t-0"):
        manager.create(KEY, TOPIC_ID, LogConfig(), NOW)
    assert manager.get(KEY) is None
    log = manager.create(KEY, TOPIC_ID, LogConfig(), NOW)
    assert log.append(batch(1), 4, NOW).last_offset == 0


@pytest.mark.parametrize("metadata", [None, b"", b"no metadata"])
def test_a_directory_without_a_topic_id_is_used_by_the_partition(
    metadata: bytes | None, batch: MakeBatch
) -> None:
    files = FaultyFiles()
    manager = manager_of(files)
    manager.create(KEY, TOPIC_ID, LogConfig(), NOW).append(batch(1), 4, NOW)
    files.rename("/data/t-0", "/kept")
    manager.delete(KEY, NOW)
    files.rename("/kept", "/data/t-0")
    if metadata is None:
        files.remove("/data/t-0/partition.metadata")
    else:
        files.replace("/data/t-0/partition.metadata", metadata)
    log = manager.create(KEY, b"n" * 16, LogConfig(), NOW)
    assert (log.topic_id, log.end_offset) == (b"n" * 16, 1)
    assert read_partition_metadata(files, "/data/t-0/partition.metadata") == b"n" * 16


def test_a_removed_data_directory_is_created_again_with_its_identity(tmp_path: Path) -> None:
    files = SystemFiles()
    assert files.make_new_directory(str(tmp_path / "a/b"))
    assert not files.make_new_directory(str(tmp_path / "a/b"))


@pytest.mark.parametrize("make", [lambda path: (SystemFiles(), str(path)), lambda path: (FaultyFiles(), "/")])
def test_a_file_is_replaced_atomically(tmp_path: Path, make: Callable[[Path], tuple[Files, str]]) -> None:
    files, directory = make(tmp_path)
    path = f"{directory.rstrip('/')}/name"
    for data in (b"a longer text", b"short", b""):
        files.write_unsynced(path, data)
        assert files.read(path) == data
    assert files.list(directory) == ["name"]
    files.make_file(path + "2")
    assert files.size(path + "2") == 0
