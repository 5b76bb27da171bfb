"""Runs the partition reassignments that clients and administrators request."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tidemill.controller.controller_context import ControllerContext, admin_log, wait_for_all
from tidemill.controller.reassignment import (
    Decisions,
    Reassignments,
    in_progress,
    plan_completions,
    plan_reassignment,
    still_in_progress,
    write_reassignments,
)
from tidemill.controller.topic_batches import PARTITIONS_A_PART
from tidemill.controller.topics import Plan
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.coordination_store import BadVersion, Node, NoNode, StoreError
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import REASSIGN_PARTITIONS, ReassignmentNode
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import KafkaError
from tidemill.model.event_loop_slices import slices_of
from tidemill.model.log_lines import in_lines
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)


class ReassignmentRequests:
    """Starts reassignments, and completes each when its new replicas are in sync."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._applied: Mapping[TopicPartition, Sequence[int] | None] = {}
        """The content of the administrator's node when it was last applied."""
        self._is_cleanup_due = False
        """The administrator's node may name completed reassignments."""

    async def alter(
        self,
        requested: Reassignments,
        *,
        factor_may_change: bool = True,
        accepted: Callable[[Reassignments], None] | None = None,
    ) -> dict[TopicPartition, KafkaError]:
        """Starts, replaces and cancels reassignments. Returns the errors of rejected ones.

        ``accepted`` is called with the accepted reassignments, at most ``PARTITIONS_A_PART`` at a time,
        before the log reports reassignments that they complete.

        Many partitions are changed in several parts, with pauses. Raises NOT_CONTROLLER, StoreError;
        reassignments that were started before the error continue.
        """
        errors: dict[TopicPartition, KafkaError] = {}
        announcements = []
        for some in slices_of(list(requested), PARTITIONS_A_PART) or [()]:
            refused, announcement = await self._change(
                {key: requested[key] for key in some}, factor_may_change, accepted
            )
            errors.update(refused)
            announcements.append(announcement)
            await asyncio.sleep(0)
        await wait_for_all(announcements)
        return errors

    async def _change(
        self,
        requested: Reassignments,
        factor_may_change: bool,
        accepted: Callable[[Reassignments], None] | None,
        node: Node | None = None,
    ) -> tuple[dict[TopicPartition, KafkaError], Announcement | None]:
        """``node``: the administrator's node that holds these reassignments."""
        context = self._context

        async def plan_and_write() -> tuple[Decisions, Announcement | None]:
            await context.parts.refresh_brokers()
            if node is not None and await context.store.get(REASSIGN_PARTITIONS) != node:
                # The node has changed, for instance because a client cancelled one: it is handled again.
                return Decisions([], {}), None
            decisions = plan_reassignment(
                context.image,
                requested,
                factor_may_change=factor_may_change,
                policy_of=context.policies.of,
                stopping=context.stopping(),
            )
            applied = {key: target for key, target in requested.items() if key not in decisions.errors}
            written = None if accepted is None else functools.partial(accepted, applied)
            announcement = await context.write_and_announce(decisions.plans, written=written)
            if node is not None:
                self._applied = dict(requested)
            await self.clean_up_node()
            return decisions, announcement

        decisions, announcement = await context.retry_on_conflict(plan_and_write)
        return decisions.errors, announcement

    def in_progress(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """The reassignments in progress, of ``partitions`` or of all. Raises NOT_CONTROLLER."""
        self._context.election.check_active()
        return in_progress(self._context.image, partitions)

    async def finish(self) -> Announcement | None:
        """Completes reassignments. To be called within :meth:`ControllerContext.change_lock`, after other
        changes.

        If the store is unavailable, this is called again after the next read of the registrations.
        """
        try:
            announcement = await self._finish()
        except StoreError:
            self._context.schedule_broker_refresh()
            raise
        if self._is_cleanup_due:
            await self.clean_up_node()
        return announcement

    async def _finish(self) -> Announcement | None:
        context = self._context
        if not self._planned():
            return None
        # A remaining replica may have restarted without its data: check before the others are removed.
        await context.parts.refresh_brokers()
        plans = self._planned()
        if not plans:
            return None
        self._is_cleanup_due = True
        return await context.write_and_announce(plans)

    def _planned(self) -> list[Plan]:
        context = self._context
        return plan_completions(context.image, stopping=context.stopping(), policy_of=context.policies.of)

    async def apply_requested_reassignments(self) -> None:
        """Applies the reassignments in /admin/reassign_partitions.

        The node keeps the reassignments in progress and is deleted with the last one; then an administrator
        can create another. Raises NOT_CONTROLLER, StoreError.
        """
        node = await self._context.store.get(REASSIGN_PARTITIONS)
        if node is None:
            return
        try:
            requested = ReassignmentNode.decode(node.data)
        except NodeFormatError as problem:
            logger.error("%s", problem)
            return
        fresh = {key for key in requested if self._applied.get(key) != requested[key]}

        def note(accepted: Reassignments) -> None:
            for line in in_lines(f"{key} to {target}" for key, target in accepted.items() if key in fresh):
                admin_log.info("reassignments started by %s: %s", REASSIGN_PARTITIONS, line)

        errors, announcement = await self._change(requested, True, note, node)
        await wait_for_all([announcement])
        for partition, error in errors.items():
            logger.warning(
                "the reassignment of %s requested by an administrator is rejected: %s", partition, error
            )

    async def clean_up_node(self) -> None:
        """Removes completed and cancelled reassignments from the administrator's node.

        To be called within :meth:`ControllerContext.change_lock`, after changes that may have ended a
        reassignment. Reassignments that were not handled yet stay. If the store is unavailable, this is
        called again after the next read of the registrations: otherwise the next controller would start a
        cancelled reassignment again.
        """
        self._is_cleanup_due = True
        try:
            await self._clean_up_node()
        except StoreError:
            self._context.schedule_broker_refresh()
            raise
        self._is_cleanup_due = False

    async def _clean_up_node(self) -> None:
        context = self._context
        node = await context.store.get(REASSIGN_PARTITIONS)
        if node is None:
            self._applied = {}
            return
        try:
            requested: Mapping[TopicPartition, list[int]] = ReassignmentNode.decode(node.data)
        except NodeFormatError:
            return  # The node stays until the administrator corrects it.
        in_progress = still_in_progress(context.image, requested)
        left = {
            partition: replicas
            for partition, replicas in requested.items()
            if partition in in_progress or self._applied.get(partition) != replicas
        }
        if not requested or len(left) < len(requested):
            try:
                await context.write_operations([write_reassignments(left, node.version)])
                self._applied = in_progress
            except (BadVersion, NoNode):
                context.election.check_active()  # The node has other reassignments, which are handled next.
