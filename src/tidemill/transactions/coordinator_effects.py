"""The events and effects of the state machine of transactions
(:class:`~tidemill.transactions.transaction_state_manager.TransactionStateManager`), as plain values.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple, TypeAlias

from tidemill.coordinator_runtime.coordinator_effects import Append, CancelTimer, Reply, SetTimer, Waiter
from tidemill.coordinator_runtime.value_classes import Value
from tidemill.model.errors import ErrorCode
from tidemill.model.log_lines import ITEM_CHARACTERS_MAX, cut_short
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionMetadata


def shown(transactional_id: str) -> str:
    """Returns a transactional id, which clients choose, for a log line."""
    return cut_short(repr(transactional_id), ITEM_CHARACTERS_MAX)


class InitProducerIdRequest(Value):
    """A producer's request to begin with its transactional id."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    """The producer that continues after an error (KIP-360)."""
    keeps_prepared: bool = False
    """Whether an open transaction is taken over, and not aborted (KIP-939)."""


class ProducerResult(Value):
    """The response to InitProducerId and EndTxn: the id and epoch with which the producer continues."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    kept: ProducerIdAndEpoch = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    """The producer of the transaction that was taken over (KIP-939)."""


class AddPartitionsRequest(Value):
    """Partitions to add to a transaction."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]
    client_version: int = 0
    """The transaction version of the client."""


class AddPartitionsResult(Value):
    """The response to AddPartitionsToTxn and AddOffsetsToTxn."""

    error: ErrorCode


class EndTransactionRequest(Value):
    """A request to commit or abort a transaction."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    client_version: int = 0
    """The transaction version of the client."""


Response: TypeAlias = ProducerResult | AddPartitionsResult


class TransactionTimer(Enum):
    """The timers of a transactional id."""

    COMPLETION = "completion"
    """Repeats the append that completes a transaction."""
    DEFERRED = "deferred"
    """Refuses the requests that wait for the end of an earlier one."""


class TimerKey(NamedTuple):
    """Identifies a timer of a transactional id."""

    kind: TransactionTimer
    transactional_id: str


class ProducerStored(Value):
    """The write of a new id or epoch has ended."""

    waiter: Waiter
    transactional_id: str
    metadata: TransactionMetadata


class PartitionsStored(Value):
    """The write of added partitions has ended."""

    waiter: Waiter
    transactional_id: str


class EndStored(Value):
    """The write of the decision on a transaction has ended: its markers can be written."""

    waiter: Waiter | None
    """None if no producer has requested the end."""
    transactional_id: str
    metadata: TransactionMetadata


class CompletionStored(Value):
    """The write of the end of a transaction, after its markers, has ended."""

    transactional_id: str


class IdsRemoved(Value):
    """The write of tombstones of expired transactional ids has ended."""

    transactional_ids: tuple[str, ...]


Continuation: TypeAlias = ProducerStored | PartitionsStored | EndStored | CompletionStored | IdsRemoved


class AllocateProducerId(Value):
    """Requests a new producer id for a transactional id; it is passed to ``producer_id_allocated``."""

    transactional_id: str


class TransactionMarker(Value):
    """The marker of a transaction. The epoch of the coordinator is that of its partition's leader."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    client_version: int

    def __str__(self) -> str:
        producer_id, epoch = self.producer
        return f"the transaction of {shown(self.transactional_id)} (producer {producer_id}, epoch {epoch})"


class SendMarkers(Value):
    """Writes a marker into partitions; each of them is passed to ``marker_written``."""

    marker: TransactionMarker
    partitions: Collection[TopicPartition]


class TransactionFenced(Value):
    """A transaction is aborted although its producer may go on with it; for the log."""

    transactional_id: str
    timeout_ms: int
    """That of the transaction if it has timed out; 0 if another producer begins with its id."""

    def __str__(self) -> str:
        reason = (
            f"it was open for longer than its timeout of {self.timeout_ms} ms"
            if self.timeout_ms
            else "another producer, or an administrator, takes over its transactional id"
        )
        return f"the transaction of {shown(self.transactional_id)} is aborted: {reason}"


class TransactionEnded(Value):
    """A transaction ended; for the log and the metrics."""

    transactional_id: str
    is_commit: bool


Effect: TypeAlias = (
    Reply[Response]
    | SetTimer[TimerKey]
    | CancelTimer[TimerKey]
    | Append[TransactionRecord, Continuation]
    | AllocateProducerId
    | SendMarkers
    | TransactionFenced
    | TransactionEnded
)
