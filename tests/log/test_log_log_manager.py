"""The data directories of a broker."""

from __future__ import annotations

import contextlib
import errno
import threading
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from log_stage import MakeBatch, copy_all

from log_start import NOW, start_logs
from record_builders import build_batch
from tidemill.log.checkpoint_files import read_offsets
from tidemill.log.delayed_file_removal import DelayedFileRemoval, remove_path
from tidemill.log.file_names import CLEAN_SHUTDOWN
from tidemill.log.flush_job import FlushJob
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import begin_move
from tidemill.log.log_manager import LogManager
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError, StorageError
from tidemill.model.types import TopicPartition

TOPIC_ID = bytes(range(16))


def opened(*directories: Path, cluster: str = "c" * 22, node: int = 1) -> LogManager:
    return start_logs(SystemFiles(), [str(path) for path in directories], node=node, cluster_id=cluster)


def test_logs_survive_a_clean_shutdown_without_recovery(tmp_path: Path, batch: MakeBatch) -> None:
    manager = opened(tmp_path / "data")
    for partition in range(3):
        log = manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
        log.append(batch(partition + 1), 4, NOW)
    assert manager.close(NOW, {TopicPartition("t", 2): 2}) == []
    assert (tmp_path / "data/.kafka_cleanshutdown").exists()
    again = opened(tmp_path / "data")
    assert not (tmp_path / "data/.kafka_cleanshutdown").exists()
    assert {str(key): log.end_offset for key, log in again.logs.items()} == {"t-0": 1, "t-1": 2, "t-2": 3}
    assert [log.topic_id for log in again.logs.values()] == [TOPIC_ID] * 3
    assert again.logs[TopicPartition("t", 1)].leader_epochs.latest == 4
    assert (again.recovered_bytes, again.dirs.warnings) == (0, [])
    assert again.dirs.high_watermarks == {TopicPartition("t", 2): 2}


def test_an_unused_log_is_not_synced_at_shutdown(batch: MakeBatch) -> None:
    files = FaultyFiles()

    manager = start_logs(files, ["/data"])
    for partition in range(3):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW).append(batch(), 0, NOW)
    assert manager.close(NOW, {}) == []
    manager = start_logs(files, ["/data"])
    manager.logs[TopicPartition("t", 1)].append(batch(), 0, NOW)
    files.operations.clear()
    assert manager.close(NOW, {}) == []
    synced = [path for operation, path in files.operations if operation in ("sync", "sync_directory")]
    assert {path.split("/")[2] for path in synced if "/t-" in path} == {"t-1"}
    files.power_cut()
    manager = start_logs(files, ["/data"])
    assert (manager.dirs.warnings, manager.recovered_bytes) == ([], 0)
    assert [log.end_offset for log in manager.logs.values()] == [1, 2, 1]
    assert manager.logs[TopicPartition("t", 1)].offset_for_timestamp(NOW) == (NOW, 0)


def test_logs_survive_a_kill(tmp_path: Path, batch: MakeBatch) -> None:
    manager = opened(tmp_path)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(segment_bytes=10_000), NOW)
    for _ in range(100):
        log.append(batch(3, value=bytes(100)), 0, NOW)
    manager.dirs.unlock()
    again = opened(tmp_path)
    found = again.logs[TopicPartition("t", 0)]
    assert (found.end_offset, len(found.segments)) == (300, len(log.segments))
    assert again.recovered_bytes == log.size_bytes
    assert again.dirs.warnings == []


def test_a_locked_directory_is_rejected_with_a_one_line_error(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    with pytest.raises(StorageError, match=r"in use by another broker, which holds .lock: stop that broker"):
        opened(tmp_path)
    manager.close(NOW, {})
    opened(tmp_path).close(NOW, {})


def test_a_directory_of_another_cluster_or_broker_is_rejected(tmp_path: Path) -> None:
    opened(tmp_path).close(NOW, {})
    with pytest.raises(ConfigError, match="belongs to cluster ccccccc"):
        opened(tmp_path, cluster="x" * 22)
    with pytest.raises(ConfigError, match=r"belongs to broker 1, but this is broker 2: set node.id=1"):
        opened(tmp_path, node=2)


def test_other_directories_are_reported_and_ignored(tmp_path: Path) -> None:
    for name in ("src", "docs", ".git", "lost+found", "t-0-stray", *(f"x{number}" for number in range(6))):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch()
    manager = opened(tmp_path)
    (warning,) = [line for line in manager.dirs.warnings if "no partitions" in line]
    assert "docs, src, x0, x1, x2 and 3 more; if this is not the data directory of a broker" in warning
    assert str(tmp_path) in warning


def test_new_partitions_are_placed_in_the_directory_with_the_fewest_partitions(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    for partition in range(6):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
    assert [len(directory.logs) for directory in manager.dirs.all] == [3, 3]


def test_a_future_log_counts_as_a_partition_of_its_directory(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    key = TopicPartition("t", 0)
    source = manager.create(key, bytes(16), LogConfig(), NOW)
    assert begin_move(manager, key, str(tmp_path / "b"), NOW) is not None
    log = manager.create(TopicPartition("t", 1), bytes(16), LogConfig(), NOW)
    assert Path(log.directory).parent == Path(source.directory).parent == tmp_path / "a"


def test_a_cordoned_directory_gets_no_new_partition(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    manager = LogManager(SystemFiles(), paths, cordoned=[paths[0]])
    manager.dirs.lock()
    manager.load(NOW, lambda topic: LogConfig())
    keys = [TopicPartition("t", at) for at in range(3)]
    logs = [manager.create(key, bytes(16), LogConfig(), NOW) for key in keys]
    assert {Path(log.directory).parent for log in logs} == {tmp_path / "b"}
    with pytest.raises(KafkaError, match=r"the directory is in cordoned\.log\.dirs") as caught:
        begin_move(manager, keys[0], paths[0], NOW)
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert begin_move(manager, keys[0], paths[1], NOW) is None
    manager.dirs.unlock()
    every = LogManager(SystemFiles(), [str(tmp_path / "c")], cordoned=["*"])
    every.dirs.lock()
    every.load(NOW, lambda topic: LogConfig())
    with pytest.raises(StorageError, match=r"every online directory is in cordoned\.log\.dirs"):
        every.create(keys[0], bytes(16), LogConfig(), NOW)
    every.dirs.unlock()


def test_a_deleted_partition_is_renamed_at_once_and_removed_later(tmp_path: Path, batch: MakeBatch) -> None:
    manager = opened(tmp_path)
    key = TopicPartition("t", 0)
    manager.create(key, TOPIC_ID, LogConfig(file_delete_delay_ms=500), NOW).append(batch(), 0, NOW)
    assert manager.delete(key, NOW)
    assert manager.get(key) is None
    (renamed,) = tmp_path.glob("t-0.*-delete")
    assert manager.removals.pop_due(NOW + 499) == []
    due = manager.removals.pop_due(NOW + 500)
    assert due == [str(renamed)]
    assert manager.remove_paths(due) == []
    assert not renamed.exists()
    assert manager.create(key, TOPIC_ID, LogConfig(), NOW).end_offset == 0


def open_names() -> list[str]:
    """Returns the paths that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def test_a_failed_directory_takes_only_its_partitions_offline(tmp_path: Path, batch: MakeBatch) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    for partition in range(4):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW).append(batch(), 0, NOW)
    lost = list(manager.dirs.all[0].logs.values())
    held = len(OPEN_FILES.held)
    gone = manager.dirs.fail_directory(str(tmp_path / "a"), "Input/output error")
    assert len(gone) == 2
    assert [log.closed for log in lost] == [True, True]
    assert len(OPEN_FILES.held) < held
    assert not [name for name in open_names() if name.startswith(str(tmp_path / "a" / "t-"))]
    assert sorted([*gone, *manager.logs]) == [TopicPartition("t", partition) for partition in range(4)]
    assert manager.create(TopicPartition("u", 0), TOPIC_ID, LogConfig(), NOW).directory.startswith(
        str(tmp_path / "b")
    )


@pytest.mark.slow
def test_a_start_after_a_clean_shutdown_recovers_and_syncs_no_log(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = started(files)
    for partition in range(100):
        log = manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
        log.append(batch(1), 0, NOW)
    assert manager.close(NOW, {}) == []
    files.operations.clear()
    again = started(files)
    assert (len(again.logs), again.dirs.warnings, again.recovered_bytes) == (100, [], 0)
    # bench/recovery.py measures the duration.
    touched = [
        path for operation, path in files.operations if operation in ("sync", "sync_directory", "replace")
    ]
    assert [path for path in touched if path.startswith("/data/t-")] == []


def test_an_unusable_directory_goes_offline_at_startup(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    bad.write_text("in its place")
    manager = opened(good, bad)
    assert [directory.path for directory in manager.dirs.online] == [str(good)]
    assert any(str(bad) in warning for warning in manager.dirs.warnings)
    assert manager.create(TopicPartition("new", 0), TOPIC_ID, LogConfig(), NOW).directory == f"{good}/new-0"
    assert manager.close(NOW, {}) == []


def test_startup_fails_when_no_directory_is_usable(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("in its place")
    with pytest.raises(StorageError, match=str(bad)):
        opened(bad)


def test_syncs_at_shutdown_run_in_parallel(monkeypatch: pytest.MonkeyPatch, batch: MakeBatch) -> None:
    manager = start_logs(FaultyFiles(), ["/a", "/b"])
    for at in range(16):
        manager.create(TopicPartition("t", at), TOPIC_ID, LogConfig(), NOW).append(batch(), 0, NOW)
    together = threading.Barrier(16, timeout=10)
    run = FlushJob.run

    def meet(job: FlushJob, *, with_parent: bool) -> None:
        together.wait()
        run(job, with_parent=with_parent)

    monkeypatch.setattr(FlushJob, "run", meet)
    assert manager.close(NOW, {}) == []


def test_a_failed_sync_at_shutdown_leaves_no_clean_shutdown_marker(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = start_logs(files, ["/a", "/b"])
    for at in range(4):
        manager.create(TopicPartition("t", at), TOPIC_ID, LogConfig(), NOW).append(batch(), 0, NOW)
    files.fail("sync", "/a/t-2", errno.EIO)
    (problem,) = manager.close(NOW, {})
    assert "/a/t-2" in problem
    assert [path for path in ("/a", "/b") if files.exists(f"{path}/{CLEAN_SHUTDOWN}")] == ["/b"]
    files.heal()
    files.power_cut()
    again = start_logs(files, ["/a", "/b"])
    assert {key.partition for key, log in again.logs.items() if log.end_offset == 1} >= {0, 1, 3}


def test_an_unmounted_disk_loses_no_partition_data(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    manager = opened(a, b)
    for partition in range(2):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    b.rename(tmp_path / "unmounted")
    for _ in range(2):
        manager = opened(a, b)
        with pytest.raises(
            StorageError,
            match=r"t-1 is in no data directory.* \S+/b was new at the start: is its disk mounted",
        ):
            manager.create(TopicPartition("t", 1), TOPIC_ID, LogConfig(), NOW, is_new=False)
        assert manager.missed == 1
        # No file is written there meanwhile, so the next start finds it too.
        for partition in range(2):
            log = manager.create(TopicPartition("u", partition), TOPIC_ID, LogConfig(), NOW)
            assert log.directory.startswith(str(a))
        assert manager.close(NOW, {}) == []
        assert not (b / "meta.properties").exists()
    b.rename(tmp_path / "empty")
    (tmp_path / "unmounted").rename(b)
    manager = opened(a, b)
    assert manager.create(TopicPartition("t", 1), TOPIC_ID, LogConfig(), NOW, is_new=False).directory == str(
        b / "t-1"
    )
    assert manager.missed == 0


def test_an_error_names_the_missing_file_of_a_read(tmp_path: Path, batch: MakeBatch) -> None:
    manager, key = opened(tmp_path / "data"), TopicPartition("t", 0)
    log = manager.create(key, TOPIC_ID, LogConfig(segment_bytes=100), NOW)
    for _ in range(3):
        log.append(batch(), 0, NOW)
    assert manager.close(NOW, {}) == []
    log = opened(tmp_path / "data").logs[key]
    gone = tmp_path / f"data/t-0/{1:020}.log"
    gone.unlink()
    with pytest.raises(StorageError, match=f"cannot read {gone}: No such file"):
        log.read(1, 1000, 3, True)
    assert log.read(0, 1000, 1, True) is not None


def test_a_dangling_link_affects_only_its_partition(tmp_path: Path) -> None:
    data, key = tmp_path / "data", TopicPartition("t", 1)
    manager = opened(data)
    for partition in range(3):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    (data / "t-1").rename(tmp_path / "moved")
    (data / "t-1").symlink_to(tmp_path / "gone")
    (data / "backup-1").symlink_to(tmp_path / "gone")
    (data / "t-2.0123456789abcdef0123456789abcdef-future").symlink_to(tmp_path / "gone")
    again = opened(data)
    assert sorted(map(str, again.logs)) == ["t-0", "t-2"]
    assert [directory.offline_reason for directory in again.dirs.all] == [""]
    assert len(again.dirs.warnings) == 3
    with pytest.raises(
        StorageError, match=f"{data}/t-1 is a link to a missing file: the partition t-1 stays"
    ):
        again.create(key, TOPIC_ID, LogConfig(), NOW, is_new=False)
    again.close(NOW, {})
    (data / "t-1").unlink()
    (tmp_path / "moved").rename(data / "t-1")
    assert key in opened(data).logs


def test_an_added_directory_gets_meta_properties_when_no_directory_is_missing(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    manager = opened(a)
    manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    manager = opened(a, b)
    manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW, is_new=False)
    manager.dirs.write_new_meta_properties()
    assert (b / "meta.properties").exists()
    log = manager.create(TopicPartition("t", 1), TOPIC_ID, LogConfig(), NOW)
    assert log.directory == str(b / "t-1")


def test_a_kill_is_distinguished_from_a_power_cut(batch: MakeBatch) -> None:
    files = FaultyFiles()

    manager = start_logs(files, ["/data"])
    assert not manager.dirs.all[0].may_have_lost  # it held no records
    assert manager.dirs.is_blank
    files.kill()
    manager = start_logs(files, ["/data"])
    assert manager.dirs.is_blank  # the loss was not handled yet
    manager.dirs.mark_losses_handled()
    assert not manager.dirs.is_blank
    manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW).append(batch(), 0, NOW)
    files.kill()
    manager = start_logs(files, ["/data"])
    assert not manager.dirs.all[0].may_have_lost
    files.power_cut()
    manager = start_logs(files, ["/data"])
    assert manager.dirs.all[0].may_have_lost
    files.kill()
    manager = start_logs(files, ["/data"])
    assert manager.dirs.all[0].may_have_lost  # the loss was not handled yet
    assert manager.close(NOW, {}) == []
    manager = start_logs(files, ["/data"])
    assert manager.dirs.all[0].may_have_lost
    manager.dirs.mark_losses_handled()
    files.kill()
    manager = start_logs(files, ["/data"])
    assert not manager.dirs.all[0].may_have_lost
    assert manager.close(NOW, {}) == []
    files.power_cut()
    manager = start_logs(files, ["/data"])
    assert not manager.dirs.all[0].may_have_lost  # after a clean shutdown
    assert not manager.dirs.is_blank
    # If the system gives no boot id, an unclean shutdown counts as a power cut.
    files.kill()
    files.boot_id = lambda: ""  # type: ignore[method-assign]
    assert start_logs(files, ["/data"]).dirs.all[0].may_have_lost


def test_deleted_records_stay_deleted_after_a_power_cut_before_file_removal(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    key = TopicPartition("t", 0)

    manager = start_logs(files, ["/data"])
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(3):
        log.append(batch(), 0, NOW)
    log.flush(NOW)
    deleted_to = log.end_offset
    log.advance_start(deleted_to)
    manager.cleanup_logs(NOW, {key: deleted_to})
    assert log.segments[0].base_offset == log.start_offset == deleted_to
    assert write_checkpoints(manager.start_offset_checkpoints()) == []
    files.power_cut()
    assert start_logs(files, ["/data"]).logs[key].start_offset == deleted_to


def half_synced(manager: LogManager, batch: MakeBatch) -> list[Log]:
    """Two logs with one synced record and two that are not."""
    manager.dirs.mark_losses_handled()
    logs = [manager.create(TopicPartition("t", at), TOPIC_ID, LogConfig(), NOW) for at in range(2)]
    for log in logs:
        log.append(batch(), 0, NOW)
        log.flush(NOW)
        log.append(batch(2), 0, NOW)
    manager.checkpoint_recovery_points()
    return logs


@pytest.mark.parametrize(
    "refused", [[], [("replace", "/a/.tidemill")], [("replace", "/a/"), ("remove", "/a/")]], ids=str
)
@pytest.mark.parametrize("when", ["while it runs", "at the stop"])
def test_the_next_start_does_not_trust_the_page_cache_after_a_failed_sync(
    batch: MakeBatch, refused: list[tuple[str, str]], when: str
) -> None:
    files = FaultyFiles()
    paths = ["/a", "/b"]
    manager = start_logs(files, paths)
    half_synced(manager, batch)
    files.fail("sync", "/a/t-0", errno.EIO)
    for operation, path in refused:
        files.fail(operation, path, errno.EROFS, times=100)
    if when == "while it runs":
        with pytest.raises(StorageError):
            manager.logs[TopicPartition("t", 0)].flush(NOW)
        manager.dirs.fail_directory("/a", "a sync failed")
        assert len(manager.dirs.mark_sync_failed(manager.dirs.all[0])) == (len(refused) == 2)
    assert bool(manager.close(NOW, {})) == (when == "at the stop")
    files.heal()
    files.kill()
    again = start_logs(files, paths)
    assert [one.may_have_lost for one in again.dirs.all] == [True, False]
    assert any("a sync failed before the last shutdown" in warning for warning in again.dirs.warnings)
    assert again.logs[TopicPartition("t", 0)].end_offset == 1, "the disk has no more"
    assert again.logs[TopicPartition("t", 1)].end_offset == 3
    again.logs[TopicPartition("t", 0)].append(batch(4), 0, NOW)
    files.kill()
    again = start_logs(files, paths)
    assert again.dirs.all[0].may_have_lost, "the loss was not handled yet"
    again.dirs.mark_losses_handled()
    assert not again.dirs.distrusted
    files.kill()
    again = start_logs(files, paths)
    assert not again.dirs.all[0].may_have_lost
    assert again.logs[TopicPartition("t", 0)].end_offset == 5


def test_a_start_does_not_trust_the_page_cache_of_a_process_killed_after_a_failed_sync(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    paths = ["/a"]
    manager = start_logs(files, paths)
    logs = half_synced(manager, batch)
    files.fail("sync", "/a/t-0/", errno.EIO)
    with pytest.raises(StorageError):
        logs[0].flush(NOW)
    files.kill()
    again = start_logs(files, paths)
    assert not again.dirs.all[0].may_have_lost, "there is no marker"
    assert again.logs[TopicPartition("t", 0)].end_offset == 1, "the disk has no more"
    assert again.dirs.damaged == {TopicPartition("t", 0)}, "it is reported"
    assert again.logs[TopicPartition("t", 1)].end_offset == 3, "a kill loses nothing"
    again.logs[TopicPartition("t", 1)].flush(NOW)
    files.power_cut()
    assert start_logs(files, paths).logs[TopicPartition("t", 1)].end_offset == 3


def test_a_broker_that_cannot_store_its_marker_is_reported_by_the_log_manager(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    paths = ["/a"]
    manager = start_logs(files, paths)
    manager.dirs.mark_losses_handled()
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    log.append(batch(), 0, NOW)
    manager.checkpoint_recovery_points()
    for operation in ("sync", "replace", "remove"):
        files.fail(operation, "/a/", errno.EIO, times=100)
    with pytest.raises(StorageError):
        log.flush(NOW)
    manager.dirs.fail_directory("/a", "a sync failed")
    (problem,) = manager.dirs.mark_sync_failed(manager.dirs.all[0])
    assert "/a/.tidemill-boot" in str(problem)
    files.heal()
    files.kill()
    again = LogManager(files, ["/a"])
    again.dirs.lock()
    again.dirs.claim("c" * 22, 1)
    again.dirs.distrusted |= manager.dirs.distrusted
    again.load(NOW, lambda topic: LogConfig())
    assert again.dirs.all[0].may_have_lost
    assert again.logs[TopicPartition("t", 0)].end_offset == 0


def test_a_truncation_at_startup_is_not_treated_as_synced_by_the_next_start(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    key = TopicPartition("t", 0)

    manager = start_logs(files, ["/data"])
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(5):
        log.append(batch(), 0, NOW)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    files.open(log.active.path).truncate(log.active.size - 10)
    files.kill()
    manager = start_logs(files, ["/data"])
    assert manager.logs[key].end_offset == 4
    checkpoint = "/data/recovery-point-offset-checkpoint"
    assert read_offsets(files, checkpoint) == {key: 4}
    files.kill()
    remove_path(files, "/data/t-0")
    manager = start_logs(files, ["/data"])
    manager.create(key, TOPIC_ID, LogConfig(), NOW)
    assert read_offsets(files, checkpoint).get(key, 0) == 0


def test_a_future_log_that_cannot_be_truncated_at_startup_affects_its_directory_only(
    batch: MakeBatch,
) -> None:
    files = FaultyFiles()
    manager = start_logs(files, ["/a", "/b"])
    key = TopicPartition("t", 0)
    source = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(5):
        source.append(batch(1), 0, NOW)
    move = begin_move(manager, key, "/b", NOW)
    assert move is not None
    copy_all(move)
    source.truncate_to(2, NOW)
    assert manager.close(NOW, {}) == []
    files.kill()
    files.fail("truncate", "-future/", errno.EIO, times=9)
    again = start_logs(files, ["/a", "/b"])
    assert [directory.path for directory in again.dirs.online] == ["/a"]
    assert "cannot truncate /b/t-0." in again.dirs.all[1].offline_reason
    log = again.get(key)
    assert log is not None
    assert log.end_offset == 2


def test_pending_deletions_of_a_failed_directory_alone_are_dropped() -> None:
    removals = DelayedFileRemoval()
    for directory in ("/data/t-0", "/data/t-1", "/data/t-10"):
        removals.add(f"{directory}/a.deleted", 5)
        removals.add(f"{directory}/b.deleted", 6)
    removals.drop_under("/data/t-1")
    removals.drop_under("/data/t-2")
    assert removals.pop_due(5) == ["/data/t-0/a.deleted", "/data/t-10/a.deleted"]
    removals.relocate("/data/t-10", "/other/t-10")
    removals.drop_under("/data/t-10")
    removals.drop_under("/data/t-0")
    assert removals.pop_due(9) == ["/other/t-10/b.deleted"]
    assert removals.pop_due(1 << 62) == []


def started(files: FaultyFiles) -> LogManager:
    """A broker's start on ``/data``."""
    return start_logs(files, ["/data"], LogConfig(segment_bytes=200))


def with_60_records(manager: LogManager, key: TopicPartition, batch: MakeBatch) -> Log:
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(20):
        log.append(batch(3), 0, NOW)
    return log


def test_records_appended_after_a_truncation_are_not_counted_as_compacted(
    batch: MakeBatch,
) -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = with_60_records(manager, key, batch)
    log.clean_end = 50
    log.note_offset_change()
    (directory,) = manager.dirs.all
    assert directory.cleaner_offsets.collect()
    directory.cleaner_offsets.write()
    assert not directory.overstates_clean_end(log)
    log.truncate_to(30, NOW)
    assert directory.overstates(log)
    for checkpoint in manager.overstated_checkpoints(directory, [log]):
        checkpoint.write()
    assert not directory.overstates_clean_end(log)
    for _ in range(10):
        log.append(batch(3), 1, NOW)
    files.kill()
    (again,) = started(files).dirs.all
    assert again.cleaner_offsets.load() == {key: 30}


def test_a_lowered_log_start_offset_limits_the_cleaner_checkpoint_before_any_append(
    batch: MakeBatch,
) -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = with_60_records(manager, key, batch)
    log.advance_start(50)
    for checkpoint in manager.start_offset_checkpoints():
        checkpoint.write()
    (directory,) = manager.dirs.all
    assert not directory.overstates(log)
    # The new leader's log is shorter: this log is emptied and restarts at the leader's log start offset.
    log.truncate_fully_and_start_at(0, NOW)
    assert directory.overstates(log)
    for checkpoint in manager.overstated_checkpoints(directory, [log]):
        checkpoint.write()
    assert not directory.overstates(log)
    for _ in range(5):
        log.append(batch(3), 1, NOW)
    files.kill()
    again = started(files).logs[key]
    assert (again.start_offset, again.end_offset) == (0, 15)


def test_a_log_with_missing_files_restarts_at_its_first_offset(batch: MakeBatch) -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = with_60_records(manager, key, batch)
    log.advance_start(50)
    for checkpoint in manager.start_offset_checkpoints():
        checkpoint.write()
    files.kill()
    remove_path(files, "/data/t-0")
    manager = started(files)
    recreated = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    recreated.append(batch(3), 1, NOW)
    files.kill()
    again = started(files).logs[key]
    assert (again.start_offset, again.end_offset) == (0, 3)


def test_a_log_keeps_its_cleaner_checkpoint_after_a_batch_around_its_start() -> None:
    """A follower starts at its leader's log start offset within a batch: earlier records were deleted."""
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    log.append_copied(build_batch([(NOW, b"k", b"v", None)] * 30), NOW)
    log.clean_end = 30
    log.truncate_fully_and_start_at(23, NOW)
    (directory,) = manager.dirs.all
    assert directory.cleaner_offsets.collect()
    directory.cleaner_offsets.write()
    log.begin_at_batch(19, NOW)
    assert (log.start_offset, log.clean_end) == (23, 23)
    assert not directory.overstates_clean_end(log), "it was written before, and nothing else changes"
