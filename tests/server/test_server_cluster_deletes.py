"""Followers of logs that begin inside a batch, after DeleteRecords: real brokers, ZooKeeper and clients."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_stage import Stage, cluster, produce, stored, until

from tidemill.model.types import TopicPartition
from tidemill.testing.zookeeper import ZooKeeper

MESSAGES = 322
BEFORE = 50
"""An offset within the first batch."""

_numbers = itertools.count()

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(zookeeper_server: ZooKeeper) -> Iterator[Stage]:
    """Three brokers."""
    address = f"{zookeeper_server.address}/test-cluster-deletes-{next(_numbers)}"
    with cluster(address, zookeeper__session__timeout__ms="2000") as found:
        yield found
        for broker in found.brokers.values():
            broker.kill()


def delete_inside_a_batch(stage: Stage, topic: str, replicas: list[int]) -> None:
    """A topic whose log begins inside its first batch."""
    with stage.admin() as admin:
        admin.create_topic(topic, assignments={0: replicas})
        assert len(produce(stage, topic, range(MESSAGES), linger__ms=200)) == MESSAGES
        deleted = admin.delete_records({TopicPartition(topic, 0): BEFORE})
    assert deleted == {TopicPartition(topic, 0): BEFORE}


def test_a_replica_added_after_records_were_deleted_inside_a_batch_gets_in_sync(stage: Stage) -> None:
    delete_inside_a_batch(stage, "grown", [1, 2])
    with stage.admin() as admin:
        assert admin.alter_reassignments({TopicPartition("grown", 0): [1, 2, 3]}) == {("grown", 0): None}
    stage.until_in_sync("grown", [1, 2, 3])
    # The new replica leads: what it has is what there was.
    with stage.admin() as admin:
        assert admin.alter_reassignments({TopicPartition("grown", 0): [3, 1]}) == {("grown", 0): None}
    stage.until_in_sync("grown", [1, 3])
    stage.brokers[1].kill()
    stage.until_in_sync("grown", [3])
    assert stored(stage, "grown") == list(range(BEFORE, MESSAGES))
    stage.brokers[1].start()
    stage.until_in_sync("grown", [1, 3])
    assert produce(stage, "grown", range(MESSAGES, MESSAGES + 1)) == [MESSAGES]


def test_a_follower_that_comes_back_empty_gets_in_sync_with_a_log_that_begins_inside_a_batch(
    stage: Stage,
) -> None:
    delete_inside_a_batch(stage, "emptied", [1, 2, 3])
    follower = next(number for number in stage.brokers if number != stage.described("emptied").leader)
    stage.brokers[follower].kill()
    shutil.rmtree(stage.brokers[follower].data_dir)
    Path(stage.brokers[follower].data_dir).mkdir()
    stage.brokers[follower].start()
    stage.until_in_sync("emptied", [1, 2, 3])
    assert stored(stage, "emptied") == list(range(BEFORE, MESSAGES))


def test_deleted_records_do_not_come_back_with_the_next_leader(stage: Stage) -> None:
    delete_inside_a_batch(stage, "failed", [1, 2, 3])
    for _ in range(2):
        leader = stage.described("failed").leader
        stage.brokers[leader].kill()
        stage.until_in_sync("failed", [number for number, one in stage.brokers.items() if one.running])
        assert stored(stage, "failed") == list(range(BEFORE, MESSAGES))


def test_records_are_deleted_by_whoever_leads_by_now(stage: Stage) -> None:
    """One admin client, from before the leader moved."""
    partition = TopicPartition("led", 0)
    with stage.admin() as admin:
        admin.create_topic("led", assignments={0: [1, 2, 3]})
        produce(stage, "led", range(MESSAGES))
        assert admin.delete_records({partition: 10}) == {partition: 10}
        with stage.admin() as other:
            assert other.alter_reassignments({partition: [2, 3, 1]}) == {partition: None}
            assert other.elect_leaders([partition]) == {partition: None}
        until(lambda: stage.described("led").leader == 2, "broker 2 leads")
        assert admin.delete_records({partition: 20}) == {partition: 20}
        stage.brokers[2].kill()
        assert admin.delete_records({partition: 30}) == {partition: 30}
