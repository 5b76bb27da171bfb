"""The checker detects reassignments that end otherwise than requested."""

from __future__ import annotations

import pytest
from requested_reassignments import RequestedReassignments

ID = b"i" * 16
TP = ("t", 0)


class Moved:
    """A partition on the brokers 1, 2 and 3, in reassignment to 1, 4 and 5."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.reassignments = RequestedReassignments(lambda name, text: self.broken.append(f"{name}: {text}"))
        self.written([1, 2, 3])
        self.reassignments.requested(TP, [1, 4, 5])
        self.written([1, 4, 5, 2, 3], [4, 5], [2, 3])
        assert self.broken == []

    def written(
        self, replicas: list[int], adding: list[int] | None = None, removing: list[int] | None = None
    ) -> None:
        self.reassignments.written(TP, ID, replicas, adding or [], removing or [])


def test_a_reassignment_ends_with_the_requested_replicas() -> None:
    moved = Moved()
    moved.reassignments.accepted(TP, [1, 4, 5])
    moved.written([5, 4, 1])
    moved.reassignments.check_settled()
    assert moved.broken == []


@pytest.mark.parametrize(("replicas", "is_found"), [([1, 2, 3], False), ([1, 4, 5, 2, 3], True)])
def test_a_cancelled_reassignment_returns_to_the_original_replicas(
    replicas: list[int], is_found: bool
) -> None:
    moved = Moved()
    moved.reassignments.requested(TP, None)
    moved.written(replicas)
    expected = (
        "reassignment: ('t', 0) gets [1, 2, 3, 4, 5] without a request; its target was"
        " [1, 4, 5] in place of [1, 2, 3]"
    )
    assert moved.broken == ([expected] if is_found else [])


def test_a_cancellation_without_a_request_is_found() -> None:
    moved = Moved()
    moved.written([1, 2, 3])
    assert len(moved.broken) == 1


@pytest.mark.parametrize("is_answered", [False, True])
def test_an_accepted_request_is_applied_unless_a_later_one_is_unanswered(is_answered: bool) -> None:
    moved = Moved()
    moved.reassignments.accepted(TP, [1, 4, 5])
    moved.reassignments.requested(TP, None)
    moved.written([1, 2, 3])
    if is_answered:
        moved.reassignments.accepted(TP, None)
    moved.reassignments.check_settled()
    assert moved.broken == []
    if is_answered:
        moved.reassignments.requested(TP, [1, 2])
        moved.reassignments.accepted(TP, [1, 2])
        moved.reassignments.check_settled()
        assert moved.broken == ["reassignment: ('t', 0) ends with [1, 2, 3], and [1, 2] were accepted"]


def test_requests_for_a_former_topic_do_not_apply_to_a_recreated_one() -> None:
    moved = Moved()
    moved.reassignments.accepted(TP, [1, 4, 5])
    moved.reassignments.written(TP, b"j" * 16, [2, 3], [], [])
    moved.reassignments.check_settled()
    assert moved.broken == []
