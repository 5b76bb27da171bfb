"""The checker detects reassignments that end otherwise than requested."""

from __future__ import annotations

import pytest
from asked_moves import AskedMoves

ID = b"i" * 16
PLACE = ("t", 0)


class Moved:
    """A partition on the brokers 1, 2 and 3, in reassignment to 1, 4 and 5."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.moves = AskedMoves(lambda name, text: self.broken.append(f"{name}: {text}"))
        self.written([1, 2, 3])
        self.moves.asking(PLACE, [1, 4, 5])
        self.written([1, 4, 5, 2, 3], [4, 5], [2, 3])
        assert self.broken == []

    def written(
        self, replicas: list[int], adding: list[int] | None = None, removing: list[int] | None = None
    ) -> None:
        self.moves.written(PLACE, ID, replicas, adding or [], removing or [])


def test_a_move_ends_with_what_was_asked_for() -> None:
    moved = Moved()
    moved.moves.granted(PLACE, [1, 4, 5])
    moved.written([5, 4, 1])
    moved.moves.at_rest()
    assert moved.broken == []


@pytest.mark.parametrize(("replicas", "is_found"), [([1, 2, 3], False), ([1, 4, 5, 2, 3], True)])
def test_a_move_that_is_stopped_goes_back(replicas: list[int], is_found: bool) -> None:
    moved = Moved()
    moved.moves.asking(PLACE, None)
    moved.written(replicas)
    expected = (
        "reassignment: ('t', 0) is to have [1, 2, 3, 4, 5], which nobody asked for; it was to have"
        " [1, 4, 5] in place of [1, 2, 3]"
    )
    assert moved.broken == ([expected] if is_found else [])


def test_nobody_stops_a_move_unasked() -> None:
    moved = Moved()
    moved.written([1, 2, 3])
    assert len(moved.broken) == 1


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_wish_that_was_granted_comes_about_unless_another_one_may_be_on_its_way(is_answered: bool) -> None:
    moved = Moved()
    moved.moves.granted(PLACE, [1, 4, 5])
    moved.moves.asking(PLACE, None)
    moved.written([1, 2, 3])
    if is_answered:
        moved.moves.granted(PLACE, None)
    moved.moves.at_rest()
    assert moved.broken == []
    if is_answered:
        moved.moves.asking(PLACE, [1, 2])
        moved.moves.granted(PLACE, [1, 2])
        moved.moves.at_rest()
        assert moved.broken == ["reassignment: ('t', 0) ends with [1, 2, 3], and [1, 2] were granted"]


def test_a_topic_made_anew_owes_nothing() -> None:
    moved = Moved()
    moved.moves.granted(PLACE, [1, 4, 5])
    moved.moves.written(PLACE, b"j" * 16, [2, 3], [], [])
    moved.moves.at_rest()
    assert moved.broken == []
