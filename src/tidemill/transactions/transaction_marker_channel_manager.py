"""Writes the markers of decided transactions into their partitions, through the leaders of these.

Each broker has a queue, and one request at a time: markers that come during a request are in the next one.
A marker that could not be written is queued again after a pause, for the leader that the partition has then.
It is not repeated when it has become needless: the topic was deleted, or a later coordinator has ended the
transaction.

Markers can be written twice, if a response is lost. The second one ends no transaction.

Source: Apache Kafka, ``TransactionMarkerChannelManager.scala``,
``TransactionMarkerRequestCompletionHandler.scala``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, slices_of
from tidemill.model.task_set import TaskSet
from tidemill.model.types import TopicPartition
from tidemill.transactions.coordinator_effects import TransactionMarker

logger = logging.getLogger("tidemill.transactions")

RETRY_S: Final = 0.1
"""The pause before a marker is sent again."""
REQUEST_PARTITIONS_MAX: Final = 2_000
"""Partitions in one request: their appends take some ten milliseconds."""
WRITTEN: Final = frozenset(
    {
        ErrorCode.NONE,
        # No record of the transaction could be stored there.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        # The partition has a later epoch of the producer: the transaction has ended there. Kafka gives up,
        # and the transactional id keeps its state until another broker coordinates it.
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""Errors of partitions that need no marker."""


class PartitionMarker(NamedTuple):
    """A marker and one of its partitions."""

    marker: TransactionMarker
    partition: TopicPartition
    coordinator_epoch: Callable[[], int]
    """The leader epoch of this broker for the partition of ``__transaction_state``. It grows if this broker
    becomes the leader again, even if it was not notified of the leader in between."""
    on_written: Callable[[TransactionMarker, TopicPartition], None]
    """Called once the partition needs no marker any more."""
    is_needed: Callable[[], bool]
    """Whether this broker still coordinates the transaction."""


class MarkerDestinations(Protocol):
    """The leaders of partitions, and the requests to them."""

    def leader(self, partition: TopicPartition) -> int | None:
        """Returns the leader of a partition; None while there is none."""
        ...

    async def deleted(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Returns those of ``partitions``, which have no leader, that certainly do not exist any more."""
        ...

    async def write(
        self, broker_id: int, markers: Sequence[PartitionMarker]
    ) -> Mapping[tuple[int, TopicPartition], ErrorCode]:
        """Writes markers through a leader; returns the errors by producer id and partition.

        Raises KafkaError if the broker does not respond.
        """
        ...


class TransactionMarkerChannelManager:
    """The queues of markers by broker."""

    def __init__(self, destinations: MarkerDestinations, tasks: TaskSet) -> None:
        self._destinations = destinations
        self._tasks = tasks
        self._queues: dict[int, deque[PartitionMarker]] = {}
        """By broker id. A broker with a queue, which may be empty, has a request."""
        self._waiting: list[PartitionMarker] = []
        """Markers to send again after the pause."""
        self._problems: dict[int, str] = {}
        """By broker id: the error of the last request, if it failed."""
        self.unfinished = 0
        """Markers that are not written yet, for the metrics."""

    def send(self, markers: Sequence[PartitionMarker]) -> None:
        """Queues markers for the leaders of their partitions."""
        self.unfinished += len(markers)
        self._route_slices(slices_of(markers, ITEMS_PER_SLICE))

    def _route(self, markers: Sequence[PartitionMarker]) -> None:
        leaderless = []
        for one in self._needed(markers):
            leader = self._destinations.leader(one.partition)
            if leader is None:
                leaderless.append(one)
            elif leader in self._queues:
                self._queues[leader].append(one)
            else:
                self._queues[leader] = deque([one])
                self._tasks.start(self._send_to(leader))
        if leaderless:
            self._tasks.start(self._await_leaders(leaderless))

    async def _await_leaders(self, markers: Sequence[PartitionMarker]) -> None:
        """Queues markers of partitions without leader again, unless the partitions were deleted."""
        deleted: Collection[TopicPartition] = ()
        try:
            deleted = await self._destinations.deleted({one.partition for one in markers})
        except Exception:
            logger.exception("%d markers wait for leaders, their partitions may be deleted", len(markers))
        for one in markers:
            if one.partition in deleted:
                logger.info("%s was deleted: it needs no marker of %s", one.partition, one.marker)
                self._written(one)
            else:
                self._retry(one)

    def _needed(self, markers: Sequence[PartitionMarker]) -> list[PartitionMarker]:
        """Returns ``markers`` without those of transactions that another broker coordinates now."""
        needed = [one for one in markers if one.is_needed()]
        self.unfinished -= len(markers) - len(needed)
        return needed

    async def _send_to(self, broker_id: int) -> None:
        """Sends requests to a broker until its queue is empty."""
        queue = self._queues[broker_id]
        try:
            while queue:
                count = min(len(queue), REQUEST_PARTITIONS_MAX)
                batch = self._needed([queue.popleft() for _ in range(count)])
                errors = await self._write(broker_id, batch)
                for one in batch:
                    key = (one.marker.producer.producer_id, one.partition)
                    self._handle(one, errors.get(key, ErrorCode.REQUEST_TIMED_OUT))
        finally:
            del self._queues[broker_id]

    async def _write(
        self, broker_id: int, markers: Sequence[PartitionMarker]
    ) -> Mapping[tuple[int, TopicPartition], ErrorCode]:
        """Writes markers through a leader; returns no result for any of them if the request failed.

        Logs each error once, and not at every attempt.
        """
        if not markers:
            return {}
        try:
            errors = await self._destinations.write(broker_id, markers)
        except Exception as problem:
            text = str(problem)
            # Other exceptions than KafkaErrors are bugs.
            is_bug = not isinstance(problem, KafkaError)
            level = logging.DEBUG if self._problems.get(broker_id) == text else logging.INFO
            logger.log(
                logging.ERROR if is_bug else level,
                "broker %d has not written %d markers, which are sent again: %s",
                broker_id,
                len(markers),
                text,
                exc_info=problem if is_bug else None,
            )
            self._problems[broker_id] = text
            return {}
        self._problems.pop(broker_id, None)
        return errors

    def _handle(self, one: PartitionMarker, error: ErrorCode) -> None:
        if error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            # A later coordinator ends the transaction, unless this broker replaces it.
            logger.info("%s refuses the marker of %s: %s", one.partition, one.marker, error.name)
        if error in WRITTEN:
            self._written(one)
        else:
            self._retry(one)

    def _written(self, one: PartitionMarker) -> None:
        self.unfinished -= 1
        try:
            one.on_written(one.marker, one.partition)
        except Exception:
            # A bug. The markers of other transactions follow.
            logger.exception("the marker of %s in %s was not counted", one.marker, one.partition)

    def _retry(self, one: PartitionMarker) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(RETRY_S, self._route_waiting)
        self._waiting.append(one)

    def _route_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._route_slices(slices_of(waiting, ITEMS_PER_SLICE))

    def _route_slices(self, slices: Sequence[Sequence[PartitionMarker]], at: int = 0) -> None:
        """Routes a slice in each turn of the event loop: there may be markers for all partitions."""
        if at < len(slices):
            self._route(slices[at])
        if at + 1 < len(slices):
            asyncio.get_running_loop().call_soon(self._route_slices, slices, at + 1)
