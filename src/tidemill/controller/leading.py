"""Elects leaders on request, rebalances leadership, handles ControlledShutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from tidemill.controller.command_parts import PARTITIONS_A_PART
from tidemill.controller.office import Office, admin_log, wait_for, wait_for_all
from tidemill.controller.preferred import ElectionType, every_partition, imbalanced, plan_elections
from tidemill.controller.shutdown import ANY_EPOCH, check_stopping, planning_shutdown
from tidemill.controller.unclean_recovery import NOT_ASKED, AnsweredLogEnds, UncleanRecovery
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import Delta
from tidemill.coordination.nodes import PartitionListNode
from tidemill.coordination.port import BadVersion, Delete, NoNode, StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.log_lines import in_lines
from tidemill.model.slices import slices_by_weight, slices_of, with_pauses
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)

FIRST_BALANCE_S = 5.0
"""How long after taking the office the balance is looked at first; then at the configured interval."""

LOG_END_ROUNDS_MAX = 3
"""How often an unclean election asks for log ends while candidates restart."""


class Leading:
    """Moves leaderships while all brokers live."""

    def __init__(self, office: Office, recovery: UncleanRecovery) -> None:
        """``recovery`` knows how far logs reach, for unclean elections."""
        self._office = office
        self._recovery = recovery
        self._balancing: asyncio.Task[None] | None = None
        office.office_listeners.append(self._office_changed)

    async def elect(
        self, partitions: Iterable[TopicPartition] | None, election_type: int = ElectionType.PREFERRED
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elects leaders of ``partitions``, or of all that need it; None for each that has one, or why not.

        Many are carried out a part at a time; others have the event loop in between. Raises INVALID_REQUEST
        for a type that there is not, NOT_CONTROLLER, StoreError: leaders that were elected before that lead.
        """
        office = self._office
        wanted = partitions
        if wanted is not None and not isinstance(wanted, dict):
            wanted = dict.fromkeys(wanted)
        office.check_active()
        is_unclean = election_type == ElectionType.UNCLEAN
        results: dict[TopicPartition, KafkaError | None] = {}
        deltas = []
        are_named = wanted is not None
        for rounds_left in reversed(range(LOG_END_ROUNDS_MAX)):
            answered = await self._recovery.ends_of(wanted) if is_unclean else NOT_ASKED
            again: dict[TopicPartition, None] = {}
            for some in self._parts(wanted):
                elect_some = partial(
                    self._elect_some,
                    some,
                    election_type,
                    answered,
                    are_named=are_named,
                    may_ask_again=is_unclean and rounds_left > 0,
                )
                found, unasked, delta = await office.decided(elect_some)
                results.update(found)
                again |= unasked
                deltas.append(delta)
                await asyncio.sleep(0)
            if not again:
                break
            wanted = again
        await wait_for_all(deltas)
        return results

    def _parts(self, wanted: Mapping[TopicPartition, None] | None) -> Iterator[Sequence[TopicPartition]]:
        """``wanted`` in parts, or all partitions; one without any where there are none."""
        if wanted is not None:
            yield from slices_of(list(wanted), PARTITIONS_A_PART) or [()]
            return
        image = self._office.image
        yield ()
        for names in slices_by_weight(
            list(image.topics), lambda name: len(image.topics[name].partitions), PARTITIONS_A_PART
        ):
            yield every_partition(image, names)

    async def _elect_some(
        self,
        wanted: Sequence[TopicPartition],
        election_type: int,
        answered: AnsweredLogEnds,
        *,
        are_named: bool,
        may_ask_again: bool,
    ) -> tuple[dict[TopicPartition, KafkaError | None], dict[TopicPartition, None], Delta | None]:
        """Returns the results, the partitions whose log ends have to be asked for again, and the change."""
        office = self._office
        await office.look_at_brokers()
        again = dict.fromkeys(
            self._recovery.incomplete(answered, wanted, is_unclean=True) if may_ask_again else ()
        )
        ends = answered.valid_in(office.image)
        decisions = plan_elections(
            office.image,
            [one for one in wanted if one not in again],
            election_type,
            office.stopping(),
            office.policies.of,
            ends,
            are_named=are_named,
        )
        elected = [
            TopicPartition(plan.topic.name, after.partition)
            for plan in decisions.plans
            for before, after in zip(
                office.image.topics[plan.topic.name].partitions, plan.topic.partitions, strict=True
            )
            if before is not after
        ]
        delta = await office.change(decisions.plans, ends=ends)
        return {**dict.fromkeys(elected), **decisions.errors}, again, delta

    async def take_elections(self) -> None:
        """Elects what an administrator wrote to /admin/preferred_replica_election, and removes the node.

        Raises NOT_CONTROLLER, StoreError.
        """
        store = self._office.store
        node = await store.get(PartitionListNode.election_path)
        if node is None:
            return
        try:
            partitions = PartitionListNode.decode(PartitionListNode.election_path, node.data)
        except NodeFormatError as problem:
            logger.error("%s", problem)
            return
        results = await self.elect(partitions)
        for line in in_lines(str(partition) for partition, error in results.items() if error is None):
            admin_log.info("preferred elections done as %s asks: %s", PartitionListNode.election_path, line)
        for partition, error in results.items():
            if error is not None and error.code != ErrorCode.ELECTION_NOT_NEEDED:
                logger.warning("%s is not led as an administrator asked: %s", partition, error)
        async with self._office.changing():
            try:
                await self._office.write_operations([Delete(PartitionListNode.election_path, node.version)])
            except (BadVersion, NoNode):
                self._office.check_active()  # He asks for others by now, which are looked at next.

    async def shut_down(self, broker: int, epoch: int = ANY_EPOCH) -> list[TopicPartition]:
        """Relieves a broker that is about to stop; what it still leads, because nobody else could.

        Raises BROKER_NOT_AVAILABLE, STALE_BROKER_EPOCH, NOT_CONTROLLER, StoreError.
        """
        office = self._office

        async def once() -> tuple[list[TopicPartition], Delta | None]:
            await office.look_at_brokers()
            check_stopping(office.image, broker, epoch)
            office.note_stopping(broker)
            plans, remaining = await with_pauses(
                planning_shutdown(office.image, broker, office.stopping(), office.policies.of)
            )
            office.check_active()  # The office may be lost in a pause.
            return remaining, await office.change(plans)

        remaining, delta = await office.decided(once)
        logger.info("broker %d is about to stop, and still leads %d partitions", broker, len(remaining))
        await wait_for(delta)
        return remaining

    async def balance(self) -> int:
        """Returns leaderships to preferred replicas where brokers lead too little; how many.

        Raises NOT_CONTROLLER, StoreError.
        """
        office = self._office

        async def once() -> tuple[int, Delta | None]:
            await office.look_at_brokers()
            percentage = office.config().int("leader.imbalance.per.broker.percentage")
            wanted = imbalanced(office.image, percentage, office.stopping())
            decisions = plan_elections(
                office.image, wanted, ElectionType.PREFERRED, office.stopping(), office.policies.of
            )
            return len(wanted), await office.change(decisions.plans)

        count, delta = await office.decided(once)
        await wait_for(delta)
        return count

    def _office_changed(self, is_ours: bool) -> None:
        if self._balancing is not None:
            self._balancing.cancel()
            self._balancing = None
        if is_ours:
            self._balancing = asyncio.get_running_loop().create_task(self._keep_balance())

    async def _keep_balance(self) -> None:
        await asyncio.sleep(FIRST_BALANCE_S)
        while True:
            config = self._office.config()
            if config.bool("auto.leader.rebalance.enable"):
                try:
                    count = await self.balance()
                except (KafkaError, StoreError) as problem:
                    logger.warning("leaders could not return to preferred replicas: %s", problem)
                except Exception:
                    # A fault of this program; leaders would return to preferred replicas no more.
                    logger.exception("leaders could not return to preferred replicas")
                else:
                    if count:
                        logger.info("%d partitions are led by their preferred replicas again", count)
            await asyncio.sleep(config.int("leader.imbalance.check.interval.seconds"))
