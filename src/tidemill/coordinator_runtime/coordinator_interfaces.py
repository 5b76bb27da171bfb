"""The interfaces that the coordinator runtime requires from the rest of the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from tidemill.coordinator_runtime.value_classes import Value
from tidemill.model.transaction_types import MarkerToWrite


class CoordinatorLog(Protocol):
    """The replicas of a coordinator's topic on this broker."""

    def append(self, partition: int, batch: bytes) -> Awaitable[None]:
        """Appends a v2 batch with ``acks=all``; returns once it is committed.

        Batches are appended in the order of the calls, and the awaitables of one partition complete in that
        order. Raises :class:`~tidemill.model.errors.KafkaError` with the error of the append.
        """
        ...

    def append_marker(self, partition: int, marker: MarkerToWrite) -> Awaitable[None]:
        """Appends the marker of a transaction, as :meth:`append` does a batch."""
        ...

    def read(self, partition: int) -> AsyncIterator[bytes]:
        """Yields all batches from the log start offset to the log end offset, some whole batches at a time.

        It reads up to the log end offset, not the high watermark: the previous leader may have acknowledged
        records beyond the new leader's high watermark. The iterator ends once all that was read is committed,
        so that no client sees a state that a later leader does not have. Raises
        :class:`~tidemill.model.errors.KafkaError` when the partition gets another leader before that.
        """
        ...


class CoordinatorEndpoint(Value):
    """The address of a coordinator, as clients see it."""

    node_id: int
    host: str
    port: int


class CoordinatorTopic(Protocol):
    """A coordinator's topic in the cluster's metadata."""

    name: str

    def partition_count(self) -> int:
        """The number of its partitions; the configured number while the topic does not exist."""
        ...

    def leader(self, partition: int, listener: str) -> CoordinatorEndpoint | None:
        """The leader's address on that listener; None while there is no leader (or no topic)."""
        ...

    async def ensure(self) -> None:
        """Creates the topic where it is missing; returns once this broker has its metadata."""
        ...
