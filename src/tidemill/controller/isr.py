"""Decisions about in-sync sets: whether the one that a leader asks for may be.

Each member comes with the broker epoch of the fetches by which the leader judged it. A replica whose broker
has registered anew since, perhaps with an empty disk, has another epoch: it is refused until it has fetched
again.

No input or output here; see :mod:`tidemill.controller.topics`. Source: KIP-497, KIP-841, KIP-903
(AlterPartition).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.controller.elections import ElectionPolicy, next_state
from tidemill.coordination.image import ClusterImage, PartitionImage
from tidemill.model.errors import ErrorCode, KafkaError

ANY_EPOCH = -1
"""Of a member that has not fetched yet from this leader, or by a version that knows no epochs."""


class IsrChange(NamedTuple):
    """What a leader asks for: the members of the set with the epochs of their registrations."""

    broker: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    broker_epoch: int = ANY_EPOCH
    """Of the leader's own registration when it asked."""


def plan_isr_change(
    image: ClusterImage,
    topic: str,
    partition: PartitionImage,
    change: IsrChange,
    policy: ElectionPolicy,
    stopping: frozenset[int] = frozenset(),
) -> PartitionImage:
    """The partition with that set; the same object when nothing changes.

    Raises KafkaError: FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION for a leader that does not know the
    present state, STALE_BROKER_EPOCH for one that has registered anew since it asked (it leads as if it had
    not), NOT_CONTROLLER where it knows a later one than this controller, INVALID_REQUEST for a set that
    cannot be, INELIGIBLE_REPLICA for a member that does not live, or was started again meanwhile, or
    (new in the set) is ``stopping``, has no disk for it, or is
    registered as one that lost records.
    """
    number = partition.partition
    _check_epoch(f"partition {number}: leader epoch", change.leader_epoch, partition.leader_epoch, _FENCED)
    if change.broker != partition.leader:
        raise KafkaError(
            f"partition {number} is led by broker {partition.leader}, not by {change.broker}",
            ErrorCode.INVALID_REQUEST,
        )
    leader = image.brokers.get(change.broker)
    if leader is not None and ANY_EPOCH < change.broker_epoch < leader.epoch:
        raise KafkaError(
            f"partition {number}: broker {change.broker} has registered anew since it asked",
            ErrorCode.STALE_BROKER_EPOCH,
        )
    isr = [broker for broker, _ in change.isr]
    if isr == partition.isr and change.partition_epoch <= partition.partition_epoch:
        return partition  # The answer to the first request was lost.
    _check_epoch(
        f"partition {number}: partition epoch", change.partition_epoch, partition.partition_epoch, _OUTDATED
    )
    _check_members(number, partition, isr)
    for broker, epoch in change.isr:
        reason = _ineligible(image, topic, partition, broker, epoch, stopping)
        if reason:
            raise KafkaError(f"partition {number}: broker {broker} {reason}", ErrorCode.INELIGIBLE_REPLICA)
    return next_state(partition, partition.leader, isr, policy, is_new_epoch=False)


def _ineligible(
    image: ClusterImage,
    topic: str,
    partition: PartitionImage,
    broker: int,
    epoch: int,
    stopping: frozenset[int],
) -> str:
    """Why the broker that registered with ``epoch`` cannot be in the set; empty when it can."""
    registered = image.brokers.get(broker)
    if registered is None:
        return "is not there, and cannot be in sync"
    if epoch not in (ANY_EPOCH, registered.epoch):
        return f"has epoch {registered.epoch}, not {epoch}, and cannot be in sync"
    if broker in partition.isr:
        return ""
    if registered.lost.is_lost(topic, partition.partition):
        # A controller that takes the office next would take it for one that has lost what it had.
        return (
            "still reports lost records in its registration, and cannot be in sync before it has cleared them"
        )
    if broker in stopping:
        return "is about to stop, and does not get in sync again"
    if broker in partition.offline:
        return "cannot read or write its replica, and does not get in sync before it is started again"
    return ""


_FENCED = ErrorCode.FENCED_LEADER_EPOCH
_OUTDATED = ErrorCode.INVALID_UPDATE_VERSION


def _check_epoch(what: str, asked: int, known: int, outdated: ErrorCode) -> None:
    if asked < known:
        raise KafkaError(f"{what} {asked} is over, {known} is now", outdated)
    if asked > known:
        raise KafkaError(
            f"{what} {asked} is later than {known}, which is known here", ErrorCode.NOT_CONTROLLER
        )


def _check_members(number: int, partition: PartitionImage, isr: list[int]) -> None:
    wrong = ""
    if len(set(isr)) != len(isr):
        wrong = "names a broker twice"
    elif partition.leader not in isr:
        wrong = f"is without the leader, broker {partition.leader}"
    elif not set(isr) <= set(partition.replicas):
        wrong = f"is not within the replicas {partition.replicas}"
    if wrong:
        raise KafkaError(f"partition {number}: the in-sync set {isr} {wrong}", ErrorCode.INVALID_REQUEST)
