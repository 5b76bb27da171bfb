"""Decisions about topics: names, placement, creation, added partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

import pytest
from controller_images import cluster, partition, topic
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.leader_election import plan_topic_elections
from tidemill.controller.replica_placement import alternate_racks
from tidemill.controller.topic_name_validator import UsedTopicNames
from tidemill.controller.topics import (
    PARTITIONS_PER_REQUEST_MAX,
    Growth,
    NewTopic,
    PartitionBudget,
    Plan,
    removal,
    replacing_old_settings,
)
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Create, SetData
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.topic_names import name_problem
from tidemill.model.types import ZERO_ID
from unpaused import place_replicas, plan_creation, plan_growth

TOPIC_ID = bytes(range(16))


def nothing_awaited(name: str) -> Collection[int]:
    return ()


def create(image: ClusterImage, wanted: NewTopic, **config: int) -> Plan:
    """Plans one creation in a request of its own."""
    taken = UsedTopicNames(image.topics)
    budget = PartitionBudget()
    return plan_creation(
        image, wanted, BrokerConfig.of(**config), TOPIC_ID, Random(1), taken, budget, nothing_awaited
    )


def code_of(image: ClusterImage, wanted: NewTopic) -> ErrorCode:
    """Returns the error of a rejected creation."""
    with pytest.raises(KafkaError) as caught:
        create(image, wanted)
    assert str(caught.value) != caught.value.code.name, "the text names the cause"
    return caught.value.code


# Names


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "-"])
def test_legal_topic_names_are_accepted(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n", "a:b", "a\x00"])
def test_illegal_topic_names_are_rejected(name: str) -> None:
    assert name_problem(name)
    assert code_of(cluster((0,)), NewTopic(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    image = cluster((0,), topic("a.b", partition([0])))
    assert code_of(image, NewTopic("a_b")) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert create(image, NewTopic("a-b")).topic.name == "a-b"
    taken = UsedTopicNames([])
    taken.add("x.y_z")
    with pytest.raises(KafkaError, match=r"x\.y_z"):
        taken.check("x_y.z")


def test_an_existing_topic_or_one_in_deletion_cannot_be_created() -> None:
    one = topic("t", partition([0]))
    assert code_of(cluster((0,), one), NewTopic("t")) == ErrorCode.TOPIC_ALREADY_EXISTS
    deleting = cluster((0,)).with_topics(deleting={"t": one})
    assert code_of(deleting, NewTopic("t")) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert code_of(cluster((0,)), NewTopic("__cluster_metadata")) == ErrorCode.INVALID_REQUEST


# Partition counts


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", PARTITIONS_PER_REQUEST_MAX + 1, 1), ErrorCode.POLICY_VIOLATION),
        (NewTopic("t", 2**31 - 1, 1), ErrorCode.POLICY_VIOLATION),
        (NewTopic("t", 1, -1, {0: [1]}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, 1, {0: [1]}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", -1, -1, {0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, {1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, {0: [1], 2: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, {0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, {0: [9]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", -1, -1, {0: [1, 2], 1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", config={"nonsense": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", config={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", config={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", config={"tidemill.mirror.state": "promoting"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_creations_have_their_error_codes(wanted: NewTopic, code: ErrorCode) -> None:
    assert code_of(cluster((1, 2, 3)), wanted) == code


def test_the_broker_defaults_apply_without_values_of_the_client() -> None:
    image = cluster((1, 2, 3))
    topic = create(image, NewTopic("t"), num_partitions=4, default_replication_factor=2).topic
    assert [len(partition.replicas) for partition in topic.partitions] == [2, 2, 2, 2]


def test_one_request_creates_a_limited_number_of_partitions() -> None:
    budget = PartitionBudget()
    taken = UsedTopicNames([])
    config = BrokerConfig.of()
    plan_creation(
        cluster((0,)), NewTopic("a", 9_999, 1), config, TOPIC_ID, Random(1), taken, budget, nothing_awaited
    )
    with pytest.raises(KafkaError) as caught:
        plan_creation(
            cluster((0,)), NewTopic("b", 2, 1), config, TOPIC_ID, Random(1), taken, budget, nothing_awaited
        )
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    plan_creation(
        cluster((0,)), NewTopic("c", 1, 1), config, TOPIC_ID, Random(1), taken, budget, nothing_awaited
    )


def test_a_creation_writes_configuration_topic_and_states() -> None:
    plan = create(cluster((1, 2)), NewTopic("t", -1, -1, {0: [2, 1], 1: [1, 2]}, {"retention.ms": "5"}))
    assert [operation.path for operation in plan.operations] == [
        "/config/topics/t",
        "/brokers/topics/t",
        "/brokers/topics/t/partitions",
        "/brokers/topics/t/partitions/0",
        "/brokers/topics/t/partitions/0/state",
        "/brokers/topics/t/partitions/1",
        "/brokers/topics/t/partitions/1/state",
    ]
    assert all(isinstance(operation, Create) for operation in plan.operations)
    assert b'"controller_epoch":5' in plan.operations[4].data  # type: ignore[union-attr]
    first, second = plan.topic.partitions
    assert (first.leader, first.leader_epoch, first.replicas, first.isr) == (2, 0, [2, 1], [2, 1])
    assert second.leader == 1
    assert plan.topic.config == {"retention.ms": "5"}


def test_settings_left_by_a_former_topic_are_replaced() -> None:
    plan = create(cluster((0,)), NewTopic("t"))
    assert plan.operations[0] == Create("/config/topics/t", b'{"version":1,"config":{}}')
    over = replacing_old_settings(plan)
    assert over.operations[0] == SetData("/config/topics/t", b'{"version":1,"config":{}}')
    assert over.operations[1:] == plan.operations[1:]


def test_a_removal_deletes_the_created_nodes_children_first() -> None:
    plan = create(cluster((0,)), NewTopic("t", 2))
    made = [operation.path for operation in plan.operations]
    removed = [operation.path for operation in removal(plan.topic)]
    assert set(removed) == {*made, "/admin/delete_topics/t"}
    assert all(removed.index(path) < removed.index(path.rpartition("/")[0]) for path in made[3:])


# Placement


def test_the_simple_form_is_round_robin() -> None:
    placed = place_replicas({0: None, 1: None, 2: None}, 7, 1, Random(1), start=0)
    assert placed == [[0], [1], [2], [0], [1], [2], [0]]


def test_replicas_follow_at_a_shift_that_grows_each_round() -> None:
    racks = dict.fromkeys(range(5))
    placed = place_replicas(racks, 10, 3, Random(1), start=0)
    assert placed == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 0],
        [4, 0, 1],
        [0, 2, 3],
        [1, 3, 4],
        [2, 4, 0],
        [3, 0, 1],
        [4, 1, 2],
    ]


@given(
    brokers=st.sets(st.integers(0, 1000), min_size=1, max_size=12),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_replicas_of_a_partition_never_share_a_broker_and_leaders_are_even(
    brokers: set[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    seed = data.draw(st.integers(0, 1000))
    placed = place_replicas(dict.fromkeys(brokers), partitions, factor, Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert set(replicas) <= brokers
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in brokers) <= 1


def test_brokers_are_ordered_so_that_neighbours_are_in_different_racks() -> None:
    assert alternate_racks({"a": [0, 3, 6], "b": [1, 4], "c": [5, 2]}) == [0, 1, 2, 3, 4, 5, 6]


@given(
    rack_of=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_are_in_as_many_racks_as_possible(
    rack_of: list[str], partitions: int, data: st.DataObject
) -> None:
    racks: dict[int, str | None] = dict(enumerate(rack_of))
    factor = data.draw(st.integers(1, len(racks)))
    placed = place_replicas(racks, partitions, factor, Random(data.draw(st.integers(0, 1000))))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(rack_of)))


def test_racks_count_only_when_every_broker_has_one() -> None:
    with_gap = place_replicas({0: "a", 1: "a", 2: None}, 3, 2, Random(1), start=0)
    assert with_gap == place_replicas({0: None, 1: None, 2: None}, 3, 2, Random(1), start=0)


def test_places_are_drawn_at_random() -> None:
    racks = dict.fromkeys(range(10))
    assert len({place_replicas(racks, 1, 1, Random(seed))[0][0] for seed in range(50)}) > 5


# Added partitions


def test_growth_continues_the_round() -> None:
    image = cluster((0, 1, 2), topic("t", partition([1, 2]), partition([2, 0])))
    plan = plan_growth(image, Growth("t", 5), Random(1), PartitionBudget())
    leaders = [partition.leader for partition in plan.topic.partitions]
    assert leaders == [1, 2, 0, 1, 2]
    assert plan.topic.partitions[:2] == image.topics["t"].partitions
    assert isinstance(plan.operations[0], SetData)
    assert (plan.operations[0].path, plan.operations[0].version) == ("/brokers/topics/t", 3)
    assert len(plan.operations) == 1 + 3 * 2


@pytest.mark.parametrize(
    ("growth", "code"),
    [
        (Growth("missing", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Growth("t", 2), ErrorCode.INVALID_PARTITIONS),
        (Growth("t", 1), ErrorCode.INVALID_PARTITIONS),
        (Growth("t", -1), ErrorCode.INVALID_PARTITIONS),
        (Growth("t", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (Growth("t", 4, [[0, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Growth("t", 3, [[0]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Growth("t", 3, [[0, 9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_growth_has_its_error_code(growth: Growth, code: ErrorCode) -> None:
    image = cluster((0, 1, 2), topic("t", partition([1, 2]), partition([2, 0])))
    with pytest.raises(KafkaError) as caught:
        plan_growth(image, growth, Random(1), PartitionBudget())
    assert caught.value.code == code


def test_the_offsets_topic_cannot_be_expanded() -> None:
    """The number of partitions determines the partition of each group."""
    image = cluster((0, 1), topic("__consumer_offsets", partition([0, 1]), partition([1, 0])))
    for growth in (Growth("__consumer_offsets", 5), Growth("__consumer_offsets", 3, [[0, 1]])):
        with pytest.raises(KafkaError, match=r"would not be found with another number.*reassign") as caught:
            plan_growth(image, growth, Random(1), PartitionBudget())
        assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_explicit_assignments_of_added_partitions_are_used() -> None:
    image = cluster((0, 1, 2), topic("t", partition([1, 2])))
    plan = plan_growth(image, Growth("t", 3, [[0, 1], [2, 0]]), Random(1), PartitionBudget())
    assert [partition.replicas for partition in plan.topic.partitions] == [[1, 2], [0, 1], [2, 0]]


def test_a_takeover_does_not_change_healthy_topics() -> None:
    assert plan_topic_elections(cluster((0,), topic("t", partition([0])))) == []


def test_a_takeover_completes_topics_written_by_an_administrator() -> None:
    bare = TopicImage("t", ZERO_ID, (PartitionImage(0, -1, 0, [0], [], -1),), {}, 4)
    (plan,) = plan_topic_elections(cluster((0,), bare))
    assert plan.topic.topic_id != ZERO_ID
    assert plan.topic.partitions[0].leader == 0
    assert [type(operation) for operation in plan.operations] == [Create, SetData]
