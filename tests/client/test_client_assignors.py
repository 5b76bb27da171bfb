"""Partition assignment: worked examples of the documentation, and the properties of the sticky strategies."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.client.assignors import (
    CooperativeStickyAssignor,
    Member,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assign_in_turn,
    assignors_for,
)
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition


def members(count: int, *topics: str) -> list[Member]:
    return [Member(f"m{i}", topics) for i in range(count)]


def numbers(items: list[TopicPartition], topic: str = "t") -> list[int]:
    return [item.partition for item in items if item.topic == topic]


def test_range_of_ten_partitions_to_three_members() -> None:
    result = RangeAssignor().assign({"t": 10}, members(3, "t"))
    assert [numbers(result[f"m{i}"]) for i in range(3)] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_range_of_eleven_partitions_to_three_members() -> None:
    result = RangeAssignor().assign({"t": 11}, members(3, "t"))
    assert [numbers(result[f"m{i}"]) for i in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_range_assigns_more_partitions_of_each_topic_to_the_first_member() -> None:
    result = RangeAssignor().assign({"t": 10, "u": 10}, members(3, "t", "u"))
    assert numbers(result["m0"], "t") == numbers(result["m0"], "u") == [0, 1, 2, 3]


def test_round_robin_over_the_documents_order() -> None:
    order = [TopicPartition("T1", p) for p in (5, 3, 0, 8, 2, 1, 4, 7, 6, 9)]
    result = assign_in_turn(order, [Member(name, ("T1",)) for name in ("C1-0", "C1-1", "C2-0", "C2-1")])
    assert {name: numbers(items, "T1") for name, items in result.items()} == {
        "C1-0": [5, 2, 6],
        "C1-1": [3, 1, 9],
        "C2-0": [0, 4],
        "C2-1": [8, 7],
    }


def test_round_robin_assigns_the_partitions_of_all_topics_in_order() -> None:
    result = RoundRobinAssignor().assign({"t": 3, "u": 3}, members(2, "t", "u"))
    assert result["m0"] == [TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)]


def test_round_robin_skips_members_without_a_subscription() -> None:
    people = [Member("a", ("t",)), Member("b", ("t", "u")), Member("c", ("t", "u"))]
    result = RoundRobinAssignor().assign({"t": 1, "u": 2}, people)
    assert (result["a"], numbers(result["b"], "u"), numbers(result["c"], "u")) == (
        [TopicPartition("t", 0)],
        [0],
        [1],
    )


def test_more_members_than_partitions_leaves_some_idle() -> None:
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor()):
        result = assignor.assign({"t": 2}, members(4, "t"))
        assert sorted(map(len, result.values())) == [0, 0, 1, 1]


def test_static_members_keep_their_partitions_under_new_member_ids() -> None:
    before = [Member("x9", ("t",), instance_id="a"), Member("x1", ("t",), instance_id="b")]
    after = [Member("a0", ("t",), instance_id="b"), Member("z7", ("t",), instance_id="a")]
    first, second = (RangeAssignor().assign({"t": 4}, people) for people in (before, after))
    assert first["x9"] == second["z7"]


def test_a_missing_topic_is_omitted() -> None:
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor()):
        assert assignor.assign({}, members(2, "gone")) == {"m0": [], "m1": []}


def test_sticky_moves_only_the_share_of_a_new_member() -> None:
    first = StickyAssignor().assign({"t": 9}, members(2, "t"))
    people = [Member(m, ("t",), tuple(items), 1) for m, items in first.items()]
    second = StickyAssignor().assign({"t": 9}, [*people, Member("new", ("t",))])
    assert {len(items) for items in second.values()} == {3}
    for member, items in first.items():
        assert set(second[member]) <= set(items)


def test_sticky_uses_the_claim_of_the_later_generation() -> None:
    item = TopicPartition("t", 0)
    people = [Member("stale", ("t",), (item,), 3), Member("right", ("t",), (item,), 4)]
    assert StickyAssignor().assign({"t": 1}, people)["right"] == [item]


@pytest.mark.parametrize("later", [(), (4,)])
def test_sticky_ignores_two_claims_of_the_same_generation(
    later: tuple[int, ...],
) -> None:
    item = TopicPartition("t", 2)
    people = [Member(f"m{at}", ("t",), (item,), generation) for at, generation in enumerate([3, 3, *later])]
    result = StickyAssignor().assign({"t": 3}, people)
    if later:
        assert {member: numbers(items) for member, items in result.items()} == {
            "m0": [0],
            "m1": [1],
            "m2": [2],
        }
    else:
        assert {member: numbers(items) for member, items in result.items()} == {"m0": [0, 2], "m1": [1]}


def test_cooperative_reassigns_a_partition_in_the_second_round() -> None:
    every = tuple(TopicPartition("t", p) for p in range(4))
    people = [Member("old", ("t",), every, 1), Member("new", ("t",))]
    first = CooperativeStickyAssignor().assign({"t": 4}, people)
    assert (len(first["old"]), first["new"]) == (2, [])
    people = [Member("old", ("t",), tuple(first["old"]), 2), Member("new", ("t",), (), 2)]
    second = CooperativeStickyAssignor().assign({"t": 4}, people)
    assert second["old"] == first["old"]
    assert set(second["new"]) == set(every) - set(first["old"])


TOPICS = ("a", "b", "c")


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, int], list[Member]]:
    partitions = {topic: draw(st.integers(0, 8)) for topic in TOPICS}
    people: list[Member] = []
    for i in range(draw(st.integers(1, 6))):
        topics = tuple(draw(st.sets(st.sampled_from(TOPICS))))
        owned = draw(
            st.sets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9)), max_size=8)
        )
        people.append(Member(f"m{i}", topics, tuple(sorted(owned)), draw(st.integers(-1, 3))))
    return partitions, people


@given(groups())
@settings(max_examples=100, deadline=None)
def test_sticky_assigns_every_partition_once_and_evenly(
    case: tuple[dict[str, int], list[Member]],
) -> None:
    partitions, people = case
    result = StickyAssignor().assign(partitions, people)
    given = [item for items in result.values() for item in items]
    subscribed = {topic for member in people for topic in member.topics}
    expected = {TopicPartition(t, p) for t in subscribed for p in range(partitions.get(t, 0))}
    assert len(given) == len(set(given))
    assert set(given) == expected
    by_id = {member.member_id: member for member in people}
    for member_id, items in result.items():
        assert all(item.topic in by_id[member_id].topics for item in items)
        for item in items:
            takers = [m.member_id for m in people if item.topic in m.topics]
            assert all(len(items) - len(result[other]) <= 1 for other in takers)


@given(groups())
@settings(max_examples=60, deadline=None)
def test_sticky_keeps_a_balanced_assignment(case: tuple[dict[str, int], list[Member]]) -> None:
    partitions, people = case
    first = StickyAssignor().assign(partitions, people)
    again = [Member(m.member_id, m.topics, tuple(first[m.member_id]), 9) for m in people]
    assert StickyAssignor().assign(partitions, again) == first


def sum_of_squares(result: dict[str, list[TopicPartition]]) -> int:
    return sum(len(items) ** 2 for items in result.values())


@given(groups())
@settings(max_examples=60, deadline=None)
def test_no_assignment_is_more_even_than_the_sticky_assignment(
    case: tuple[dict[str, int], list[Member]],
) -> None:
    """Compares with all possible assignments of a few partitions."""
    partitions, people = case
    partitions = {topic: min(count, 2) for topic, count in partitions.items()}
    takers = [
        [i for i, member in enumerate(people) if topic in member.topics]
        for topic, count in partitions.items()
        for _ in range(count)
    ]
    every = itertools.product(*(found for found in takers if found))
    least = min(sum(count**2 for count in Counter(one).values()) for one in every)
    assert sum_of_squares(StickyAssignor().assign(partitions, people)) == least


@given(groups())
@settings(max_examples=100, deadline=None)
def test_cooperative_revokes_in_the_first_round_and_assigns_in_the_second(
    case: tuple[dict[str, int], list[Member]],
) -> None:
    partitions, people = case
    start = StickyAssignor().assign(partitions, people)
    people = [Member(m.member_id, m.topics, tuple(start[m.member_id]), 1) for m in people]
    people.append(Member("new", TOPICS))
    assignor = CooperativeStickyAssignor()
    subscribed = {topic for member in people for topic in member.topics}
    expected = {TopicPartition(t, p) for t in subscribed for p in range(partitions.get(t, 0))}
    for generation in (2, 3):
        given = assignor.assign(partitions, people)
        owner = {item: m.member_id for m in people for item in m.owned}
        assert all(owner.get(item, m) == m for m, items in given.items() for item in items)
        if generation == 3:
            assert all(set(m.owned) <= set(given[m.member_id]) for m in people)
            assert {item for items in given.values() for item in items} == expected
        people = [Member(m.member_id, m.topics, tuple(given[m.member_id]), generation) for m in people]


def test_a_chain_of_moves_reaches_members_that_no_single_move_reaches() -> None:
    first = tuple(TopicPartition("a", p) for p in range(3))
    second = (TopicPartition("b", 0), TopicPartition("b", 1))
    people = [
        Member("full", ("a",), first, 1),
        Member("between", ("a", "b"), second, 1),
        Member("empty", ("b",), (TopicPartition("b", 2),), 1),
    ]
    given = StickyAssignor().assign({"a": 3, "b": 3}, people)
    assert {member: len(items) for member, items in given.items()} == {"full": 2, "between": 2, "empty": 2}


def test_the_error_of_an_unknown_strategy_lists_the_known_strategies() -> None:
    with pytest.raises(ConfigError, match=r"range, roundrobin, sticky, cooperative-sticky"):
        assignors_for(["fair"])


def test_strategies_have_the_names_of_the_java_client_or_are_objects() -> None:
    own = RangeAssignor()
    found = assignors_for(["org.apache.kafka.clients.consumer.CooperativeStickyAssignor", own])
    assert [found[0].name, found[1]] == ["cooperative-sticky", own]
