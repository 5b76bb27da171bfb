"""Leader balancing: plans equal those of a full evaluation before each move, at a lower cost."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller import reassignment_planner
from tidemill.controller.reassignment_planner import Assignment, Racks, _Placement, spread
from tidemill.model.types import TopicPartition
from unpaused import place_replicas

MOVES_LOOKED_AT_MAX = 20
"""For each replica that there is."""


def spread_slowly(current: Assignment, racks: Racks, random: Random) -> dict[TopicPartition, list[int]]:
    """Computes the plan of :func:`spread` without heaps."""
    placement = _Placement(current, racks, random)
    while _one_replica(placement):
        pass
    while _one_leadership(placement):
        pass
    return {
        partition: replicas
        for partition, replicas in placement.replicas.items()
        if list(current[partition]) != replicas
    }


def _one_replica(placement: _Placement) -> bool:
    held, rank = placement.held, placement.rank
    falling = sorted(held, key=lambda broker: (-len(held[broker]), rank[broker]))
    for high in falling:
        for low in reversed(falling):
            if len(held[high]) - len(held[low]) < 2:
                break
            movable = [one for one in held[high] if placement.may_move(one, high, low)]
            if movable:
                chosen = max(movable, key=lambda one: placement.surplus(high, low, one.topic))
                place = placement.replicas[chosen].index(high)
                placement.remove(chosen, high)
                placement.add(chosen, low, place)
                return True
    return False


def _one_leadership(placement: _Placement) -> bool:
    led, rank = placement.led, placement.rank
    for high in sorted(led, key=lambda broker: (-len(led[broker]), rank[broker])):
        found: dict[int, tuple[int, TopicPartition]] = {}
        waiting = deque([high])
        while waiting:
            broker = waiting.popleft()
            if len(led[high]) - len(led[broker]) >= 2:
                while broker != high:
                    giver, partition = found[broker]
                    placement.lead(partition, broker)
                    broker = giver
                return True
            for partition in led[broker]:
                for other in placement.replicas[partition]:
                    if other in led and other != high and other not in found:
                        found[other] = (broker, partition)
                        waiting.append(other)
    return False


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[TopicPartition, list[int]], dict[int, str | None]]:
    """Topics created with fewer brokers, with replicas on removed brokers."""
    count = draw(st.integers(1, 8))
    racks: dict[int, str | None] = {
        broker: draw(st.sampled_from("abc")) if draw(st.integers(0, 9)) else None for broker in range(count)
    }
    if draw(st.booleans()):
        racks = dict.fromkeys(racks)
    random = Random(draw(st.integers(0, 2**32)))
    gone = [20, 21] if draw(st.booleans()) else []
    current = {}
    for name in "tuvwx"[: draw(st.integers(1, 5))]:
        pool = [*range(draw(st.integers(1, count))), *gone]
        factor = draw(st.integers(1, len(pool)))
        for number in range(draw(st.integers(1, 25))):
            current[TopicPartition(name, number)] = random.sample(pool, factor)
    return current, racks


@given(layouts(), st.integers(0, 1000))
def test_incremental_plans_equal_those_of_a_full_scan(
    layout: tuple[dict[TopicPartition, list[int]], dict[int, str | None]], seed: int
) -> None:
    current, racks = layout
    plan, slow = spread(current, racks, Random(seed)), spread_slowly(current, racks, Random(seed))
    assert list(plan.items()) == list(slow.items())


@pytest.mark.parametrize("partitions_a_topic", [1, 10, 2000])
@pytest.mark.parametrize("racks", ["", "aabb", "abcabc"])
def test_a_plan_for_thousands_of_partitions_checks_each_a_few_times(
    monkeypatch: pytest.MonkeyPatch, partitions_a_topic: int, racks: str
) -> None:
    evaluations = 0
    known = reassignment_planner._Placement.may_move

    def may_move(self: _Placement, partition: TopicPartition, high: int, low: int) -> bool:
        nonlocal evaluations
        evaluations += 1
        return known(self, partition, high, low)

    monkeypatch.setattr(reassignment_planner._Placement, "may_move", may_move)
    brokers: dict[int, str | None] = dict(enumerate(racks)) if racks else dict.fromkeys(range(6))
    first = {broker: brokers[broker] for broker in list(brokers)[: len(brokers) // 2]}
    current = {
        TopicPartition(f"t{topic}", number): replicas
        for topic in range(2000 // partitions_a_topic)
        for number, replicas in enumerate(
            place_replicas(dict.fromkeys(first), partitions_a_topic, 2, Random(topic))
        )
    }
    assert len(spread(current, brokers, Random(1))) > 500
    assert evaluations < MOVES_LOOKED_AT_MAX * 2 * len(current)
