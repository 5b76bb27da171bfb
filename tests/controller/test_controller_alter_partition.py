"""Decisions about the in-sync sets that leaders request."""

from __future__ import annotations

import pytest
from controller_images import cluster

from alter_partition_items import isr_change
from tidemill.controller.alter_partition import ANY_EPOCH, AlterPartitionItem, plan_isr_change
from tidemill.controller.leader_election import ElectionPolicy
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import ErrorCode, KafkaError

PARTITION = PartitionImage(0, 1, 7, [1, 2, 3], [1, 2], 4)
LOST = LostReplicas(unsynced={"t": frozenset({0})}, missing={"u": frozenset({0})})


def plan(
    image: ClusterImage,
    partition: PartitionImage,
    requested: AlterPartitionItem,
    stopping: frozenset[int] = frozenset(),
    min_insync: int = 1,
) -> PartitionImage:
    """The partition is t-0."""
    policy = ElectionPolicy(min_insync_replicas=min_insync)
    return plan_isr_change(image, "t", partition, requested, policy, stopping)


def change(*isr: int, broker: int = 1, leader_epoch: int = 7, partition_epoch: int = 4) -> AlterPartitionItem:
    return isr_change(broker, leader_epoch, partition_epoch, [(one, 100 + one) for one in isr])


def test_a_broker_that_lost_records_joins_the_isr_after_it_has_cleared_the_loss() -> None:
    reported, unreported = (
        BrokerImage(BrokerRegistration(3, (), lost=lost), 103) for lost in (NOTHING_LOST, LOST)
    )
    image = cluster((1, 2))
    with pytest.raises(KafkaError) as refused:
        plan(image.with_brokers({**image.brokers, 3: unreported}), PARTITION, change(1, 2, 3))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    assert "broker 3 still reports lost records in its registration" in str(refused.value)
    after = plan(image.with_brokers({**image.brokers, 3: reported}), PARTITION, change(1, 2, 3))
    assert after.isr == [1, 2, 3]
    # The last in-sync replica stays in the set.
    alone = PARTITION.replaced(isr=[1], partition_epoch=5)
    leader = BrokerImage(BrokerRegistration(1, (), lost=LOST), 101)
    brokers = {1: leader, 2: image.brokers[2]}
    assert plan(image.with_brokers(brokers), alone, change(1, 2, partition_epoch=5)).isr == [1, 2]


@pytest.mark.parametrize("isr", [(1,), (1, 2, 3), (1, 3)])
def test_a_valid_isr_is_written_with_the_same_leader_epoch(isr: tuple[int, ...]) -> None:
    changed = plan(cluster((1, 2, 3)), PARTITION, change(*isr))
    assert (changed.leader, changed.leader_epoch, changed.isr) == (1, 7, list(isr))
    assert changed.partition_epoch == 5
    assert changed.replicas == [1, 2, 3]


@pytest.mark.parametrize(
    ("requested", "code"),
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
def test_an_invalid_isr_is_rejected(requested: AlterPartitionItem, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        plan(cluster((1, 2, 3, 4)), PARTITION, requested)
    assert refused.value.code == code


def test_a_member_must_be_live_with_the_named_broker_epoch() -> None:
    with pytest.raises(KafkaError, match="broker 3 is not live") as refused:
        plan(cluster((1, 2)), PARTITION, change(1, 2, 3))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    started_again = isr_change(1, 7, 4, [(1, 101), (3, 99)])
    with pytest.raises(KafkaError, match="broker 3 has epoch 103, not 99") as refused:
        plan(cluster((1, 2, 3)), PARTITION, started_again)
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    unknown = isr_change(1, 7, 4, [(1, ANY_EPOCH), (3, ANY_EPOCH)])
    assert plan(cluster((1, 3)), PARTITION, unknown).isr == [1, 3]


@pytest.mark.parametrize("epoch", [103, ANY_EPOCH])
def test_an_offline_replica_cannot_join_the_isr_but_may_stay_in_it(epoch: int) -> None:
    failed = PARTITION.with_offline(frozenset({3}))
    with pytest.raises(KafkaError, match="broker 3 cannot read or write its replica") as refused:
        plan(cluster((1, 2, 3)), failed, isr_change(1, 7, 4, [(1, 101), (2, 102), (3, epoch)]))
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    assert plan(cluster((1, 2, 3)), failed, change(1, 2)).isr == [1, 2]
    staying = PARTITION.with_offline(frozenset({2}))
    assert plan(cluster((1, 2, 3)), staying, change(1, 2, 3)).isr == [1, 2, 3]


def test_a_repeated_request_changes_nothing() -> None:
    assert plan(cluster((1, 2)), PARTITION, change(1, 2, partition_epoch=3)) is PARTITION


def test_a_broker_in_controlled_shutdown_cannot_join_the_isr_but_may_stay_in_it() -> None:
    stopping = frozenset({2, 3})
    with pytest.raises(KafkaError, match="broker 3 is shutting down") as refused:
        plan(cluster((1, 2, 3)), PARTITION, change(1, 2, 3), stopping)
    assert refused.value.code == ErrorCode.INELIGIBLE_REPLICA
    assert plan(cluster((1, 2, 3)), PARTITION, change(1, 2), stopping).isr == [1, 2]
    assert plan(cluster((1, 2, 3)), PARTITION, change(1), stopping).isr == [1]


def test_an_isr_change_does_not_affect_a_reassignment() -> None:
    moving = PartitionImage(0, 1, 7, [3, 1, 2], [1, 2], 4, [3], [2])
    changed = plan(cluster((1, 2, 3)), moving, change(1, 2, 3))
    assert (changed.replicas, changed.adding, changed.removing) == ([3, 1, 2], [3], [2])


def test_a_replica_that_leaves_the_isr_below_min_insync_is_eligible() -> None:
    image = cluster((1, 2, 3))
    both = plan(image, PARTITION, change(1), min_insync=2)
    assert (both.isr, both.elr) == ([1], [2])
    full = PARTITION.replaced(isr=[1, 2, 3])
    one_left = plan(image, full, change(1, 2), min_insync=2)
    assert (one_left.isr, one_left.elr) == ([1, 2], []), "commits continue without broker 3"
    assert plan(image, full, change(1), min_insync=3).elr == [2, 3]
    again = plan(image, both, change(1, 3, partition_epoch=5), min_insync=2)
    assert (again.isr, again.elr) == ([1, 3], []), "commits continue without broker 2"
    assert plan(image, both, change(1, 3, partition_epoch=5), min_insync=3).elr == [2]


def test_min_insync_does_not_count_replicas_that_a_reassignment_adds() -> None:
    pair = PARTITION.replaced(replicas=[1, 2])
    assert plan(cluster((1, 2)), pair, change(1), min_insync=3).elr == [2]
    arriving = PARTITION.replaced(replicas=[3, 2, 1], adding=[3, 2], isr=[1, 2])
    assert plan(cluster((1, 2, 3)), arriving, change(1), min_insync=2).elr == [], "one replica is enough"
