"""Brokers with two disks, one of which is replaced or not mounted, with broker processes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from broker_cluster import Brokers, common_settings, produce, stored, until

from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

PARTITIONS = 4
DISKS = ("here", "away")
SETTINGS = {"zookeeper__session__timeout__ms": "2000", "auto__leader__rebalance__enable": "false"}

_numbers = itertools.count()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper, tmp_path: Path) -> Iterator[Brokers]:
    """Three brokers with two disks each."""
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
        yield Brokers(address, brokers)
        for broker in brokers.values():
            broker.kill()


def partitions_on(disk: Path, topic: str) -> list[int]:
    """The partitions of a topic on the disk."""
    return sorted(int(one.name.rpartition("-")[2]) for one in disk.glob(f"{topic}-?"))


def write(cluster: Brokers, topic: str, values: range) -> None:
    """Writes the numbers to every partition."""
    for partition in range(PARTITIONS):
        assert len(produce(cluster, topic, values, partition)) == len(values)


def check(cluster: Brokers, topic: str, values: range, replicas: list[int]) -> None:
    """Checks that every partition contains the numbers, and its ISR is ``replicas``."""
    for partition in range(PARTITIONS):
        cluster.until_in_sync(topic, replicas, partition)
        assert stored(cluster, topic, partition) == list(values), f"partition {partition}"


def test_replicas_of_a_replaced_disk_are_rebuilt_from_the_leaders(cluster: Brokers, tmp_path: Path) -> None:
    with cluster.admin() as admin:
        admin.create_topic("replaced", PARTITIONS, 3)
    write(cluster, "replaced", range(100))
    disk = tmp_path / "1" / "away"
    lost = partitions_on(disk, "replaced")
    assert 0 < len(lost) < PARTITIONS
    cluster.brokers[1].kill()
    write(cluster, "replaced", range(100, 200))
    shutil.rmtree(disk)
    disk.mkdir()
    cluster.brokers[1].start()
    check(cluster, "replaced", range(200), [1, 2, 3])
    # Each partition has one directory again, on either disk.
    rebuilt = [partition for name in DISKS for partition in partitions_on(disk.parent / name, "replaced")]
    assert sorted(rebuilt) == list(range(PARTITIONS))
    # The rebuilt replica has all acknowledged records: it serves them alone.
    with cluster.admin() as admin:
        admin.create_topic("filler", 1, 3)
    cluster.brokers[1].restart()
    check(cluster, "replaced", range(200), [1, 2, 3])


def test_an_emptied_disk_of_the_last_in_sync_replica_loses_no_records(
    cluster: Brokers, tmp_path: Path
) -> None:
    """A replica outside the ISR still has all acknowledged records, and becomes the leader."""
    with cluster.admin() as admin:
        admin.create_topic("last", PARTITIONS, assignments={n: [1, 2, 3] for n in range(PARTITIONS)})
    write(cluster, "last", range(100))
    for number in (2, 3):
        cluster.brokers[number].kill()
    for partition in range(PARTITIONS):
        cluster.until_in_sync("last", [1], partition)
    cluster.brokers[1].kill()
    disk = tmp_path / "1" / "away"
    assert partitions_on(disk, "last")
    shutil.rmtree(disk)
    disk.mkdir()
    for number in (2, 3, 1):
        cluster.brokers[number].start()
    check(cluster, "last", range(100), [1, 2, 3])


def test_an_unmounted_disk_loses_no_partition_without_other_replicas(
    cluster: Brokers, tmp_path: Path
) -> None:
    with cluster.admin() as admin:
        admin.create_topic(
            "only", assignments={n: [1] for n in range(PARTITIONS)}, configs={"min.insync.replicas": "1"}
        )
        admin.create_topic("shared", PARTITIONS, 3)
    for topic in ("only", "shared"):
        write(cluster, topic, range(100))
    disk, kept = tmp_path / "1" / "away", tmp_path / "1" / "kept"
    left = partitions_on(tmp_path / "1" / "here", "only")
    assert 0 < len(left) < PARTITIONS
    cluster.brokers[1].stop()
    disk.rename(kept)
    disk.mkdir()
    cluster.brokers[1].start()
    # Replicas with other brokers are rebuilt. Partitions on this disk only stay offline.
    check(cluster, "shared", range(100), [1, 2, 3])
    for partition in range(PARTITIONS):
        is_left = partition in left
        until(
            lambda partition=partition, is_left=is_left: (  # type: ignore[misc]
                (cluster.described("only", partition).leader == 1) == is_left
            ),
            f"only-{partition} is {'led' if is_left else 'not led'}",
        )
    write(cluster, "shared", range(100, 200))
    # The disk is mounted again, and its partitions are complete.
    cluster.brokers[1].stop()
    shutil.rmtree(disk)
    kept.rename(disk)
    cluster.brokers[1].start()
    check(cluster, "only", range(100), [1])
    check(cluster, "shared", range(200), [1, 2, 3])


def test_a_remounted_disk_with_outdated_logs_truncates_no_other_replica(
    cluster: Brokers, tmp_path: Path
) -> None:
    """Its logs are valid, and lack records that the broker acknowledged without this disk."""
    with cluster.admin() as admin:
        admin.create_topic("rebuilt", assignments={n: [1, 2, 3] for n in range(PARTITIONS)})
    write(cluster, "rebuilt", range(100))
    cluster.brokers[1].stop()
    disks = [tmp_path / "1" / name for name in DISKS]
    for disk in disks:
        disk.rename(disk.with_suffix(".former"))
        disk.mkdir()
    cluster.brokers[1].start()
    check(cluster, "rebuilt", range(100), [1, 2, 3])
    write(cluster, "rebuilt", range(100, 200))
    for number in (2, 3, 1):
        cluster.brokers[number].stop()
    for disk in disks:
        shutil.rmtree(disk)
        disk.with_suffix(".former").rename(disk)
    for number in (1, 2, 3):
        cluster.brokers[number].start()
    check(cluster, "rebuilt", range(200), [1, 2, 3])
    assert "was not in use at the last start of this broker" in cluster.brokers[1].log
