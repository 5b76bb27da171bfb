"""States of a partition, one after the other: which of them a controller may write."""

from __future__ import annotations

from typing import Any

import pytest
from state_decisions import Answers, KnownState, faults_of, faults_of_first

from tidemill.controller.leader_election import LogEnd
from tidemill.coordination.nodes import LeaderIsrAndControllerEpoch

LED = LeaderIsrAndControllerEpoch(1, 4, [1, 2, 3], 1)
SHRUNK = LeaderIsrAndControllerEpoch(1, 4, [1], 1, elr=(2,))
LEADERLESS = LeaderIsrAndControllerEpoch(-1, 5, [], 1, (), 1, (2,))
EPOCHS = {1: 10, 2: 20, 3: 30}


def known(**others: Any) -> KnownState:
    """What a controller knows of a partition of three replicas, with a minimum of two."""
    return KnownState(**{"replicas": [1, 2, 3], "minimum": 2, "epochs": EPOCHS, **others})


def without(*gone: int, **others: Any) -> KnownState:
    """The same where some brokers are gone."""
    return known(epochs={one: epoch for one, epoch in EPOCHS.items() if one not in gone}, **others)


def asked(**ends: tuple[int, int]) -> list[Answers]:
    """What three brokers have answered: an epoch and an end by broker, as ``b1``."""
    found = {int(name[1:]): LogEnd(*end) for name, end in ends.items()}
    return [Answers(found, EPOCHS)]


LOST_ALL = LEADERLESS._replace(lost_replicas=(1, 2, 3), last_known_leader=-1)
RECOVERED = LOST_ALL._replace(leader=3, leader_epoch=6, isr=[3], lost_replicas=(1, 2))
ENDS = asked(b1=(2, 5), b2=(3, 4), b3=(3, 9))


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (LED, LED._replace(isr=[1, 2]), known()),
        (LED, SHRUNK._replace(elr=(2, 3)), known()),
        (LED, LED._replace(leader=2, leader_epoch=5, isr=[2, 3]), without(1)),
        (
            LED,
            LED._replace(leader=2, leader_epoch=5, isr=[2, 3], lost_replicas=(1,)),
            known(lost={1}, named={1}),
        ),
        (SHRUNK, LED._replace(isr=[1, 2]), known(joined=[frozenset({1, 2})])),
        (SHRUNK, SHRUNK._replace(leader=2, leader_epoch=5, isr=[2], elr=(1,)), without(1)),
        (SHRUNK, SHRUNK._replace(elr=()), known(minimum_changed=True)),
        (SHRUNK, LeaderIsrAndControllerEpoch(-1, 5, [], 1, (1, 2), 1), without(1, 2)),
        (LED, LeaderIsrAndControllerEpoch(1, 5, [1, 3], 1), known(replicas=[1, 3], has_moved=True)),
        (
            LEADERLESS,
            LEADERLESS._replace(leader=1, leader_epoch=6, isr=[1], last_known_leader=-1),
            without(2, 3),
        ),
        (LOST_ALL, RECOVERED, known(answers=ENDS)),
    ],
)
def test_a_state_that_follows_from_the_previous_state_is_accepted(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, what: KnownState
) -> None:
    assert list(faults_of(before, after, what)) == []


@pytest.mark.parametrize(
    ("before", "after", "what", "fault"),
    [
        (LED, LED._replace(leader=2, isr=[2, 3]), without(1), "0 higher"),
        (LED, LED._replace(leader_epoch=5), known(), "1 higher"),
        (LED, LED._replace(leader=2, leader_epoch=5, isr=[1, 3]), known(), "not in the ISR"),
        (LED, LED._replace(isr=[1, 1, 2]), known(), "twice"),
        (LED, LED, known(replicas=[1, 2]), "not among the replicas"),
        (LED, LED._replace(leader=2, leader_epoch=5), without(1), "do not live"),
        (LED, LED._replace(leader=2, leader_epoch=5), known(offline={2}), "cannot be read"),
        (LED, LED._replace(leader=2, leader_epoch=5), known(stopping={2}), "about to stop"),
        (LED, LED._replace(leader=2, leader_epoch=5), known(lost={3}, named={3}), "reported a loss"),
        (SHRUNK, LED._replace(isr=[1, 2]), known(), "without a request of the leader"),
        (SHRUNK, LED._replace(leader=2, leader_epoch=5, isr=[1, 2]), known(), "beside a leader"),
        (LED, SHRUNK._replace(elr=()), known(), "[2, 3] should be"),
        (LED, LED._replace(isr=[1, 2], elr=(3,)), known(), "[] should be"),
        (LED, SHRUNK._replace(elr=(2, 3)), known(minimum=1), "[] should be"),
        (SHRUNK, SHRUNK._replace(elr=(2, 3)), known(), "[2] should be"),
        (LED, SHRUNK._replace(elr=(2, 3)), known(lost={3}, named={3}), "were lost, and are not any more"),
        (LEADERLESS, LEADERLESS._replace(lost_replicas=()), known(), "were lost, and are not any more"),
        (SHRUNK, SHRUNK._replace(elr=()), known(), "[2] should be"),
        (
            SHRUNK,
            SHRUNK._replace(elr=()),
            known(minimum_changed=True, lost={2}, named={2}),
            "were lost, and are not any more",
        ),
        (LED, LED._replace(isr=[1, 2], lost_replicas=(3,)), known(), "lost without a report"),
        (
            SHRUNK,
            LeaderIsrAndControllerEpoch(-1, 5, [], 1, (1, 2), 2),
            without(1, 2),
            "last known leader is 2",
        ),
        (
            LED._replace(isr=[1]),
            LeaderIsrAndControllerEpoch(-1, 5, [], 1, (), 1, (1,)),
            known(lost={1}, named={1}, missing={1}),
            "last known leader is 1, and should be -1",
        ),
        (
            SHRUNK,
            LeaderIsrAndControllerEpoch(-1, 5, [], 1, (2,), 1),
            without(2, replicas=[2, 3], has_moved=True),
            "last known leader is 1, and should be -1",
        ),
        (SHRUNK, SHRUNK._replace(leader=3, leader_epoch=5, isr=[3], elr=()), without(1), "hold everything"),
        (LEADERLESS, RECOVERED, without(1, 2), "waiting may help"),
        (LOST_ALL, RECOVERED._replace(elr=(1,)), known(answers=ENDS), "eligible after a recovery"),
        (LOST_ALL, RECOVERED, known(answers=ENDS, reporting={1}), "still report losses"),
        (LOST_ALL, RECOVERED, known(answers=ENDS, reporting={1}, stopping={1}), "still report losses"),
        (LOST_ALL, RECOVERED, known(), "has not the best"),
        (LOST_ALL, RECOVERED, known(answers=asked(b1=(3, 10), b2=(1, 1), b3=(3, 9))), "has not the best"),
        (LOST_ALL, RECOVERED, known(answers=ENDS, epochs={**EPOCHS, 1: 11}), "has not the best"),
    ],
)
def test_a_wrong_successor_state_is_found(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, what: KnownState, fault: str
) -> None:
    assert fault in "; ".join(faults_of(before, after, what))


def test_an_election_by_an_operator_does_not_wait_for_offline_replicas() -> None:
    recovered = RECOVERED._replace(lost_replicas=(2,))
    assert list(faults_of(LEADERLESS, recovered, without(1, 2, is_unclean=True))) == []
    after = RECOVERED._replace(leader=2, isr=[2], lost_replicas=(1, 3))
    assert "best" in "; ".join(faults_of(LOST_ALL, after, known(is_unclean=True, answers=ENDS)))


def test_a_new_partition_has_an_in_sync_leader_in_epoch_0() -> None:
    first = LeaderIsrAndControllerEpoch(1, 0, [1, 2, 3], 1)
    assert list(faults_of_first(first, known())) == []
    for wrong in (
        first._replace(leader_epoch=1),
        first._replace(isr=[2, 3]),
        first._replace(isr=[1, 4]),
        first._replace(elr=(3,)),
    ):
        assert list(faults_of_first(wrong, known()))
