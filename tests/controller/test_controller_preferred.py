"""Elections that somebody asks for, and the balance of leaders."""

from __future__ import annotations

import pytest
from controller_images import cluster, clusters, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.elections import LogEnd
from tidemill.controller.preferred import ElectionType, can_lead, imbalanced, plan_elections
from tidemill.coordination.image import NO_BROKER, ClusterImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def named(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def codes(errors: dict[TopicPartition, KafkaError]) -> dict[int, ErrorCode]:
    return {one.partition: error.code for one, error in errors.items()}


def test_preferred_replicas_in_sync_lead_again() -> None:
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


def test_unclean_elections_are_for_partitions_without_leader() -> None:
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
    assert plan_elections(image, named(0), UNCLEAN).errors, "of two, nobody knows which log is longer"
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


def test_a_preferred_replica_that_cannot_be_read_does_not_lead() -> None:
    failed = partition([1, 2], isr=[1], leader=NO_BROKER).with_offline(frozenset({1}))
    image = cluster((1, 2), topic("t", failed))
    assert imbalanced(image, 0) == []
    decisions = plan_elections(image, named(0), PREFERRED)
    assert decisions.plans == []
    assert codes(decisions.errors) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_topics_that_are_being_deleted_are_left_alone() -> None:
    image = cluster((1,)).with_topics(deleting={"t": topic("t", partition([1]))})
    assert codes(plan_elections(image, named(0), PREFERRED).errors) == {0: ErrorCode.INVALID_TOPIC_EXCEPTION}


def test_there_are_two_ways_to_elect() -> None:
    with pytest.raises(KafkaError, match="type 2") as refused:
        plan_elections(cluster((1,)), None, 2)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_leaders_return_where_a_broker_leads_too_little() -> None:
    settled = [partition([1, 2]) for _ in range(9)]
    moved = partition([1, 2], leader=2)
    image = cluster((1, 2), topic("t", *settled, moved))
    assert imbalanced(image, 10) == [], "a tenth is not more than a tenth"
    assert imbalanced(image, 9) == named(9)
    assert imbalanced(image, 9, stopping=frozenset({1})) == []
    assert imbalanced(cluster((2,), *image.topics.values()), 0) == []


@given(clusters(), st.integers(0, 100))
def test_what_is_out_of_balance_can_be_put_right(image: ClusterImage, percentage: int) -> None:
    found = imbalanced(image, percentage)
    decisions = plan_elections(image, found, PREFERRED)
    assert decisions.errors == {}
    after = image.with_topics(plan.topic for plan in decisions.plans)
    assert imbalanced(after, percentage) == []
    for name, number in found:
        elected = after.topics[name].partitions[number]
        assert elected.leader == elected.replicas[0]
        assert can_lead(after, elected)
    assert set(imbalanced(image, percentage)) <= set(imbalanced(image, 0))


def test_a_partition_that_somebody_wrote_without_replicas_keeps_no_other_from_its_leader() -> None:
    image = cluster((1, 2), topic("t", partition([], leader=NO_BROKER), partition([1, 2], leader=2)))
    assert imbalanced(image, 10) == [TopicPartition("t", 1)]
    plans, errors = plan_elections(image, None, ElectionType.PREFERRED)
    assert [plan.topic.partitions[1].leader for plan in plans] == [1]
    assert TopicPartition("t", 1) not in errors
