"""Decisions about leaders when brokers come, go or stop."""

from __future__ import annotations

import time

import pytest
from controller_images import EPOCH, VERSION, cluster, clusters, living, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.elections import elect, plan_broker_change, plan_failed_replicas, plan_takeover
from tidemill.controller.isr import ANY_EPOCH, IsrChange, plan_isr_change
from tidemill.coordination.image import NO_BROKER, ClusterImage, PartitionImage
from tidemill.coordination.port import SetData
from tidemill.model.errors import ErrorCode, KafkaError


def test_only_partitions_of_the_brokers_that_changed_are_looked_at() -> None:
    image = cluster(
        (1, 2),
        topic("a", partition([1, 2]), partition([3, 1]), partition([2, 3])),
        topic("b", partition([2, 1], leader=NO_BROKER)),
        topic("c", partition([1, 3])),
    )
    plans = plan_broker_change(image, gone=[3])
    assert [plan.topic.name for plan in plans] == ["a", "c"], "b has no replica on broker 3"
    first, second = plans
    assert [(p.leader, p.isr, p.leader_epoch) for p in first.topic.partitions] == [
        (1, [1, 2], 4),
        (1, [1], 5),
        (2, [2], 4),
    ]
    assert [(p.leader, p.isr, p.leader_epoch) for p in second.topic.partitions] == [(1, [1], 4)]
    assert [op.path for op in first.operations] == [
        "/brokers/topics/a/partitions/1/state",
        "/brokers/topics/a/partitions/2/state",
    ]
    assert all(isinstance(op, SetData) and op.version == VERSION for op in first.operations)
    assert first.topic.partitions[0] is image.topics["a"].partitions[0]
    assert plan_broker_change(image, came=[4], lost=[5]) == []


def test_a_partition_without_leader_is_led_again_by_the_broker_that_came() -> None:
    image = cluster((1, 3), topic("t", partition([2, 3], leader=NO_BROKER)))
    (plan,) = plan_broker_change(image, came=[3])
    assert (plan.topic.partitions[0].leader, plan.topic.partitions[0].isr) == (3, [3])


def test_what_a_broker_may_have_lost_takes_it_out_before_it_is_elected() -> None:
    image = cluster((1, 2), topic("t", partition([2, 1], leader=NO_BROKER), partition([1, 2])))
    (plan,) = plan_broker_change(image, came=[2], lost=[2])
    assert [(p.leader, p.isr) for p in plan.topic.partitions] == [(1, [1]), (1, [1])]


def test_a_leader_that_still_asks_for_a_replica_that_has_lost_records_is_refused() -> None:
    """KIP-903: the request may be under way while the replica dies, and comes back with less."""
    asked = IsrChange(1, EPOCH, VERSION, [(1, ANY_EPOCH), (2, ANY_EPOCH)])
    image = cluster((1, 2), topic("t", partition([1, 2], isr=[1]), partition([3, 1], isr=[1], leader=1)))
    (plan,) = plan_broker_change(image, came=[2], lost=[2])
    first, second = plan.topic.partitions
    assert (first.leader, first.isr, first.leader_epoch) == (1, [1], EPOCH)
    assert second is image.topics["t"].partitions[1], "it has no replica on broker 2"
    with pytest.raises(KafkaError) as refused:
        plan_isr_change(image, first, asked)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    again = asked._replace(partition_epoch=first.partition_epoch)
    assert plan_isr_change(image, first, again).isr == [1, 2]
    assert plan_broker_change(image, came=[2]) == [], "a broker that was only restarted has what it had"


def test_topics_say_whether_they_rather_lose_records() -> None:
    image = cluster(
        (1,), topic("keep", partition([2, 1], isr=[2])), topic("lose", partition([2, 1], isr=[2]))
    )
    plans = plan_broker_change(image, gone=[2], is_unclean=lambda topic: topic.name == "lose")
    assert [(p.topic.name, p.topic.partitions[0].leader) for p in plans] == [("keep", -1), ("lose", 1)]
    assert plans[0].topic.partitions[0].isr == [2]


def test_who_stops_is_not_elected() -> None:
    image = cluster((1, 2, 3))
    stopping = frozenset({2})
    elected = elect(image, partition([4, 2, 3], isr=[4, 2, 3]), stopping=stopping)
    assert elected is not None
    assert (elected.leader, elected.isr) == (3, [2, 3])
    # It keeps what it leads until that is moved away.
    elected = elect(image, partition([4, 2, 3], leader=2), stopping=stopping)
    assert elected is not None
    assert (elected.leader, elected.isr, elected.leader_epoch) == (2, [2, 3], 4)
    # As the only one in sync it will be waited for.
    elected = elect(image, partition([4, 2], isr=[4, 2]), stopping=stopping)
    assert elected is not None
    assert (elected.leader, elected.isr) == (NO_BROKER, [4, 2])
    elected = elect(image, partition([4, 2, 3], isr=[4, 2]), unclean=True, stopping=stopping)
    assert elected is not None
    assert (elected.leader, elected.isr) == (3, [3])


def test_a_move_goes_on_under_the_next_leader() -> None:
    moving = partition([4, 1, 2], isr=[1, 2], leader=1, adding=[4], removing=[1])
    elected = elect(cluster((2, 4)), moving)
    assert elected is not None
    assert (elected.leader, elected.isr) == (2, [2])
    assert (elected.replicas, elected.adding, elected.removing) == ([4, 1, 2], [4], [1])
    new = PartitionImage(0, NO_BROKER, 0, [4, 1], [], -1, [4], [1])
    elected = elect(cluster((1, 4)), new)
    assert elected is not None
    assert (elected.adding, elected.removing) == ([4], [1])


@given(
    clusters(),
    st.frozensets(st.integers(0, 6)),
    st.frozensets(st.integers(0, 6)),
    st.booleans(),
)
def test_what_is_elected_can_lead(
    image: ClusterImage, lost: frozenset[int], stopping: frozenset[int], unclean: bool
) -> None:
    for before_topic in image.topics.values():
        for before in before_topic.partitions:
            after = elect(image, before, unclean=unclean, lost=lost, stopping=stopping)
            if after is None:
                continue
            assert after.isr, "somebody is always in sync"
            assert set(after.isr) <= set(after.replicas)
            assert (after.replicas, after.adding, after.removing) == (
                before.replicas,
                before.adding,
                before.removing,
            )
            assert after.partition_epoch == before.partition_epoch + 1
            assert after.leader == before.leader or after.leader_epoch == before.leader_epoch + 1
            if after.leader == NO_BROKER:
                assert after.isr == ([one for one in before.isr if one not in lost] or before.isr)
                continue
            assert after.leader in after.isr
            assert after.leader in image.brokers
            assert after.leader not in stopping or after.leader == before.leader
            if not unclean:
                assert set(after.isr) <= set(before.isr)
            assert elect(image, after, unclean=unclean, stopping=stopping) is None, "once is enough"


@given(clusters(), st.integers(0, 6))
def test_a_change_of_one_broker_is_a_takeover_of_its_partitions(image: ClusterImage, broker: int) -> None:
    settled = image.with_topics(plan.topic for plan in plan_takeover(image))
    brokers = {one: found for one, found in image.brokers.items() if one != broker}
    came = broker not in image.brokers
    if came:
        brokers = {**brokers, **cluster((broker,)).brokers}
    after = ClusterImage("cluster", 1, 5, brokers, settled.topics)
    changed = plan_broker_change(after, gone=[] if came else [broker], came=[broker] if came else [])
    assert [(p.topic.name, p.operations) for p in changed] == [
        (p.topic.name, p.operations) for p in plan_takeover(after)
    ]


@pytest.mark.slow
def test_two_thousand_partitions_of_a_dead_broker_are_decided_in_no_time() -> None:
    topics = [
        topic(f"t{number}", *(partition([n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1]) for n in range(100)))
        for number in range(20)
    ]
    image = cluster((1, 2), *topics)
    began = time.process_time()
    plans = plan_broker_change(image, gone=[3])
    assert time.process_time() - began < 0.5, "a tenth of that is usual"
    assert sum(len(plan.operations) for plan in plans) == 2000


def test_a_replica_that_cannot_be_read_leads_nothing_until_its_broker_comes_back() -> None:
    image = cluster(
        (1, 2, 3), topic("t", partition([1, 2, 3]), partition([2, 3, 1]), partition([1], isr=[1]))
    )
    topic_id = image.topics["t"].topic_id
    (plan,) = plan_failed_replicas(image, 1, {topic_id: [0, 1, 2], b"?" * 16: [0]})
    assert [(p.leader, p.isr, p.leader_epoch) for p in plan.topic.partitions] == [
        (2, [2, 3], 5),
        (2, [2, 3], 4),
        (NO_BROKER, [1], 5),
    ]
    failed = image.with_topics([plan.topic])
    assert plan_failed_replicas(failed, 1, {topic_id: [0, 1, 2]}) == []
    (other,) = plan_broker_change(failed.with_brokers(living(1, 3)), gone=[2])
    assert [(p.leader, p.isr) for p in other.topic.partitions][:2] == [(3, [3]), (3, [3])]
    (back,) = plan_broker_change(failed, came=[1])
    assert [(p.leader, p.offline) for p in back.topic.partitions] == [
        (2, frozenset()),
        (2, frozenset()),
        (1, frozenset()),
    ]
