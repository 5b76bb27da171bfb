"""Followers of logs whose start offset is inside a batch, after DeleteRecords, with broker processes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, produce, start_cluster, stored, until

from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper

MESSAGES = 322
BEFORE = 50
"""An offset inside the first batch."""

_numbers = itertools.count()

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers."""
    address = f"{zookeeper_server.address}/test-cluster-deletes-{next(_numbers)}"
    with start_cluster(address, zookeeper__session__timeout__ms="2000") as found:
        yield found
        for broker in found.brokers.values():
            broker.kill()


def delete_inside_a_batch(cluster: Brokers, topic: str, replicas: list[int]) -> None:
    """Creates a topic whose log start offset is inside the first batch."""
    with cluster.admin() as admin:
        admin.create_topic(topic, assignments={0: replicas})
        assert len(produce(cluster, topic, range(MESSAGES), linger__ms=200)) == MESSAGES
        deleted = admin.delete_records({TopicPartition(topic, 0): BEFORE})
    assert deleted == {TopicPartition(topic, 0): BEFORE}


def test_an_added_replica_joins_the_isr_of_a_log_that_starts_inside_a_batch(
    cluster: Brokers,
) -> None:
    delete_inside_a_batch(cluster, "grown", [1, 2])
    with cluster.admin() as admin:
        assert admin.alter_reassignments({TopicPartition("grown", 0): [1, 2, 3]}) == {("grown", 0): None}
    cluster.until_in_sync("grown", [1, 2, 3])
    # The new replica leads, so that its records are read.
    with cluster.admin() as admin:
        assert admin.alter_reassignments({TopicPartition("grown", 0): [3, 1]}) == {("grown", 0): None}
    cluster.until_in_sync("grown", [1, 3])
    cluster.brokers[1].kill()
    cluster.until_in_sync("grown", [3])
    assert stored(cluster, "grown") == list(range(BEFORE, MESSAGES))
    cluster.brokers[1].start()
    cluster.until_in_sync("grown", [1, 3])
    assert produce(cluster, "grown", range(MESSAGES, MESSAGES + 1)) == [MESSAGES]


def test_an_empty_follower_joins_the_isr_of_a_log_that_starts_inside_a_batch(
    cluster: Brokers,
) -> None:
    delete_inside_a_batch(cluster, "emptied", [1, 2, 3])
    follower = next(number for number in cluster.brokers if number != cluster.described("emptied").leader)
    cluster.brokers[follower].kill()
    shutil.rmtree(cluster.brokers[follower].data_dir)
    Path(cluster.brokers[follower].data_dir).mkdir()
    cluster.brokers[follower].start()
    cluster.until_in_sync("emptied", [1, 2, 3])
    assert stored(cluster, "emptied") == list(range(BEFORE, MESSAGES))


def test_deleted_records_stay_deleted_after_a_leader_change(cluster: Brokers) -> None:
    delete_inside_a_batch(cluster, "failed", [1, 2, 3])
    for _ in range(2):
        leader = cluster.described("failed").leader
        cluster.brokers[leader].kill()
        cluster.until_in_sync("failed", [number for number, one in cluster.brokers.items() if one.running])
        assert stored(cluster, "failed") == list(range(BEFORE, MESSAGES))


def test_delete_records_goes_to_the_new_leader(cluster: Brokers) -> None:
    """The admin client has the metadata of the former leader."""
    partition = TopicPartition("led", 0)
    with cluster.admin() as admin:
        admin.create_topic("led", assignments={0: [1, 2, 3]})
        produce(cluster, "led", range(MESSAGES))
        assert admin.delete_records({partition: 10}) == {partition: 10}
        with cluster.admin() as other:
            assert other.alter_reassignments({partition: [2, 3, 1]}) == {partition: None}
            assert other.elect_leaders([partition]) == {partition: None}
        until(lambda: cluster.described("led").leader == 2, "broker 2 leads")
        assert admin.delete_records({partition: 20}) == {partition: 20}
        cluster.brokers[2].kill()
        assert admin.delete_records({partition: 30}) == {partition: 30}
