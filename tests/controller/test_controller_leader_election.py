"""Leader election when brokers start, fail or stop."""

from __future__ import annotations

import time
from typing import Any

import pytest
from controller_images import EPOCH, VERSION, cluster, clusters, living, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from alter_partition_items import isr_change
from tidemill.controller.alter_partition import ANY_EPOCH, plan_isr_change
from tidemill.controller.election_report import may_lack_records
from tidemill.controller.leader_election import (
    NO_BROKERS,
    ElectionPolicy,
    LogEnd,
    Losses,
    elect,
    next_state,
    plan_policy_change,
    plan_topic_elections,
    recovery_candidates,
)
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage
from tidemill.coordination.coordination_store import SetData
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import NO_BROKER
from unpaused import plan_broker_change, plan_reported_replicas

UNSYNCED = LostReplicas(unsynced=True)
SAFE = ElectionPolicy()
LOSE = ElectionPolicy(unclean=True)
PAIR = ElectionPolicy(min_insync_replicas=2)


def elected_of(
    image: ClusterImage, before: PartitionImage, policy: ElectionPolicy = SAFE, **how: Any
) -> PartitionImage:
    """Returns the next state of a partition, which must differ."""
    after = elect(image, before, policy, **how)
    assert after is not None
    return after


def test_only_partitions_of_changed_brokers_are_checked() -> None:
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
    assert plan_broker_change(image, came=[4], losses={5: UNSYNCED}) == []


@pytest.mark.parametrize(
    ("topics", "losses", "expected"),
    [
        pytest.param(
            [topic("t", partition([3, 2], leader=NO_BROKER))],
            {},
            [(2, [2])],
            id="a leaderless partition is led by the broker that registers",
        ),
        pytest.param(
            [topic("t", partition([2, 1], leader=NO_BROKER), partition([1, 2]))],
            {2: UNSYNCED},
            [(1, [1]), (1, [1])],
            id="a replica that lost records is not elected before one that did not",
        ),
        pytest.param(
            [topic("t", partition([2, 1]), partition([2, 1])), topic("u", partition([2, 1]))],
            {2: LostReplicas(missing={"t": frozenset({1})})},
            [(2, [2, 1]), (1, [1])],
            id="a loss of one partition does not affect others of the broker",
        ),
    ],
)
def test_elections_when_broker_2_registers(
    topics: list[TopicImage], losses: Losses, expected: list[tuple[int, list[int]]]
) -> None:
    (plan,) = plan_broker_change(cluster((1, 2), *topics), came=[2], losses=losses)
    assert [(p.leader, p.isr) for p in plan.topic.partitions] == expected


def test_a_pending_isr_request_with_a_replica_that_lost_records_is_rejected() -> None:
    """KIP-903: the replica may restart with fewer records while the request is in flight."""
    requested = isr_change(1, EPOCH, VERSION, [(1, ANY_EPOCH), (2, ANY_EPOCH)])
    image = cluster((1, 2), topic("t", partition([1, 2], isr=[1]), partition([3, 1], isr=[1], leader=1)))
    (plan,) = plan_broker_change(image, came=[2], losses={2: UNSYNCED})
    first, second = plan.topic.partitions
    assert (first.leader, first.isr, first.leader_epoch) == (1, [1], EPOCH)
    assert second is image.topics["t"].partitions[1], "it has no replica on broker 2"
    with pytest.raises(KafkaError) as refused:
        plan_isr_change(image, "t", first, requested, SAFE)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    again = requested._replace(partition_epoch=first.partition_epoch)
    assert plan_isr_change(image, "t", first, again, SAFE).isr == [1, 2]
    assert plan_broker_change(image, came=[2]) == [], "a restarted broker has its records"


def test_a_pending_isr_request_is_rejected_after_a_repeated_loss() -> None:
    """A request without broker epochs is checked by the partition epoch alone."""
    requested = isr_change(1, EPOCH, VERSION, [(1, ANY_EPOCH), (2, ANY_EPOCH)])
    known_as_lost = partition([1, 2], isr=[1]).replaced(lost_replicas=[2])
    image = cluster((1, 2), topic("t", known_as_lost))
    assert plan_isr_change(image, "t", image.topics["t"].partitions[0], requested, SAFE).isr == [1, 2]
    (plan,) = plan_broker_change(image, came=[2], losses={2: UNSYNCED})
    after = plan.topic.partitions[0]
    assert (after.leader, after.isr, after.leader_epoch, after.lost_replicas) == (1, [1], EPOCH, [2])
    # The broker has cleared the report and changed nothing else in its registration.
    with pytest.raises(KafkaError) as refused:
        plan_isr_change(image, "t", after, requested, SAFE)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    again = requested._replace(partition_epoch=after.partition_epoch)
    assert plan_isr_change(image, "t", after, again, SAFE).isr == [1, 2]


def test_unclean_election_is_a_topic_setting() -> None:
    image = cluster(
        (1,), topic("keep", partition([2, 1], isr=[2])), topic("lose", partition([2, 1], isr=[2]))
    )
    plans = plan_broker_change(
        image, gone=[2], policy_of=lambda topic: ElectionPolicy(unclean=topic.name == "lose")
    )
    assert [(p.topic.name, p.topic.partitions[0].leader) for p in plans] == [("keep", -1), ("lose", 1)]
    kept, lost = (p.topic.partitions[0] for p in plans)
    assert (kept.isr, kept.elr, kept.last_known_leader) == ([], [2], 2)
    assert (lost.isr, lost.elr) == ([1], []), "records of broker 2 beyond that are discarded"


@pytest.mark.parametrize(
    ("before", "policy", "expected"),
    [
        pytest.param(partition([4, 2, 3]), SAFE, (3, [2, 3], 5), id="another in-sync replica is elected"),
        pytest.param(
            partition([4, 2, 3], leader=2), SAFE, (2, [2, 3], 4), id="it leads its partitions until they move"
        ),
        pytest.param(
            partition([4, 2]), SAFE, (NO_BROKER, [2], 5), id="it is waited for as the only in-sync replica"
        ),
        pytest.param(
            partition([4, 2, 3], isr=[4, 2]),
            LOSE,
            (3, [3], 5),
            id="an unclean election prefers another replica",
        ),
    ],
)
def test_a_stopping_broker_is_not_elected(
    before: PartitionImage, policy: ElectionPolicy, expected: tuple[int, list[int], int]
) -> None:
    elected = elected_of(cluster((1, 2, 3)), before, policy, stopping=frozenset({2}))
    assert (elected.leader, elected.isr, elected.leader_epoch) == expected


def test_a_reassignment_continues_under_the_next_leader() -> None:
    moving = partition([4, 1, 2], isr=[1, 2], leader=1, adding=[4], removing=[1])
    elected = elected_of(cluster((2, 4)), moving)
    assert (elected.leader, elected.isr) == (2, [2])
    assert (elected.replicas, elected.adding, elected.removing) == ([4, 1, 2], [4], [1])
    new = PartitionImage(0, NO_BROKER, 0, [4, 1], [], -1, [4], [1])
    elected = elected_of(cluster((1, 4)), new)
    assert (elected.adding, elected.removing) == ([4], [1])


@pytest.mark.parametrize(
    ("living", "before", "leader", "isr", "elr"),
    [
        ((1, 2, 3), partition([1, 2, 3], leader=2, isr=[2, 3]), None, [], []),
        ((1, 3), partition([1, 2, 3], leader=2, isr=[2, 3]), 3, [3], []),
        ((1,), partition([1, 2, 3], leader=2, isr=[2, 3]), -1, [], [2, 3]),
        ((1, 2), partition([1, 2, 3], leader=-1, isr=[3, 2, 1]), 1, [2, 1], []),
        # As in Apache Kafka, the last leader stays in the set.
        ((1,), partition([1, 2, 3], leader=-1, isr=[3]), -1, [], [3]),
    ],
)
def test_the_first_live_in_sync_replica_is_elected(
    living: tuple[int, ...], before: PartitionImage, leader: int | None, isr: list[int], elr: list[int]
) -> None:
    elected = elect(cluster(living), before, SAFE)
    if leader is None:
        assert elected is None
        return
    assert elected is not None
    assert (elected.leader, elected.isr, elected.elr) == (leader, isr, elr)
    assert elected.leader_epoch == EPOCH + (before.leader != leader)
    assert elect(cluster(living), elected, SAFE) is None


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    elected = elected_of(cluster((2, 3)), PartitionImage(0, NO_BROKER, 0, [1, 2, 3], [], -1))
    assert (elected.leader, elected.isr, elected.leader_epoch, elected.partition_epoch) == (2, [2, 3], 0, 0)


# Eligible leader replicas (KIP-966)


def test_the_replica_that_left_the_isr_last_is_elected_when_the_last_member_returns_empty() -> None:
    """min.insync.replicas=2: two followers are killed, then the leader, which returns with a new disk."""
    state = partition([1, 2, 3])
    for alive in ((1, 3), (1,), ()):
        state = elected_of(cluster(alive), state, PAIR)
    assert (state.leader, state.isr, state.elr, state.last_known_leader) == (-1, [], [1, 3], 1)
    # Commits continued without broker 2, so it is not eligible.
    assert elect(cluster((2,)), state, PAIR) is None
    state = elected_of(cluster((1, 2)), state, PAIR, lost={1}, missing={1})
    assert (state.leader, state.elr, state.last_known_leader, state.lost_replicas) == (-1, [3], -1, [1])
    state = elected_of(cluster((1, 2, 3)), state, PAIR)
    assert (state.leader, state.isr, state.elr) == (3, [3], [])
    assert (state.last_known_leader, state.lost_replicas) == (-1, [1])


def test_an_eligible_replica_is_elected_when_no_isr_member_is_available() -> None:
    before = partition([1, 2, 3], isr=[1]).replaced(elr=[2, 3])
    elected = elected_of(cluster((2, 3)), before, PAIR)
    assert (elected.leader, elected.isr, elected.elr) == (2, [2], [1, 3])
    assert elect(cluster((1, 2, 3)), before, PAIR) is None, "the leader stays"
    elected = elected_of(cluster((2, 3)), before, PAIR, stopping=frozenset({2}))
    assert elected.leader == 3
    # An in-sync replica in controlled shutdown does not lead, and has all committed records.
    elected = elected_of(cluster((2, 3)), before.replaced(isr=[3], leader=1), PAIR, stopping=frozenset({3}))
    assert (elected.leader, elected.isr, elected.elr) == (2, [2], [3])


def test_a_replica_that_reports_a_loss_is_no_longer_eligible() -> None:
    before = partition([1, 2, 3], isr=[1]).replaced(elr=[2, 3])
    elected = elected_of(cluster((1, 2)), before, PAIR, lost={2})
    assert (elected.leader, elected.isr, elected.elr, elected.leader_epoch) == (1, [1], [3], EPOCH)
    assert elect(cluster((2,)), elected_of(cluster((2,)), elected, PAIR), PAIR) is None


def test_the_elr_is_empty_while_the_isr_is_large_enough() -> None:
    before = partition([1, 2, 3], isr=[1, 2]).replaced(elr=[3])
    elected = elected_of(cluster((1, 2)), before, PAIR)
    assert (elected.leader, elected.isr, elected.elr) == (1, [1, 2], [])


@pytest.mark.parametrize("living", [(3,), ()])
def test_a_replica_eligible_under_a_higher_minimum_is_not_elected_under_a_lower_one(
    living: tuple[int, ...],
) -> None:
    """Another client wrote the setting, and the leader has applied it before the controller."""
    before = partition([1, 2, 3], isr=[1, 2]).replaced(elr=[3])
    elected = elected_of(cluster(living), before, PAIR)
    assert (elected.leader, elected.isr, elected.elr) == (NO_BROKER, [], [1, 2])
    # Without a leader nothing was committed.
    led = before.replaced(leader=NO_BROKER)
    assert 3 in (elected := elected_of(cluster(living), led, PAIR)).elr or elected.leader == 3


# Recovery where no replica is known to have all committed records


def test_a_topic_with_one_replica_recovers_after_a_power_failure_and_on_a_new_disk() -> None:
    for missing in (NO_BROKERS, {1}):
        elected = elected_of(cluster((1,)), partition([1]), lost={1}, missing=missing)
        assert (elected.leader, elected.isr, elected.leader_epoch) == (1, [1], EPOCH + 1)


def test_the_best_log_is_elected_once_the_last_leader_is_back_with_a_log() -> None:
    before = partition([1, 2, 3], leader=1, isr=[1])
    waiting = elected_of(cluster((1, 2, 3)), before, lost={1})
    assert (waiting.leader, waiting.isr, waiting.elr, waiting.last_known_leader) == (-1, [], [], 1)
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == [1, 2, 3]
    assert elect(cluster((1, 2, 3)), waiting, SAFE) is None, "no log end offset is known"
    ends = {1: LogEnd(3, 50), 2: LogEnd(4, 10), 3: LogEnd(4, 11)}
    elected = elected_of(cluster((1, 2, 3)), waiting, ends=ends)
    assert (elected.leader, elected.isr, elected.elr, elected.leader_epoch) == (3, [3], [], EPOCH + 2)
    del ends[3]
    assert elected_of(cluster((1, 2, 3)), waiting, ends=ends).leader == 2, "broker 3 has not answered"


def test_a_last_leader_with_an_empty_log_does_not_start_recovery() -> None:
    before = partition([1, 2, 3], leader=1, isr=[1])
    waiting = elected_of(cluster((1, 2, 3)), before, lost={1}, missing={1})
    assert (waiting.last_known_leader, waiting.lost_replicas) == (-1, [1])
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == []
    assert recovery_candidates(cluster((1, 2, 3)), waiting, LOSE) == [1, 2, 3]
    for broker in (2, 3):
        waiting = elected_of(cluster((1, 2, 3)), waiting, lost={broker})
    assert waiting.lost_replicas == [1, 2, 3]
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == [1, 2, 3], "no other replica can return"


def test_losses_reported_before_the_leader_failed_count() -> None:
    """All machines lose power and return soon, the followers first. The leader has a new disk."""
    state = partition([1, 2, 3], leader=1)
    for broker in (2, 3):
        state = elected_of(cluster((1, 2, 3)), state, lost={broker})
    assert (state.leader, state.isr, state.lost_replicas) == (1, [1], [2, 3])
    waiting = elected_of(cluster((1, 2, 3)), state, lost={1}, missing={1})
    assert waiting.lost_replicas == [1, 2, 3]
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == [1, 2, 3]
    in_sync_again = next_state(state, 1, [1, 3], SAFE, is_new_epoch=False)
    assert in_sync_again.lost_replicas == [2]
    waiting = elected_of(cluster((1, 2, 3)), in_sync_again, lost={1}, missing={1})
    assert (waiting.leader, waiting.lost_replicas) == (3, [1, 2])


def test_recovery_waits_until_candidates_have_cleared_their_losses() -> None:
    """It may have the longest log once its loss is handled."""
    waiting = partition([1, 2], leader=NO_BROKER, isr=[]).replaced(lost_replicas=[1, 2])
    image = cluster((1, 2))
    assert recovery_candidates(image, waiting, SAFE, frozenset({2})) == [1]
    reporting = BrokerImage(BrokerRegistration(2, (), lost=UNSYNCED), 7)
    image = image.with_brokers({**image.brokers, 2: reporting})
    assert recovery_candidates(image, waiting, SAFE, frozenset({2})) == []


def test_an_unclean_election_chooses_the_best_log_and_an_empty_one_last() -> None:
    before = partition([1, 2, 3], leader=3, isr=[3])
    waiting = elected_of(cluster((1, 2)), before, LOSE)
    assert waiting.leader == -1
    ends = {1: LogEnd(-1, 0), 2: LogEnd(0, 1)}
    assert elected_of(cluster((1, 2)), waiting, LOSE, ends=ends).leader == 2
    assert elected_of(cluster((1,)), before, LOSE).leader == 1, "the only live replica"
    assert elected_of(cluster((1, 3)), before.replaced(leader=-1), LOSE).leader == 3, "it is in sync"


def test_an_unclean_election_empties_the_elr() -> None:
    """Otherwise records of the chosen leader would be discarded because of an earlier loss."""
    policy = ElectionPolicy(unclean=True, min_insync_replicas=2)
    before = partition([1, 2, 3], leader=NO_BROKER, isr=[]).replaced(elr=[3])
    chosen = elected_of(cluster((2,)), before, policy)
    assert (chosen.leader, chosen.isr, chosen.elr) == (2, [2], [])
    waiting = elected_of(cluster((3,)), chosen, PAIR)
    assert (waiting.leader, waiting.isr, waiting.elr) == (NO_BROKER, [], [2])


def test_an_election_that_may_lose_records_is_detected() -> None:
    before = topic("t", partition([1, 2]), partition([1, 2], isr=[1]), partition([1, 2]), partition([1, 2]))
    after = before.with_partitions(
        [
            before.partitions[0].replaced(leader=2, leader_epoch=5),
            before.partitions[1].replaced(leader=2, leader_epoch=5, isr=[2]),
            before.partitions[2].replaced(leader=1, leader_epoch=5),
            before.partitions[3],
        ]
    )

    def found(losses: Losses) -> list[int]:
        return [
            number
            for number, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=True))
            if may_lack_records("t", old, new, losses)
        ]

    assert found({}) == [1]
    assert found({1: LostReplicas(unsynced={"t": frozenset({2, 3})})}) == [1, 2]


def test_a_min_insync_change_empties_the_elr_of_partitions_with_a_leader() -> None:
    led = partition([1, 2], isr=[1]).replaced(elr=[2])
    waiting = partition([1, 2], isr=[], leader=NO_BROKER).replaced(elr=[2])
    plan = plan_policy_change(cluster((1,)), topic("t", led, waiting))
    assert [list(one.elr) for one in plan.topic.partitions] == [[], [2]], (
        "nothing is committed without a leader"
    )
    (write,) = plan.operations
    assert isinstance(write, SetData)
    assert b"elr" not in write.data


@given(
    clusters(),
    st.frozensets(st.integers(0, 6)),
    st.frozensets(st.integers(0, 6)),
    st.booleans(),
    st.integers(1, 4),
)
def test_an_elected_replica_is_available(
    image: ClusterImage, lost: frozenset[int], stopping: frozenset[int], unclean: bool, min_insync: int
) -> None:
    policy = ElectionPolicy(unclean, min_insync)
    for before_topic in image.topics.values():
        for before in before_topic.partitions:
            after = elect(image, before, policy, lost=lost, stopping=stopping)
            if after is None:
                continue
            eligible = {*before.isr, *before.elr}
            kept = {*after.isr, *after.elr}
            least = min(min_insync, len(before.origin), len(eligible - lost))
            is_recovered = after.leader != NO_BROKER and after.leader not in eligible - lost
            assert len(kept) >= least or is_recovered, "in-sync set and ELR stay at the minimum size"
            assert kept <= eligible - lost or is_recovered
            assert set(after.isr).isdisjoint(after.elr)
            assert kept <= set(after.replicas)
            assert (after.replicas, after.adding, after.removing) == (
                before.replicas,
                before.adding,
                before.removing,
            )
            assert after.partition_epoch == before.partition_epoch + 1
            assert after.leader == before.leader or after.leader_epoch == before.leader_epoch + 1
            if after.leader == NO_BROKER:
                continue
            assert after.leader in after.isr
            assert after.leader in image.brokers
            assert after.leader not in stopping or after.leader == before.leader
            assert elect(image, after, policy, stopping=stopping) is None, "once is enough"


@given(clusters(), st.integers(0, 6))
def test_a_broker_change_equals_a_takeover_of_its_partitions(image: ClusterImage, broker: int) -> None:
    settled = image.with_topics(plan.topic for plan in plan_topic_elections(image))
    brokers = {one: found for one, found in image.brokers.items() if one != broker}
    came = broker not in image.brokers
    if came:
        brokers = {**brokers, **cluster((broker,)).brokers}
    after = ClusterImage("cluster", 1, 5, brokers, settled.topics)
    changed = plan_broker_change(after, gone=[] if came else [broker], came=[broker] if came else [])
    assert [(p.topic.name, p.operations) for p in changed] == [
        (p.topic.name, p.operations) for p in plan_topic_elections(after)
    ]


@pytest.mark.slow
def test_two_thousand_partitions_of_a_failed_broker_are_planned_quickly() -> None:
    topics = [
        topic(f"t{number}", *(partition([n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1]) for n in range(100)))
        for number in range(20)
    ]
    image = cluster((1, 2), *topics)
    began = time.process_time()
    plans = plan_broker_change(image, gone=[3])
    assert time.process_time() - began < 0.5, "a tenth of the normal interval"
    assert sum(len(plan.operations) for plan in plans) == 2000


def test_an_offline_replica_is_not_elected_until_its_broker_registers_again() -> None:
    image = cluster(
        (1, 2, 3), topic("t", partition([1, 2, 3]), partition([2, 3, 1]), partition([1], isr=[1]))
    )
    topic_id = image.topics["t"].topic_id
    (plan,) = plan_reported_replicas(image, 1, {topic_id: [0, 1, 2], b"?" * 16: [0]}, is_offline=True)
    assert [(p.leader, p.isr, p.leader_epoch) for p in plan.topic.partitions] == [
        (2, [2, 3], 5),
        (2, [2, 3], 4),
        (NO_BROKER, [], 5),
    ]
    failed = image.with_topics([plan.topic])
    assert plan_reported_replicas(failed, 1, {topic_id: [0, 1, 2]}, is_offline=True) == []
    (other,) = plan_broker_change(failed.with_brokers(living(1, 3)), gone=[2])
    assert [(p.leader, p.isr) for p in other.topic.partitions][:2] == [(3, [3]), (3, [3])]
    (back,) = plan_broker_change(failed, came=[1])
    assert [(p.leader, p.offline) for p in back.topic.partitions] == [
        (2, frozenset()),
        (2, frozenset()),
        (1, frozenset()),
    ]


def test_a_replica_that_is_served_again_is_online_and_can_be_elected() -> None:
    image = cluster((1, 2, 3), topic("t", partition([1, 2, 3]), partition([1], isr=[1]), partition([2, 3])))
    topic_id = image.topics["t"].topic_id
    (plan,) = plan_reported_replicas(image, 1, {topic_id: [0, 1]}, is_offline=True)
    failed = image.with_topics([plan.topic])
    served = {topic_id: [0, 1, 2, 7], b"?" * 16: [0]}
    (back,) = plan_reported_replicas(failed, 1, served, is_offline=False)
    assert [(p.leader, p.offline) for p in back.topic.partitions] == [
        (2, frozenset()),
        (1, frozenset()),
        (2, frozenset()),
    ]
    assert plan_reported_replicas(image, 1, served, is_offline=False) == []
