"""One of a broker's two disks is replaced by an empty one: real brokers, real ZooKeeper, real clients."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_stage import Stage, common_settings, produce, stored, until

from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

PARTITIONS = 4
DISKS = ("here", "away")
SETTINGS = {"zookeeper__session__timeout__ms": "2000", "auto__leader__rebalance__enable": "false"}

_numbers = itertools.count()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def stage(zookeeper_server: ZooKeeper, tmp_path: Path) -> Iterator[Stage]:
    """Three brokers; each has two disks."""
    address = f"{zookeeper_server.address}/test-cluster-disks-{next(_numbers)}"
    with ExitStack() as stack:
        brokers = {}
        for number in (1, 2, 3):
            home = tmp_path / str(number)
            home.mkdir()
            config = {
                **common_settings(address, 3, **SETTINGS),
                "node.id": str(number),
                "log.dirs": ",".join(str(home / disk) for disk in DISKS),
            }
            brokers[number] = stack.enter_context(Broker(config, data_dir=home / "broker"))
        yield Stage(address, brokers)
        for broker in brokers.values():
            broker.kill()


def partitions_on(disk: Path, topic: str) -> list[int]:
    """The partitions of a topic that have a directory on the disk."""
    return sorted(int(one.name.rpartition("-")[2]) for one in disk.glob(f"{topic}-?"))


def write(stage: Stage, topic: str, values: range) -> None:
    """Writes the numbers to each partition."""
    for partition in range(PARTITIONS):
        assert len(produce(stage, topic, values, partition)) == len(values)


def check(stage: Stage, topic: str, values: range, replicas: list[int]) -> None:
    """Each partition holds the numbers, and is in sync on all replicas."""
    for partition in range(PARTITIONS):
        stage.until_in_sync(topic, replicas, partition)
        assert stored(stage, topic, partition) == list(values), f"partition {partition}"


def test_partitions_of_a_disk_that_was_replaced_are_rebuilt_from_the_leaders(
    stage: Stage, tmp_path: Path
) -> None:
    with stage.admin() as admin:
        admin.create_topic("replaced", PARTITIONS, 3)
    write(stage, "replaced", range(100))
    disk = tmp_path / "1" / "away"
    lost = partitions_on(disk, "replaced")
    assert 0 < len(lost) < PARTITIONS
    stage.brokers[1].kill()
    write(stage, "replaced", range(100, 200))
    shutil.rmtree(disk)
    disk.mkdir()
    stage.brokers[1].start()
    check(stage, "replaced", range(200), [1, 2, 3])
    # Each has one directory again, on whichever disk.
    rebuilt = [partition for name in DISKS for partition in partitions_on(disk.parent / name, "replaced")]
    assert sorted(rebuilt) == list(range(PARTITIONS))
    # The rebuilt replica is as good as the others: it serves alone what was acknowledged.
    with stage.admin() as admin:
        admin.create_topic("filler", 1, 3)
    stage.brokers[1].restart()
    check(stage, "replaced", range(200), [1, 2, 3])


def test_one_disk_of_the_last_in_sync_replica_comes_back_empty_and_nothing_is_lost(
    stage: Stage, tmp_path: Path
) -> None:
    """A replica that left the in-sync set still holds everything that was acknowledged: it leads."""
    with stage.admin() as admin:
        admin.create_topic("last", PARTITIONS, assignments={n: [1, 2, 3] for n in range(PARTITIONS)})
    write(stage, "last", range(100))
    for number in (2, 3):
        stage.brokers[number].kill()
    for partition in range(PARTITIONS):
        stage.until_in_sync("last", [1], partition)
    stage.brokers[1].kill()
    disk = tmp_path / "1" / "away"
    assert partitions_on(disk, "last")
    shutil.rmtree(disk)
    disk.mkdir()
    for number in (2, 3, 1):
        stage.brokers[number].start()
    check(stage, "last", range(100), [1, 2, 3])


def test_a_disk_that_is_not_mounted_costs_no_partition_that_nobody_else_has(
    stage: Stage, tmp_path: Path
) -> None:
    with stage.admin() as admin:
        admin.create_topic(
            "only", assignments={n: [1] for n in range(PARTITIONS)}, configs={"min.insync.replicas": "1"}
        )
        admin.create_topic("shared", PARTITIONS, 3)
    for topic in ("only", "shared"):
        write(stage, topic, range(100))
    disk, kept = tmp_path / "1" / "away", tmp_path / "1" / "kept"
    left = partitions_on(tmp_path / "1" / "here", "only")
    assert 0 < len(left) < PARTITIONS
    stage.brokers[1].stop()
    disk.rename(kept)
    disk.mkdir()
    stage.brokers[1].start()
    # What others have is rebuilt; what only the disk has waits for it.
    check(stage, "shared", range(100), [1, 2, 3])
    for partition in range(PARTITIONS):
        is_left = partition in left
        until(
            lambda partition=partition, is_left=is_left: (  # type: ignore[misc]
                (stage.described("only", partition).leader == 1) == is_left
            ),
            f"only-{partition} is {'led' if is_left else 'not led'}",
        )
    write(stage, "shared", range(100, 200))
    # The disk is mounted: its partitions are back, whole.
    stage.brokers[1].stop()
    shutil.rmtree(disk)
    kept.rename(disk)
    stage.brokers[1].start()
    check(stage, "only", range(100), [1])
    check(stage, "shared", range(200), [1, 2, 3])


def test_a_disk_that_is_mounted_again_after_its_replicas_were_rebuilt_cuts_nothing_elsewhere(
    stage: Stage, tmp_path: Path
) -> None:
    """Its logs are sound, and end before records that the broker acknowledged without them."""
    with stage.admin() as admin:
        admin.create_topic("rebuilt", assignments={n: [1, 2, 3] for n in range(PARTITIONS)})
    write(stage, "rebuilt", range(100))
    stage.brokers[1].stop()
    disks = [tmp_path / "1" / name for name in DISKS]
    for disk in disks:
        disk.rename(disk.with_suffix(".former"))
        disk.mkdir()
    stage.brokers[1].start()
    check(stage, "rebuilt", range(100), [1, 2, 3])
    write(stage, "rebuilt", range(100, 200))
    for number in (2, 3, 1):
        stage.brokers[number].stop()
    for disk in disks:
        shutil.rmtree(disk)
        disk.with_suffix(".former").rename(disk)
    for number in (1, 2, 3):
        stage.brokers[number].start()
    check(stage, "rebuilt", range(200), [1, 2, 3])
    assert "was not in use when this broker was last started" in stage.brokers[1].log
