"""The state of one transactional id, and the transitions between its states.

==================  ==========================================================================================
state               the next states
==================  ==========================================================================================
Empty               Ongoing, with the first partition; PrepareAbort (transaction.version 2)
Ongoing             PrepareCommit or PrepareAbort
PrepareCommit       CompleteCommit, once all partitions have their markers
PrepareAbort        CompleteAbort, once all partitions have their markers
CompleteCommit,     Ongoing; Empty by InitProducerId; PrepareAbort (transaction.version 2)
CompleteAbort
==================  ==========================================================================================

A :class:`TransactionMetadata` is not changed; a transition returns another one, which is a record of
``__transaction_state`` first, and the state of the id once that record is committed.

Epochs go up to 32,766. The last one, 32,767, is kept for the coordinator, so that it can fence a producer.

Source: Apache Kafka, ``TransactionMetadata.java``; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
LAST_EPOCH: Final = 32_766
"""The last epoch of a producer; the next one has another producer id."""
FENCED_EPOCH: Final = 32_767
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a two-phase commit (KIP-939): another system decides on its end."""
NO_TIME_MS: Final = -1
EPOCH_BUMP_VERSION: Final = 2
"""The transaction version from which on the epoch grows with each transaction (KIP-890)."""


class TransactionState(IntEnum):
    """The states by their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
"""The states by their names in the protocol."""
PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states in which the markers are written."""
ENDED: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""The states without a transaction."""


class TransactionMetadata(NamedTuple):
    """The state of a transactional id. Times are wall clock milliseconds."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    update_ms: int
    start_ms: int = NO_TIME_MS
    """When the transaction began; the value of a former transaction may remain."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id of the producer after a transaction that ends with its last epoch."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last InitProducerId of the producer itself; it is not in the log."""
    client_version: int = 0
    """The transaction version of the client that changed the state."""

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer needs another producer id for another epoch."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def has_timeout(self) -> bool:
        """Whether the coordinator aborts the transaction after its timeout."""
        return self.timeout_ms != NO_TIMEOUT_MS


def create(producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """Returns the state of a new transactional id; its producer has no epoch yet."""
    return TransactionMetadata(
        producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, frozenset(), now_ms
    )


def increment_epoch(
    before: TransactionMetadata, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> TransactionMetadata:
    """Returns the state after InitProducerId. ``expected_epoch`` is that of a producer that goes on.

    Raises KafkaError with PRODUCER_FENCED if another producer has begun with a later epoch.
    """
    epoch = before.producer_epoch + 1
    if expected_epoch is None:
        last = NO_PRODUCER_EPOCH
    elif expected_epoch == before.producer_epoch or before.producer_epoch == NO_PRODUCER_EPOCH:
        last = before.producer_epoch
    elif expected_epoch == before.last_producer_epoch:
        # The producer repeats a request whose response it has not received. An InitProducerId of another
        # producer would have removed the last epoch.
        epoch, last = before.producer_epoch, expected_epoch
    else:
        raise KafkaError(
            f"the producer has epoch {expected_epoch}, and the last epoch is {before.producer_epoch}:"
            " another producer uses this transactional id",
            ErrorCode.PRODUCER_FENCED,
        )
    return _initialized(before, timeout_ms, now_ms)._replace(producer_epoch=epoch, last_producer_epoch=last)


def rotate_producer_id(
    before: TransactionMetadata, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_last_epoch: bool
) -> TransactionMetadata:
    """Returns the state after an InitProducerId that begins with epoch 0 of another producer id."""
    last = before.producer_epoch if keeps_last_epoch else NO_PRODUCER_EPOCH
    return _initialized(before, timeout_ms, now_ms)._replace(
        producer_id=producer_id, producer_epoch=0, last_producer_epoch=last
    )


def _initialized(before: TransactionMetadata, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    return before._replace(
        previous_producer_id=before.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIME_MS,
        update_ms=now_ms,
        client_version=0,
    )


def fence(before: TransactionMetadata) -> TransactionMetadata:
    """Returns the state of an ongoing transaction with an epoch that no producer has."""
    return before._replace(
        producer_epoch=min(before.producer_epoch + 1, FENCED_EPOCH), last_producer_epoch=NO_PRODUCER_EPOCH
    )


def add_partitions(
    before: TransactionMetadata, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
) -> TransactionMetadata:
    """Returns the state with ``partitions`` in the transaction, which begins if there is none."""
    begins = before.state in ENDED
    return before._replace(
        previous_producer_id=before.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        state=TransactionState.ONGOING,
        partitions=partitions if begins else before.partitions | partitions,
        start_ms=now_ms if begins else before.start_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def prepare_end(
    before: TransactionMetadata, *, is_commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> TransactionMetadata:
    """Returns the state in which the markers are written.

    With transaction version 2 they have the next epoch, so that no record can follow its marker. Then a
    transaction without partitions can be aborted as well.
    """
    epoch, last = before.producer_epoch, before.last_producer_epoch
    if client_version >= EPOCH_BUMP_VERSION:
        epoch, last = min(epoch + 1, FENCED_EPOCH), epoch
    return before._replace(
        previous_producer_id=before.producer_id,
        next_producer_id=next_producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        start_ms=now_ms if before.state in ENDED else before.start_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def complete(before: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Returns the state after the last marker."""
    producer_id, epoch = before.producer_id, before.producer_epoch
    if before.client_version >= EPOCH_BUMP_VERSION and before.next_producer_id != NO_PRODUCER_ID:
        producer_id, epoch = before.next_producer_id, 0
    is_commit = before.state is TransactionState.PREPARE_COMMIT
    return before._replace(
        previous_producer_id=before.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_id=producer_id,
        producer_epoch=epoch,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
    )
