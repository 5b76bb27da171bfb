"""Whether one state of a partition may follow another: the rules of a controller's decisions.

They are written here independently, from KIP-966 and ``docs/decisions/eligible-leader-replicas.md``, and not
from the program. A state is judged by the previous one and by the facts that the controller knew when it
wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from tidemill.controller.leader_election import LogEnd
from tidemill.coordination.nodes import LeaderIsrAndControllerEpoch

NOBODY = -1
NO_ONE: frozenset[int] = frozenset()


class Answers(NamedTuple):
    """The log ends that a controller received, and the epochs of the requested registrations."""

    ends: Mapping[int, LogEnd]
    registrations: Mapping[int, int]


class KnownState(NamedTuple):
    """The facts that a controller knew when it wrote a state, and its other writes."""

    replicas: Sequence[int]
    """After the write."""
    minimum: int
    """How many replicas in sync a commit takes, after the write."""
    epochs: Mapping[int, int]
    """The brokers that live, with the epochs of their registrations."""
    offline: Set[int] = NO_ONE
    """Replicas whose brokers cannot read or write them."""
    stopping: Set[int] = NO_ONE
    """Brokers that are about to stop."""
    lost: Set[int] = NO_ONE
    """Replicas that a registration reports as lost. It is not older than the partition."""
    named: Set[int] = NO_ONE
    """The same, also of registrations that are older than the partition."""
    missing: Set[int] = NO_ONE
    """Those of ``lost`` that have no log."""
    reporting: Set[int] = NO_ONE
    """Brokers whose registrations report any loss."""
    is_unclean: bool = False
    """Records may be lost for a leader: by a setting, or as an operator asked."""
    has_moved: bool = False
    """The assignment was written in the same transaction."""
    minimum_changed: bool = False
    """Another ``min.insync.replicas`` was written in the same transaction, or others have written it, and the
    controller takes it over."""
    answers: Sequence[Answers] = ()
    joined: Collection[frozenset[int]] = ()
    """The ISRs that the leader was granted since the state before."""

    @property
    def able(self) -> set[int]:
        """Returns the replicas that could lead."""
        return self.readable - self.stopping

    @property
    def readable(self) -> set[int]:
        """Returns the replicas of live brokers that can read and write them."""
        return set(self.replicas) & set(self.epochs) - self.offline


def faults_of_first(state: LeaderIsrAndControllerEpoch, known: KnownState) -> Iterator[str]:
    """Returns the errors of the first state of a partition."""
    if state.leader_epoch != 0:
        yield f"the first leader epoch is {state.leader_epoch}"
    if state.leader not in state.isr:
        yield f"the first leader {state.leader} is not in the ISR"
    if not set(state.isr) <= set(known.replicas):
        yield f"the ISR is not within the replicas {list(known.replicas)}"
    if state.elr or state.lost_replicas:
        yield "a new partition has replicas that are eligible or lost"


def faults_of(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, known: KnownState
) -> Iterator[str]:
    """Returns the errors of a state that replaces another."""
    yield from _faults_of_sets(after, known)
    yield from _faults_of_epoch(before, after, known)
    yield from _faults_of_members(before, after, known)
    yield from _faults_of_losses(before, after, known)
    emptied = before._replace(elr=(), controller_epoch=after.controller_epoch)
    if known.minimum_changed and after == emptied and after.leader != NOBODY:
        return  # With another min.insync.replicas the leader may commit without the eligible replicas.
    if after.leader not in (NOBODY, before.leader):
        yield from _faults_of_election(before, after, known)
    is_recovery = after.leader != NOBODY and after.leader not in _whole(before, known) - known.lost
    if not is_recovery:
        yield from _faults_of_eligible(before, after, known)
    elif after.elr:
        yield f"{list(after.elr)} are eligible after a recovery by the logs"


def _faults_of_sets(after: LeaderIsrAndControllerEpoch, known: KnownState) -> Iterator[str]:
    isr = set(after.isr)
    if len(isr) < len(after.isr):
        yield "the ISR names a replica twice"
    if after.leader != NOBODY and after.leader not in isr:
        yield f"the leader {after.leader} is not in the ISR"
    for what, found in (("in-sync", isr), ("eligible", set(after.elr)), ("lost", set(after.lost_replicas))):
        others = found - set(known.replicas)
        if others:
            yield f"{sorted(others)} are {what}, and not among the replicas {list(known.replicas)}"
    if isr & {*after.elr, *after.lost_replicas}:
        yield "a replica is in sync, and eligible or lost as well"
    if after.leader != NOBODY and after.last_known_leader != NOBODY:
        yield f"{after.last_known_leader} is the last known leader beside a leader"


def _faults_of_epoch(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, known: KnownState
) -> Iterator[str]:
    raised = after.leader_epoch - before.leader_epoch
    if after.leader != before.leader:
        if raised != 1:
            yield f"another leader comes with a leader epoch that is {raised} higher"
    elif raised != known.has_moved and not (before.leader == NOBODY and raised == 0):
        yield f"the leader stays, and the leader epoch is {raised} higher (moved: {known.has_moved})"


def _faults_of_members(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, known: KnownState
) -> Iterator[str]:
    isr, former = set(after.isr), set(before.isr)
    unfit = {
        "do not live": isr - set(known.epochs),
        "cannot be read": isr & known.offline - former
        | isr & known.offline & {after.leader} - {before.leader},
        "have reported a loss": isr & known.lost,
    }
    for why, found in unfit.items():
        if found:
            yield f"{sorted(found)} are in sync, and {why} as far as the controller has read"
    joined = isr - former
    if after.leader == before.leader:
        if joined and frozenset(isr) not in known.joined:
            yield f"{sorted(joined)} join the ISR without a request of the leader"
    elif joined - {after.leader}:
        yield f"{sorted(joined)} join the ISR with another leader"
    elif joined and isr != joined:
        yield f"{sorted(isr - joined)} stay in sync beside a leader that was not"


def _faults_of_losses(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, known: KnownState
) -> Iterator[str]:
    replicas, lost = set(known.replicas), set(after.lost_replicas)
    outside = replicas - set(after.isr)
    kept = set(before.lost_replicas) | known.lost & {*before.isr, *before.elr}
    if not kept & outside <= lost:
        yield f"{sorted(kept & outside - lost)} were lost, and are not any more"
    if not lost <= {*before.lost_replicas, *known.named}:
        yield f"{sorted(lost - {*before.lost_replicas, *known.named})} are lost without a report"
    if after.leader == NOBODY and after.last_known_leader != _last_leader(before, known):
        yield (
            f"the last known leader is {after.last_known_leader}, and should be {_last_leader(before, known)}"
        )


def _last_leader(before: LeaderIsrAndControllerEpoch, known: KnownState) -> int:
    """Returns the last known leader of a partition without a leader."""
    last = before.leader if before.leader != NOBODY else before.last_known_leader
    if last == NOBODY and len(before.isr) == 1:
        last = before.isr[0]
    # A broker without a replica is removed from it.
    return NOBODY if last in known.missing or last not in known.replicas else last


def _whole(before: LeaderIsrAndControllerEpoch, known: KnownState) -> set[int]:
    """Returns the replicas with every committed record."""
    if before.leader != NOBODY and len(before.isr) >= known.minimum:
        return set(before.isr)
    return {*before.isr, *before.elr}


def _faults_of_eligible(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, known: KnownState
) -> Iterator[str]:
    isr, eligible = set(after.isr), set(after.elr)
    most: set[int] = set()
    if len(isr) < known.minimum:
        most = ({*before.isr, *before.elr} & set(known.replicas)) - isr - known.lost
    # If a reassignment removes a replica, fewer may have been enough before.
    least = most if known.has_moved else most & _whole(before, known)
    if known.has_moved:
        least = most & set(before.isr)
    elif before.leader != NOBODY and len(before.isr) >= known.minimum:
        most = most & set(before.isr)
    if not least <= eligible <= most:
        yield (
            f"{sorted(eligible)} are eligible, and {sorted(most)} should be (min.insync.replicas"
            f" {known.minimum})"
        )


def _faults_of_election(
    before: LeaderIsrAndControllerEpoch, after: LeaderIsrAndControllerEpoch, known: KnownState
) -> Iterator[str]:
    leader = after.leader
    if leader not in known.able:
        yield f"{leader} is elected, and does not live, cannot be read or is about to stop"
    whole = _whole(before, known)
    if leader in whole - known.lost:
        if leader not in before.isr and (found := set(before.isr) & known.able - known.lost):
            yield f"{leader} of the eligible is elected while {sorted(found)} are in sync"
        return
    waiting = (whole - known.lost) & known.able
    if waiting:
        yield f"{leader} is elected by the logs while {sorted(waiting)} hold everything"
    if reporting := known.reporting & known.readable:
        yield f"{leader} is elected by the logs while {sorted(reporting)} still report losses"
    if not known.is_unclean:
        lost = {*before.lost_replicas, *known.named}
        is_back = _last_leader(before, known) in known.able
        if whole - known.lost or not (is_back or set(known.replicas) <= lost):
            yield f"{leader} is elected by the logs although waiting may help"
    if len(known.able) > 1 and not any(is_best(leader, answers, known) for answers in known.answers):
        yield f"{leader} is elected by the logs, and has not the best by {list(known.answers)}"


def is_best(leader: int, answers: Answers, known: KnownState) -> bool:
    """Whether a replica has the best log of the requested registrations."""
    ends = {
        broker: end
        for broker, end in answers.ends.items()
        if broker in known.able and answers.registrations.get(broker) == known.epochs[broker]
    }
    asked = {one for one in known.able if answers.registrations.get(one) == known.epochs[one]}
    return leader in ends and ends[leader] == max(ends.values()) and (known.is_unclean or asked == known.able)
