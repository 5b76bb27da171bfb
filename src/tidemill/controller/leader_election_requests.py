"""Elects leaders on request, rebalances leadership, handles ControlledShutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from tidemill.controller.alter_partition import ANY_EPOCH
from tidemill.controller.controlled_shutdown_leader_election import check_stopping, plan_shutdown_in_slices
from tidemill.controller.controller_context import ControllerContext, admin_log, wait_for_all
from tidemill.controller.preferred_leader_election import (
    ElectionType,
    every_partition,
    imbalanced_partitions,
    plan_elections,
)
from tidemill.controller.topic_batches import PARTITIONS_A_PART
from tidemill.controller.unclean_recovery import NO_REQUEST, ReceivedLogEnds, UncleanRecovery
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.coordination_store import BadVersion, Delete, NoNode, StoreError
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import PREFERRED_REPLICA_ELECTION, PartitionListNode
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_in_slices, slices_by_weight, slices_of
from tidemill.model.log_lines import in_lines
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)

REBALANCE_DELAY_S = 5.0
"""The delay of a new controller before the first rebalance; later ones follow at the configured interval."""

LOG_END_ROUNDS_MAX = 3
"""How often an unclean election requests log ends again when candidates restart."""


class LeaderElectionRequests:
    """Elects leaders on request while all brokers are live."""

    def __init__(self, context: ControllerContext, recovery: UncleanRecovery) -> None:
        """``recovery`` requests log ends for unclean elections."""
        self._context = context
        self._recovery = recovery
        self._rebalance_task: asyncio.Task[None] | None = None
        context.election.controller_change_listeners.append(self._controller_changed)

    async def elect(
        self, partitions: Iterable[TopicPartition] | None, election_type: int = ElectionType.PREFERRED
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elects leaders of ``partitions``, or of all partitions that need one. Returns None or an error for
        each.

        Many partitions are elected in several changes, with pauses. Raises INVALID_REQUEST for an unknown
        type, NOT_CONTROLLER, StoreError; leaders elected before the error stay.
        """
        context = self._context
        requested = partitions
        if requested is not None and not isinstance(requested, dict):
            requested = dict.fromkeys(requested)
        context.election.check_active()
        is_unclean = election_type == ElectionType.UNCLEAN
        results: dict[TopicPartition, KafkaError | None] = {}
        announcements = []
        are_named = requested is not None
        for rounds_left in reversed(range(LOG_END_ROUNDS_MAX)):
            received = await self._recovery.log_ends_of(requested) if is_unclean else NO_REQUEST
            again: dict[TopicPartition, None] = {}
            for some in self._parts(requested):
                elect_some = partial(
                    self._elect_some,
                    some,
                    election_type,
                    received,
                    are_named=are_named,
                    may_ask_again=is_unclean and rounds_left > 0,
                )
                found, unasked, announcement = await context.retry_on_conflict(elect_some)
                results.update(found)
                again |= unasked
                announcements.append(announcement)
                await asyncio.sleep(0)
            if not again:
                break
            requested = again
        await wait_for_all(announcements)
        return results

    def _parts(self, requested: Mapping[TopicPartition, None] | None) -> Iterator[Sequence[TopicPartition]]:
        """Splits ``requested``, or all partitions, into parts. Yields one empty part if there are none."""
        if requested is not None:
            yield from slices_of(list(requested), PARTITIONS_A_PART) or [()]
            return
        image = self._context.image
        yield ()
        for names in slices_by_weight(
            list(image.topics), lambda name: len(image.topics[name].partitions), PARTITIONS_A_PART
        ):
            yield every_partition(image, names)

    async def _elect_some(
        self,
        requested: Sequence[TopicPartition],
        election_type: int,
        received: ReceivedLogEnds,
        *,
        are_named: bool,
        may_ask_again: bool,
    ) -> tuple[dict[TopicPartition, KafkaError | None], dict[TopicPartition, None], Announcement | None]:
        """Returns the results, the partitions whose log ends have to be requested again, and the change."""
        context = self._context
        await context.parts.refresh_brokers()
        again = dict.fromkeys(
            self._recovery.incomplete(received, requested, is_unclean=True) if may_ask_again else ()
        )
        ends = received.valid_in(context.image)
        decisions = plan_elections(
            context.image,
            [key for key in requested if key not in again],
            election_type,
            context.stopping(),
            context.policies.of,
            ends,
            are_named=are_named,
        )
        elected = [
            TopicPartition(plan.topic.name, after.partition)
            for plan in decisions.plans
            for before, after in zip(
                context.image.topics[plan.topic.name].partitions, plan.topic.partitions, strict=True
            )
            if before is not after
        ]
        announcement = await context.write_and_announce(decisions.plans, ends=ends)
        return {**dict.fromkeys(elected), **decisions.errors}, again, announcement

    async def run_requested_elections(self) -> None:
        """Runs the elections in /admin/preferred_replica_election, and removes the node.

        Raises NOT_CONTROLLER, StoreError.
        """
        node = await self._context.store.get(PREFERRED_REPLICA_ELECTION)
        if node is None:
            return
        try:
            partitions = PartitionListNode.decode(PREFERRED_REPLICA_ELECTION, node.data)
        except NodeFormatError as problem:
            logger.error("%s", problem)
            return
        results = await self.elect(partitions)
        for line in in_lines(str(partition) for partition, error in results.items() if error is None):
            admin_log.info(
                "preferred elections done, requested by %s: %s",
                PREFERRED_REPLICA_ELECTION,
                line,
            )
        for partition, error in results.items():
            if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED:
                logger.warning("preferred leader election of %s failed: %s", partition, error)
        async with self._context.change_lock():
            try:
                await self._context.write_operations([Delete(PREFERRED_REPLICA_ELECTION, node.version)])
            except (BadVersion, NoNode):
                self._context.election.check_active()  # The node has new elections, which are run next.

    async def handle_controlled_shutdown(
        self, broker: int, *, broker_epoch: int = ANY_EPOCH
    ) -> list[TopicPartition]:
        """Moves leadership away from a broker in controlled shutdown. Returns the partitions that it still
        leads.

        No other replica can lead these. Raises BROKER_NOT_AVAILABLE, STALE_BROKER_EPOCH, NOT_CONTROLLER,
        StoreError.
        """
        context = self._context

        async def plan_and_write() -> tuple[list[TopicPartition], Announcement | None]:
            await context.parts.refresh_brokers()
            check_stopping(context.image, broker, broker_epoch=broker_epoch)
            context.note_stopping(broker)
            plans, remaining = await run_in_slices(
                plan_shutdown_in_slices(context.image, broker, context.stopping(), context.policies.of)
            )
            context.election.check_active()  # This broker may have been replaced during a pause.
            return remaining, await context.write_and_announce(plans)

        remaining, announcement = await context.retry_on_conflict(plan_and_write)
        logger.info("broker %d is shutting down and still leads %d partitions", broker, len(remaining))
        await wait_for_all([announcement])
        return remaining

    async def elect_imbalanced(self) -> int:
        """Elects preferred leaders on brokers with a leader imbalance. Returns the number of partitions.

        Raises NOT_CONTROLLER, StoreError.
        """
        context = self._context

        async def plan_and_write() -> tuple[int, Announcement | None]:
            await context.parts.refresh_brokers()
            percentage = context.config().int("leader.imbalance.per.broker.percentage")
            requested = imbalanced_partitions(context.image, percentage, context.stopping())
            decisions = plan_elections(
                context.image, requested, ElectionType.PREFERRED, context.stopping(), context.policies.of
            )
            return len(requested), await context.write_and_announce(decisions.plans)

        count, announcement = await context.retry_on_conflict(plan_and_write)
        await wait_for_all([announcement])
        return count

    def _controller_changed(self, is_ours: bool) -> None:
        if self._rebalance_task is not None:
            self._rebalance_task.cancel()
            self._rebalance_task = None
        if is_ours:
            self._rebalance_task = asyncio.get_running_loop().create_task(self._rebalance_periodically())

    async def _rebalance_periodically(self) -> None:
        await asyncio.sleep(REBALANCE_DELAY_S)
        while True:
            config = self._context.config()
            if config.bool("auto.leader.rebalance.enable"):
                try:
                    count = await self.elect_imbalanced()
                except (KafkaError, StoreError) as problem:
                    logger.warning("preferred leaders could not be elected: %s", problem)
                except Exception:
                    # An internal error. Without this handler, leadership would not be rebalanced any more.
                    logger.exception("preferred leaders could not be elected")
                else:
                    if count:
                        logger.info("elected the preferred leaders of %d partitions", count)
            await asyncio.sleep(config.int("leader.imbalance.check.interval.seconds"))
