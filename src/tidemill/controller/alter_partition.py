"""Validates, plans and writes the in-sync replica sets that leaders request.

Each member is named with the broker epoch of the fetches by which the leader judged it. A replica whose
broker has registered again since then, possibly with an empty disk, has another epoch. It is rejected until
it has fetched again.

Planning has no I/O; see :mod:`tidemill.controller.topics`. Source: KIP-497, KIP-841, KIP-903
(AlterPartition).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import NamedTuple

from tidemill.controller.controller_context import ControllerContext
from tidemill.controller.failover import Failover
from tidemill.controller.leader_election import (
    CHANGES_PER_SLICE,
    ElectionPolicy,
    PolicyOf,
    next_state,
    write_state,
)
from tidemill.controller.topics import Plan, unknown_topic
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import BadVersion, Operation
from tidemill.coordination.topic_image import PartitionImage
from tidemill.coordination.topic_index import compute_traits_in_slices
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_in_slices

logger = logging.getLogger(__name__)

ANY_EPOCH = -1
"""A broker epoch that is not known: of a member that has not fetched from this leader yet, or of a request
without broker epochs."""


class IsrMember(NamedTuple):
    """A member of a requested ISR, with the broker epoch of its last fetch."""

    broker_id: int
    broker_epoch: int


class AlterPartitionItem(NamedTuple):
    """The ISR that a leader requests for one partition. All fields are passed by keyword."""

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[IsrMember]
    broker_epoch: int
    """The broker epoch of the leader at the time of the request."""


def plan_isr_change(
    image: ClusterImage,
    topic: str,
    partition: PartitionImage,
    change: AlterPartitionItem,
    policy: ElectionPolicy,
    stopping: frozenset[int] = frozenset(),
) -> PartitionImage:
    """Returns the partition with the requested ISR, or the same object if nothing changes.

    Raises KafkaError:

    * FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION: the leader does not know the current state.

    * STALE_BROKER_EPOCH: the leader has registered again since the request.

    * NOT_CONTROLLER: the leader knows a later state than this controller.

    * INVALID_REQUEST: the ISR is invalid.

    * INELIGIBLE_REPLICA: a member is not live or was restarted, or a new member is ``stopping``, has an
      offline replica, or reports lost records in its registration.
    """
    number = partition.partition
    _check_epoch(
        f"partition {number}: leader epoch",
        change.leader_epoch,
        partition.leader_epoch,
        ErrorCode.FENCED_LEADER_EPOCH,
    )
    if change.leader != partition.leader:
        raise KafkaError(
            f"partition {number} is led by broker {partition.leader}, not by {change.leader}",
            ErrorCode.INVALID_REQUEST,
        )
    leader = image.brokers.get(change.leader)
    if leader is not None and ANY_EPOCH < change.broker_epoch < leader.epoch:
        raise KafkaError(
            f"partition {number}: broker {change.leader} has registered again since the request",
            ErrorCode.STALE_BROKER_EPOCH,
        )
    isr = [member.broker_id for member in change.isr]
    if isr == partition.isr and change.partition_epoch <= partition.partition_epoch:
        return partition  # The response to the first request was lost.
    _check_epoch(
        f"partition {number}: partition epoch",
        change.partition_epoch,
        partition.partition_epoch,
        ErrorCode.INVALID_UPDATE_VERSION,
    )
    _check_members(number, partition, isr)
    for member in change.isr:
        reason = _ineligible(image, topic, partition, member, stopping)
        if reason:
            raise KafkaError(
                f"partition {number}: broker {member.broker_id} {reason}", ErrorCode.INELIGIBLE_REPLICA
            )
    return next_state(partition, partition.leader, isr, policy, is_new_epoch=False)


def _ineligible(
    image: ClusterImage,
    topic: str,
    partition: PartitionImage,
    member: IsrMember,
    stopping: frozenset[int],
) -> str:
    """Why a broker cannot be in the ISR; empty if it can."""
    broker, epoch = member
    registered = image.brokers.get(broker)
    if registered is None:
        return "is not live, and cannot be in sync"
    if epoch not in (ANY_EPOCH, registered.epoch):
        return f"has epoch {registered.epoch}, not {epoch}, and cannot be in sync"
    if broker in partition.isr:
        return ""
    if registered.lost.is_lost(topic, partition.partition):
        # The next controller would treat it as a replica that has lost its records.
        return (
            "still reports lost records in its registration, and cannot be in sync before it has cleared them"
        )
    if broker in stopping:
        return "is shutting down, and cannot join the ISR"
    if broker in partition.offline:
        return "cannot read or write its replica, and cannot join the ISR before it is restarted"
    return ""


def _check_epoch(what: str, asked: int, known: int, outdated: ErrorCode) -> None:
    if asked < known:
        raise KafkaError(f"{what} {asked} is outdated, the current one is {known}", outdated)
    if asked > known:
        raise KafkaError(
            f"{what} {asked} is newer than {known}, known to this controller", ErrorCode.NOT_CONTROLLER
        )


def _check_members(number: int, partition: PartitionImage, isr: list[int]) -> None:
    wrong = ""
    if len(set(isr)) != len(isr):
        wrong = "names a broker twice"
    elif partition.leader not in isr:
        wrong = f"is without the leader, broker {partition.leader}"
    elif not set(isr) <= set(partition.replicas):
        wrong = f"is not a subset of the replicas {partition.replicas}"
    if wrong:
        raise KafkaError(f"partition {number}: the ISR {isr} {wrong}", ErrorCode.INVALID_REQUEST)


class _IsrChanges:
    """ISR changes of several partitions, planned one by one and written together."""

    def __init__(self, image: ClusterImage, stopping: frozenset[int], policy_of: PolicyOf) -> None:
        self._image = image
        self._policy_of = policy_of
        self._stopping = stopping
        self._partitions: dict[bytes, list[PartitionImage]] = {}
        self._operations: dict[bytes, list[Operation]] = {}

    def plan_in_slices(
        self, requested: Sequence[AlterPartitionItem]
    ) -> Generator[None, None, list[PartitionImage | KafkaError]]:
        """The new states of the partitions, or their errors. Pauses between many partitions."""
        results: list[PartitionImage | KafkaError] = []
        for number, item in enumerate(requested, 1):
            try:
                results.append(self._plan(item))
            except KafkaError as error:
                results.append(error.as_result())
            if number % CHANGES_PER_SLICE == 0:
                yield
        return results

    def _plan(self, requested: AlterPartitionItem) -> PartitionImage:
        """The new state of the partition. Raises KafkaError as :func:`plan_isr_change` does."""
        topic = self._image.topics_by_id.get(requested.topic_id)
        if topic is None or topic.partition(requested.partition) is None:
            raise unknown_topic(requested.topic_id.hex() if topic is None else topic.name)
        partitions = self._partitions.get(requested.topic_id)
        if partitions is None:
            partitions = self._partitions[requested.topic_id] = list(topic.partitions)
        old = partitions[requested.partition]
        policy = self._policy_of(topic)
        new = plan_isr_change(self._image, topic.name, old, requested, policy, self._stopping)
        if new is not old:
            partitions[requested.partition] = new
            operations = self._operations.setdefault(requested.topic_id, [])
            operations += write_state(topic.name, old, new, self._image.controller_epoch)
        return new

    def plans(self) -> Generator[None, None, list[Plan]]:
        """The plans to write. Pauses for topics with many partitions."""
        plans = []
        for topic_id, operations in self._operations.items():
            topic = self._image.topics_by_id[topic_id]
            renewed = topic.with_partitions(self._partitions[topic_id])
            yield from compute_traits_in_slices(renewed)
            plans.append(Plan(renewed, operations))
        return plans


async def alter_partitions(
    context: ControllerContext, failover: Failover, requested: Sequence[AlterPartitionItem]
) -> list[PartitionImage | KafkaError]:
    """Writes the ISRs that leaders request. Returns the new state, or the error, of each partition.

    Raises NOT_CONTROLLER.
    """
    lost = {broker for broker, registration in context.image.brokers.items() if not registration.lost.is_none}
    if any(member.broker_id in lost for item in requested for member in item.isr):
        # These brokers remove the report from their registrations after the controller has handled it.
        await failover.brokers_changed()
    async with context.change_lock():
        topics = dict.fromkeys(context.image.topics_by_id.get(item.topic_id) for item in requested)
        await context.apply_stored_min_insync(topic.name for topic in topics if topic is not None)
        changes = _IsrChanges(context.image, context.stopping(), context.policies.of)
        results = await run_in_slices(changes.plan_in_slices(requested))
        context.election.check_active()  # This broker may have been replaced during a pause.
        try:
            await context.write_and_announce(await run_in_slices(changes.plans()))
            await context.parts.complete_reassignments()
        except BadVersion as problem:
            context.election.check_active()
            # Another client has written a state, for instance an administrator.
            logger.warning("ISR changes could not be written: %s", problem)
            return [KafkaError(f"{problem}. Try again.", ErrorCode.INVALID_UPDATE_VERSION)] * len(requested)
    return results
