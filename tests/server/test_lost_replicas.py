"""Which replicas a broker reports as lost, by what its start finds in its data directories."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import TOPIC, ClusterImage, PartitionImage, TopicImage
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.manager import LogManager
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.server.lost_replicas import report_lost_replicas
from tidemill.testing.files import FaultyFiles

NODE = 1
NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


def opened(*disks: Path) -> LogManager:
    return opened_on(SystemFiles(), *map(str, disks))


def opened_on(files: Files, *paths: str) -> LogManager:
    manager = LogManager(files, paths or ["/d"])
    manager.lock()
    manager.claim("c" * 22, NODE)
    manager.load(NOW, lambda topic: LogConfig())
    return manager


def image_of(*replicas: list[int], topic_id: bytes = TOPIC_ID) -> ClusterImage:
    """Topic ``t``, whose partitions have these replicas."""
    partitions = [
        PartitionImage(number, brokers[0], 0, brokers, brokers, 0) for number, brokers in enumerate(replicas)
    ]
    return ClusterImage(topics={"t": TopicImage("t", topic_id, partitions, {}, 0)})


def fill(disks: tuple[Path, Path], partitions: int = 4) -> list[list[int]]:
    """Creates logs on both disks and stops in order; the partitions on each disk."""
    manager = opened(*disks)
    for number in range(partitions):
        manager.create(TopicPartition("t", number), TOPIC_ID, LogConfig(), NOW)
    assert manager.close(NOW, {}) == []
    return [sorted(int(one.name[2:]) for one in disk.glob("t-*")) for disk in disks]


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    """Two data directories."""
    return tmp_path / "a", tmp_path / "b"


def test_a_start_after_a_stop_in_order_has_lost_nothing(disks: tuple[Path, Path]) -> None:
    fill(disks)
    lost = report_lost_replicas(image_of([1, 2], [1, 2], [2, 1], [1]), NODE, opened(*disks))
    assert lost.is_none


def test_a_broker_without_any_log_has_lost_every_replica(
    disks: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    manager = opened(*disks)
    assert report_lost_replicas(image_of([1, 2], [2, 3], [1]), NODE, manager) == LostReplicas(missing=True)
    assert manager.reported_missing == {TopicPartition("t", 0), TopicPartition("t", 2)}
    shared, only = caplog.messages
    assert "(t-0): they are reported as lost, and rebuilt from the leaders" in shared
    assert "(t-2): no other broker has a replica of them, and they begin empty" in only


def test_a_replaced_disk_costs_its_own_replicas(
    disks: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, gone = fill(disks)
    shutil.rmtree(disks[1])
    manager = opened(*disks)
    lost = report_lost_replicas(image_of([1, 2], [1, 2], [2, 1], [2, 1]), NODE, manager)
    assert lost == LostReplicas({}, {"t": frozenset(gone)})
    assert f"2 replicas of this broker are in no data directory (t-{gone[0]}, t-{gone[1]})" in caplog.text
    # Only what was reported is made anew: the controller does not count on it.
    for number in gone:
        log = manager.create(TopicPartition("t", number), TOPIC_ID, LogConfig(), NOW, is_new=False)
        assert log.end_offset == 0


def test_the_only_replica_on_a_disk_that_may_not_be_mounted_is_not_given_up(
    disks: tuple[Path, Path],
) -> None:
    _, gone = fill(disks)
    shutil.rmtree(disks[1])
    replicas = [[1], [1], [1], [1]]
    replicas[gone[0]] = [1, 2]
    manager = opened(*disks)
    lost = report_lost_replicas(image_of(*replicas), NODE, manager)
    assert lost.missing == {"t": frozenset(gone[:1])}


def test_nothing_is_missing_while_a_disk_has_failed(disks: tuple[Path, Path]) -> None:
    fill(disks)
    manager = opened(*disks)
    manager.directories[1].failure = "an error of the disk"
    manager.logs.clear()
    assert report_lost_replicas(image_of([1, 2], [1, 2]), NODE, manager).missing == {}


def test_the_log_of_a_deleted_topic_of_this_name_is_not_the_replica(disks: tuple[Path, Path]) -> None:
    fill(disks)
    anew = image_of([1, 2], [1, 2], [2, 3], [2, 3], topic_id=bytes(range(50, 66)))
    lost = report_lost_replicas(anew, NODE, opened(*disks))
    assert lost.missing == {"t": frozenset({0, 1})}


def test_logs_of_deleted_topics_are_known_for_what_they_are(disks: tuple[Path, Path]) -> None:
    fill(disks)
    manager = opened(*disks)
    problem = NodeFormatError("/brokers/topics/t", b"{", "no JSON")
    for image in (image_of([1, 2], [1, 2]), ClusterImage(unreadable={(TOPIC, "t"): problem})):
        report_lost_replicas(image, NODE, manager)
        assert manager.of_deleted_topics == frozenset()
    report_lost_replicas(ClusterImage(), NODE, manager)
    assert manager.of_deleted_topics == {TopicPartition("t", number) for number in range(4)}


def test_a_topic_made_anew_while_a_former_disk_comes_back_begins_empty_there(
    disks: tuple[Path, Path],
) -> None:
    """It is made after the broker has looked at the store, and before that has the report of losses."""
    _, former = fill(disks)
    manager = opened(*disks)
    manager.directories[1].is_outdated = True
    lost = report_lost_replicas(image_of([1], [1], [1], [1]), NODE, manager)
    assert lost.missing == {"t": frozenset(former)}
    assert all(manager.may_rebuild(TopicPartition("t", number)) for number in former)


def test_what_was_not_synced_is_lost_on_the_disk_that_was_not_closed(
    disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, unsynced = fill(disks)
    manager = opened(*disks)
    manager.directories[1].may_have_lost = True
    lost = report_lost_replicas(image_of([1, 2], [1, 2], [1, 2], [1, 2]), NODE, manager)
    assert lost == LostReplicas({"t": frozenset(unsynced)}, {})
    assert not any(lost.is_lost("t", number) for number in kept)
    assert NOTHING_LOST.is_none


def killed_after(path: Path, count: int) -> Path:
    """Appends batches to partition 0, and is killed; the log file."""
    manager = opened(path)
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    manager.loss_heeded()
    data = build_batch([(NOW, b"k", b"v" * 50, None)])
    for _ in range(count):
        log.append([parse_batch(data, 0, len(data))], 0, NOW)
    manager.unlock()
    return path / "t-0" / f"{0:020}.log"


def reported_after(path: Path) -> bool:
    return report_lost_replicas(image_of([1, 2]), NODE, opened(path)).is_lost("t", 0)


def test_a_kill_costs_the_end_of_the_last_write_at_most(tmp_path: Path) -> None:
    file = killed_after(tmp_path / "d", 3)
    os.truncate(file, file.stat().st_size - 7)
    assert not reported_after(tmp_path / "d")


@pytest.mark.parametrize("where", ["in the middle", "at the end"])
def test_a_log_whose_pages_were_dropped_is_reported_as_lost_although_the_machine_went_on(
    tmp_path: Path, where: str
) -> None:
    """A sync failed, and the process was killed before it could note that."""
    file = killed_after(tmp_path / "d", 3)
    size = file.stat().st_size // 3
    with file.open("r+b") as opened_file:
        opened_file.seek(size if where == "in the middle" else 2 * size)
        opened_file.write(bytes(size))
    assert reported_after(tmp_path / "d")


def test_a_log_that_ends_before_what_was_committed_is_reported_as_lost(tmp_path: Path) -> None:
    file = killed_after(tmp_path / "d", 3)
    (tmp_path / "d" / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    os.truncate(file, file.stat().st_size // 3)
    assert reported_after(tmp_path / "d")


@pytest.mark.parametrize("stop", ["killed", "in order"])
@pytest.mark.parametrize("damage", ["dropped pages", "an end before what was committed", "no segment"])
def test_a_loss_is_reported_by_later_starts_until_it_was_heeded(
    tmp_path: Path, damage: str, stop: str
) -> None:
    """A start cuts what is damaged, and ends before the controller has heard of it."""
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
        assert report_lost_replicas(image_of([1, 2]), NODE, manager).is_lost("t", 0)
        if stop == "in order":
            assert manager.close(NOW, {TopicPartition("t", 0): 0}) == []
        else:
            manager.set_high_watermark(TopicPartition("t", 0), 0)
            checkpoint = manager.directories[0].high_watermarks
            assert checkpoint.take()
            checkpoint.write()
            manager.unlock()
    manager = opened(tmp_path / "d")
    manager.loss_heeded()
    manager.unlock()
    assert not reported_after(tmp_path / "d")


@pytest.mark.parametrize("damage", ["dropped pages", "no segment"])
def test_a_start_that_cannot_note_a_loss_changes_nothing(damage: str) -> None:
    """The directory is put aside, and the next start finds the damage."""
    files = FaultyFiles()
    manager = opened_on(files)
    manager.loss_heeded()
    log = manager.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), NOW)
    data = build_batch([(NOW, b"k", b"v" * 50, None)])
    log.append([parse_batch(data, 0, len(data))], 0, NOW)
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
    assert report_lost_replicas(image_of([1, 2]), NODE, again).is_lost("t", 0)
