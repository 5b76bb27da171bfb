"""The state machine of the transactions of one ``__transaction_state`` partition: events in, effects out.

The state machine has no clock, no log and no socket. A method receives an event and its time.
:meth:`TransactionStateManager.take_effects` returns the effects, which the caller performs in order. The
state of a transactional id changes only when its record is replayed.

An id is *busy* from the append of a record until its end, also if the response to the request was an error
because the append took too long, and while the markers of a transaction are written. Other requests for it
wait for a short time, and then get CONCURRENT_TRANSACTIONS. Kafka refuses them at once.

Source: Apache Kafka, ``TransactionCoordinator.scala``, ``TransactionStateManager.scala``; KIP-98, KIP-360,
KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from tidemill.coordinator_runtime.coordinator_effects import (
    Append,
    CancelTimer,
    Now,
    Reply,
    SetTimer,
    Waiter,
)
from tidemill.coordinator_runtime.state_machine import APPEND_ERRORS
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import ProducerIdAndEpoch
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
    PartitionsStored,
    ProducerResult,
    ProducerStored,
    Response,
    SendMarkers,
    TimerKey,
    TransactionEnded,
    TransactionFenced,
    TransactionMarker,
    TransactionTimer,
)
from tidemill.transactions.transaction_log import TransactionRecord
from tidemill.transactions.transaction_metadata import (
    ENDED,
    EPOCH_BUMP_VERSION,
    FENCED_EPOCH,
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TransactionMetadata,
    TransactionState,
)

DEFERRED_MS: Final = 200
"""How long requests wait for the end of an earlier one. Clients repeat refused ones after 20 to 100 ms."""
DEFERRED_MAX: Final = 5
"""The requests for one id that wait; a client sends one after the other."""
COMPLETION_RETRY_MS: Final = 100
"""The pause before the append of a completed transaction is repeated."""


class Deferred(NamedTuple):
    """A request that waits until its transactional id is not busy."""

    handle: Callable[[Now], None]
    waiter: Waiter
    refusal: Response


class AwaitedInit(NamedTuple):
    """An InitProducerId that waits for a producer id."""

    request: InitProducerIdRequest
    waiter: Waiter


class AwaitedEnd(NamedTuple):
    """An EndTxn that waits for a producer id."""

    request: EndTransactionRequest
    waiter: Waiter


class AwaitedFence:
    """The abort of a transaction whose producer has the last epoch; it waits for a producer id."""

    waiter: Final = None


Awaited: TypeAlias = AwaitedInit | AwaitedEnd | AwaitedFence


class TransactionStateManager:
    """All transactional ids of one partition of ``__transaction_state``."""

    def __init__(self, transaction_version: Callable[[], int], id_expiration_ms: int) -> None:
        self.transactions: dict[str, TransactionMetadata] = {}
        """By transactional id."""
        self.pending: set[str] = set()
        """The ids with a record that is being written."""
        self._awaited: dict[str, Awaited] = {}
        """The requests that wait for a producer id, by transactional id."""
        self._deferred: dict[str, list[Deferred]] = {}
        """The requests that wait for the end of an earlier one, by transactional id."""
        self.ongoing: dict[str, int] = {}
        """The ids with an open transaction, which may time out; and its start, in wall clock milliseconds."""
        self.prepared: dict[str, None] = {}
        """The ids whose transaction is decided, and may lack markers, in the order of the decisions."""
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

        A transaction of the producer before it is aborted first.
        """
        name = request.transactional_id
        if self._is_busy(name):
            self._defer_init(request, waiter, now)
            return
        before = self.transactions.get(name)
        if before is None:
            self._await_producer_id(name, AwaitedInit(request, waiter))
            return
        if request.expected is not None and not _may_continue(before, request.expected):
            self._reply(waiter, ProducerResult(error=ErrorCode.PRODUCER_FENCED))
        elif before.state in PREPARED:
            self._defer_init(request, waiter, now)
        elif before.state is TransactionState.ONGOING and request.keeps_prepared:
            if before.is_epoch_exhausted:
                self._await_producer_id(name, AwaitedInit(request, waiter))
            else:
                self._keep_prepared(before, request, NO_PRODUCER_ID, waiter, now)
        elif before.state is TransactionState.ONGOING:
            self._fence(name, before, now)
            self._effects.append(TransactionFenced(transactional_id=name, timeout_ms=0))
            self._defer_init(request, waiter, now)
        elif before.is_epoch_exhausted and (
            request.expected is None or request.expected.epoch == before.producer_epoch
        ):
            self._await_producer_id(name, AwaitedInit(request, waiter))
        else:
            self._increment_epoch(before, request, waiter, now)

    def _keep_prepared(
        self,
        before: TransactionMetadata,
        request: InitProducerIdRequest,
        producer_id: int,
        waiter: Waiter,
        now: Now,
    ) -> None:
        """Lets the producer take over a prepared transaction."""
        after = transaction_metadata.keep_prepared(before, producer_id, request.timeout_ms, now.wall_ms)
        self._store_producer(request.transactional_id, after, waiter)

    def _defer_init(self, request: InitProducerIdRequest, waiter: Waiter, now: Now) -> None:
        refusal = ProducerResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
        handle = partial(self.init_producer_id, request, waiter)
        self._defer(request.transactional_id, Deferred(handle, waiter, refusal), now)

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

    def _fence(self, name: str, before: TransactionMetadata, now: Now) -> None:
        """Aborts a transaction with an epoch that its producer does not have.

        With transaction version 2 each end has such an epoch. Then a producer whose transaction has timed out
        may go on with it (KIP-588), as after an end of its own.
        """
        version = self._transaction_version()
        if version < EPOCH_BUMP_VERSION:
            self._prepare_fence(name, transaction_metadata.fence(before), version, NO_PRODUCER_ID, now)
        elif before.is_epoch_exhausted:
            self._await_producer_id(name, AwaitedFence())
        else:
            self._prepare_fence(name, before, version, NO_PRODUCER_ID, now)

    def _prepare_fence(
        self, name: str, before: TransactionMetadata, version: int, next_producer_id: int, now: Now
    ) -> None:
        after = transaction_metadata.prepare_end(
            before,
            is_commit=False,
            client_version=version,
            next_producer_id=next_producer_id,
            now_ms=now.wall_ms,
        )
        then = EndStored(waiter=None, transactional_id=name, metadata=after)
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
        if isinstance(awaited, AwaitedFence):
            if before is not None:
                self._prepare_fence(name, before, EPOCH_BUMP_VERSION, producer_id, now)
            return
        if isinstance(awaited, AwaitedEnd):
            # A busy id does not expire.
            self._prepare_end(self.transactions[name], awaited.request, producer_id, awaited.waiter, now)
            return
        request, waiter = awaited.request, awaited.waiter
        if before is None:
            created = transaction_metadata.create(producer_id, request.timeout_ms, now.wall_ms)
            self._increment_epoch(created, request, waiter, now)
            return
        if before.state is TransactionState.ONGOING:
            self._keep_prepared(before, request, producer_id, waiter, now)
            return
        after = transaction_metadata.rotate_producer_id(
            before,
            producer_id,
            request.timeout_ms,
            now.wall_ms,
            keeps_last_epoch=request.expected is not None,
        )
        self._store_producer(name, after, waiter)

    def producer_id_refused(self, name: str, error: ErrorCode, now: Now) -> None:
        """Fails the request that waits for a producer id."""
        awaited = self._awaited.pop(name, None)
        if awaited is None:
            return
        if awaited.waiter is not None:
            self._reply(awaited.waiter, ProducerResult(error=error))
        self._end_wait(name, error, now)

    # Partitions.

    def add_partitions(self, request: AddPartitionsRequest, waiter: Waiter, now: Now) -> None:
        """Adds partitions to a transaction; ``waiter`` gets an :class:`AddPartitionsResult`."""
        name = request.transactional_id
        before, error = self._find(name, request.producer)
        if before is None:
            self._reply(waiter, AddPartitionsResult(error=error))
        elif self._is_busy(name) or before.state in PREPARED:
            refusal = AddPartitionsResult(error=ErrorCode.CONCURRENT_TRANSACTIONS)
            handle = partial(self.add_partitions, request, waiter)
            self._defer(name, Deferred(handle, waiter, refusal), now)
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
        if producer.epoch > LAST_EPOCH:
            return None, ErrorCode.PRODUCER_FENCED
        if found.producer_epoch != producer.epoch or found.is_kept:
            # A transaction that was taken over is prepared: it gets no further partitions.
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
        if error is ErrorCode.CONCURRENT_TRANSACTIONS:
            handle = partial(self.end_transaction, request, waiter)
            self._defer(name, Deferred(handle, waiter, ProducerResult(error=error)), now)
        elif error is not ErrorCode.NONE:
            self._reply(waiter, ProducerResult(error=error))
        elif is_done:
            self._reply(waiter, _end_result(before, request.client_version))
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
        then = EndStored(waiter=waiter, transactional_id=name, metadata=after)
        self._append(name, after, then)

    def _check_end(
        self, found: TransactionMetadata, request: EndTransactionRequest
    ) -> tuple[ErrorCode, bool]:
        """Returns the error, and whether the transaction has ended as requested already.

        =================  =======================  =======================  =======================
        state              version 1                version 2, repeated      version 2, new
        =================  =======================  =======================  =======================
        Empty              INVALID_TXN_STATE        PRODUCER_FENCED          abort only
        Ongoing            both                     PRODUCER_FENCED          both
        Prepare...         CONCURRENT_TRANSACTIONS  CONCURRENT_TRANSACTIONS  CONCURRENT_TRANSACTIONS
        Complete...        done                     done                     abort only
        =================  =======================  =======================  =======================

        In the last two states, the other end than that of the transaction is INVALID_TXN_STATE, unless the
        request is new. Apache Kafka fences a new request in the states Prepare..., although a client may send
        it as soon as it has the response to the former one.
        A request of version 2 is repeated if it has the epoch before the one that the first request began.
        """
        has_version_2 = request.client_version >= EPOCH_BUMP_VERSION
        producer = request.producer
        latest = found.latest
        # The end of a transaction of version 1 did not begin another epoch: that was another producer.
        may_be_repeated = has_version_2 and found.client_version >= EPOCH_BUMP_VERSION
        has_new_id = (
            may_be_repeated
            and found.previous_producer_id == producer.producer_id
            and producer.epoch == LAST_EPOCH
            and latest.epoch == 0
        )
        # No producer gets the epoch that fences: the marker of its transaction could have no higher one.
        is_repeated = may_be_repeated and (has_new_id or latest.epoch == producer.epoch + 1 <= LAST_EPOCH)
        if latest.producer_id != producer.producer_id and not has_new_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, False
        is_current = latest == producer
        if not _is_valid_epoch(found.state, is_current, is_repeated, has_version_2):
            return ErrorCode.PRODUCER_FENCED, False
        if self._is_busy(request.transactional_id):
            return ErrorCode.CONCURRENT_TRANSACTIONS, False
        if found.state is TransactionState.ONGOING:
            return ErrorCode.NONE, False
        is_commit = found.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if found.state in PREPARED:
            if has_version_2 and is_current:
                return ErrorCode.CONCURRENT_TRANSACTIONS, False
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
            client_version=_marker_version(found),
        )
        self._effects.append(SendMarkers(marker=marker, partitions=sorted(found.partitions)))

    def _complete(self, name: str, found: TransactionMetadata, now: Now) -> None:
        if name not in self.pending:
            after = transaction_metadata.complete(found, now.wall_ms)
            self._append(name, after, CompletionStored(transactional_id=name))

    # Time.

    def timer_fired(self, key: TimerKey, now: Now) -> None:
        """Repeats the append that completes a transaction, or refuses requests that have waited for long."""
        name = key.transactional_id
        if key.kind is TransactionTimer.DEFERRED:
            self._refuse_deferred(name)
            return
        found, unmarked = self.transactions.get(name), self._unmarked.get(name)
        if found is not None and unmarked is not None and not unmarked:
            self._complete(name, found, now)

    def abort_timed_out(self, names: Iterable[str], now: Now) -> int:
        """Aborts those of the open transactions that have timed out; returns their number."""
        found = []
        for name in names:
            one = self.transactions.get(name)
            if one is None or one.state is not TransactionState.ONGOING:
                continue
            if one.has_timeout and one.start_ms + one.timeout_ms < now.wall_ms and not self._is_busy(name):
                found.append((name, one))
        for name, one in found:
            self._effects.append(TransactionFenced(transactional_id=name, timeout_ms=one.timeout_ms))
            self._fence(name, one, now)
        return len(found)

    @property
    def oldest_start_ms(self) -> int | None:
        """When the oldest open transaction began, in wall clock milliseconds; None without one."""
        return min(self.ongoing.values(), default=None)

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
            self.ongoing.pop(name, None)
            self.prepared.pop(name, None)
            self._unmarked.pop(name, None)
            return
        self.transactions[name] = metadata
        self.ongoing.pop(name, None)
        self.prepared.pop(name, None)
        if metadata.state is TransactionState.ONGOING:
            self.ongoing[name] = metadata.start_ms
        elif metadata.state in PREPARED:
            self.prepared[name] = None

    def loaded(self, now: Now) -> None:
        """Called after the log was replayed to its end; :meth:`send_loaded_markers` follows in slices."""

    def marker_count(self, name: str) -> int:
        """The number of markers that a transaction has, or would have."""
        found = self.transactions.get(name)
        return 0 if found is None else len(found.partitions)

    def send_loaded_markers(self, names: Iterable[str], now: Now) -> None:
        """Writes the markers of those of the transactions that a former coordinator has decided."""
        for name in names:
            if name in self.prepared and name not in self._unmarked:
                self._send_markers(name, self.transactions[name], now)

    def unload(self, now: Now) -> None:
        """Drops all transactions, which another broker coordinates now."""
        for awaited in self._awaited.values():
            if awaited.waiter is not None:
                self._reply(awaited.waiter, ProducerResult(error=ErrorCode.NOT_COORDINATOR))
        for name, waiting in self._deferred.items():
            self._effects.append(CancelTimer(key=TimerKey(TransactionTimer.DEFERRED, name)))
            for deferred in waiting:
                self._reply(deferred.waiter, deferred.refusal.replace(error=ErrorCode.NOT_COORDINATOR))
        self.pending.clear()
        self.ongoing.clear()
        self.prepared.clear()
        for held in (self._awaited, self._deferred, self.transactions, self._unmarked):
            held.clear()

    def client_error(self, then: Continuation, error: ErrorCode) -> ErrorCode:
        """Returns the error for clients when the append before ``then`` failed with ``error``."""
        return APPEND_ERRORS.get(error, error)

    def appended(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when a record was committed and replayed, or failed with ``error``."""
        self._respond(then, error)
        self._end_write(then, error, now)

    def append_timed_out(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Responds to the waiting request; the id stays pending until the write ends."""
        self._respond(then, error)

    def timed_out_append_ended(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when the write ended: committed and replayed, or failed with ``error``."""
        self._end_write(then, error, now)

    def _respond(self, then: Continuation, error: ErrorCode) -> None:
        """Responds to the request that has waited for the write, if there is one."""
        if isinstance(then, ProducerStored):
            found = then.metadata
            result = ProducerResult(
                error=error, producer_id=found.latest.producer_id, epoch=found.latest.epoch
            )
            if found.is_kept:
                result = result.replace(kept=_producer_of(found))
            self._reply(then.waiter, result if error is ErrorCode.NONE else ProducerResult(error=error))
        elif isinstance(then, PartitionsStored):
            self._reply(then.waiter, AddPartitionsResult(error=error))
        elif isinstance(then, EndStored) and then.waiter is not None:
            if error is not ErrorCode.NONE:
                result = ProducerResult(error=error)
            else:
                result = _end_result(then.metadata, then.metadata.client_version)
            self._reply(then.waiter, result)

    def _end_write(self, then: Continuation, error: ErrorCode, now: Now) -> None:
        """Continues with the markers, or the end of the transaction, and with the requests that wait."""
        if isinstance(then, IdsRemoved):
            self.pending.difference_update(then.transactional_ids)
            for name in then.transactional_ids:
                self._end_wait(name, error, now)
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
        self._end_wait(name, error, now)

    # Requests that wait.

    def _defer(self, name: str, deferred: Deferred, now: Now) -> None:
        """Handles a request once its id is not busy, or refuses it after a while."""
        waiting = self._deferred.setdefault(name, [])
        if len(waiting) >= DEFERRED_MAX:
            self._reply(deferred.waiter, deferred.refusal)
            return
        if not waiting:
            key = TimerKey(TransactionTimer.DEFERRED, name)
            self._effects.append(SetTimer(key=key, deadline_ms=now.monotonic_ms + DEFERRED_MS))
        waiting.append(deferred)

    def _end_wait(self, name: str, error: ErrorCode, now: Now) -> None:
        """Handles or refuses the requests that wait for a write, which ended with ``error``.

        After a failure they would write again at once, and wait again: without end, while the disk is full.
        """
        if error is ErrorCode.NONE:
            self._run_deferred(name, now)
        elif name in self._deferred:
            self._effects.append(CancelTimer(key=TimerKey(TransactionTimer.DEFERRED, name)))
            self._refuse_deferred(name)

    def _refuse_deferred(self, name: str) -> None:
        for deferred in self._deferred.pop(name, ()):
            self._reply(deferred.waiter, deferred.refusal)

    def _run_deferred(self, name: str, now: Now) -> None:
        """Handles the requests that wait for ``name``, unless it is still busy."""
        found = self.transactions.get(name)
        if name not in self._deferred or self._is_busy(name) or (found and found.state in PREPARED):
            return
        self._effects.append(CancelTimer(key=TimerKey(TransactionTimer.DEFERRED, name)))
        for deferred in self._deferred.pop(name):
            deferred.handle(now)

    # Helpers.

    def _is_busy(self, name: str) -> bool:
        return name in self.pending or name in self._awaited

    def _reply(self, waiter: Waiter, response: Response) -> None:
        self._effects.append(Reply(waiter=waiter, response=response))


def _producer_of(found: TransactionMetadata) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(found.producer_id, found.producer_epoch)


def _marker_version(found: TransactionMetadata) -> int:
    """Returns the transaction version of the marker, by which leaders compare its epoch.

    From version 2 on the epoch must be higher than that of the transaction. A transaction that Apache Kafka
    began with the epoch that fences has no higher one, so its marker has version 1, whose epoch may be equal.
    That is safe for every marker with this epoch, because no later transaction of the producer id can exist.
    Apache Kafka aborts with the same epoch, and its leaders refuse a marker of version 2.
    """
    if found.producer_epoch == FENCED_EPOCH:
        return min(found.client_version, EPOCH_BUMP_VERSION - 1)
    return found.client_version


def _end_result(found: TransactionMetadata, client_version: int) -> ProducerResult:
    """Returns the response after the end of a transaction: from version 2 on with the next epoch."""
    if client_version < EPOCH_BUMP_VERSION:
        return ProducerResult(error=ErrorCode.NONE)
    return ProducerResult(
        error=ErrorCode.NONE, producer_id=found.latest.producer_id, epoch=found.latest.epoch
    )


def _may_continue(found: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer that continues after an error may be the last one; the epoch is compared later."""
    return (
        found.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == found.producer_id
        # The producer repeats a request that assigned another id, and whose response it has not received.
        or (expected.producer_id == found.previous_producer_id and expected.epoch >= LAST_EPOCH)
    )


def _is_valid_epoch(
    state: TransactionState, is_current: bool, is_repeated: bool, has_version_2: bool
) -> bool:
    if not has_version_2 or state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return is_current
    return is_repeated or is_current
