"""Partition reassignments, step by step and from any state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from controller_images import BROKERS, cluster, clusters, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.leader_election import ElectionPolicy, complete_replicas
from tidemill.controller.reassignment import (
    Decisions,
    in_progress,
    plan_completions,
    plan_reassignment,
    still_in_progress,
    write_reassignments,
)
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Delete, SetData
from tidemill.coordination.nodes import ReassignmentNode, TopicNode
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.errors import ErrorCode
from tidemill.model.types import NO_BROKER, TopicPartition

FIRST = TopicPartition("t", 0)


def unclean(topic_image: TopicImage) -> ElectionPolicy:
    """Returns a topic with unclean leader election."""
    return ElectionPolicy(unclean=True)


def two(topic_image: TopicImage) -> ElectionPolicy:
    """Returns a topic that requires two in-sync replicas."""
    return ElectionPolicy(min_insync_replicas=2)


def reassign(image: ClusterImage, replicas: Sequence[int] | None, **how: object) -> Decisions:
    """Requests a reassignment of the first partition to these replicas."""
    return plan_reassignment(image, {FIRST: replicas}, **how)  # type: ignore[arg-type]


def only(image: ClusterImage, replicas: Sequence[int] | None) -> PartitionImage:
    """Returns the first partition after the accepted request."""
    decisions = reassign(image, replicas)
    assert decisions.errors == {}
    ((topic_image, _),) = decisions.plans
    return topic_image.partitions[0]


def roles(one: PartitionImage) -> tuple[list[int], list[int], list[int], int, list[int]]:
    return one.replicas, one.adding, one.removing, one.leader, one.isr


def test_a_reassignment_adds_and_removes_replicas_until_it_completes() -> None:
    image = cluster((1, 2, 3, 4, 5), topic("t", partition([1, 2, 3]), partition([2, 3, 1])))
    ((begun, writes),) = reassign(image, [4, 5, 1]).plans
    one = begun.partitions[0]
    assert roles(one) == ([4, 5, 1, 2, 3], [4, 5], [2, 3], 1, [1, 2, 3])
    assert (one.leader_epoch, one.partition_epoch, begun.node_version) == (5, 8, 4)
    assert begun.partitions[1] is image.topics["t"].partitions[1]
    state, node = writes
    assert isinstance(state, SetData)
    assert isinstance(node, SetData)
    assert (state.path, state.version) == ("/brokers/topics/t/partitions/0/state", 7)
    assert (node.path, node.version) == ("/brokers/topics/t", 3)
    written = json.loads(node.data)
    assert written["partitions"] == {"0": [4, 5, 1, 2, 3], "1": [2, 3, 1]}
    assert (written["adding_replicas"], written["removing_replicas"]) == ({"0": [4, 5]}, {"0": [2, 3]})
    assert TopicNode.decode("t", node.data) == begun.assignment()

    image = image.with_topics([begun])
    assert dict(in_progress(image)) == {FIRST: one}
    assert plan_completions(image) == []
    almost = begun.with_partitions([one.replaced(isr=[1, 2, 3, 4], partition_epoch=9), begun.partitions[1]])
    assert plan_completions(image.with_topics([almost])) == []
    ready = almost.with_partitions(
        [almost.partitions[0].replaced(isr=[1, 2, 3, 4, 5], partition_epoch=10), begun.partitions[1]]
    )
    ((done, writes),) = plan_completions(image.with_topics([ready]))
    one = done.partitions[0]
    assert roles(one) == ([4, 5, 1], [], [], 1, [1, 4, 5])
    assert (one.leader_epoch, one.partition_epoch, done.node_version) == (6, 11, 5)
    assert [write.path for write in writes] == ["/brokers/topics/t/partitions/0/state", "/brokers/topics/t"]
    assert dict(in_progress(image.with_topics([done]))) == {}


def test_a_leader_to_be_removed_is_replaced_on_completion() -> None:
    ready = partition([4, 5, 1], isr=[1, 5, 4], leader=1, adding=[4, 5], removing=[1])
    image = cluster((1, 5), topic("t", ready))
    ((done, _),) = plan_completions(image)
    assert roles(done.partitions[0]) == ([4, 5], [], [], 5, [5, 4]), "broker 4 is not alive"
    # If no new replica can lead, the old leader stays.
    assert plan_completions(cluster((1,), topic("t", ready))) == []
    assert plan_completions(image, stopping=frozenset({5})) == []


def test_a_reassignment_to_the_current_replicas_changes_nothing() -> None:
    image = cluster((1, 2, 3), topic("t", partition([1, 2])))
    assert reassign(image, [1, 2]) == ([], {})
    moving = cluster(
        (1, 2, 3), topic("t", partition([3, 1, 2], isr=[1, 2], leader=1, adding=[3], removing=[2]))
    )
    assert reassign(moving, [3, 1]) == ([], {})


def test_a_reassignment_without_new_replicas_completes_at_once() -> None:
    image = cluster((1, 2, 3), topic("t", partition([1, 2, 3])))
    assert roles(only(image, [3, 1, 2])) == ([3, 1, 2], [], [], 1, [1, 2, 3])
    assert roles(only(image, [3, 2])) == ([3, 2], [], [], 3, [2, 3])
    behind = cluster((1, 2, 3), topic("t", partition([1, 2, 3], isr=[1])))
    assert roles(only(behind, [2])) == ([2, 1, 3], [], [1, 3], 1, [1]), "2 has to catch up first"


def test_a_new_reassignment_replaces_the_one_in_progress() -> None:
    moving = partition([4, 5, 1, 2], isr=[1, 2, 5], leader=1, adding=[4, 5], removing=[1, 2])
    image = cluster((1, 2, 3, 4, 5), topic("t", moving))
    assert roles(only(image, [3, 4])) == ([3, 4, 1, 2], [3, 4], [1, 2], 1, [1, 2])
    assert roles(only(image, [5, 2])) == ([5, 2], [], [], 5, [2, 5]), "both are already in sync"
    # The reassignment is reverted: no replica has to catch up.
    assert roles(only(image, [2, 1])) == ([2, 1], [], [], 1, [1, 2])


def test_a_cancelled_reassignment_restores_the_original_replicas() -> None:
    moving = partition([4, 1, 2], isr=[2, 4], leader=4, adding=[4], removing=[1])
    image = cluster((1, 2, 4), topic("t", moving))
    back = only(image, None)
    assert roles(back) == ([1, 2], [], [], 2, [2]), "the leader was an added replica and is removed"
    assert back.leader_epoch == 5


def test_a_cancelled_reassignment_does_not_wait_for_a_removed_leader() -> None:
    """It deletes its log, so a later reassignment would bring it back empty."""
    before = partition([1, 2, 3], leader=1, isr=[1], adding=[1]).replaced(elr=[2, 3])
    ((back, _),) = reassign(cluster((1,), topic("t", before)), None, policy_of=two).plans
    after = back.partitions[0]
    assert (roles(after), after.elr) == (([2, 3], [], [], -1, []), [2, 3])
    assert after.last_known_leader == NO_BROKER


def test_a_cancelled_reassignment_loses_no_records_without_unclean_election() -> None:
    moving = partition([4, 1, 2], isr=[4], leader=4, adding=[4], removing=[1])
    image = cluster((2, 4), topic("t", moving))
    refused = reassign(image, None)
    assert refused.plans == []
    assert refused.errors[FIRST].code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "only none would have every committed record" in str(refused.errors[FIRST])
    ((back, _),) = reassign(image, None, policy_of=unclean).plans
    assert roles(back.partitions[0]) == ([1, 2], [], [], 2, [2])
    # Of two candidates the one with the longer log leads. Their brokers report their offsets first.
    ((back, _),) = reassign(cluster((1, 2, 4), topic("t", moving)), None, policy_of=unclean).plans
    assert roles(back.partitions[0]) == ([1, 2], [], [], -1, [])


@pytest.mark.parametrize("target", [None, [1, 6, 7]])
def test_a_stopped_reassignment_keeps_min_insync_complete_replicas(
    target: list[int] | None,
) -> None:
    """The brokers of 2 and 3 are dead.

    Removing 4 and 5 would remove the only other copies of the records of 1.
    """
    moving = partition([1, 4, 5, 2, 3], isr=[1, 4, 5], leader=1, adding=[4, 5], removing=[2, 3])
    image = cluster((1, 4, 5, 6, 7), topic("t", moving))
    refused = reassign(image, target, policy_of=two)
    assert refused.plans == []
    error = refused.errors[FIRST]
    assert error.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "only 1 would have every committed record, but min.insync.replicas requires 2" in str(error)
    assert "keep some of 1, 4, 5" in str(error)
    assert reassign(image, target, policy_of=unclean).errors == {}


@pytest.mark.parametrize(
    ("alive", "moving", "replicas", "elr"),
    [
        pytest.param(
            (1, 4),
            partition([1, 4, 2, 3], isr=[1], leader=1, adding=[4], removing=[3]),
            [1, 2, 3],
            [],
            id="a reassignment with too few complete replicas can be stopped",
        ),
        pytest.param(
            (1, 4),
            partition([1, 4, 2, 3], isr=[1], leader=1, adding=[4], removing=[3]).replaced(elr=[2]),
            [1, 2, 3],
            [2],
            id="eligible replicas count",
        ),
        pytest.param(
            (1, 2, 3),
            partition([1, 2, 3], isr=[1, 2], leader=1, adding=[2, 3]),
            [1],
            [],
            id="a growing replication factor can be cancelled",
        ),
    ],
)
def test_a_reassignment_is_stopped_under_min_insync(
    alive: tuple[int, ...], moving: PartitionImage, replicas: list[int], elr: list[int]
) -> None:
    ((back, _),) = reassign(cluster(alive, topic("t", moving)), None, policy_of=two).plans
    assert roles(back.partitions[0]) == (replicas, [], [], 1, [1])
    assert back.partitions[0].elr == elr


def test_a_reassignment_elects_no_offline_replica() -> None:
    failed = partition([1, 2], isr=[1], leader=-1).with_offline(frozenset({1}))
    moving = only(cluster((1, 2, 3), topic("t", failed)), [3, 1])
    assert (roles(moving), moving.elr) == (([3, 1, 2], [3], [2], -1, []), [1])
    caught_up = partition([2, 3, 1], isr=[3, 1], leader=1, removing=[1], adding=[2, 3])
    waits = cluster((1, 2, 3), topic("t", caught_up.with_offline(frozenset({3}))))
    assert plan_completions(waits) == []


def test_a_removed_replica_is_no_longer_offline() -> None:
    failed = partition([1, 2], isr=[1], removing=[2]).with_offline(frozenset({2}))
    ((moved, _),) = plan_completions(cluster((1, 2), topic("t", failed)))
    assert moved.partitions[0].replicas == [1]
    # Its broker may be repaired and register again without replicas, and get one later.
    assert only(cluster((1, 2), moved), [1, 2]).offline == frozenset()


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, -1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 3], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_invalid_requested_replicas_are_refused(replicas: list[int] | None, code: ErrorCode) -> None:
    image = cluster((1, 3), topic("t", partition([1, 2])))
    decisions = reassign(image, replicas, stopping=frozenset({3}))
    assert decisions.plans == []
    assert decisions.errors[FIRST].code == code
    assert str(decisions.errors[FIRST]).startswith("t-0: ")


def test_a_replica_on_a_dead_broker_may_stay() -> None:
    image = cluster((1, 3), topic("t", partition([1, 2], isr=[1])))
    assert roles(only(image, [3, 2])) == ([3, 2, 1], [3], [1], 1, [1])


def test_a_reassignment_creates_no_state_for_a_partition_without_live_replicas() -> None:
    """Otherwise no replica would be in sync or eligible, and none could be elected when its broker starts."""
    without = PartitionImage(0, -1, 0, [8, 9], [], -1)
    image = cluster((1,), topic("t", without))
    decisions = reassign(image, [9, 8])
    (plan,) = decisions.plans
    assert [type(one) for one in plan.operations] == [SetData]
    assert plan.operations[0].path == TopicNode.path("t")
    (moved,) = plan.topic.partitions
    assert (moved.replicas, moved.leader, moved.partition_epoch) == ([9, 8], -1, -1)


def test_one_rejected_reassignment_does_not_affect_others() -> None:
    image = cluster((1, 2), topic("t", partition([1]), partition([1])), topic("u", partition([2])))
    targets: Mapping[TopicPartition, list[int] | None] = {
        TopicPartition("t", 1): [2],
        TopicPartition("t", 2): [2],
        TopicPartition("u", 0): [1, 2],
        TopicPartition("v", 0): [1],
        TopicPartition("t", -1): [1],
    }
    decisions = plan_reassignment(image, targets)
    assert [plan.topic.name for plan in decisions.plans] == ["t", "u"]
    assert {number: error.code for number, error in decisions.errors.items()} == {
        TopicPartition("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("v", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("t", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_the_replication_factor_changes_only_if_allowed() -> None:
    image = cluster((1, 2, 3), topic("t", partition([1, 2])))
    assert reassign(image, [1, 2, 3], factor_may_change=False).errors[FIRST].code == (
        ErrorCode.INVALID_REPLICATION_FACTOR
    )
    assert reassign(image, [1, 3], factor_may_change=False).errors == {}
    moving = cluster((1, 2, 3), topic("t", partition([3, 1], isr=[1], leader=1, adding=[3])))
    assert reassign(moving, [1], factor_may_change=False).errors, "the partition has its two target replicas"
    assert reassign(moving, None, factor_may_change=False).errors == {}


def test_the_administrators_node_keeps_reassignments_in_progress() -> None:
    image = cluster(
        (1, 2),
        topic("t", partition([2, 1], isr=[1], leader=1, adding=[2]), partition([1]), partition([2, 1])),
    )
    targets = {
        TopicPartition("t", 0): [2, 1],
        TopicPartition("t", 1): [2],
        TopicPartition("t", 2): [2, 1],
        TopicPartition("t", 3): [1],
    }
    left = still_in_progress(image, targets)
    assert left == {FIRST: [2, 1]}
    write = write_reassignments(left, 5)
    assert isinstance(write, SetData)
    assert write.version == 5
    assert ReassignmentNode.decode(write.data) == left
    assert still_in_progress(image, {FIRST: [1, 2]}) == {}, "another request has replaced it"
    assert write_reassignments({}, 6) == Delete("/admin/reassign_partitions", 6)


@given(
    clusters(),
    st.one_of(st.none(), st.lists(BROKERS, min_size=1, max_size=4)),
    st.booleans(),
    st.integers(1, 3),
)
def test_no_step_loses_a_record(
    image: ClusterImage, replicas: list[int] | None, is_unclean: bool, minimum: int
) -> None:
    name = next(iter(image.topics))
    before = image.topics[name].partitions[0]
    policy = ElectionPolicy(is_unclean, minimum)
    decisions = plan_reassignment(image, {TopicPartition(name, 0): replicas}, policy_of=lambda topic: policy)
    if not decisions.plans:
        return
    ((changed, _),) = decisions.plans
    after = changed.partitions[0]
    assert after.target == (before.origin if replicas is None else replicas)
    assert len(set(after.replicas)) == len(after.replicas)
    assert set(after.adding) <= set(after.target)
    assert set(after.removing).isdisjoint(after.target)
    assert after.isr or after.elr or is_unclean, "one replica has all committed records"
    if not is_unclean:
        least = min(len(complete_replicas(before, policy)), after.effective_min_isr(minimum))
        assert len({*after.isr, *after.elr}) >= least, "enough replicas have it for a commit"
    assert {*after.isr, *after.elr} <= set(after.replicas)
    assert is_unclean or {*after.isr, *after.elr} <= {*before.isr, *before.elr}
    assert after.leader == -1 or (after.leader in after.isr and after.leader in image.brokers)
    assert (after.leader_epoch, after.partition_epoch) == (
        before.leader_epoch + 1,
        before.partition_epoch + 1,
    )
    if after.is_reassigning:
        assert set(after.origin) == set(before.origin), "the reassignment can still be reverted"


@given(clusters())
def test_exactly_the_reassignments_with_replicas_in_sync_complete(image: ClusterImage) -> None:
    settled = image.with_topics(plan.topic for plan in plan_completions(image))
    assert plan_completions(settled) == []
    for name, before_topic in image.topics.items():
        for before, after in zip(before_topic.partitions, settled.topics[name].partitions, strict=True):
            if after is before:
                able = set(before.target) & set(image.brokers)
                assert not before.is_reassigning or not (set(before.target) <= set(before.isr) and able)
                continue
            assert after.replicas == before.target
            assert set(after.isr) == set(after.replicas)
            assert after.leader in after.isr
            assert not after.is_reassigning
