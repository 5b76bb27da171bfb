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
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tidemill.model.errors import ErrorCode, KafkaError
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
    }
)
FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A later coordinator, or a later producer, has ended the transaction."""


class PartitionMarker(NamedTuple):
    """A marker and one of its partitions."""

    marker: TransactionMarker
    partition: TopicPartition
    coordinator_epoch: int
    on_written: Callable[[TransactionMarker, TopicPartition], None]
    """Called once the partition needs no marker any more."""
    is_needed: Callable[[], bool]
    """Whether this broker still coordinates the transaction."""


class MarkerDestinations(Protocol):
    """The leaders of partitions, and the requests to them."""

    def leader(self, partition: TopicPartition) -> int | None:
        """Returns the leader of a partition; None while there is none."""
        ...

    def is_deleted(self, partition: TopicPartition) -> bool:
        """Whether the partition does not exist any more."""
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
        self._queues: dict[int, list[PartitionMarker]] = {}
        """By broker id. A broker with a queue, which may be empty, has a request."""
        self._waiting: list[PartitionMarker] = []
        """Markers to send again after the pause."""
        self.unfinished = 0
        """Markers that are not written yet, for the metrics."""

    def send(self, markers: Sequence[PartitionMarker]) -> None:
        """Queues markers for the leaders of their partitions."""
        self.unfinished += len(markers)
        self._route(markers)

    def _route(self, markers: Sequence[PartitionMarker]) -> None:
        for one in markers:
            leader = self._destinations.leader(one.partition)
            if not one.is_needed():
                self.unfinished -= 1
            elif self._destinations.is_deleted(one.partition):
                logger.info("%s was deleted: it needs no marker of %s", one.partition, one.marker)
                self._written(one)
            elif leader is None:
                self._retry(one)
            elif leader in self._queues:
                self._queues[leader].append(one)
            else:
                self._queues[leader] = [one]
                self._tasks.start(self._send_to(leader))

    async def _send_to(self, broker_id: int) -> None:
        """Sends requests to a broker until its queue is empty."""
        try:
            while queue := self._queues[broker_id]:
                batch = queue[:REQUEST_PARTITIONS_MAX]
                self._queues[broker_id] = queue[REQUEST_PARTITIONS_MAX:]
                try:
                    errors = await self._destinations.write(broker_id, batch)
                except KafkaError as problem:
                    logger.info("broker %d has not written %d markers: %s", broker_id, len(batch), problem)
                    errors = {}
                for one in batch:
                    key = (one.marker.producer.producer_id, one.partition)
                    self._handle(one, errors.get(key, ErrorCode.REQUEST_TIMED_OUT))
        finally:
            left = self._queues.pop(broker_id, [])
            for one in left:
                self._retry(one)

    def _handle(self, one: PartitionMarker, error: ErrorCode) -> None:
        if error in WRITTEN:
            self._written(one)
        elif error in FENCED:
            self.unfinished -= 1
            logger.warning("%s refuses the marker of %s: %s", one.partition, one.marker, error.name)
        else:
            self._retry(one)

    def _written(self, one: PartitionMarker) -> None:
        self.unfinished -= 1
        one.on_written(one.marker, one.partition)

    def _retry(self, one: PartitionMarker) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(RETRY_S, self._route_waiting)
        self._waiting.append(one)

    def _route_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._route(waiting)
