"""Moves of partitions at work: what clients and administrators wish for, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tidemill.controller.command_parts import PARTITIONS_A_PART
from tidemill.controller.office import Office, admin_log, wait_for_all
from tidemill.controller.reassignment import (
    Decisions,
    Wishes,
    moves,
    plan_progress,
    plan_reassignment,
    unfinished,
    write_wishes,
)
from tidemill.controller.topics import Plan
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import Delta, PartitionImage
from tidemill.coordination.nodes import ReassignmentNode
from tidemill.coordination.port import BadVersion, Node, NoNode, StoreError
from tidemill.model.errors import KafkaError
from tidemill.model.log_lines import in_lines
from tidemill.model.slices import slices_of
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)


def _nothing(accepted: Wishes) -> None:
    pass


class Moves:
    """Moves partitions to other brokers, and ends each move once the new replicas are in sync."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._taken: Mapping[TopicPartition, Sequence[int] | None] = {}
        """What the administrator's node said when it was carried out last."""
        self._is_untidy = False
        """The administrator's node may name moves that have ended."""

    async def alter(
        self, wishes: Wishes, *, factor_may_change: bool = True, accepted: Callable[[Wishes], None] = _nothing
    ) -> dict[TopicPartition, KafkaError]:
        """Begins, replaces and stops moves (:data:`Wishes`). Returns the errors of those that are refused.

        ``accepted`` is called with those that are not, ``PARTITIONS_A_PART`` at a time at most, before the
        log says that a move has ended by them.

        Many are carried out a part at a time; others have the event loop in between. Raises NOT_CONTROLLER,
        StoreError: those that were begun before that go on.
        """
        errors: dict[TopicPartition, KafkaError] = {}
        deltas = []
        for some in slices_of(list(wishes), PARTITIONS_A_PART) or [()]:
            refused, delta = await self._carry_out(
                {key: wishes[key] for key in some}, factor_may_change, accepted
            )
            errors.update(refused)
            deltas.append(delta)
            await asyncio.sleep(0)
        await wait_for_all(deltas)
        return errors

    async def _carry_out(
        self,
        wishes: Wishes,
        factor_may_change: bool,
        accepted: Callable[[Wishes], None],
        node: Node | None = None,
    ) -> tuple[dict[TopicPartition, KafkaError], Delta | None]:
        """``node``: the administrator's node that holds these wishes."""
        office = self._office

        async def once() -> tuple[Decisions, Delta | None]:
            await office.look_at_brokers()
            if node is not None and await office.store.get(ReassignmentNode.path) != node:
                # It was written since, and is looked at next: a client may have stopped a move, say.
                return Decisions([], {}), None
            decisions = plan_reassignment(
                office.image,
                wishes,
                factor_may_change=factor_may_change,
                policy_of=office.policies.of,
                stopping=office.stopping(),
            )
            taken = {key: wish for key, wish in wishes.items() if key not in decisions.errors}
            delta = await office.change(decisions.plans, written=lambda: accepted(taken))
            if node is not None:
                self._taken = dict(wishes)
            await self.tidy()
            return decisions, delta

        decisions, delta = await office.decided(once)
        return decisions.errors, delta

    def under_way(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """The moves of ``partitions``, or of all, at this moment. Raises NOT_CONTROLLER."""
        self._office.check_active()
        return moves(self._office.image, partitions)

    async def finish(self) -> Delta | None:
        """Ends the moves that can end. To be called within :meth:`Office.changing`, after other changes.

        Where the store does not answer, it is called again after another look at the brokers.
        """
        try:
            delta = await self._finish()
        except StoreError:
            self._office.look_again()
            raise
        if self._is_untidy:
            await self.tidy()
        return delta

    async def _finish(self) -> Delta | None:
        office = self._office
        if not self._planned():
            return None
        # A replica that stays may have restarted without its data: check before the others are removed.
        await office.look_at_brokers()
        plans = self._planned()
        if not plans:
            return None
        self._is_untidy = True
        return await office.change(plans)

    def _planned(self) -> list[Plan]:
        office = self._office
        return plan_progress(office.image, stopping=office.stopping(), policy_of=office.policies.of)

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
        fresh = {key for key in wishes if self._taken.get(key) != wishes[key]}

        def note(accepted: Wishes) -> None:
            for line in in_lines(f"{key} to {wish}" for key, wish in accepted.items() if key in fresh):
                admin_log.info("reassignments started by %s: %s", ReassignmentNode.path, line)

        errors, delta = await self._carry_out(wishes, True, note, node)
        await wait_for_all([delta])
        for partition, error in errors.items():
            logger.warning("%s, which an administrator wishes, cannot be: %s", partition, error)

    async def tidy(self) -> None:
        """Leaves in the administrator's node what is under way as he wished.

        To be called within :meth:`Office.changing`, after what may have ended a move. Wishes that nobody has
        looked at yet stay. Where the store does not answer, it is called again after another look at the
        brokers: the next controller would begin a move again that was stopped.
        """
        self._is_untidy = True
        try:
            await self._tidy()
        except StoreError:
            self._office.look_again()
            raise
        self._is_untidy = False

    async def _tidy(self) -> None:
        office = self._office
        node = await office.store.get(ReassignmentNode.path)
        if node is None:
            self._taken = {}
            return
        try:
            wishes: Mapping[TopicPartition, list[int]] = ReassignmentNode.decode(node.data)
        except NodeFormatError:
            return  # It stays, for him to correct.
        under_way = unfinished(office.image, wishes)
        left = {
            partition: replicas
            for partition, replicas in wishes.items()
            if partition in under_way or self._taken.get(partition) != replicas
        }
        if not wishes or len(left) < len(wishes):
            try:
                await office.write_operations([write_wishes(left, node.version)])
                self._taken = under_way
            except (BadVersion, NoNode):
                office.check_active()  # He has other wishes by now, which are looked at next.
