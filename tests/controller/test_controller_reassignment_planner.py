"""Reassignment plans: their constraints, their balance, and the number of moved replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.reassignment_planner import Assignment, change_factor, decommission, generate, spread
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from unpaused import place_replicas

Racks = dict[int, str | None]


def no_racks(*brokers: int) -> Racks:
    return dict.fromkeys(brokers)


def of(*replicas: list[int], topic: str = "t") -> dict[TopicPartition, list[int]]:
    return {TopicPartition(topic, number): listed for number, listed in enumerate(replicas)}


def after(current: Assignment, plan: Mapping[TopicPartition, list[int]]) -> dict[TopicPartition, list[int]]:
    return {partition: plan.get(partition, list(replicas)) for partition, replicas in current.items()}


def loads(assignment: Assignment, brokers: Sequence[int]) -> list[int]:
    held = Counter(broker for replicas in assignment.values() for broker in replicas)
    return [held[broker] for broker in brokers]


def leaders(assignment: Assignment, brokers: Sequence[int]) -> list[int]:
    led = Counter(replicas[0] for replicas in assignment.values())
    return [led[broker] for broker in brokers]


def moved(before: Assignment, planned: Assignment) -> int:
    """Returns the number of replicas to copy."""
    return sum(len(set(planned[partition]) - set(before[partition])) for partition in before)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[TopicPartition, list[int]], Racks]:
    """Generates replicas on two to seven brokers, with racks on all, some or none."""
    count = draw(st.integers(2, 7))
    racks: Racks = {}
    kind = draw(st.sampled_from(["none", "all", "some"]))
    for broker in range(count):
        rack = draw(st.sampled_from("abc")) if kind != "none" else None
        racks[broker] = None if kind == "some" and broker == 0 else rack
    current = {}
    for name in draw(st.sampled_from(["t", "tu"])):
        factor = draw(st.integers(1, count))
        for number in range(draw(st.integers(1, 12))):
            replicas = draw(st.permutations(range(count)))
            current[TopicPartition(name, number)] = list(replicas[:factor])
    return current, racks


def rack_count(replicas: Sequence[int], racks: Racks) -> int:
    """Returns the number of racks of a partition. Without racks each broker counts as one."""
    aware = all(rack is not None for rack in racks.values())
    return len({racks[broker] if aware else broker for broker in replicas})


def check(current: Assignment, plan: Mapping[TopicPartition, list[int]], allowed: Racks) -> None:
    """Checks the invariants of every plan."""
    for partition, replicas in plan.items():
        assert replicas != current[partition], "the plan has changed partitions only"
        assert len(set(replicas)) == len(replicas) > 0
        assert set(replicas) <= set(allowed)


@given(layouts(), st.integers())
def test_generated_plans_place_topics_as_if_they_were_new(
    layout: tuple[dict[TopicPartition, list[int]], Racks], seed: int
) -> None:
    current, racks = layout
    plan = generate(current, racks, Random(seed))
    check(current, plan, racks)
    assert plan == generate(current, racks, Random(seed))
    planned = after(current, plan)
    rack_names = len(set(racks.values()))
    for partition, replicas in planned.items():
        assert len(replicas) == len(current[partition])
        if None not in racks.values():
            assert rack_count(replicas, racks) == min(len(replicas), rack_names)


def test_a_generated_plan_equals_the_placement_of_a_new_topic() -> None:
    current = of([0, 1], [0, 1], [0, 1])
    plan = generate(current, no_racks(0, 1, 2), Random(7))
    placed = place_replicas(no_racks(0, 1, 2), 3, 2, Random(7))
    assert after(current, plan) == of(*placed)
    with pytest.raises(KafkaError) as refused:
        generate(current, no_racks(0), Random(7))
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@given(layouts(), st.integers(1, 7), st.integers())
def test_a_factor_change_keeps_leaders_and_as_many_replicas_as_possible(
    layout: tuple[dict[TopicPartition, list[int]], Racks], factor: int, seed: int
) -> None:
    current, racks = layout
    factor = min(factor, len(racks))
    plan = change_factor(current, racks, factor, Random(seed))
    check(current, plan, racks)
    assert plan == change_factor(current, racks, factor, Random(seed))
    assert plan.keys() == {one for one, replicas in current.items() if len(replicas) != factor}
    for partition, replicas in plan.items():
        assert len(replicas) == factor
        assert replicas[0] == current[partition][0]
        before = current[partition]
        if len(before) < factor:
            assert replicas[: len(before)] == before
            free = (
                {racks[b] for b in racks} - {racks[b] for b in before}
                if None not in racks.values()
                else set()
            )
            gained = min(len(free), factor - len(before))
            assert not free or rack_count(replicas, racks) == rack_count(before, racks) + gained
        else:
            assert [broker for broker in before if broker in replicas] == replicas
            assert rack_count(replicas, racks) == min(rack_count(before, racks), factor) or (
                rack_count(replicas, racks) == factor
            )


def test_added_replicas_are_placed_on_the_brokers_with_the_fewest() -> None:
    current = of([0], [0], [1], [1])
    plan = change_factor(current, no_racks(0, 1, 2, 3), 2, Random(1))
    assert sorted(loads(after(current, plan), range(4))) == [2, 2, 2, 2]
    for factor in (0, -1, 5):
        with pytest.raises(KafkaError) as refused:
            change_factor(current, no_racks(0, 1, 2, 3), factor, Random(1))
        assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_of_removed_brokers_are_removed_first() -> None:
    assert change_factor(of([0, 9, 1]), no_racks(0, 1, 2), 2, Random(1)) == of([0, 1])


@given(layouts(), st.integers(0, 6), st.integers())
def test_decommissioning_moves_exactly_the_replicas_of_the_broker(
    layout: tuple[dict[TopicPartition, list[int]], Racks], gone: int, seed: int
) -> None:
    current, racks = layout
    gone %= len(racks)
    staying = {broker: rack for broker, rack in racks.items() if broker != gone}
    if max(map(len, current.values())) > len(staying):
        with pytest.raises(KafkaError):
            decommission(current, racks, [gone], Random(seed))
        return
    plan = decommission(current, racks, [gone], Random(seed))
    check(current, plan, staying)
    assert plan == decommission(current, racks, [gone], Random(seed))
    assert plan.keys() == {one for one, replicas in current.items() if gone in replicas}
    for partition, replicas in plan.items():
        before = current[partition]
        assert len(replicas) == len(before)
        rest = [broker for broker in before if broker != gone]
        assert set(rest) <= set(replicas), "no other replica moves"
        assert before[0] == gone or replicas[0] == before[0]
        if None not in racks.values():
            free = {staying[b] for b in staying} - {racks[b] for b in rest}
            assert rack_count(replicas, racks) == rack_count(rest, racks) + bool(free)


def test_only_moved_replicas_need_other_brokers() -> None:
    # Brokers 3 and 4 are dead. Broker 0 can take these replicas, and other partitions are not changed.
    current = of([0, 1, 3], [1, 3, 4], [1, 2, 3])
    assert decommission(current, no_racks(0, 1, 2), [0], Random(1)).keys() == {next(iter(current))}
    assert decommission(of([1, 2, 3]), no_racks(0, 1, 2), [0], Random(1)) == {}
    with pytest.raises(
        KafkaError,
        match=r"t-1 has 3 replicas\. Without broker 0 too few .*: brokers 1, 2\. Start a stopped broker, ",
    ):
        decommission(of([0, 1], [0, 1, 2]), no_racks(0, 1, 2), [0], Random(1))


def test_the_replicas_and_leaderships_of_a_decommissioned_broker_are_distributed() -> None:
    current = of(*[[0, 1 + n % 3] for n in range(12)])
    plan = decommission(current, no_racks(0, 1, 2, 3), [0], Random(1))
    planned = after(current, plan)
    assert loads(planned, (1, 2, 3)) == [8, 8, 8]
    assert leaders(planned, (1, 2, 3)) == [4, 4, 4]


def fewest_moves(before: list[int]) -> int:
    """Equalizes the replicas up to a difference of one.

    The brokers with the most replicas keep the remainder.
    """
    each, more = divmod(sum(before), len(before))
    wanted = [each + (place < more) for place in range(len(before))]
    return sum(max(0, have - want) for have, want in zip(sorted(before, reverse=True), wanted, strict=True))


@given(layouts(), st.integers())
def test_spreading_balances_with_the_fewest_moves(
    layout: tuple[dict[TopicPartition, list[int]], Racks], seed: int
) -> None:
    current, racks = layout
    plan = spread(current, racks, Random(seed))
    check(current, plan, racks)
    assert plan == spread(current, racks, Random(seed))
    planned = after(current, plan)
    before, now = loads(current, list(racks)), loads(planned, list(racks))
    assert sum(before) == sum(now)
    # Because of racks one replica may have to move to make room for another.
    assert moved(current, planned) <= 2 * fewest_moves(before)
    if len(set(racks.values())) == 1 or None in racks.values():
        assert max(now) - min(now) <= 1
        assert moved(current, planned) == fewest_moves(before)
    for partition, replicas in planned.items():
        assert len(replicas) == len(current[partition])
        assert rack_count(replicas, racks) >= rack_count(current[partition], racks)
    assert max(leaders(planned, list(racks))) <= max(max(leaders(current, list(racks))), max(now))
    again = spread(planned, racks, Random(seed + 1))
    assert moved(planned, after(planned, again)) == 0


def test_a_new_broker_gets_its_share_of_replicas_and_leaderships() -> None:
    current = {
        **of(*[[n % 3, (n + 1) % 3] for n in range(12)]),
        **of(*[[n % 3] for n in range(12)], topic="u"),
    }
    planned = after(current, spread(current, no_racks(0, 1, 2, 3), Random(1)))
    assert loads(planned, range(4)) == [9, 9, 9, 9]
    assert leaders(planned, range(4)) == [6, 6, 6, 6]
    assert moved(current, planned) == 9
    by_topic = Counter(one.topic for one, replicas in planned.items() if 3 in replicas)
    assert by_topic == {"t": 6, "u": 3}, "of each topic its share"


def test_leadership_is_balanced_in_chains_without_moving_data() -> None:
    # Broker 9 is gone; leadership is not changed for its partitions.
    current = of(*[[0, 1]] * 3, *[[1, 2]] * 3, *[[9, 0]] * 3, *[[9, 2]] * 3)
    planned = after(current, spread(current, no_racks(0, 1, 2), Random(1)))
    assert leaders(planned, range(3)) == [2, 2, 2]
    assert moved(current, planned) == 0


def test_many_partitions_are_planned_in_seconds() -> None:
    placed = place_replicas(no_racks(*range(6)), 2000, 3, Random(1))
    current = of(*placed)
    planned = after(current, spread(current, no_racks(*range(8)), Random(1)))
    assert set(loads(planned, range(8))) == {750}
    assert set(leaders(planned, range(8))) == {250}
    assert moved(current, planned) == 1500
