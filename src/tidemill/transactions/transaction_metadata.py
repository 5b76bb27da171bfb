"""The state of one transactional id, and the transitions between its states (:data:`TRANSITIONS`).

A :class:`TransactionMetadata` is not changed; a transition returns another one, which is a record of
``__transaction_state`` first, and the state of the id once that record is committed.

Epochs go up to 32,766. The last one, 32,767, is kept for the coordinator, so that it can fence a producer.

Source: Apache Kafka, ``TransactionMetadata.java``; KIP-98, KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import NO_TIMEOUT_MS, ProducerIdAndEpoch
from tidemill.model.transition_table import NONE, TransitionTable
from tidemill.model.types import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
LAST_EPOCH: Final = 32_766
"""The last epoch of a producer; the next one has another producer id."""
FENCED_EPOCH: Final = 32_767
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

EMPTY: Final = int(TransactionState.EMPTY)
ONGOING: Final = int(TransactionState.ONGOING)
PREPARE_COMMIT: Final = int(TransactionState.PREPARE_COMMIT)
PREPARE_ABORT: Final = int(TransactionState.PREPARE_ABORT)
COMPLETE_COMMIT: Final = int(TransactionState.COMPLETE_COMMIT)
COMPLETE_ABORT: Final = int(TransactionState.COMPLETE_ABORT)


class TransactionEvent(IntEnum):
    """The columns of :data:`TRANSITIONS`."""

    INITIALIZE = 0
    """InitProducerId: a producer begins."""
    KEEP_PREPARED = 1
    """InitProducerId with keepPreparedTxn: a producer takes over a prepared transaction (KIP-939)."""
    ADD_PARTITIONS = 2
    COMMIT = 3
    ABORT = 4
    """Of a transaction without partitions only with transaction version 2 (KIP-890)."""
    COMPLETE = 5
    """All partitions have their markers."""


TRANSITIONS: Final = TransitionTable(
    "transaction",
    list(STATE_NAMES.values()),
    [event.name for event in TransactionEvent],
    [
        [EMPTY, NONE, ONGOING, NONE, PREPARE_ABORT, NONE],  # EMPTY
        [NONE, ONGOING, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, NONE],  # ONGOING
        [NONE, NONE, NONE, NONE, NONE, COMPLETE_COMMIT],  # PREPARE_COMMIT
        [NONE, NONE, NONE, NONE, NONE, COMPLETE_ABORT],  # PREPARE_ABORT
        [EMPTY, NONE, ONGOING, NONE, PREPARE_ABORT, NONE],  # COMPLETE_COMMIT
        [EMPTY, NONE, ONGOING, NONE, PREPARE_ABORT, NONE],  # COMPLETE_ABORT
        [NONE, NONE, NONE, NONE, NONE, NONE],  # DEAD, which is not written
        [NONE, NONE, NONE, NONE, NONE, NONE],  # PREPARE_EPOCH_FENCE, which is not written
    ],
)
"""The replay of a record sets the state without a transition."""


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
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """The producer after the transaction, if it is not the one with the next epoch: the transaction had the
    last epoch of its id (then the epoch is absent and counts as 0), or another producer has taken over a
    prepared transaction (KIP-939)."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last InitProducerId of the producer itself; it is not in the log."""
    client_version: int = 0
    """The transaction version of the client that changed the state."""

    def state_after(self, event: TransactionEvent) -> TransactionState:
        """Returns the state after ``event``. Raises RuntimeError if :data:`TRANSITIONS` has none."""
        return TransactionState(TRANSITIONS.after(int(self.state), int(event)))

    @property
    def is_kept(self) -> bool:
        """Whether another producer has taken over the prepared transaction (KIP-939)."""
        return self.state is TransactionState.ONGOING and self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def latest(self) -> ProducerIdAndEpoch:
        """The producer that may end the transaction, or begin another one."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
        return ProducerIdAndEpoch(self.next_producer_id, max(self.next_producer_epoch, 0))

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the latest producer needs another producer id for another epoch."""
        return self.latest.epoch >= LAST_EPOCH

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
    """Returns the state after InitProducerId. ``expected_epoch``: the epoch of a producer that
    continues after an error.

    Raises KafkaError with PRODUCER_FENCED if another producer has begun with a later epoch.
    """
    epoch = before.producer_epoch + 1
    previous = before.producer_id
    if expected_epoch is None:
        last = NO_PRODUCER_EPOCH
    elif expected_epoch == before.producer_epoch or before.producer_epoch == NO_PRODUCER_EPOCH:
        last = before.producer_epoch
    elif expected_epoch == before.last_producer_epoch:
        # The producer repeats a request whose response it has not received. An InitProducerId of another
        # producer would have removed the last epoch.
        epoch, last, previous = before.producer_epoch, expected_epoch, before.previous_producer_id
    else:
        raise KafkaError(
            f"the producer has epoch {expected_epoch}, and the last epoch is {before.producer_epoch}:"
            " another producer uses this transactional id",
            ErrorCode.PRODUCER_FENCED,
        )
    return _initialized(before, timeout_ms, now_ms)._replace(
        producer_epoch=epoch, last_producer_epoch=last, previous_producer_id=previous
    )


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
        next_producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=before.state_after(TransactionEvent.INITIALIZE),
        partitions=frozenset(),
        start_ms=NO_TIME_MS,
        update_ms=now_ms,
        client_version=0,
    )


def keep_prepared(
    before: TransactionMetadata, producer_id: int, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    """Returns the state of a prepared transaction that another producer takes over.

    The producer has the next epoch, or epoch 0 of ``producer_id`` if that is given. The transaction keeps its
    own id and epoch, which the other system knows.
    """
    latest = before.latest
    following = (
        ProducerIdAndEpoch(latest.producer_id, latest.epoch + 1)
        if producer_id == NO_PRODUCER_ID
        else ProducerIdAndEpoch(producer_id, 0)
    )
    return before._replace(
        next_producer_id=following.producer_id,
        next_producer_epoch=following.epoch,
        state=before.state_after(TransactionEvent.KEEP_PREPARED),
        timeout_ms=timeout_ms,
        update_ms=now_ms,
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
        next_producer_epoch=NO_PRODUCER_EPOCH,
        state=before.state_after(TransactionEvent.ADD_PARTITIONS),
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
        epoch, last = min(epoch + 1, FENCED_EPOCH), before.latest.epoch
    next_epoch = NO_PRODUCER_EPOCH
    if before.is_kept and next_producer_id == NO_PRODUCER_ID:
        next_producer_id, next_epoch = before.latest.producer_id, before.latest.epoch + 1
    if before.is_kept:
        # If EndTxn returns no epoch, the producer gets it with InitProducerId, and names this one.
        last = before.latest.epoch
    return before._replace(
        previous_producer_id=before.latest.producer_id,
        next_producer_id=next_producer_id,
        next_producer_epoch=next_epoch,
        producer_epoch=epoch,
        last_producer_epoch=last,
        state=before.state_after(TransactionEvent.COMMIT if is_commit else TransactionEvent.ABORT),
        start_ms=now_ms if before.state in ENDED else before.start_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def complete(before: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Returns the state after the last marker."""
    producer_id, epoch = before.latest
    return before._replace(
        previous_producer_id=before.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        producer_id=producer_id,
        producer_epoch=epoch,
        state=before.state_after(TransactionEvent.COMPLETE),
        partitions=frozenset(),
        update_ms=now_ms,
    )
