"""The counts of a group: a change visits only its own items."""

from __future__ import annotations

from collections import Counter
from typing import NoReturn, TypeVar

from groups_bench import Bench

from tidemill.groups.group_metadata import GroupMetadata
from tidemill.model.types import ZERO_ID

Key = TypeVar("Key")


class Uncopied(Counter[Key]):
    """A counter that fails when all its items are visited, as by a copy."""

    def items(self) -> NoReturn:
        raise AssertionError("all items were visited")


def group_of(bench: Bench) -> GroupMetadata:
    return bench.state_machine.groups["g"]


def test_the_end_of_a_commit_visits_only_its_own_partitions() -> None:
    bench = Bench()
    bench.play("manual")
    for number in range(3):
        bench.play(f"commit A t-{number}=1 t-{number + 1}=1")
    counts: Counter[tuple[str, int, bytes]] = Uncopied(group_of(bench).in_flight)
    group_of(bench).in_flight = counts
    left = []
    for _ in range(3):
        bench.store()
        left.append({partition: counts["t", partition, ZERO_ID] for partition in range(4) if counts})
        assert set(counts) == {("t", partition, ZERO_ID) for partition, count in left[-1].items() if count}
    assert left == [{0: 0, 1: 1, 2: 2, 3: 1}, {0: 0, 1: 0, 2: 1, 3: 1}, {}]


def test_the_end_of_a_membership_visits_only_the_protocols_of_the_member() -> None:
    bench = Bench()
    for number in range(3):
        bench.play(f"join A{number} protocols=range:s/own-{number}:s")
    counts: Counter[str] = Uncopied(group_of(bench).protocol_counts)
    group_of(bench).protocol_counts = counts
    bench.play("leave B ids=m2")
    assert (set(counts), counts["range"]) == ({"range", "own-0", "own-2"}, 2)
    bench.play("join C id=m1 protocols=range:s/other:s")
    assert (set(counts), counts["range"]) == ({"range", "other", "own-2"}, 2)
    bench.play("leave B ids=m1,m3")
    assert not counts
