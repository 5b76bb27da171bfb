"""Requested elections and the balance of leaders."""

from __future__ import annotations

import pytest
from controller_images import cluster, clusters, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.leader_election import LogEnd
from tidemill.controller.preferred_leader_election import (
    ElectionType,
    can_lead,
    imbalanced_partitions,
    plan_elections,
)
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import NO_BROKER, TopicPartition

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def named(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def codes(errors: dict[TopicPartition, KafkaError]) -> dict[int, ErrorCode]:
    return {one.partition: error.code for one, error in errors.items()}


def test_in_sync_preferred_replicas_are_elected() -> None:
    image = cluster(
        (1, 2),
        topic(
            "t",
            partition([1, 2, 3], isr=[2, 3, 1], leader=2),
            partition([1, 2]),
            partition([1, 2], isr=[2], leader=2),
            partition([3, 2], isr=[2, 3], leader=2),
        ),
    )
    decisions = plan_elections(image, named(0, 1, 2, 3, 4), PREFERRED)
    ((elected, operations),) = decisions.plans
    one = elected.partitions[0]
    assert (one.leader, one.isr, one.leader_epoch) == (1, [2, 1], 5)
    assert [operation.path for operation in operations] == ["/brokers/topics/t/partitions/0/state"]
    assert codes(decisions.errors) == {
        1: ErrorCode.ELECTION_NOT_NEEDED,
        2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        3: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        4: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    every = plan_elections(image, None, PREFERRED)
    assert every.plans[0].operations == operations
    assert codes(every.errors) == {
        2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        3: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    stopping = plan_elections(image, named(0), PREFERRED, frozenset({1}))
    assert codes(stopping.errors) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_unclean_elections_apply_to_leaderless_partitions() -> None:
    image = cluster(
        (1, 2),
        topic(
            "t",
            partition([3, 1, 2], isr=[3], leader=NO_BROKER),
            partition([3, 2], isr=[3, 2], leader=NO_BROKER),
            partition([2, 1], leader=1),
            partition([3], leader=NO_BROKER),
            partition([1], isr=[1], leader=NO_BROKER),
        ),
    )
    assert plan_elections(image, named(0), UNCLEAN).errors, "with two replicas the longer log is unknown"
    ends = {named(0)[0]: {1: LogEnd(4, 10), 2: LogEnd(4, 11)}}
    decisions = plan_elections(image, named(0, 1, 2, 3, 4), UNCLEAN, ends=ends)
    ((elected, _),) = decisions.plans
    assert [(one.leader, one.isr) for one in elected.partitions] == [
        (2, [2]),
        (2, [2]),
        (1, [2, 1]),
        (NO_BROKER, [3]),
        (1, [1]),
    ]
    assert codes(decisions.errors) == {
        2: ErrorCode.ELECTION_NOT_NEEDED,
        3: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }


def test_an_offline_preferred_replica_is_not_elected() -> None:
    failed = partition([1, 2], isr=[1], leader=NO_BROKER).with_offline(frozenset({1}))
    image = cluster((1, 2), topic("t", failed))
    assert imbalanced_partitions(image, 0) == []
    decisions = plan_elections(image, named(0), PREFERRED)
    assert decisions.plans == []
    assert codes(decisions.errors) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_topics_in_deletion_are_not_elected() -> None:
    image = cluster((1,)).with_topics(deleting={"t": topic("t", partition([1]))})
    assert codes(plan_elections(image, named(0), PREFERRED).errors) == {0: ErrorCode.INVALID_TOPIC_EXCEPTION}


def test_unknown_election_types_are_rejected() -> None:
    with pytest.raises(KafkaError, match="type 2") as refused:
        plan_elections(cluster((1,)), None, 2)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_preferred_leaders_are_elected_on_imbalanced_brokers() -> None:
    settled = [partition([1, 2]) for _ in range(9)]
    moved = partition([1, 2], leader=2)
    image = cluster((1, 2), topic("t", *settled, moved))
    assert imbalanced_partitions(image, 10) == [], "a tenth does not exceed a tenth"
    assert imbalanced_partitions(image, 9) == named(9)
    assert imbalanced_partitions(image, 9, stopping=frozenset({1})) == []
    assert imbalanced_partitions(cluster((2,), *image.topics.values()), 0) == []


@given(clusters(), st.integers(0, 100))
def test_imbalanced_partitions_can_be_elected(image: ClusterImage, percentage: int) -> None:
    found = imbalanced_partitions(image, percentage)
    decisions = plan_elections(image, found, PREFERRED)
    assert decisions.errors == {}
    after = image.with_topics(plan.topic for plan in decisions.plans)
    assert imbalanced_partitions(after, percentage) == []
    for name, number in found:
        elected = after.topics[name].partitions[number]
        assert elected.leader == elected.replicas[0]
        assert can_lead(after, elected)
    assert set(imbalanced_partitions(image, percentage)) <= set(imbalanced_partitions(image, 0))


def test_a_partition_without_replicas_does_not_prevent_other_elections() -> None:
    image = cluster((1, 2), topic("t", partition([], leader=NO_BROKER), partition([1, 2], leader=2)))
    assert imbalanced_partitions(image, 10) == [TopicPartition("t", 1)]
    plans, errors = plan_elections(image, None, ElectionType.PREFERRED)
    assert [plan.topic.partitions[1].leader for plan in plans] == [1]
    assert TopicPartition("t", 1) not in errors
