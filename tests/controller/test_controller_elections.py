"""Decisions about leaders when brokers come, go or stop."""

from __future__ import annotations

import time
from typing import Any

import pytest
from controller_images import EPOCH, VERSION, cluster, clusters, living, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.election_report import may_lack_records
from tidemill.controller.elections import (
    NO_BROKERS,
    ElectionPolicy,
    LogEnd,
    Losses,
    elect,
    next_state,
    plan_broker_change,
    plan_failed_replicas,
    plan_policy_change,
    plan_takeover,
    planning_served_replicas,
    recovery_candidates,
)
from tidemill.controller.isr import ANY_EPOCH, IsrChange, plan_isr_change
from tidemill.coordination.image import NO_BROKER, BrokerImage, ClusterImage, PartitionImage
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.port import SetData
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.slices import in_one_go

UNSYNCED = LostReplicas(unsynced=True)
SAFE = ElectionPolicy()
LOSE = ElectionPolicy(unclean=True)
PAIR = ElectionPolicy(min_insync_replicas=2)


def elected_of(
    image: ClusterImage, before: PartitionImage, policy: ElectionPolicy = SAFE, **how: Any
) -> PartitionImage:
    """The next state of a partition, which is another one."""
    after = elect(image, before, policy, **how)
    assert after is not None
    return after


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
    assert plan_broker_change(image, came=[4], losses={5: UNSYNCED}) == []


def test_a_partition_without_leader_is_led_again_by_the_broker_that_came() -> None:
    image = cluster((1, 3), topic("t", partition([2, 3], leader=NO_BROKER)))
    (plan,) = plan_broker_change(image, came=[3])
    assert (plan.topic.partitions[0].leader, plan.topic.partitions[0].isr) == (3, [3])


def test_a_replica_that_lost_records_is_not_elected_before_one_that_did_not() -> None:
    image = cluster((1, 2), topic("t", partition([2, 1], leader=NO_BROKER), partition([1, 2])))
    (plan,) = plan_broker_change(image, came=[2], losses={2: UNSYNCED})
    assert [(p.leader, p.isr) for p in plan.topic.partitions] == [(1, [1]), (1, [1])]


def test_a_loss_of_one_partition_leaves_the_others_of_the_broker_alone() -> None:
    image = cluster((1, 2), topic("t", partition([2, 1]), partition([2, 1])), topic("u", partition([2, 1])))
    some = LostReplicas(missing={"t": frozenset({1})})
    (plan,) = plan_broker_change(image, came=[2], losses={2: some})
    assert [(p.leader, p.isr) for p in plan.topic.partitions] == [(2, [2, 1]), (1, [1])]


def test_a_leader_that_still_asks_for_a_replica_that_has_lost_records_is_refused() -> None:
    """KIP-903: the request may be under way while the replica dies, and comes back with less."""
    asked = IsrChange(1, EPOCH, VERSION, [(1, ANY_EPOCH), (2, ANY_EPOCH)])
    image = cluster((1, 2), topic("t", partition([1, 2], isr=[1]), partition([3, 1], isr=[1], leader=1)))
    (plan,) = plan_broker_change(image, came=[2], losses={2: UNSYNCED})
    first, second = plan.topic.partitions
    assert (first.leader, first.isr, first.leader_epoch) == (1, [1], EPOCH)
    assert second is image.topics["t"].partitions[1], "it has no replica on broker 2"
    with pytest.raises(KafkaError) as refused:
        plan_isr_change(image, "t", first, asked, SAFE)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    again = asked._replace(partition_epoch=first.partition_epoch)
    assert plan_isr_change(image, "t", first, again, SAFE).isr == [1, 2]
    assert plan_broker_change(image, came=[2]) == [], "a broker that was only restarted has what it had"


def test_a_leader_that_asks_for_a_replica_that_has_lost_records_once_more_is_refused() -> None:
    """A follower that tells no broker epoch is asked for by any: only the version tells its lives apart."""
    asked = IsrChange(1, EPOCH, VERSION, [(1, ANY_EPOCH), (2, ANY_EPOCH)])
    known_as_lost = partition([1, 2], isr=[1]).replaced(lost_replicas=[2])
    image = cluster((1, 2), topic("t", known_as_lost))
    assert plan_isr_change(image, "t", image.topics["t"].partitions[0], asked, SAFE).isr == [1, 2]
    (plan,) = plan_broker_change(image, came=[2], losses={2: UNSYNCED})
    after = plan.topic.partitions[0]
    assert (after.leader, after.isr, after.leader_epoch, after.lost_replicas) == (1, [1], EPOCH, [2])
    # By then the broker has cleared the report, and registered nothing else.
    with pytest.raises(KafkaError) as refused:
        plan_isr_change(image, "t", after, asked, SAFE)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    again = asked._replace(partition_epoch=after.partition_epoch)
    assert plan_isr_change(image, "t", after, again, SAFE).isr == [1, 2]


def test_topics_say_whether_they_rather_lose_records() -> None:
    image = cluster(
        (1,), topic("keep", partition([2, 1], isr=[2])), topic("lose", partition([2, 1], isr=[2]))
    )
    plans = plan_broker_change(
        image, gone=[2], policy_of=lambda topic: ElectionPolicy(unclean=topic.name == "lose")
    )
    assert [(p.topic.name, p.topic.partitions[0].leader) for p in plans] == [("keep", -1), ("lose", 1)]
    kept, lost = (p.topic.partitions[0] for p in plans)
    assert (kept.isr, kept.elr, kept.last_known_leader) == ([], [2], 2)
    assert (lost.isr, lost.elr) == ([1], []), "what broker 2 has beyond that counts no more"


def test_who_stops_is_not_elected() -> None:
    image = cluster((1, 2, 3))
    stopping = frozenset({2})
    elected = elected_of(image, partition([4, 2, 3], isr=[4, 2, 3]), stopping=stopping)
    assert (elected.leader, elected.isr) == (3, [2, 3])
    # It keeps what it leads until that is moved away.
    elected = elected_of(image, partition([4, 2, 3], leader=2), stopping=stopping)
    assert (elected.leader, elected.isr, elected.leader_epoch) == (2, [2, 3], 4)
    # As the only one in sync it will be waited for.
    elected = elected_of(image, partition([4, 2], isr=[4, 2]), stopping=stopping)
    assert (elected.leader, elected.isr) == (NO_BROKER, [2])
    elected = elected_of(image, partition([4, 2, 3], isr=[4, 2]), LOSE, stopping=stopping)
    assert (elected.leader, elected.isr) == (3, [3])


def test_a_move_goes_on_under_the_next_leader() -> None:
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
        # As Apache Kafka leaves it: the last leader is in the set.
        ((1,), partition([1, 2, 3], leader=-1, isr=[3]), -1, [], [3]),
    ],
)
def test_the_first_living_replica_in_sync_leads(
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


def test_a_new_partition_is_led_by_the_first_replica_that_lives() -> None:
    elected = elected_of(cluster((2, 3)), PartitionImage(0, NO_BROKER, 0, [1, 2, 3], [], -1))
    assert (elected.leader, elected.isr, elected.leader_epoch, elected.partition_epoch) == (2, [2, 3], 0, 0)


# Eligible leader replicas (KIP-966)


def test_the_replica_that_left_the_set_last_leads_when_the_last_member_returns_empty() -> None:
    """min.insync.replicas=2: two followers are killed, then the leader, which comes back on another disk."""
    state = partition([1, 2, 3])
    for alive in ((1, 3), (1,), ()):
        state = elected_of(cluster(alive), state, PAIR)
    assert (state.leader, state.isr, state.elr, state.last_known_leader) == (-1, [], [1, 3], 1)
    # Broker 2 left while commits went on without it, so it has to wait.
    assert elect(cluster((2,)), state, PAIR) is None
    state = elected_of(cluster((1, 2)), state, PAIR, lost={1}, missing={1})
    assert (state.leader, state.elr, state.last_known_leader, state.lost_replicas) == (-1, [3], -1, [1])
    state = elected_of(cluster((1, 2, 3)), state, PAIR)
    assert (state.leader, state.isr, state.elr) == (3, [3], [])
    assert (state.last_known_leader, state.lost_replicas) == (-1, [1])


def test_an_eligible_replica_leads_as_soon_as_no_member_of_the_set_can() -> None:
    before = partition([1, 2, 3], isr=[1]).replaced(elr=[2, 3])
    elected = elected_of(cluster((2, 3)), before, PAIR)
    assert (elected.leader, elected.isr, elected.elr) == (2, [2], [1, 3])
    assert elect(cluster((1, 2, 3)), before, PAIR) is None, "the leader stays"
    elected = elected_of(cluster((2, 3)), before, PAIR, stopping=frozenset({2}))
    assert elected.leader == 3
    # A member of the set that is about to stop leads no more, and has everything as well.
    elected = elected_of(cluster((2, 3)), before.replaced(isr=[3], leader=1), PAIR, stopping=frozenset({3}))
    assert (elected.leader, elected.isr, elected.elr) == (2, [2], [3])


def test_a_replica_that_reports_a_loss_is_not_eligible_any_more() -> None:
    before = partition([1, 2, 3], isr=[1]).replaced(elr=[2, 3])
    elected = elected_of(cluster((1, 2)), before, PAIR, lost={2})
    assert (elected.leader, elected.isr, elected.elr, elected.leader_epoch) == (1, [1], [3], EPOCH)
    assert elect(cluster((2,)), elected_of(cluster((2,)), elected, PAIR), PAIR) is None


def test_enough_replicas_in_sync_leave_nobody_else_eligible() -> None:
    before = partition([1, 2, 3], isr=[1, 2]).replaced(elr=[3])
    elected = elected_of(cluster((1, 2)), before, PAIR)
    assert (elected.leader, elected.isr, elected.elr) == (1, [1, 2], [])


@pytest.mark.parametrize("living", [(3,), ()])
def test_who_was_eligible_by_a_higher_minimum_is_not_elected_by_a_lower_one(living: tuple[int, ...]) -> None:
    """Somebody wrote it to the store, and the leader has committed by it before a controller knew of it."""
    before = partition([1, 2, 3], isr=[1, 2]).replaced(elr=[3])
    elected = elected_of(cluster(living), before, PAIR)
    assert (elected.leader, elected.isr, elected.elr) == (NO_BROKER, [], [1, 2])
    # Without a leader nothing was committed.
    led = before.replaced(leader=NO_BROKER)
    assert 3 in (elected := elected_of(cluster(living), led, PAIR)).elr or elected.leader == 3


# Recovery where no replica is known to have every committed record


def test_a_topic_of_one_replica_comes_back_after_a_power_cut_and_on_another_disk() -> None:
    for missing in (NO_BROKERS, {1}):
        (elected) = elected_of(cluster((1,)), partition([1]), lost={1}, missing=missing)
        assert (elected.leader, elected.isr, elected.leader_epoch) == (1, [1], EPOCH + 1)


def test_the_best_log_leads_once_the_last_leader_is_back_with_a_log() -> None:
    before = partition([1, 2, 3], leader=1, isr=[1])
    waiting = elected_of(cluster((1, 2, 3)), before, lost={1})
    assert (waiting.leader, waiting.isr, waiting.elr, waiting.last_known_leader) == (-1, [], [], 1)
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == [1, 2, 3]
    assert elect(cluster((1, 2, 3)), waiting, SAFE) is None, "nobody has told how far its log reaches"
    ends = {1: LogEnd(3, 50), 2: LogEnd(4, 10), 3: LogEnd(4, 11)}
    elected = elected_of(cluster((1, 2, 3)), waiting, ends=ends)
    assert (elected.leader, elected.isr, elected.elr, elected.leader_epoch) == (3, [3], [], EPOCH + 2)
    del ends[3]
    assert elected_of(cluster((1, 2, 3)), waiting, ends=ends).leader == 2, "broker 3 has not answered"


def test_a_last_leader_that_returns_empty_is_not_what_was_waited_for() -> None:
    before = partition([1, 2, 3], leader=1, isr=[1])
    waiting = elected_of(cluster((1, 2, 3)), before, lost={1}, missing={1})
    assert (waiting.last_known_leader, waiting.lost_replicas) == (-1, [1])
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == []
    assert recovery_candidates(cluster((1, 2, 3)), waiting, LOSE) == [1, 2, 3]
    for broker in (2, 3):
        waiting = elected_of(cluster((1, 2, 3)), waiting, lost={broker})
    assert waiting.lost_replicas == [1, 2, 3]
    assert recovery_candidates(cluster((1, 2, 3)), waiting, SAFE) == [1, 2, 3], "nobody else will come"


def test_losses_count_that_were_reported_while_the_dead_leader_still_counted_as_alive() -> None:
    """All machines lose their power and are back soon, the followers first, and the leader has a new disk."""
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


def test_nobody_is_elected_by_the_logs_while_a_broker_reports_losses_that_may_not_lead_yet() -> None:
    """It may have the longest log of all, once its report has been heeded."""
    waiting = partition([1, 2], leader=NO_BROKER, isr=[]).replaced(lost_replicas=[1, 2])
    image = cluster((1, 2))
    assert recovery_candidates(image, waiting, SAFE, frozenset({2})) == [1]
    reporting = BrokerImage(BrokerRegistration(2, (), lost=UNSYNCED), 7)
    image = image.with_brokers({**image.brokers, 2: reporting})
    assert recovery_candidates(image, waiting, SAFE, frozenset({2})) == []


def test_an_unclean_election_takes_the_best_log_and_never_an_empty_one_before_another() -> None:
    before = partition([1, 2, 3], leader=3, isr=[3])
    waiting = elected_of(cluster((1, 2)), before, LOSE)
    assert waiting.leader == -1
    ends = {1: LogEnd(-1, 0), 2: LogEnd(0, 1)}
    assert elected_of(cluster((1, 2)), waiting, LOSE, ends=ends).leader == 2
    assert elected_of(cluster((1,)), before, LOSE).leader == 1, "the only one that lives"
    assert elected_of(cluster((1, 3)), before.replaced(leader=-1), LOSE).leader == 3, "it is in sync"


def test_who_was_eligible_before_an_unclean_election_does_not_follow_the_leader_that_it_chose() -> None:
    """Else what the chosen leader has written would be given up for what was given up before."""
    policy = ElectionPolicy(unclean=True, min_insync_replicas=2)
    before = partition([1, 2, 3], leader=NO_BROKER, isr=[]).replaced(elr=[3])
    chosen = elected_of(cluster((2,)), before, policy)
    assert (chosen.leader, chosen.isr, chosen.elr) == (2, [2], [])
    waiting = elected_of(cluster((3,)), chosen, PAIR)
    assert (waiting.leader, waiting.isr, waiting.elr) == (NO_BROKER, [], [2])


def test_an_election_that_may_lose_records_is_found_out() -> None:
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


def test_another_min_insync_empties_the_elr_of_partitions_that_are_led() -> None:
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
def test_what_is_elected_can_lead(
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
            assert len(kept) >= least or is_recovered, "in-sync set and ELR do not fall below the minimum"
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
        (NO_BROKER, [], 5),
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


def test_a_replica_that_is_served_again_is_online_and_leads_where_nobody_else_may() -> None:
    image = cluster((1, 2, 3), topic("t", partition([1, 2, 3]), partition([1], isr=[1]), partition([2, 3])))
    topic_id = image.topics["t"].topic_id
    (plan,) = plan_failed_replicas(image, 1, {topic_id: [0, 1]})
    failed = image.with_topics([plan.topic])
    served = {topic_id: [0, 1, 2, 7], b"?" * 16: [0]}
    (back,) = in_one_go(planning_served_replicas(failed, 1, served))
    assert [(p.leader, p.offline) for p in back.topic.partitions] == [
        (2, frozenset()),
        (1, frozenset()),
        (2, frozenset()),
    ]
    assert in_one_go(planning_served_replicas(image, 1, served)) == []
