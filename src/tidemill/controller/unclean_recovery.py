"""Recovers partitions without a replica that is known to have every committed record.

:func:`~tidemill.controller.leader_election.recovery_candidates` selects these partitions. Among several
candidates the one with the best log is elected, so the controller requests the log end of each. Replicas that
do not respond in time are not elected. If a candidate was started after the request, all log ends are
requested again. Source: KIP-966, "Unclean recovery".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.controller.controller_context import ControllerContext
from tidemill.controller.leader_election import (
    NO_LOG_ENDS,
    LogEnds,
    available_replicas,
    plan_topic_elections,
    recovery_candidates,
)
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import StoreError
from tidemill.model.errors import KafkaError
from tidemill.model.types import NO_BROKER, TopicPartition

logger = logging.getLogger(__name__)

RESPONSES_S = 5.0
"""How long the controller waits for the log ends of replicas."""
RETRY_S = 1.0

RequestLogEnds = Callable[[Mapping[int, Sequence[TopicPartition]], float], Awaitable[LogEnds]]
"""Requests the log ends of replicas from brokers, with a timeout in seconds."""


class ReceivedLogEnds(NamedTuple):
    """The log ends that brokers returned, the requested replicas, and the epochs of their registrations."""

    ends: LogEnds
    requested: Mapping[TopicPartition, Sequence[int]]
    """The brokers with a request, by partition. Partitions with a single candidate are absent."""
    registrations: Mapping[int, int]
    """The registration epochs of these brokers."""

    def is_complete(self, key: TopicPartition, candidates: Sequence[int], image: ClusterImage) -> bool:
        """Whether all of ``candidates`` received requests in their current registrations.

        A candidate that was started meanwhile may have the best log.
        """
        requested = self.requested.get(key, ())
        return len(candidates) < 2 or all(
            broker in requested and self.registrations[broker] == image.brokers[broker].epoch
            for broker in candidates
        )

    def valid_in(self, image: ClusterImage) -> LogEnds:
        """The log ends without brokers that have registered again: a restart may have changed their logs."""
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


NO_REQUEST = ReceivedLogEnds(NO_LOG_ENDS, {}, {})


class UncleanRecovery:
    """Elects leaders by their logs where no replica is in sync or eligible."""

    def __init__(self, context: ControllerContext, request_log_ends: RequestLogEnds) -> None:
        self._context = context
        self.request_log_ends = request_log_ends
        self._task: asyncio.Task[None] | None = None
        context.election.controller_change_listeners.append(self._controller_changed)

    def _controller_changed(self, is_ours: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if is_ours:
            self.begin()

    def begin(self) -> None:
        """Starts the recovery of partitions without a leader, unless it runs."""
        if self._task is None and self._context.election.is_active:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _recoverable_partitions(self) -> dict[TopicPartition, list[int]]:
        """The partitions that need recovery, and the replicas with their log ends."""
        context = self._context
        image, stopping = context.image, context.stopping()
        found = {}
        for name in image.topic_index.leaderless:
            topic = image.topics[name]
            policy = context.policies.of(topic)
            for partition in topic.partitions:
                candidates = recovery_candidates(image, partition, policy, stopping)
                if candidates:
                    found[TopicPartition(name, partition.partition)] = candidates
        return found

    async def _run(self) -> None:
        """Runs until no partition needs recovery."""
        try:
            while requested := self._recoverable_partitions():
                try:
                    if await self._recover(requested):
                        continue
                except (KafkaError, StoreError) as problem:
                    logger.warning(
                        "leaderless partitions could not be recovered, will retry in %g s: %s",
                        RETRY_S,
                        problem,
                    )
                except Exception:
                    # An internal error. Without this handler, these partitions would never get a leader.
                    logger.exception(
                        "leaderless partitions could not be recovered, will retry in %g s", RETRY_S
                    )
                await asyncio.sleep(RETRY_S)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _recover(self, requested: Mapping[TopicPartition, Sequence[int]]) -> bool:
        """Runs one attempt. Returns whether a partition got a leader. Raises StoreError, NOT_CONTROLLER."""
        context = self._context
        received = await self._request_log_ends(requested)
        async with context.change_lock():
            # Brokers may have stopped or restarted meanwhile, and reported losses.
            await context.parts.refresh_brokers()
            # The log ends of the skipped partitions are requested again, from all candidates.
            incomplete = set(self.incomplete(received, received.ends))
            ends = {key: ends for key, ends in received.ends.items() if key not in incomplete}
            names = dict.fromkeys(key.topic for key in requested)
            topics = [context.image.topics[name] for name in names if name in context.image.topics]
            plans = plan_topic_elections(
                context.image,
                policy_of=context.policies.of,
                stopping=context.stopping(),
                topics=topics,
                ends=ends,
            )
            return await context.write_and_announce(plans, ends=ends) is not None

    def incomplete(
        self, received: ReceivedLogEnds, requested: Iterable[TopicPartition], *, is_unclean: bool = False
    ) -> list[TopicPartition]:
        """The ``requested`` partitions with a current candidate whose log end was not requested.

        ``is_unclean``: an operator has requested an unclean election, which has more candidates.
        """
        context = self._context
        image, stopping = context.image, context.stopping()
        found = []
        for key in requested:
            topic = image.topics.get(key.topic)
            partition = topic.partition(key.partition) if topic is not None else None
            if topic is None or partition is None:
                continue
            policy = context.policies.of(topic)
            if is_unclean:
                policy = policy._replace(unclean=True)
            candidates = recovery_candidates(image, partition, policy, stopping)
            if not received.is_complete(key, candidates, image):
                found.append(key)
        return found

    async def _request_log_ends(self, requested: Mapping[TopicPartition, Sequence[int]]) -> ReceivedLogEnds:
        several = {key: brokers for key, brokers in requested.items() if len(brokers) > 1}
        by_broker: dict[int, list[TopicPartition]] = {}
        for key, brokers in several.items():
            for broker in brokers:
                by_broker.setdefault(broker, []).append(key)
        if not by_broker:
            return NO_REQUEST
        known = self._context.image.brokers
        registrations = {broker: known[broker].epoch for broker in by_broker}
        return ReceivedLogEnds(await self.request_log_ends(by_broker, RESPONSES_S), several, registrations)

    async def log_ends_of(self, partitions: Container[TopicPartition] | None) -> ReceivedLogEnds:
        """The log ends of the live replicas of leaderless ``partitions``, or of all leaderless partitions."""
        image, stopping = self._context.image, self._context.stopping()
        requested = {}
        for name in image.topic_index.leaderless:
            for partition in image.topics[name].partitions:
                key = TopicPartition(name, partition.partition)
                if partition.leader == NO_BROKER and (partitions is None or key in partitions):
                    requested[key] = available_replicas(image, partition, stopping)
        return await self._request_log_ends(requested)
