"""The state machine of the transactions of one ``__transaction_state`` partition: events in, effects out.

The state machine has no clock, no log and no socket. A method receives an event and its time.
:meth:`TransactionStateManager.take_effects` returns the effects, which the caller performs in order. The
state of a transactional id changes only when its record is replayed. From the append of a record until its
end, the id is *pending*: other requests for it get CONCURRENT_TRANSACTIONS, also if the response to the first
one was an error because the append took too long.

Source: Apache Kafka, ``TransactionCoordinator.scala``, ``TransactionStateManager.scala``; KIP-98, KIP-360,
KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

from tidemill.coordinator_runtime.coordinator_effects import Append, Now, Reply, SetTimer, Waiter
from tidemill.coordinator_runtime.coordinator_shard import APPEND_ERRORS
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.transactions import transaction_metadata
from tidemill.transactions.coordinator_effects import (
    AddPartitionsRequest,
    AddPartitionsResult,
    AllocateProducerId,
    CompletionStored,
    Continuation,
    Effect,
    EndStored,
    EndTransactionRequest,
    IdsRemoved,
    InitProducerIdRequest,
    ListedTransaction,
    PartitionsStored,
    ProducerIdAndEpoch,
    ProducerResult,
    ProducerStored,
    Response,
    SendMarkers,
    TimerKey,
    TransactionEnded,
    TransactionMarker,
    TransactionTimer,
)
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import (
    ENDED,
    EPOCH_BUMP_VERSION,
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    STATE_NAMES,
    TransactionMetadata,
    TransactionState,
)

COMPLETION_RETRY_MS: Final = 100
"""The pause before the append of a completed transaction is repeated."""


class AwaitedInit:
    """An InitProducerId that waits for a producer id."""

    def __init__(self, request: InitProducerIdRequest, waiter: Waiter) -> None:
        self.request = request
        self.waiter = waiter


class AwaitedEnd:
    """An EndTxn that waits for a producer id."""

    def __init__(self, request: EndTransactionRequest, waiter: Waiter) -> None:
        self.request = request
        self.waiter = waiter


Awaited: TypeAlias = AwaitedInit | AwaitedEnd


class TransactionStateManager:
    """All transactional ids of one partition of ``__transaction_state``."""

    def __init__(self, transaction_version: Callable[[], int], id_expiration_ms: int) -> None:
        self.transactions: dict[str, TransactionMetadata] = {}
        """By transactional id."""
        self.pending: set[str] = set()
        """The ids with a record that is being written."""
        self._awaited: dict[str, Awaited] = {}
        """The requests that wait for a producer id, by transactional id."""
        self._ongoing: set[str] = set()
        """The ids whose transaction may time out."""
        self._unmarked: dict[str, set[TopicPartition]] = {}
        """The partitions without a marker yet, by transactional id."""
        self._transaction_version = transaction_version
        self._id_expiration_ms = id_expiration_ms
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """Returns the effects since the last call, in order; the caller performs them once."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def has_effects(self) -> bool:
        """Whether :meth:`take_effects` would return effects."""
        return bool(self._effects)

    def __str__(self) -> str:
        return f"{len(self.transactions)} transactional ids"

    # InitProducerId.

    def init_producer_id(self, request: InitProducerIdRequest, waiter: Waiter, now: Now) -> None:
        """Begins a producer; ``waiter`` gets a :class:`ProducerResult`.

        A transaction of the producer before it is aborted. The new producer gets CONCURRENT_TRANSACTIONS and
        repeats its request.
        """
        name = request.transactional_id
        if self._is_busy(name):
            self._reply(waiter, ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        before = self.transactions.get(name)
        if before is None:
            self._await_producer_id(name, AwaitedInit(request, waiter))
            return
        if request.expected is not None and not _may_go_on(before, request.expected):
            self._reply(waiter, ProducerResult(error=ErrorCode.PRODUCER_FENCED))
        elif before.state in PREPARED:
            self._reply(waiter, ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS))
        elif before.state is TransactionState.ONGOING:
            self._fence(name, before, waiter, now)
        elif before.is_epoch_exhausted and (
            request.expected is None or request.expected.epoch == before.producer_epoch
        ):
            self._await_producer_id(name, AwaitedInit(request, waiter))
        else:
            self._increment_epoch(before, request, waiter, now)

    def _increment_epoch(
        self, before: TransactionMetadata, request: InitProducerIdRequest, waiter: Waiter, now: Now
    ) -> None:
        expected = None if request.expected is None else request.expected.epoch
        try:
            after = transaction_metadata.increment_epoch(before, request.timeout_ms, expected, now.wall_ms)
        except KafkaError as problem:
            self._reply(waiter, ProducerResult(error=problem.code))
            return
        self._store_producer(request.transactional_id, after, waiter)

    def _store_producer(self, name: str, after: TransactionMetadata, waiter: Waiter) -> None:
        self._append(name, after, ProducerStored(waiter=waiter, transactional_id=name, metadata=after))

    def _fence(self, name: str, before: TransactionMetadata, waiter: Waiter | None, now: Now) -> None:
        """Aborts a transaction with an epoch that its producer does not have."""
        after = transaction_metadata.prepare_end(
            transaction_metadata.fence(before),
            is_commit=False,
            client_version=self._transaction_version(),
            next_producer_id=NO_PRODUCER_ID,
            now_ms=now.wall_ms,
        )
        then = EndStored(waiter=waiter, transactional_id=name, metadata=after, is_fence=True)
        self._append(name, after, then)

    def _await_producer_id(self, name: str, awaited: Awaited) -> None:
        self._awaited[name] = awaited
        self._effects.append(AllocateProducerId(transactional_id=name))

    def producer_id_allocated(self, name: str, producer_id: int, now: Now) -> None:
        """Continues the request that waits for a producer id."""
        awaited = self._awaited.pop(name, None)
        if awaited is None:
            return
        before = self.transactions.get(name)
        if isinstance(awaited, AwaitedEnd):
            if before is not None:
                self._prepare_end(before, awaited.request, producer_id, awaited.waiter, now)
            return
        request, waiter = awaited.request, awaited.waiter
        if before is None:
            created = transaction_metadata.create(producer_id, request.timeout_ms, now.wall_ms)
            self._increment_epoch(created, request, waiter, now)
            return
        after = transaction_metadata.rotate_producer_id(
            before,
            producer_id,
            request.timeout_ms,
            now.wall_ms,
            keeps_last_epoch=request.expected is not None,
        )
        self._store_producer(name, after, waiter)

    def producer_id_refused(self, name: str, error: ErrorCode) -> None:
        """Fails the request that waits for a producer id."""
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            self._reply(awaited.waiter, ProducerResult(error=error))

    # Partitions.

    def add_partitions(self, request: AddPartitionsRequest, waiter: Waiter, now: Now) -> None:
        """Adds partitions to a transaction; ``waiter`` gets an :class:`AddPartitionsResult`."""
        name = request.transactional_id
        before, error = self._find(name, request.producer)
        if before is None:
            self._reply(waiter, AddPartitionsResult(error=error))
        elif self._is_busy(name) or before.state in PREPARED:
            self._reply(waiter, AddPartitionsResult(error=ErrorCode.CONCURRENT_TRANSACTIONS))
        elif before.state is TransactionState.ONGOING and request.partitions <= before.partitions:
            self._reply(waiter, AddPartitionsResult(error=ErrorCode.NONE))
        else:
            after = transaction_metadata.add_partitions(
                before, request.partitions, request.client_version, now.wall_ms
            )
            self._append(name, after, PartitionsStored(waiter=waiter, transactional_id=name))

    def verify_partitions(
        self, name: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns for each partition whether it is in the transaction; else TRANSACTION_ABORTABLE."""
        found, error = self._find(name, producer)
        if found is None:
            return dict.fromkeys(partitions, error)
        if found.state in PREPARED:
            return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
        return {
            one: ErrorCode.NONE if one in found.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for one in partitions
        }

    def _find(self, name: str, producer: ProducerIdAndEpoch) -> tuple[TransactionMetadata | None, ErrorCode]:
        found = self.transactions.get(name)
        if found is None or found.producer_id != producer.producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.producer_epoch != producer.epoch:
            return None, ErrorCode.PRODUCER_FENCED
        return found, ErrorCode.NONE

    # EndTxn.

    def end_transaction(self, request: EndTransactionRequest, waiter: Waiter, now: Now) -> None:
        """Commits or aborts a transaction; ``waiter`` gets a :class:`ProducerResult`.

        The response is sent once the decision is in the log. The markers follow.
        """
        name = request.transactional_id
        before = self.transactions.get(name)
        if before is None:
            self._reply(waiter, ProducerResult(error=ErrorCode.INVALID_PRODUCER_ID_MAPPING))
            return
        error, is_done = self._check_end(before, request)
        if error is not ErrorCode.NONE:
            self._reply(waiter, ProducerResult(error=error))
        elif is_done:
            self._reply(waiter, _go_on(before, request.client_version))
        elif request.client_version >= EPOCH_BUMP_VERSION and before.is_epoch_exhausted:
            self._await_producer_id(name, AwaitedEnd(request, waiter))
        else:
            self._prepare_end(before, request, NO_PRODUCER_ID, waiter, now)

    def _prepare_end(
        self,
        before: TransactionMetadata,
        request: EndTransactionRequest,
        next_producer_id: int,
        waiter: Waiter,
        now: Now,
    ) -> None:
        after = transaction_metadata.prepare_end(
            before,
            is_commit=request.is_commit,
            client_version=request.client_version,
            next_producer_id=next_producer_id,
            now_ms=now.wall_ms,
        )
        name = request.transactional_id
        then = EndStored(waiter=waiter, transactional_id=name, metadata=after, is_fence=False)
        self._append(name, after, then)

    def _check_end(
        self, found: TransactionMetadata, request: EndTransactionRequest
    ) -> tuple[ErrorCode, bool]:
        """Returns the error, and whether the transaction has ended as requested already.

        =================  =======================  =======================  ==================
        state              version 1                version 2, repeated      version 2, new
        =================  =======================  =======================  ==================
        Empty              INVALID_TXN_STATE        PRODUCER_FENCED          abort only
        Ongoing            both                     PRODUCER_FENCED          both
        Prepare...         CONCURRENT_TRANSACTIONS  CONCURRENT_TRANSACTIONS  PRODUCER_FENCED
        Complete...        done                     done                     abort only
        =================  =======================  =======================  ==================

        In the last two states, the other end than that of the transaction is INVALID_TXN_STATE.
        A request of version 2 is repeated if it has the epoch before the one that the first request began.
        """
        has_version_2 = request.client_version >= EPOCH_BUMP_VERSION
        producer = request.producer
        has_new_id = (
            has_version_2
            and found.previous_producer_id == producer.producer_id
            and producer.epoch == LAST_EPOCH
            and found.producer_epoch == 0
        )
        is_repeated = has_version_2 and (has_new_id or found.producer_epoch == producer.epoch + 1)
        if found.producer_id != producer.producer_id and not has_new_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, False
        is_current = found.producer_epoch == producer.epoch
        if not _is_valid_epoch(found.state, is_current, is_repeated, has_version_2):
            return ErrorCode.PRODUCER_FENCED, False
        if self._is_busy(request.transactional_id):
            return ErrorCode.CONCURRENT_TRANSACTIONS, False
        if found.state is TransactionState.ONGOING:
            return ErrorCode.NONE, False
        is_commit = found.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if found.state in PREPARED:
            same = is_commit == request.is_commit
            return (ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE), False
        is_repetition = is_repeated if has_version_2 else True
        if found.state is not TransactionState.EMPTY and is_repetition:
            same = is_commit == request.is_commit
            return (ErrorCode.NONE if same else ErrorCode.INVALID_TXN_STATE), same
        if has_version_2 and not request.is_commit:
            return ErrorCode.NONE, False
        return ErrorCode.INVALID_TXN_STATE, False

    # Markers.

    def marker_written(
        self, name: str, producer: ProducerIdAndEpoch, partition: TopicPartition, now: Now
    ) -> None:
        """Called when a partition has the marker, or needs none; completes the transaction after the last."""
        unmarked = self._unmarked.get(name)
        found = self.transactions.get(name)
        if unmarked is None or found is None or _producer_of(found) != producer:
            return
        unmarked.discard(partition)
        if not unmarked:
            self._complete(name, found, now)

    def _send_markers(self, name: str, found: TransactionMetadata, now: Now) -> None:
        self._unmarked[name] = set(found.partitions)
        if not found.partitions:
            self._complete(name, found, now)
            return
        marker = TransactionMarker(
            transactional_id=name,
            producer=_producer_of(found),
            is_commit=found.state is TransactionState.PREPARE_COMMIT,
            client_version=found.client_version,
        )
        self._effects.append(SendMarkers(marker=marker, partitions=sorted(found.partitions)))

    def _complete(self, name: str, found: TransactionMetadata, now: Now) -> None:
        if name not in self.pending:
            after = transaction_metadata.complete(found, now.wall_ms)
            self._append(name, after, CompletionStored(transactional_id=name))

    # Time.

    def timer_fired(self, key: TimerKey, now: Now) -> None:
        """Repeats the append that completes a transaction."""
        name = key.transactional_id
        found, unmarked = self.transactions.get(name), self._unmarked.get(name)
        if found is not None and unmarked is not None and not unmarked:
            self._complete(name, found, now)

    def abort_timed_out(self, now: Now) -> int:
        """Aborts the transactions that have timed out; returns their number."""
        found = []
        for name in self._ongoing:
            one = self.transactions[name]
            if one.has_timeout and one.start_ms + one.timeout_ms < now.wall_ms and not self._is_busy(name):
                found.append((name, one))
        for name, one in found:
            self._fence(name, one, None, now)
        return len(found)

    def expire(self, names: Iterable[str], now: Now) -> int:
        """Removes those of the transactional ids that were not used for long; returns their number."""
        expired = []
        for name in names:
            found = self.transactions.get(name)
            if (
                found is not None
                and found.state in ENDED
                and not self._is_busy(name)
                and found.update_ms <= now.wall_ms - self._id_expiration_ms
            ):
                expired.append(name)
        if expired:
            self.pending.update(expired)
            records = tuple(TransactionRecord(name, None) for name in expired)
            then = IdsRemoved(transactional_ids=tuple(expired))
            self._effects.append(Append(records=records, then=then, replay=True))
        return len(expired)

    # The log.

    def _append(self, name: str, after: TransactionMetadata, then: Continuation) -> None:
        self.pending.add(name)
        version = 1 if self._transaction_version() >= 1 else 0
        record = TransactionRecord(name, after, version)
        self._effects.append(Append(records=(record,), then=then, replay=True))

    def replay(self, record: TransactionRecord, now: Now) -> None:
        """Takes over the state of a committed record."""
        name, metadata = record.transactional_id, record.metadata
        if metadata is None:
            self.transactions.pop(name, None)
            self._ongoing.discard(name)
            self._unmarked.pop(name, None)
            return
        self.transactions[name] = metadata
        if metadata.state is TransactionState.ONGOING:
            self._ongoing.add(name)
        else:
            self._ongoing.discard(name)

    def loaded(self, now: Now) -> None:
        """Called after the log was replayed to its end: writes the markers of decided transactions."""
        for name, found in self.transactions.items():
            if found.state in PREPARED:
                self._send_markers(name, found, now)

    def unload(self, now: Now) -> None:
        """Drops all transactions, which another broker coordinates now."""
        for awaited in self._awaited.values():
            self._reply(awaited.waiter, ProducerResult(error=ErrorCode.NOT_COORDINATOR))
        for held in (self._awaited, self.transactions, self.pending, self._ongoing, self._unmarked):
            held.clear()

    def client_error(self, then: Continuation, error: ErrorCode) -> ErrorCode:
        """Returns the error for clients when the append before ``then`` failed with ``error``."""
        return APPEND_ERRORS.get(error, error)

    def appended(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when a record was committed and replayed, or failed with ``error``."""
        self.append_timed_out(then, error, now)
        self.timed_out_append_ended(then, error, now)

    def append_timed_out(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Responds to the waiting request; the id stays pending until the write ends."""
        if isinstance(then, ProducerStored):
            result = ProducerResult(
                error=error, producer_id=then.metadata.producer_id, epoch=then.metadata.producer_epoch
            )
            self._reply(then.waiter, result if error is ErrorCode.NONE else ProducerResult(error=error))
        elif isinstance(then, PartitionsStored):
            self._reply(then.waiter, AddPartitionsResult(error=error))
        elif isinstance(then, EndStored) and then.waiter is not None:
            if error is not ErrorCode.NONE:
                result = ProducerResult(error=error)
            elif then.is_fence:
                result = ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
            else:
                result = _go_on(then.metadata, then.metadata.client_version)
            self._reply(then.waiter, result)

    def timed_out_append_ended(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when the write ended: committed and replayed, or failed with ``error``."""
        if isinstance(then, IdsRemoved):
            self.pending.difference_update(then.transactional_ids)
            return
        name = then.transactional_id
        self.pending.discard(name)
        found = self.transactions.get(name)
        if isinstance(then, EndStored):
            if error is ErrorCode.NONE and found is not None:
                self._send_markers(name, found, now)
        elif isinstance(then, CompletionStored):
            if error is ErrorCode.NONE:
                self._unmarked.pop(name, None)
                if found is not None:
                    is_commit = found.state is TransactionState.COMPLETE_COMMIT
                    self._effects.append(TransactionEnded(transactional_id=name, is_commit=is_commit))
            elif found is not None:
                key = TimerKey(TransactionTimer.COMPLETION, name)
                self._effects.append(SetTimer(key=key, deadline_ms=now.monotonic_ms + COMPLETION_RETRY_MS))

    # Views.

    def list_transactions(self) -> Iterator[ListedTransaction]:
        """Yields the transactional ids with their states."""
        for name, found in self.transactions.items():
            yield ListedTransaction(
                transactional_id=name, producer_id=found.producer_id, state=STATE_NAMES[found.state]
            )

    # Helpers.

    def _is_busy(self, name: str) -> bool:
        return name in self.pending or name in self._awaited

    def _reply(self, waiter: Waiter, response: Response) -> None:
        self._effects.append(Reply(waiter=waiter, response=response))


def _producer_of(found: TransactionMetadata) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(found.producer_id, found.producer_epoch)


def _go_on(found: TransactionMetadata, client_version: int) -> ProducerResult:
    """The successful end of a transaction: from version 2 on with the next epoch."""
    if client_version < EPOCH_BUMP_VERSION:
        return ProducerResult(error=ErrorCode.NONE)
    if found.next_producer_id != NO_PRODUCER_ID:
        return ProducerResult(error=ErrorCode.NONE, producer_id=found.next_producer_id, epoch=0)
    return ProducerResult(error=ErrorCode.NONE, producer_id=found.producer_id, epoch=found.producer_epoch)


def _may_go_on(found: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether the producer that goes on may be the last one; the epoch is compared later."""
    return (
        found.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == found.producer_id
        # It repeats a request that began with another id, and whose response it has not received.
        or (expected.producer_id == found.previous_producer_id and expected.epoch >= LAST_EPOCH)
    )


def _is_valid_epoch(
    state: TransactionState, is_current: bool, is_repeated: bool, has_version_2: bool
) -> bool:
    if not has_version_2 or state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return is_current
    return is_repeated if state in PREPARED else is_repeated or is_current
