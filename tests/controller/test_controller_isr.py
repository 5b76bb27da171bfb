"""Decisions about the in-sync sets that leaders ask for."""

from __future__ import annotations

import pytest

from tidemill.controller.elections import ElectionPolicy
from tidemill.controller.isr import ANY_EPOCH, IsrChange, plan_isr_change
from tidemill.coordination.image import BrokerImage, ClusterImage, PartitionImage
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.model.errors import ErrorCode, KafkaError

PARTITION = PartitionImage(0, 1, 7, [1, 2, 3], [1, 2], 4)
LOST = LostReplicas(unsynced={"t": frozenset({0})}, missing={"u": frozenset({0})})


def plan(
    image: ClusterImage,
    partition: PartitionImage,
    asked: IsrChange,
    stopping: frozenset[int] = frozenset(),
    min_insync: int = 1,
) -> PartitionImage:
    """The partition is t-0."""
    policy = ElectionPolicy(min_insync_replicas=min_insync)
    return plan_isr_change(image, "t", partition, asked, policy, stopping)


def cluster(*broker_ids: int) -> ClusterImage:
    """Brokers with registration epoch 100 + id."""
    brokers = {one: BrokerImage(BrokerRegistration(one, ()), 100 + one) for one in broker_ids}
    return ClusterImage("cluster", 1, 5, brokers)


def change(*isr: int, broker: int = 1, leader_epoch: int = 7, partition_epoch: int = 4) -> IsrChange:
    return IsrChange(broker, leader_epoch, partition_epoch, [(one, 100 + one) for one in isr])


def test_a_broker_that_lost_records_gets_in_sync_once_it_has_heard_of_that() -> None:
    told, untold = (BrokerImage(BrokerRegistration(3, (), lost=lost), 103) for lost in (NOTHING_LOST, LOST))
    image = cluster(1, 2)
    with pytest.raises(KafkaError) as refused:
        plan(image.with_brokers({**image.brokers, 3: untold}), PARTITION, change(1, 2, 3))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    assert "broker 3 still reports lost records in its registration" in str(refused.value)
    after = plan(image.with_brokers({**image.brokers, 3: told}), PARTITION, change(1, 2, 3))
    assert after.isr == [1, 2, 3]
    # The last that was left is its own witness.
    alone = PARTITION.replaced(isr=[1], partition_epoch=5)
    leader = BrokerImage(BrokerRegistration(1, (), lost=LOST), 101)
    brokers = {1: leader, 2: image.brokers[2]}
    assert plan(image.with_brokers(brokers), alone, change(1, 2, partition_epoch=5)).isr == [1, 2]


@pytest.mark.parametrize("isr", [(1,), (1, 2, 3), (1, 3)])
def test_a_set_that_may_be_is_written_and_the_leader_epoch_stays(isr: tuple[int, ...]) -> None:
    changed = plan(cluster(1, 2, 3), PARTITION, change(*isr))
    assert (changed.leader, changed.leader_epoch, changed.isr) == (1, 7, list(isr))
    assert changed.partition_epoch == 5
    assert changed.replicas == [1, 2, 3]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (change(1, leader_epoch=6), ErrorCode.FENCED_LEADER_EPOCH),
        (change(1, leader_epoch=8), ErrorCode.NOT_CONTROLLER),
        (change(1, partition_epoch=3), ErrorCode.INVALID_UPDATE_VERSION),
        (change(1, partition_epoch=5), ErrorCode.NOT_CONTROLLER),
        (change(1, 2, 3, broker=2), ErrorCode.INVALID_REQUEST),
        (change(2, 3), ErrorCode.INVALID_REQUEST),
        (change(), ErrorCode.INVALID_REQUEST),
        (change(1, 1), ErrorCode.INVALID_REQUEST),
        (change(1, 4), ErrorCode.INVALID_REQUEST),
        (change(1)._replace(broker_epoch=100), ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_what_may_not_be_is_refused(asked: IsrChange, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        plan(cluster(1, 2, 3, 4), PARTITION, asked)
    assert refused.value.code == code


def test_a_member_must_live_and_be_the_one_that_is_meant() -> None:
    with pytest.raises(KafkaError, match="broker 3 is not there") as refused:
        plan(cluster(1, 2), PARTITION, change(1, 2, 3))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    started_again = IsrChange(1, 7, 4, [(1, 101), (3, 99)])
    with pytest.raises(KafkaError, match="broker 3 has epoch 103, not 99") as refused:
        plan(cluster(1, 2, 3), PARTITION, started_again)
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    unknown = IsrChange(1, 7, 4, [(1, ANY_EPOCH), (3, ANY_EPOCH)])
    assert plan(cluster(1, 3), PARTITION, unknown).isr == [1, 3]


@pytest.mark.parametrize("epoch", [103, ANY_EPOCH])
def test_who_cannot_write_its_replica_does_not_get_in_sync_but_may_stay(epoch: int) -> None:
    failed = PARTITION.with_offline(frozenset({3}))
    with pytest.raises(KafkaError, match="broker 3 cannot read or write its replica") as refused:
        plan(cluster(1, 2, 3), failed, IsrChange(1, 7, 4, [(1, 101), (2, 102), (3, epoch)]))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    assert plan(cluster(1, 2, 3), failed, change(1, 2)).isr == [1, 2]
    staying = PARTITION.with_offline(frozenset({2}))
    assert plan(cluster(1, 2, 3), staying, change(1, 2, 3)).isr == [1, 2, 3]


def test_a_request_that_comes_again_changes_nothing() -> None:
    assert plan(cluster(1, 2), PARTITION, change(1, 2, partition_epoch=3)) is PARTITION


def test_who_is_about_to_stop_does_not_get_in_sync_but_may_stay() -> None:
    stopping = frozenset({2, 3})
    with pytest.raises(KafkaError, match="broker 3 is about to stop") as refused:
        plan(cluster(1, 2, 3), PARTITION, change(1, 2, 3), stopping)
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    assert plan(cluster(1, 2, 3), PARTITION, change(1, 2), stopping).isr == [1, 2]
    assert plan(cluster(1, 2, 3), PARTITION, change(1), stopping).isr == [1]


def test_a_change_of_the_set_leaves_a_move_alone() -> None:
    moving = PartitionImage(0, 1, 7, [3, 1, 2], [1, 2], 4, [3], [2])
    changed = plan(cluster(1, 2, 3), moving, change(1, 2, 3))
    assert (changed.replicas, changed.adding, changed.removing) == ([3, 1, 2], [3], [2])


def test_a_replica_that_leaves_the_set_below_min_insync_stays_eligible() -> None:
    image = cluster(1, 2, 3)
    both = plan(image, PARTITION, change(1), min_insync=2)
    assert (both.isr, both.elr) == ([1], [2])
    full = PARTITION.replaced(isr=[1, 2, 3])
    one_left = plan(image, full, change(1, 2), min_insync=2)
    assert (one_left.isr, one_left.elr) == ([1, 2], []), "commits go on without broker 3"
    assert plan(image, full, change(1), min_insync=3).elr == [2, 3]
    again = plan(image, both, change(1, 3, partition_epoch=5), min_insync=2)
    assert (again.isr, again.elr) == ([1, 3], []), "commits go on without broker 2"
    assert plan(image, both, change(1, 3, partition_epoch=5), min_insync=3).elr == [2]


def test_min_insync_counts_at_most_the_replicas_that_do_not_just_arrive() -> None:
    pair = PARTITION.replaced(replicas=[1, 2])
    assert plan(cluster(1, 2), pair, change(1), min_insync=3).elr == [2]
    arriving = PARTITION.replaced(replicas=[3, 2, 1], adding=[3, 2], isr=[1, 2])
    assert plan(cluster(1, 2, 3), arriving, change(1), min_insync=2).elr == [], "one replica is enough"
