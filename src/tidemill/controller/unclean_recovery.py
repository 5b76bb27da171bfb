"""Recovers partitions of which no replica is known to have every committed record.

:func:`~tidemill.controller.elections.recovery_candidates` decides which partitions these are. Of several
candidates the one with the best log leads, so the controller asks each how far its log reaches. Replicas that
do not answer in time are not elected. Where one was started since the question, all are asked again. Source:
KIP-966, "Unclean recovery".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.controller.elections import (
    NO_LOG_ENDS,
    LogEnd,
    LogEnds,
    able_replicas,
    plan_takeover,
    recovery_candidates,
)
from tidemill.controller.office import Office
from tidemill.coordination.image import NO_BROKER, ClusterImage
from tidemill.coordination.port import StoreError
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)

ANSWERS_S = 5.0
"""How long the controller waits for the log ends of replicas."""
RETRY_S = 1.0

AskLogEnds = Callable[
    [Mapping[int, Sequence[TopicPartition]], float], Awaitable[dict[TopicPartition, dict[int, LogEnd]]]
]
"""Asks brokers for the log ends of some of their replicas, for so many seconds at most."""


async def ask_nobody(
    wanted: Mapping[int, Sequence[TopicPartition]], patience_s: float
) -> dict[TopicPartition, dict[int, LogEnd]]:
    """For a broker without others: it is the only candidate of each of its partitions."""
    return {}


class AnsweredLogEnds(NamedTuple):
    """The log ends that brokers returned, the brokers that were asked, and their registration epochs."""

    ends: LogEnds
    asked: Mapping[TopicPartition, Sequence[int]]
    """The brokers asked for each partition. A partition with a single candidate is not asked for."""
    registrations: Mapping[int, int]
    """The epochs of these brokers."""

    def is_complete(self, key: TopicPartition, candidates: Sequence[int], image: ClusterImage) -> bool:
        """Whether all of ``candidates`` were asked, in their present registrations.

        One that was started meanwhile may have the best log.
        """
        asked = self.asked.get(key, ())
        return len(candidates) < 2 or all(
            broker in asked and self.registrations[broker] == image.brokers[broker].epoch
            for broker in candidates
        )

    def valid_in(self, image: ClusterImage) -> LogEnds:
        """Without those of brokers that have registered anew since: a restart may have changed their logs."""
        renewed = {
            broker
            for broker, epoch in self.registrations.items()
            if broker in image.brokers and image.brokers[broker].epoch != epoch
        }
        if not renewed:
            return self.ends
        return {
            key: {broker: end for broker, end in ends.items() if broker not in renewed}
            for key, ends in self.ends.items()
        }


NOT_ASKED = AnsweredLogEnds(NO_LOG_ENDS, {}, {})


class UncleanRecovery:
    """Elects leaders by their logs where no replica is in sync or eligible."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self.ask: AskLogEnds = ask_nobody
        self._task: asyncio.Task[None] | None = None
        office.leaderless = self._begin
        office.office_listeners.append(self._office_changed)

    def _office_changed(self, is_ours: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if is_ours:
            self._begin()

    def _begin(self) -> None:
        if self._task is None and self._office.is_active:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _wanted(self) -> dict[TopicPartition, list[int]]:
        """The partitions that wait for an answer, and the replicas to ask."""
        office = self._office
        image, stopping = office.image, office.stopping()
        found = {}
        for name in image.topic_index.leaderless:
            topic = image.topics[name]
            policy = office.policies.of(topic)
            for partition in topic.partitions:
                candidates = recovery_candidates(image, partition, policy, stopping)
                if candidates:
                    found[TopicPartition(name, partition.partition)] = candidates
        return found

    async def _run(self) -> None:
        """Recovers until nothing is left to recover."""
        try:
            while wanted := self._wanted():
                try:
                    if not await self._recover(wanted):
                        await asyncio.sleep(RETRY_S)
                except (KafkaError, StoreError) as problem:
                    logger.warning(
                        "leaderless partitions could not be recovered, tried again in %g s: %s",
                        RETRY_S,
                        problem,
                    )
                    await asyncio.sleep(RETRY_S)
                except Exception:
                    # A fault of this program; these partitions would have no leader for good.
                    logger.exception(
                        "leaderless partitions could not be recovered, tried again in %g s", RETRY_S
                    )
                    await asyncio.sleep(RETRY_S)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _recover(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> bool:
        """One attempt; whether a partition has a leader by it. Raises StoreError, NOT_CONTROLLER."""
        office = self._office
        answered = await self._ask(wanted)
        async with office.changing():
            # Meanwhile brokers may have stopped or restarted, and reported losses.
            await office.look_at_brokers()
            # Of the partitions that are left out all candidates are asked again.
            incomplete = set(self.incomplete(answered, answered.ends))
            ends = {key: ends for key, ends in answered.ends.items() if key not in incomplete}
            names = dict.fromkeys(key.topic for key in wanted)
            topics = [office.image.topics[name] for name in names if name in office.image.topics]
            plans = plan_takeover(
                office.image,
                policy_of=office.policies.of,
                stopping=office.stopping(),
                topics=topics,
                ends=ends,
            )
            return await office.change(plans, ends=ends) is not None

    def incomplete(
        self, answered: AnsweredLogEnds, wanted: Iterable[TopicPartition], *, is_unclean: bool = False
    ) -> list[TopicPartition]:
        """Returns the ``wanted`` partitions with a present candidate whose log end was not asked for.

        ``is_unclean``: an operator has requested an unclean election, which has more candidates.
        """
        office = self._office
        image, stopping = office.image, office.stopping()
        found = []
        for key in wanted:
            topic = image.topics.get(key.topic)
            partition = topic.partition(key.partition) if topic is not None else None
            if topic is None or partition is None:
                continue
            policy = office.policies.of(topic)
            if is_unclean:
                policy = policy._replace(unclean=True)
            candidates = recovery_candidates(image, partition, policy, stopping)
            if not answered.is_complete(key, candidates, image):
                found.append(key)
        return found

    async def _ask(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> AnsweredLogEnds:
        asked = {key: brokers for key, brokers in wanted.items() if len(brokers) > 1}
        by_broker: dict[int, list[TopicPartition]] = {}
        for key, brokers in asked.items():
            for broker in brokers:
                by_broker.setdefault(broker, []).append(key)
        if not by_broker:
            return NOT_ASKED
        known = self._office.image.brokers
        registrations = {broker: known[broker].epoch for broker in by_broker}
        return AnsweredLogEnds(await self.ask(by_broker, ANSWERS_S), asked, registrations)

    async def ends_of(self, asked: Container[TopicPartition] | None) -> AnsweredLogEnds:
        """The log ends of the live replicas of leaderless ``asked``, or of all that have no leader."""
        office = self._office
        image, stopping = office.image, office.stopping()
        wanted = {}
        for name in image.topic_index.leaderless:
            for partition in image.topics[name].partitions:
                key = TopicPartition(name, partition.partition)
                if partition.leader == NO_BROKER and (asked is None or key in asked):
                    wanted[key] = able_replicas(image, partition, stopping)
        return await self._ask(wanted)
