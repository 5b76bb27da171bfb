"""The data directories of a broker."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.log.checkpoints import read_offsets
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.flush import FlushJob
from tidemill.log.manager import LogManager
from tidemill.log.moves import begin_move
from tidemill.log.names import CLEAN_SHUTDOWN
from tidemill.log.offset_checkpoint import write_checkpoints
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.removals import Removals
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError, StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.builder import build_batch
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def opened(*directories: Path, cluster: str = "c" * 22, node: int = 1) -> LogManager:
    manager = LogManager(SystemFiles(), [str(path) for path in directories])
    manager.lock()
    manager.claim(cluster, node)
    manager.load(NOW, lambda topic: LogConfig())
    return manager


def test_logs_survive_a_clean_stop_and_nothing_is_recovered(
    tmp_path: Path, batch: Callable[..., Batch]
) -> None:
    manager = opened(tmp_path / "data")
    for partition in range(3):
        log = manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
        log.append([batch(partition + 1)], 4, NOW)
    assert manager.close(NOW, {TopicPartition("t", 2): 2}) == []
    assert (tmp_path / "data/.kafka_cleanshutdown").exists()
    again = opened(tmp_path / "data")
    assert not (tmp_path / "data/.kafka_cleanshutdown").exists()
    assert {str(key): log.end_offset for key, log in again.logs.items()} == {"t-0": 1, "t-1": 2, "t-2": 3}
    assert [log.topic_id for log in again.logs.values()] == [TOPIC_ID] * 3
    assert again.logs[TopicPartition("t", 1)].leader_epochs.latest == 4
    assert (again.recovered_bytes, again.warnings) == (0, [])
    assert again.high_watermarks == {TopicPartition("t", 2): 2}


def test_a_log_that_nobody_used_costs_no_sync_at_the_stop(batch: Callable[..., Batch]) -> None:
    files = FaultyFiles()

    def start() -> LogManager:
        manager = LogManager(files, ["/data"])
        manager.lock()
        manager.load(NOW, lambda topic: LogConfig())
        return manager

    manager = start()
    for partition in range(3):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW).append([batch()], 0, NOW)
    assert manager.close(NOW, {}) == []
    manager = start()
    manager.logs[TopicPartition("t", 1)].append([batch()], 0, NOW)
    files.operations.clear()
    assert manager.close(NOW, {}) == []
    synced = [path for operation, path in files.operations if operation in ("sync", "sync_directory")]
    assert {path.split("/")[2] for path in synced if "/t-" in path} == {"t-1"}
    files.power_cut()
    manager = start()
    assert (manager.warnings, manager.recovered_bytes) == ([], 0)
    assert [log.end_offset for log in manager.logs.values()] == [1, 2, 1]
    assert manager.logs[TopicPartition("t", 1)].offset_for_timestamp(NOW) == (NOW, 0)


def test_logs_survive_a_kill(tmp_path: Path, batch: Callable[..., Batch]) -> None:
    manager = opened(tmp_path)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(segment_bytes=10_000), NOW)
    for _ in range(100):
        log.append([batch(3, value=bytes(100))], 0, NOW)
    manager.unlock()
    again = opened(tmp_path)
    found = again.logs[TopicPartition("t", 0)]
    assert (found.end_offset, len(found.segments)) == (300, len(log.segments))
    assert again.recovered_bytes == log.size_bytes
    assert again.warnings == []


def test_a_locked_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    with pytest.raises(StorageError, match=r"in use by another broker \(it holds .lock\): stop that one"):
        opened(tmp_path)
    manager.close(NOW, {})
    opened(tmp_path).close(NOW, {})


def test_a_directory_of_another_cluster_or_broker_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close(NOW, {})
    with pytest.raises(ConfigError, match="is of cluster ccccccc"):
        opened(tmp_path, cluster="x" * 22)
    with pytest.raises(ConfigError, match=r"is of broker 1, this one is broker 2: set broker.id=1"):
        opened(tmp_path, node=2)


def test_new_partitions_go_to_the_directory_that_has_the_fewest(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    for partition in range(6):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
    assert [len(directory.logs) for directory in manager.directories] == [3, 3]


def test_a_copy_that_is_on_its_way_into_a_directory_counts_there(tmp_path: Path) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    key = TopicPartition("t", 0)
    source = manager.create(key, bytes(16), LogConfig(), NOW)
    assert begin_move(manager, key, str(tmp_path / "b"), NOW) is not None
    log = manager.create(TopicPartition("t", 1), bytes(16), LogConfig(), NOW)
    assert Path(log.directory).parent == Path(source.directory).parent == tmp_path / "a"


def test_a_cordoned_directory_gets_no_new_partition(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    manager = LogManager(SystemFiles(), paths, cordoned=[paths[0]])
    manager.lock()
    manager.load(NOW, lambda topic: LogConfig())
    keys = [TopicPartition("t", at) for at in range(3)]
    logs = [manager.create(key, bytes(16), LogConfig(), NOW) for key in keys]
    assert {Path(log.directory).parent for log in logs} == {tmp_path / "b"}
    with pytest.raises(KafkaError, match=r"cordoned\.log\.dirs names it") as caught:
        begin_move(manager, keys[0], paths[0], NOW)
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert begin_move(manager, keys[0], paths[1], NOW) is None
    manager.unlock()
    every = LogManager(SystemFiles(), [str(tmp_path / "c")], cordoned=["*"])
    every.lock()
    every.load(NOW, lambda topic: LogConfig())
    with pytest.raises(StorageError, match=r"cordoned\.log\.dirs names every directory that works"):
        every.create(keys[0], bytes(16), LogConfig(), NOW)
    every.unlock()


def test_a_deleted_partition_is_renamed_at_once_and_removed_later(
    tmp_path: Path, batch: Callable[..., Batch]
) -> None:
    manager = opened(tmp_path)
    key = TopicPartition("t", 0)
    manager.create(key, TOPIC_ID, LogConfig(file_delete_delay_ms=500), NOW).append([batch()], 0, NOW)
    assert manager.delete(key, NOW)
    assert manager.get(key) is None
    (renamed,) = tmp_path.glob("t-0.*-delete")
    assert manager.due_removals(NOW + 499) == []
    due = manager.due_removals(NOW + 500)
    assert due == [str(renamed)]
    assert manager.remove_paths(due) == []
    assert not renamed.exists()
    assert manager.create(key, TOPIC_ID, LogConfig(), NOW).end_offset == 0


def open_names() -> list[str]:
    """What this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found


def test_a_failed_directory_takes_only_its_own_partitions_offline(
    tmp_path: Path, batch: Callable[..., Batch]
) -> None:
    manager = opened(tmp_path / "a", tmp_path / "b")
    for partition in range(4):
        manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW).append([batch()], 0, NOW)
    lost = list(manager.directories[0].logs.values())
    held = len(OPEN_FILES)
    gone = manager.fail_directory(str(tmp_path / "a"), "Input/output error")
    assert len(gone) == 2
    assert [log.closed for log in lost] == [True, True]
    assert len(OPEN_FILES) < held
    assert not [name for name in open_names() if name.startswith(str(tmp_path / "a" / "t-"))]
    assert sorted([*gone, *manager.logs]) == [TopicPartition("t", partition) for partition in range(4)]
    assert manager.create(TopicPartition("u", 0), TOPIC_ID, LogConfig(), NOW).directory.startswith(
        str(tmp_path / "b")
    )


@pytest.mark.slow
def test_a_start_after_a_stop_in_order_checks_and_syncs_none_of_many_logs(
    batch: Callable[..., Batch],
) -> None:
    files = FaultyFiles()
    manager = started(files)
    for partition in range(100):
        log = manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
        log.append([batch(1)], 0, NOW)
    assert manager.close(NOW, {}) == []
    files.operations.clear()
    again = started(files)
    assert (len(again.logs), again.warnings, again.recovered_bytes) == (100, [], 0)
    # bench/recovery.py measures how long it takes.
    touched = [
        path for operation, path in files.operations if operation in ("sync", "sync_directory", "replace")
    ]
    assert [path for path in touched if path.startswith("/data/t-")] == []


def test_a_directory_that_cannot_be_used_at_the_start_is_put_aside(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    bad.write_text("in its place")
    manager = opened(good, bad)
    assert [directory.path for directory in manager.working] == [str(good)]
    assert any(str(bad) in warning for warning in manager.warnings)
    assert manager.create(TopicPartition("new", 0), TOPIC_ID, LogConfig(), NOW).directory == f"{good}/new-0"
    assert manager.close(NOW, {}) == []


def test_the_start_ends_when_no_directory_can_be_used(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("in its place")
    with pytest.raises(StorageError, match=str(bad)):
        opened(bad)


def test_the_syncs_of_a_stop_wait_for_the_disk_together(
    monkeypatch: pytest.MonkeyPatch, batch: Callable[..., Batch]
) -> None:
    manager = LogManager(FaultyFiles(), ["/a", "/b"])
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: LogConfig())
    for at in range(16):
        manager.create(TopicPartition("t", at), TOPIC_ID, LogConfig(), NOW).append([batch()], 0, NOW)
    together = threading.Barrier(16, timeout=10)
    run = FlushJob.run

    def meet(job: FlushJob) -> None:
        together.wait()
        run(job)

    monkeypatch.setattr(FlushJob, "run", meet)
    assert manager.close(NOW, {}) == []


def test_what_cannot_be_synced_at_the_stop_costs_its_directory_the_clean_mark(
    batch: Callable[..., Batch],
) -> None:
    files = FaultyFiles()
    manager = LogManager(files, ["/a", "/b"])
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: LogConfig())
    for at in range(4):
        manager.create(TopicPartition("t", at), TOPIC_ID, LogConfig(), NOW).append([batch()], 0, NOW)
    files.fail("sync", "/a/t-2", errno.EIO)
    (problem,) = manager.close(NOW, {})
    assert "/a/t-2" in problem
    assert [path for path in ("/a", "/b") if files.exists(f"{path}/{CLEAN_SHUTDOWN}")] == ["/b"]
    files.heal()
    files.power_cut()
    again = LogManager(files, ["/a", "/b"])
    again.lock()
    again.load(NOW, lambda topic: LogConfig())
    assert {key.partition for key, log in again.logs.items() if log.end_offset == 1} >= {0, 1, 3}


def test_a_disk_that_is_not_mounted_costs_its_partitions_nothing(tmp_path: Path) -> None:
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
        # Nothing is put there meanwhile, so that the next start sees it, too.
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


def test_the_file_that_a_read_misses_is_named(tmp_path: Path, batch: Callable[..., Batch]) -> None:
    manager, key = opened(tmp_path / "data"), TopicPartition("t", 0)
    log = manager.create(key, TOPIC_ID, LogConfig(segment_bytes=100), NOW)
    for _ in range(3):
        log.append([batch()], 0, NOW)
    assert manager.close(NOW, {}) == []
    log = opened(tmp_path / "data").logs[key]
    gone = tmp_path / f"data/t-0/{1:020}.log"
    gone.unlink()
    with pytest.raises(StorageError, match=f"cannot read {gone}: No such file"):
        log.read(1, 1000, 3, True)
    assert log.read(0, 1000, 1, True) is not None


def test_a_link_to_nothing_costs_only_the_partition_of_its_name(tmp_path: Path) -> None:
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
    assert [directory.failure for directory in again.directories] == [""]
    assert len(again.warnings) == 3
    with pytest.raises(
        StorageError, match=f"{data}/t-1 is a link to what is not there: a partition t-1 stays"
    ):
        again.create(key, TOPIC_ID, LogConfig(), NOW, is_new=False)
    again.close(NOW, {})
    (data / "t-1").unlink()
    (tmp_path / "moved").rename(data / "t-1")
    assert key in opened(data).logs


def test_a_directory_that_is_added_is_signed_when_nothing_is_missed(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    manager = opened(a)
    manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    manager = opened(a, b)
    manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW, is_new=False)
    manager.accept()
    assert (b / "meta.properties").exists()
    log = manager.create(TopicPartition("t", 1), TOPIC_ID, LogConfig(), NOW)
    assert log.directory == str(b / "t-1")


def test_a_kill_loses_nothing_and_a_power_cut_may_have(batch: Callable[..., Batch]) -> None:
    files = FaultyFiles()

    def start() -> LogManager:
        manager = LogManager(files, ["/data"])
        manager.lock()
        manager.claim("c" * 22, 1)
        manager.load(NOW, lambda topic: LogConfig())
        return manager

    manager = start()
    assert not manager.may_have_lost  # it held nothing
    assert manager.is_blank
    files.kill()
    manager = start()
    assert manager.is_blank  # nobody has heeded it yet
    manager.loss_heeded()
    assert not manager.is_blank
    manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW).append([batch()], 0, NOW)
    files.kill()
    manager = start()
    assert not manager.may_have_lost
    files.power_cut()
    manager = start()
    assert manager.may_have_lost
    files.kill()
    manager = start()
    assert manager.may_have_lost  # nobody has heeded it yet
    assert manager.close(NOW, {}) == []
    manager = start()
    assert manager.may_have_lost
    manager.loss_heeded()
    files.kill()
    manager = start()
    assert not manager.may_have_lost
    assert manager.close(NOW, {}) == []
    files.power_cut()
    manager = start()
    assert not manager.may_have_lost  # it was stopped in order
    assert not manager.is_blank
    # Where the system does not tell, an unclean stop counts as a power cut.
    files.kill()
    files.boot_id = lambda: ""  # type: ignore[method-assign]
    assert start().may_have_lost


def test_deleted_records_stay_deleted_when_the_power_fails_before_their_files_are_gone(
    batch: Callable[..., Batch],
) -> None:
    files = FaultyFiles()
    key = TopicPartition("t", 0)

    def start() -> LogManager:
        manager = LogManager(files, ["/data"])
        manager.lock()
        manager.claim("c" * 22, 1)
        manager.load(NOW, lambda topic: LogConfig())
        return manager

    manager = start()
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(3):
        log.append([batch()], 0, NOW)
    log.flush(NOW)
    deleted_to = log.end_offset
    log.advance_start(deleted_to)
    manager.retain(NOW, {key: deleted_to})
    assert log.segments[0].base_offset == log.start_offset == deleted_to
    assert write_checkpoints(manager.start_offset_checkpoints()) == []
    files.power_cut()
    assert start().logs[key].start_offset == deleted_to


def failing_broker(files: FaultyFiles, *paths: str) -> Callable[[], LogManager]:
    """Starts a broker over the data directories at ``paths``."""

    def start() -> LogManager:
        manager = LogManager(files, paths)
        manager.lock()
        manager.claim("c" * 22, 1)
        manager.load(NOW, lambda topic: LogConfig())
        return manager

    return start


@pytest.mark.parametrize(
    "refused", [[], [("replace", "/a/.tidemill")], [("replace", "/a/"), ("remove", "/a/")]], ids=str
)
@pytest.mark.parametrize("when", ["while it runs", "at the stop"])
def test_what_a_failed_sync_left_in_the_cache_is_not_trusted_by_the_next_start(
    batch: Callable[..., Batch], refused: list[tuple[str, str]], when: str
) -> None:
    files = FaultyFiles()
    start = failing_broker(files, "/a", "/b")
    manager = start()
    manager.loss_heeded()
    for partition in range(2):
        log = manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
        log.append([batch()], 0, NOW)
        log.flush(NOW)
        log.append([batch(2)], 0, NOW)
    manager.checkpoint_recovery_points()
    files.fail("sync", "/a/t-0", errno.EIO)
    for operation, path in refused:
        files.fail(operation, path, errno.EROFS, times=100)
    if when == "while it runs":
        with pytest.raises(StorageError):
            manager.logs[TopicPartition("t", 0)].flush(NOW)
        manager.fail_directory("/a", "a sync failed")
        assert len(manager.distrust(manager.directories[0])) == (len(refused) == 2)
    assert bool(manager.close(NOW, {})) == (when == "at the stop")
    files.heal()
    files.kill()
    again = start()
    assert [one.may_have_lost for one in again.directories] == [True, False]
    assert any("a sync failed before the last stop" in warning for warning in again.warnings)
    assert again.logs[TopicPartition("t", 0)].end_offset == 1, "the disk has no more"
    assert again.logs[TopicPartition("t", 1)].end_offset == 3
    again.logs[TopicPartition("t", 0)].append([batch(4)], 0, NOW)
    files.kill()
    again = start()
    assert again.directories[0].may_have_lost, "nobody has heeded it yet"
    again.loss_heeded()
    assert not again.distrusted
    files.kill()
    again = start()
    assert not again.may_have_lost
    assert again.logs[TopicPartition("t", 0)].end_offset == 5


def test_a_start_trusts_no_cache_of_a_process_that_was_killed_as_soon_as_its_sync_had_failed(
    batch: Callable[..., Batch],
) -> None:
    files = FaultyFiles()
    start = failing_broker(files, "/a")
    manager = start()
    manager.loss_heeded()
    logs = []
    for partition in range(2):
        log = manager.create(TopicPartition("t", partition), TOPIC_ID, LogConfig(), NOW)
        log.append([batch()], 0, NOW)
        log.flush(NOW)
        log.append([batch(2)], 0, NOW)
        logs.append(log)
    manager.checkpoint_recovery_points()
    files.fail("sync", "/a/t-0/", errno.EIO)
    with pytest.raises(StorageError):
        logs[0].flush(NOW)
    files.kill()
    again = start()
    assert not again.may_have_lost, "there is no mark"
    assert again.logs[TopicPartition("t", 0)].end_offset == 1, "the disk has no more"
    assert again.damaged == {TopicPartition("t", 0)}, "it is reported"
    assert again.logs[TopicPartition("t", 1)].end_offset == 3, "a kill costs nothing"
    again.logs[TopicPartition("t", 1)].flush(NOW)
    files.power_cut()
    assert start().logs[TopicPartition("t", 1)].end_offset == 3


def test_a_broker_without_any_place_for_the_mark_is_told_by_the_store(batch: Callable[..., Batch]) -> None:
    files = FaultyFiles()
    start = failing_broker(files, "/a")
    manager = start()
    manager.loss_heeded()
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    log.append([batch()], 0, NOW)
    manager.checkpoint_recovery_points()
    for operation in ("sync", "replace", "remove"):
        files.fail(operation, "/a/", errno.EIO, times=100)
    with pytest.raises(StorageError):
        log.flush(NOW)
    manager.fail_directory("/a", "a sync failed")
    (problem,) = manager.distrust(manager.directories[0])
    assert "/a/.tidemill-boot" in str(problem)
    files.heal()
    files.kill()
    again = LogManager(files, ["/a"])
    again.lock()
    again.claim("c" * 22, 1)
    again.distrusted |= manager.distrusted
    again.load(NOW, lambda topic: LogConfig())
    assert again.may_have_lost
    assert again.logs[TopicPartition("t", 0)].end_offset == 0


def test_what_a_start_cuts_off_is_not_taken_for_synced_by_the_next(batch: Callable[..., Batch]) -> None:
    files = FaultyFiles()
    key = TopicPartition("t", 0)

    def start() -> LogManager:
        manager = LogManager(files, ["/data"])
        manager.lock()
        manager.load(NOW, lambda topic: LogConfig())
        return manager

    manager = start()
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(5):
        log.append([batch()], 0, NOW)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    files.open(log.active.path).truncate(log.active.size - 10)
    files.kill()
    manager = start()
    assert manager.logs[key].end_offset == 4
    checkpoint = "/data/recovery-point-offset-checkpoint"
    assert read_offsets(files, checkpoint) == {key: 4}
    files.kill()
    for name in files.list("/data/t-0"):
        files.remove(f"/data/t-0/{name}")
    files.remove("/data/t-0")
    manager = start()
    manager.create(key, TOPIC_ID, LogConfig(), NOW)
    assert read_offsets(files, checkpoint).get(key, 0) == 0


def test_a_copy_that_cannot_be_cut_at_the_start_costs_its_directory_only(batch: Callable[..., Batch]) -> None:
    files = FaultyFiles()
    manager = LogManager(files, ["/a", "/b"])
    manager.lock()
    manager.load(NOW, lambda topic: LogConfig())
    key = TopicPartition("t", 0)
    source = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(5):
        source.append([batch(1)], 0, NOW)
    move = begin_move(manager, key, "/b", NOW)
    assert move is not None
    piece = move.next_piece(1 << 20, NOW)
    assert piece is not None
    move.store(piece, NOW)
    source.truncate_to(2, NOW)
    assert manager.close(NOW, {}) == []
    files.kill()
    files.fail("truncate", "-future/", errno.EIO, times=9)
    again = LogManager(files, ["/a", "/b"])
    again.lock()
    again.load(NOW, lambda topic: LogConfig())
    assert [directory.path for directory in again.working] == ["/a"]
    assert "cannot truncate /b/t-0." in again.directories[1].failure
    log = again.get(key)
    assert log is not None
    assert log.end_offset == 2


def test_what_waits_in_a_directory_that_goes_is_forgotten_and_nothing_else() -> None:
    removals = Removals()
    for directory in ("/data/t-0", "/data/t-1", "/data/t-10"):
        removals.add(f"{directory}/a.deleted", 5)
        removals.add(f"{directory}/b.deleted", 6)
    removals.forget_under("/data/t-1")
    removals.forget_under("/data/t-2")
    assert removals.take_due(5) == ["/data/t-0/a.deleted", "/data/t-10/a.deleted"]
    removals.relocate("/data/t-10", "/other/t-10")
    removals.forget_under("/data/t-10")
    removals.forget_under("/data/t-0")
    assert removals.take_due(9) == ["/other/t-10/b.deleted"]
    assert (len(removals), removals.next_due_ms()) == (0, -1)


def started(files: FaultyFiles) -> LogManager:
    """A broker's start on ``/data``."""
    manager = LogManager(files, ["/data"])
    manager.lock()
    manager.claim("c" * 22, 1)
    manager.load(NOW, lambda topic: LogConfig(segment_bytes=200))
    return manager


def test_of_a_log_that_was_cut_nothing_new_counts_as_compacted(batch: Callable[..., Batch]) -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(20):
        log.append([batch(3)], 0, NOW)
    log.clean_end = 50
    log.note_move()
    (directory,) = manager.directories
    assert directory.cleaner_offsets.take()
    directory.cleaner_offsets.write()
    assert not directory.overstates_clean_end(log)
    log.truncate_to(30, NOW)
    assert directory.overstates(log)
    for checkpoint in manager.lowered_checkpoints_of(directory, [log]):
        checkpoint.write()
    assert not directory.overstates_clean_end(log)
    for _ in range(10):
        log.append([batch(3)], 1, NOW)
    files.kill()
    (again,) = started(files).directories
    assert again.cleaner_offsets.load() == {key: 30}


def test_a_start_that_went_back_counts_before_anything_is_appended(batch: Callable[..., Batch]) -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(20):
        log.append([batch(3)], 0, NOW)
    log.advance_start(50)
    for checkpoint in manager.start_offset_checkpoints():
        checkpoint.write()
    (directory,) = manager.directories
    assert not directory.overstates(log)
    # The new leader's log is shorter: this one is emptied, and begins where that one begins.
    log.truncate_fully(0, NOW)
    assert directory.overstates(log)
    for checkpoint in manager.lowered_checkpoints_of(directory, [log]):
        checkpoint.write()
    assert not directory.overstates(log)
    for _ in range(5):
        log.append([batch(3)], 1, NOW)
    files.kill()
    again = started(files).logs[key]
    assert (again.start_offset, again.end_offset) == (0, 15)


def test_a_log_whose_files_vanished_begins_anew_at_its_first_offset(batch: Callable[..., Batch]) -> None:
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    for _ in range(20):
        log.append([batch(3)], 0, NOW)
    log.advance_start(50)
    for checkpoint in manager.start_offset_checkpoints():
        checkpoint.write()
    files.kill()
    for name in files.list("/data/t-0"):
        files.remove(f"/data/t-0/{name}")
    files.remove("/data/t-0")
    manager = started(files)
    anew = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    anew.append([batch(3)], 1, NOW)
    files.kill()
    again = started(files).logs[key]
    assert (again.start_offset, again.end_offset) == (0, 3)


def test_a_log_that_takes_a_batch_around_its_start_stays_compacted_up_to_there() -> None:
    """A follower begins at its leader's start, which lies within a batch: what is before that was deleted."""
    files, key = FaultyFiles(), TopicPartition("t", 0)
    manager = started(files)
    log = manager.create(key, TOPIC_ID, LogConfig(), NOW)
    log.append_as_follower(build_batch([(NOW, b"k", b"v", None)] * 30), NOW)
    log.clean_end = 30
    log.truncate_fully(23, NOW)
    (directory,) = manager.directories
    assert directory.cleaner_offsets.take()
    directory.cleaner_offsets.write()
    log.begin_within(19, NOW)
    assert (log.start_offset, log.clean_end) == (23, 23)
    assert not directory.overstates_clean_end(log), "it was written before, and nothing else is to be"
