"""A state machine of transactions for tests, whose records are committed on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.coordinator_runtime.coordinator_effects import Append, CancelTimer, Now, Reply, SetTimer, Waiter
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.transactions.coordinator_effects import (
    AddPartitionsRequest,
    AllocateProducerId,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerResult,
    SendMarkers,
    TimerKey,
    TransactionTimer,
)
from tidemill.transactions.transaction_log import TransactionRecord, decode_record
from tidemill.transactions.transaction_metadata import TransactionMetadata
from tidemill.transactions.transaction_state_manager import TransactionStateManager

EXPIRATION_MS = 100_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class MachineFixture:
    """A state machine with its clock; :meth:`run` performs the effects until none is left."""

    def __init__(self, version: int = 2) -> None:
        self.version = version
        self.machine = TransactionStateManager(lambda: self.version, EXPIRATION_MS)
        self.now_ms = 1_000
        self.next_producer_id = 100
        self.replies: dict[int, Any] = {}
        self.markers: list[SendMarkers] = []
        self.others: list[object] = []
        self.timers: dict[TimerKey, int] = {}
        self.is_patient = False
        """Whether requests may wait; otherwise the time passes at once."""
        self.log: list[TransactionRecord] = []
        self.held: list[Append[Any, Any]] | None = None
        """Appends that wait, if not None."""
        self.error = ErrorCode.NONE
        """The outcome of appends."""
        self.id_error = ErrorCode.NONE
        """The outcome of the allocation of producer ids."""
        self._waiters = 0

    @property
    def now(self) -> Now:
        return Now(monotonic_ms=self.now_ms, wall_ms=1_700_000_000_000 + self.now_ms)

    def ask(self, handle: Callable[..., None], request: object) -> Any:
        """Sends a request. Returns its response; None while there is none."""
        self._waiters += 1
        number = self._waiters
        handle(request, Waiter(number), self.now)
        self.run()
        if number not in self.replies and not self.is_patient:
            for key in [key for key in self.timers if key.kind is TransactionTimer.DEFERRED]:
                self.fire(key)
        return self.replies.get(number)

    def fire(self, key: TimerKey) -> None:
        """The timer ``key`` fires."""
        self.now_ms = max(self.now_ms, self.timers.pop(key))
        self.machine.timer_fired(key, self.now)
        self.run()

    def run(self) -> None:
        """Performs the effects, and those that follow from them."""
        while self.machine.has_effects:
            for effect in self.machine.take_effects():
                if isinstance(effect, Reply):
                    assert effect.waiter not in self.replies, "a second response"
                    self.replies[effect.waiter] = effect.response  # type: ignore[index]
                elif isinstance(effect, Append):
                    if self.held is None:
                        self.end(effect, self.error)
                    else:
                        self.held.append(effect)
                elif isinstance(effect, AllocateProducerId) and self.id_error is not ErrorCode.NONE:
                    self.machine.producer_id_refused(effect.transactional_id, self.id_error, self.now)
                elif isinstance(effect, AllocateProducerId):
                    self.next_producer_id += 1
                    self.machine.producer_id_allocated(
                        effect.transactional_id, self.next_producer_id, self.now
                    )
                elif isinstance(effect, SendMarkers):
                    self.markers.append(effect)
                elif isinstance(effect, SetTimer):
                    self.timers[effect.key] = effect.deadline_ms
                elif isinstance(effect, CancelTimer):
                    self.timers.pop(effect.key, None)
                else:
                    self.others.append(effect)

    def end(self, append: Append[Any, Any], error: ErrorCode = ErrorCode.NONE) -> None:
        """Ends an append: its records are committed and replayed, or it failed."""
        if error is ErrorCode.NONE:
            for record in append.records:
                self.log.append(record)
                self.machine.replay(record, self.now)
        self.machine.appended(append.then, error, self.now)
        self.run()

    def write_markers(self) -> None:
        """All partitions write the markers that were sent."""
        while self.markers:
            sent = self.markers.pop(0)
            for partition in sent.partitions:
                self.machine.marker_written(
                    sent.marker.transactional_id, sent.marker.producer, partition, self.now
                )
                self.run()

    def restart(self) -> MachineFixture:
        """Returns another state machine that has loaded the log, as bytes."""
        after = MachineFixture(self.version)
        after.now_ms, after.next_producer_id = self.now_ms, self.next_producer_id
        for record in self.log:
            loaded = decode_record(record.key_bytes(), record.value_bytes())
            assert loaded is not None
            after.machine.replay(loaded, after.now)
        after.log = list(self.log)
        after.machine.loaded(after.now)
        after.machine.send_loaded_markers(list(after.machine.prepared), after.now)
        after.run()
        return after

    # Requests.

    def init(
        self,
        name: str = "x",
        expected: tuple[int, int] | None = None,
        timeout_ms: int = 60_000,
        keeps: bool = False,
    ) -> ProducerResult:
        going_on = None if expected is None else ProducerIdAndEpoch(*expected)
        request = InitProducerIdRequest(
            transactional_id=name, timeout_ms=timeout_ms, expected=going_on, keeps_prepared=keeps
        )
        result: ProducerResult = self.ask(self.machine.init_producer_id, request)
        return result

    def add(self, producer: tuple[int, int], *partitions: TopicPartition, name: str = "x") -> ErrorCode:
        request = AddPartitionsRequest(
            transactional_id=name,
            producer=ProducerIdAndEpoch(*producer),
            partitions=frozenset(partitions or (P0,)),
            client_version=self.version,
        )
        result = self.ask(self.machine.add_partitions, request)
        return None if result is None else result.error

    def end_transaction(
        self, producer: tuple[int, int], is_commit: bool, name: str = "x", version: int | None = None
    ) -> ProducerResult:
        request = EndTransactionRequest(
            transactional_id=name,
            producer=ProducerIdAndEpoch(*producer),
            is_commit=is_commit,
            client_version=self.version if version is None else version,
        )
        result: ProducerResult = self.ask(self.machine.end_transaction, request)
        return result

    def abort_timed_out(self) -> int:
        return self.machine.abort_timed_out(list(self.machine.ongoing), self.now)

    def state(self, name: str = "x") -> TransactionMetadata:
        return self.machine.transactions[name]
