"""The events and effects of a coordinator's state machine, as plain values.

The state machine never waits. A request without an immediate response leaves its *waiter*, an object that the
state machine never reads: exactly one :class:`Reply` refers to it later. Effects are performed in the order
in which they are emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NewType, Protocol, TypeAlias, TypeVar

from tidemill.coordinator_runtime.value_classes import Value
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch

Waiter = NewType("Waiter", object)
"""The receiver of a response."""

ResponseT = TypeVar("ResponseT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
ThenT_co = TypeVar("ThenT_co", covariant=True)
KeyT = TypeVar("KeyT", bound=Hashable)


class Now(Value):
    """The time of an event. Deadlines use monotonic time, records use wall time."""

    monotonic_ms: int
    wall_ms: int


class CoordinatorRecord(Protocol):
    """A record of the coordinator's topic."""

    def key_bytes(self) -> bytes:
        """Returns the key."""
        ...

    def value_bytes(self) -> bytes | None:
        """Returns the value; None for a tombstone."""
        ...


class TransactionProducer(Value):
    """A producer whose records belong to its transaction."""

    producer: ProducerIdAndEpoch
    check: Callable[[], None]
    """Raises KafkaError at the append if the transaction is not open any more."""


class Reply(Value, Generic[ResponseT]):
    """The only response to a waiter."""

    waiter: Waiter
    response: ResponseT


class SetTimer(Value, Generic[KeyT]):
    """Calls back with ``key`` at ``deadline_ms`` (monotonic); replaces a timer of the same key."""

    key: KeyT
    deadline_ms: int


class CancelTimer(Value, Generic[KeyT]):
    """Cancels the timer of ``key``, if it is set."""

    key: KeyT


class Append(Value, Generic[RecordT_co, ThenT_co]):
    """Records for the log, in one batch where these are few; they are created when they are iterated.

    Once they are committed, they are replayed if ``replay`` is set (some state is in memory already). Then
    the state machine receives ``then``; when the write failed, it gets ``then`` with the error.
    """

    records: Iterable[RecordT_co]
    """May be an iterator."""
    then: ThenT_co
    replay: bool
    producer: TransactionProducer | None = None
    """The producer of a transaction that the records belong to."""
    marker: MarkerToWrite | None = None
    """The marker of a transaction to append instead of records."""


AnyAppend: TypeAlias = Append[CoordinatorRecord, object]
"""An append of any coordinator. The runtime encodes its records, and passes its continuation on."""
