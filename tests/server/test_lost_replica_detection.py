"""The lost replicas that a broker reports, depending on the content of its data directories."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from faulty_files import FaultyFiles

from record_builders import build_batch
from tidemill.coordination.cluster_image import TOPIC, ClusterImage
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.server.lost_replica_detection import detect_lost_replicas

NODE = 1
NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def opened(*disks: Path) -> LogManager:
    return opened_on(SystemFiles(), *map(str, disks))


def opened_on(files: Files, *paths: str) -> LogManager:
    manager = LogManager(files, paths or ["/d"])
    manager.dirs.lock()
    manager.dirs.claim("c" * 22, NODE)
    manager.load(NOW, lambda topic: LogConfig())
    return manager


def image_of(*replicas: list[int], topic_id: bytes = TOPIC_ID) -> ClusterImage:
    """An image with topic ``t`` and these replicas of its partitions."""
    partitions = [
        PartitionImage(number, brokers[0], 0, brokers, brokers, 0) for number, brokers in enumerate(replicas)
    ]
    return ClusterImage(topics={"t": TopicImage("t", topic_id, partitions, {}, 0)})


def fill(disks: tuple[Path, Path], partitions: int = 4) -> list[list[int]]:
    """Creates logs on both disks, and shuts down cleanly. Returns the partitions on each disk."""
    manager = opened(*disks)
    for number in range(partitions):
        manager.create(TopicPartition("t", number), TOPIC_ID, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    return [sorted(int(one.name[2:]) for one in disk.glob("t-*")) for disk in disks]


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    """Two data directories."""
    return tmp_path / "a", tmp_path / "b"


def test_a_start_after_a_clean_shutdown_reports_nothing(disks: tuple[Path, Path]) -> None:
    fill(disks)
    lost = detect_lost_replicas(image_of([1, 2], [1, 2], [2, 1], [1]), NODE, opened(*disks))
    assert lost.is_none


def test_a_broker_without_logs_reports_all_replicas(
    disks: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    manager = opened(*disks)
    assert detect_lost_replicas(image_of([1, 2], [2, 3], [1]), NODE, manager) == LostReplicas(missing=True)
    assert manager.dirs.reported_missing == {TopicPartition("t", 0), TopicPartition("t", 2)}
    shared, only = caplog.messages
    assert "(t-0): they are reported as lost, and rebuilt from their leaders" in shared
    assert "(t-2): no other broker has a replica of them, and they start empty" in only


def test_a_replaced_disk_reports_only_its_own_replicas(
    disks: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, gone = fill(disks)
    shutil.rmtree(disks[1])
    manager = opened(*disks)
    lost = detect_lost_replicas(image_of([1, 2], [1, 2], [2, 1], [2, 1]), NODE, manager)
    assert lost == LostReplicas({}, {"t": frozenset(gone)})
    assert f"2 replicas of this broker are in no data directory (t-{gone[0]}, t-{gone[1]})" in caplog.text
    # Only reported replicas are created again: the controller does not rely on them.
    for number in gone:
        log = manager.create(TopicPartition("t", number), TOPIC_ID, LogConfig(), NOW, is_new=False)
        assert log.end_offset == 0


def test_does_not_report_the_only_replica_if_a_disk_may_be_unmounted(
    disks: tuple[Path, Path],
) -> None:
    _, gone = fill(disks)
    shutil.rmtree(disks[1])
    replicas = [[1], [1], [1], [1]]
    replicas[gone[0]] = [1, 2]
    manager = opened(*disks)
    lost = detect_lost_replicas(image_of(*replicas), NODE, manager)
    assert lost.missing == {"t": frozenset(gone[:1])}


def test_reports_no_missing_replicas_while_a_disk_has_failed(disks: tuple[Path, Path]) -> None:
    fill(disks)
    manager = opened(*disks)
    manager.dirs.all[1].offline_reason = "an error of the disk"
    manager.logs.clear()
    assert detect_lost_replicas(image_of([1, 2], [1, 2]), NODE, manager).missing == {}


def test_the_log_of_a_deleted_topic_with_the_same_name_is_a_missing_replica(disks: tuple[Path, Path]) -> None:
    fill(disks)
    anew = image_of([1, 2], [1, 2], [2, 3], [2, 3], topic_id=bytes(range(50, 66)))
    lost = detect_lost_replicas(anew, NODE, opened(*disks))
    assert lost.missing == {"t": frozenset({0, 1})}


def test_finds_the_logs_of_deleted_topics(disks: tuple[Path, Path]) -> None:
    fill(disks)
    manager = opened(*disks)
    problem = NodeFormatError("/brokers/topics/t", b"{", "no JSON")
    for image in (image_of([1, 2], [1, 2]), ClusterImage(unreadable={(TOPIC, "t"): problem})):
        detect_lost_replicas(image, NODE, manager)
        assert manager.dirs.of_deleted_topics == frozenset()
    detect_lost_replicas(ClusterImage(), NODE, manager)
    assert manager.dirs.of_deleted_topics == {TopicPartition("t", number) for number in range(4)}


def test_a_topic_created_again_starts_empty_on_a_returned_disk(
    disks: tuple[Path, Path],
) -> None:
    """The topic is created after the broker reads the store, and before the store has the report."""
    _, former = fill(disks)
    manager = opened(*disks)
    manager.dirs.all[1].is_outdated = True
    lost = detect_lost_replicas(image_of([1], [1], [1], [1]), NODE, manager)
    assert lost.missing == {"t": frozenset(former)}
    assert all(manager.dirs.may_rebuild(TopicPartition("t", number)) for number in former)


def test_reports_unsynced_replicas_only_of_the_disk_without_a_clean_shutdown(
    disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, unsynced = fill(disks)
    manager = opened(*disks)
    manager.dirs.all[1].may_have_lost = True
    lost = detect_lost_replicas(image_of([1, 2], [1, 2], [1, 2], [1, 2]), NODE, manager)
    assert lost == LostReplicas({"t": frozenset(unsynced)}, {})
    assert not any(lost.is_lost("t", number) for number in kept)
    assert NOTHING_LOST.is_none


def killed_after(path: Path, count: int) -> Path:
    """Appends batches to partition 0, and kills the process. Returns the log file."""
    manager = opened(path)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    manager.dirs.mark_losses_handled()
    data = build_batch([(NOW, b"k", b"v" * 50, None)])
    for _ in range(count):
        log.append(parse_batch(data, 0, len(data)), 0, NOW)
    manager.dirs.unlock()
    return path / "t-0" / f"{0:020}.log"


def reported_after(path: Path) -> bool:
    return detect_lost_replicas(image_of([1, 2]), NODE, opened(path)).is_lost("t", 0)


def test_a_partial_last_write_after_a_kill_is_not_reported(tmp_path: Path) -> None:
    file = killed_after(tmp_path / "d", 3)
    os.truncate(file, file.stat().st_size - 7)
    assert not reported_after(tmp_path / "d")


@pytest.mark.parametrize("where", ["in the middle", "at the end"])
def test_reports_a_log_with_dropped_pages_without_a_reboot(tmp_path: Path, where: str) -> None:
    """A sync failed, and the process was killed before it recorded that."""
    file = killed_after(tmp_path / "d", 3)
    size = file.stat().st_size // 3
    with file.open("r+b") as opened_file:
        opened_file.seek(size if where == "in the middle" else 2 * size)
        opened_file.write(bytes(size))
    assert reported_after(tmp_path / "d")


def test_reports_a_log_that_ends_before_the_high_watermark(tmp_path: Path) -> None:
    file = killed_after(tmp_path / "d", 3)
    (tmp_path / "d" / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    os.truncate(file, file.stat().st_size // 3)
    assert reported_after(tmp_path / "d")


@pytest.mark.parametrize("stop", ["killed", "in order"])
@pytest.mark.parametrize("damage", ["dropped pages", "an end before what was committed", "no segment"])
def test_later_starts_report_a_loss_until_the_controller_has_processed_it(
    tmp_path: Path, damage: str, stop: str
) -> None:
    """A start truncates the damaged log, and ends before the controller reads the report."""
    file = killed_after(tmp_path / "d", 3)
    (tmp_path / "d" / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    if damage == "dropped pages":
        (tmp_path / "d" / "replication-offset-checkpoint").unlink()
        file.write_bytes(bytes(file.stat().st_size))
    elif damage == "no segment":
        for one in (tmp_path / "d" / "t-0").glob("0*"):
            one.unlink()
    else:
        os.truncate(file, file.stat().st_size // 3)
    for _ in range(2):
        manager = opened(tmp_path / "d")
        assert detect_lost_replicas(image_of([1, 2]), NODE, manager).is_lost("t", 0)
        if stop == "in order":
            assert manager.close(NOW, {TopicPartition("t", 0): 0}) == []
        else:
            manager.set_high_watermark(TopicPartition("t", 0), 0)
            checkpoint = manager.dirs.all[0].high_watermarks
            assert checkpoint.collect()
            checkpoint.write()
            manager.dirs.unlock()
    manager = opened(tmp_path / "d")
    manager.dirs.mark_losses_handled()
    manager.dirs.unlock()
    assert not reported_after(tmp_path / "d")


@pytest.mark.parametrize("damage", ["dropped pages", "no segment"])
def test_a_start_that_cannot_record_a_loss_changes_nothing(damage: str) -> None:
    """The directory goes offline, and the next start finds the damage."""
    files = FaultyFiles()
    manager = opened_on(files)
    manager.dirs.mark_losses_handled()
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    data = build_batch([(NOW, b"k", b"v" * 50, None)])
    log.append(parse_batch(data, 0, len(data)), 0, NOW)
    log.flush(NOW)
    manager.checkpoint_recovery_points()
    path = f"/d/t-0/{0:020}.log"
    files.kill()
    if damage == "no segment":
        files.remove(path)
    else:
        files.open(path).write_at(0, bytes(files.size(path)))
        files.remove("/d/recovery-point-offset-checkpoint")
    before = files.list("/d/t-0")
    files.fail("replace", "records-lost", errno.ENOSPC)
    with pytest.raises(StorageError, match="records-lost"):
        opened_on(files)
    assert files.list("/d/t-0") == before
    files.kill()
    again = opened_on(files)
    assert detect_lost_replicas(image_of([1, 2]), NODE, again).is_lost("t", 0)
