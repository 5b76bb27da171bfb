"""Moves of partitions at work: what clients and administrators wish for, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tidemill.controller.office import Office, wait_for
from tidemill.controller.reassignment import (
    Decisions,
    Wishes,
    moves,
    plan_progress,
    plan_reassignment,
    unfinished,
    write_wishes,
)
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import Delta, PartitionImage
from tidemill.coordination.nodes import ReassignmentNode
from tidemill.coordination.port import BadVersion, NoNode
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)


class Moves:
    """Moves partitions to other brokers, and ends each move once the new replicas are in sync."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def alter(
        self, wishes: Wishes, *, factor_may_change: bool = True
    ) -> dict[TopicPartition, KafkaError]:
        """Begins, replaces and stops moves (:data:`Wishes`); why some wishes cannot be had.

        Raises NOT_CONTROLLER, StoreError.
        """

        office = self._office

        async def once() -> tuple[Decisions, Delta | None]:
            decisions = plan_reassignment(
                office.image,
                wishes,
                factor_may_change=factor_may_change,
                is_unclean=office.is_unclean,
                stopping=office.stopping(),
            )
            delta = await office.change(decisions.plans)
            await self._tidy()
            return decisions, delta

        decisions, delta = await office.decided(once)
        await wait_for(delta)
        return decisions.errors

    def under_way(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionImage]:
        """The moves of ``partitions``, or of all. Raises NOT_CONTROLLER."""
        self._office.check_active()
        return moves(self._office.image, partitions)

    async def finish(self) -> Delta | None:
        """Ends the moves that can end. To be called within :meth:`Office.changing`, after other changes."""
        office = self._office
        plans = plan_progress(office.image, stopping=office.stopping())
        if not plans:
            return None
        delta = await office.change(plans)
        await self._tidy()
        return delta

    async def take_wishes(self) -> None:
        """Does what an administrator wrote to /admin/reassign_partitions.

        The node keeps what is under way, and goes with the last of it; only then there is room for another.
        Raises NOT_CONTROLLER, StoreError.
        """
        node = await self._office.store.get(ReassignmentNode.path)
        if node is None:
            return
        try:
            wishes = ReassignmentNode.decode(node.data)
        except NodeFormatError as problem:
            logger.error("%s", problem)
            return
        for partition, error in (await self.alter(wishes)).items():
            logger.warning("%s, which an administrator wishes, cannot be: %s", partition, error)

    async def _tidy(self) -> None:
        """Leaves in the administrator's node what is under way as he wished."""
        office = self._office
        node = await office.store.get(ReassignmentNode.path)
        if node is None:
            return
        try:
            wishes: Mapping[TopicPartition, list[int]] = ReassignmentNode.decode(node.data)
        except NodeFormatError:
            return  # It stays, for him to correct.
        left = unfinished(office.image, wishes)
        if not wishes or left.keys() != wishes.keys():
            try:
                await office.write_operations([write_wishes(left, node.version)])
            except (BadVersion, NoNode):
                office.check_active()  # He has other wishes by now, which are looked at next.
