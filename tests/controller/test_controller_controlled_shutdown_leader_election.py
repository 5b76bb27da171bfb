"""Decisions about a broker in controlled shutdown."""

from __future__ import annotations

import pytest
from controller_images import cluster, clusters, living, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.controlled_shutdown_leader_election import check_stopping, plan_shutdown_in_slices
from tidemill.controller.leader_election import (
    CHANGES_PER_SLICE,
    plan_broker_change_in_slices,
    plan_reported_replicas_in_slices,
)
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from unpaused import plan_broker_change, plan_shutdown

ONE = frozenset({1})


def test_leadership_moves_to_the_first_in_sync_replica_and_the_broker_leaves_the_isrs() -> None:
    image = cluster(
        (1, 2, 3),
        topic(
            "t",
            partition([1, 2, 3], isr=[3, 1, 2]),
            partition([2, 1, 3]),
            partition([2, 3]),
            partition([1]),
            partition([1, 3], isr=[1]),
            partition([2, 1], isr=[2]),
        ),
    )
    ((relieved, operations),), remaining = plan_shutdown(image, 1, ONE)
    assert [(one.leader, one.isr, one.leader_epoch) for one in relieved.partitions] == [
        (2, [3, 2], 5),
        (2, [2, 3], 4),
        (2, [2, 3], 4),
        (1, [1], 4),
        (1, [1], 4),
        (2, [2], 4),
    ]
    assert len(operations) == 2
    assert remaining == [TopicPartition("t", 4)], "a partition with one replica has no other leader"
    assert plan_shutdown(image.with_topics([relieved]), 1, ONE) == ([], remaining)


def test_a_shutdown_with_thousands_of_partitions_is_planned_with_pauses() -> None:
    many = 10 * CHANGES_PER_SLICE
    image = cluster((1, 2), topic("t", *(partition([1, 2]) for _ in range(many))))
    work = plan_shutdown_in_slices(image, 1, ONE)
    pauses = sum(1 for _ in work)
    assert pauses >= 2 * many // CHANGES_PER_SLICE, "one loop for the states, one for the writes"
    gone = plan_broker_change_in_slices(image.with_brokers(living(2)), gone=[1])
    assert sum(1 for _ in gone) >= 2 * many // CHANGES_PER_SLICE
    topic_id = image.topics["t"].topic_id
    failed = plan_reported_replicas_in_slices(image, 1, {topic_id: range(many)}, is_offline=True)
    assert sum(1 for _ in failed) >= 2 * many // CHANGES_PER_SLICE


def test_no_leadership_moves_to_stopping_or_dead_brokers() -> None:
    image = cluster((1, 2, 3), topic("t", partition([1, 4, 2, 3]), partition([1, 2])))
    ((relieved, _),), remaining = plan_shutdown(image, 1, frozenset({1, 2}))
    assert [(one.leader, one.isr) for one in relieved.partitions] == [(3, [3]), (1, [1, 2])]
    assert remaining == [TopicPartition("t", 1)]


def test_a_shutdown_must_name_the_current_registration() -> None:
    image = cluster((1,))
    check_stopping(image, 1)
    check_stopping(image, 1, broker_epoch=101)
    with pytest.raises(KafkaError, match="broker 1 has epoch 101") as refused:
        check_stopping(image, 1, broker_epoch=100)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(KafkaError, match="broker 2") as refused:
        check_stopping(image, 2)
    assert refused.value.code == ErrorCode.BROKER_NOT_AVAILABLE


@given(clusters(), st.integers(0, 6), st.frozensets(st.integers(0, 6)))
def test_after_a_controlled_shutdown_the_failure_of_the_broker_moves_only_the_rest(
    image: ClusterImage, broker: int, others: frozenset[int]
) -> None:
    if broker not in image.brokers:
        return
    settled = image.with_topics(plan.topic for plan in plan_broker_change(image, range(7), range(7)))
    stopping = others | {broker}
    plans, remaining = plan_shutdown(settled, broker, stopping)
    after = settled.with_topics(plan.topic for plan in plans)
    alone = {
        TopicPartition(topic.name, one.partition)
        for topic in after.topics.values()
        for one in topic.partitions
        if one.replicas == [broker]
    }
    for topic_image in after.topics.values():
        for one in topic_image.partitions:
            where = TopicPartition(topic_image.name, one.partition)
            before = settled.topics[topic_image.name].partitions[one.partition]
            if one is not before:
                assert broker not in one.isr
                assert one.leader == before.leader or one.leader not in stopping
            assert one.leader != broker or where in alone or where in remaining
    left = {one: found for one, found in after.brokers.items() if one != broker}
    dead = ClusterImage("cluster", 1, 5, left, after.topics)
    touched = {
        TopicPartition(plan.topic.name, one.partition)
        for plan in plan_broker_change(dead, gone=[broker], stopping=stopping)
        for one, old in zip(plan.topic.partitions, after.topics[plan.topic.name].partitions, strict=True)
        if one.leader != old.leader
    }
    assert touched <= alone | set(remaining)
