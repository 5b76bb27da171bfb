"""What the group service needs of the rest of the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

OFFSETS_TOPIC: Final = "__consumer_offsets"


class OffsetsLog(Protocol):
    """The partitions of ``__consumer_offsets`` that this broker has."""

    def append(self, partition: int, batch: bytes) -> Awaitable[None]:
        """Appends a v2 batch with ``acks=all``; done once it is committed.

        Batches are appended in the order of the calls, and the awaitables of one partition end in that
        order. Raises :class:`~tidemill.model.errors.KafkaError` with the error of the append.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[bytes]:
        """Every batch from the start to the end of the log, a bounded slice of whole batches at a time.

        To its end, not to its high watermark: what a new leader has beyond that may have been acknowledged
        by the one before. It ends once all that it read is committed, so that nobody is shown an offset
        that a later leader does not have. Raises :class:`~tidemill.model.errors.KafkaError` when the
        partition has another leader before.
        """
        ...


class CoordinatorEndpoint(NamedTuple):
    """Where a client finds a coordinator."""

    node_id: int
    host: str
    port: int


class OffsetsTopic(Protocol):
    """``__consumer_offsets`` as the cluster's metadata has it."""

    def partition_count(self) -> int:
        """Its partitions; while it does not exist, those that it will have."""
        ...

    def leader(self, partition: int, listener: str) -> CoordinatorEndpoint | None:
        """The leader's address on that listener; None while there is no leader (or no topic)."""
        ...

    async def ensure(self) -> None:
        """Creates the topic where it is missing; returns once it is known to this broker."""
        ...


class TimerHandle(Protocol):
    """A timer that was set."""

    def cancel(self) -> None:
        """Keeps it from firing."""
        ...


class Scheduler(Protocol):
    """Steady time and timers: an asyncio loop, or a test's."""

    def time(self) -> float:
        """Seconds from an arbitrary start."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Calls back once :meth:`time` has reached ``when``."""
        ...
