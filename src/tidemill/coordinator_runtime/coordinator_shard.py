"""One partition of a coordinator's topic that this broker leads: its state machine and its appends.

The shard passes each event to the state machine, and performs the effects in the order in which they are
emitted. Records of one turn of the event loop share as few batches as possible; many records are encoded, and
replayed, in slices. Batches are appended in order, and their completions are handled in order, so that the
replayed records match the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from tidemill.coordinator_runtime.coordinator_effects import (
    AnyAppend,
    Append,
    CancelTimer,
    CoordinatorRecord,
    Now,
    Reply,
    SetTimer,
    Waiter,
)
from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorLog
from tidemill.coordinator_runtime.pending_writes import Outgoing, Write
from tidemill.coordinator_runtime.state_machine import APPEND_ERRORS, MachineT
from tidemill.coordinator_runtime.timers import ShardTimer, ShardTimerKey, Timers
from tidemill.model.backoff import Backoff
from tidemill.model.errors import ErrorCode, KafkaError, TidemillError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.model.transition_table import NONE, TransitionTable

LOAD_RETRY_S: Final = 1.0
LOAD_RETRY_S_MAX: Final = 60.0
"""The pause before a failed load is repeated, at first and at most."""
BATCH_BYTES_MAX: Final = 512 * 1024
"""Records of several requests share a batch up to this size, well under the topic's max.message.bytes."""

LOADING: Final = 0
"""The log is being loaded; the shard handles no requests."""
ACTIVE: Final = 1
CLOSED: Final = 2
"""Another broker leads the partition."""

ACTIVATE: Final = 0
CLOSE: Final = 1

TRANSITIONS: Final = TransitionTable(
    "shard",
    ["LOADING", "ACTIVE", "CLOSED"],
    ["ACTIVATE", "CLOSE"],
    [
        [ACTIVE, CLOSED],  # LOADING
        [NONE, CLOSED],  # ACTIVE
        [NONE, NONE],  # CLOSED
    ],
)

ResponseT = TypeVar("ResponseT")


class CoordinatorInvariantError(TidemillError):
    """A bug in a coordinator."""


class ShardListener(Protocol[MachineT]):
    """The coordinator of the shards."""

    def perform(self, shard: CoordinatorShard[MachineT], effect: object) -> None:
        """Performs an effect that only the coordinator knows. Raises CoordinatorInvariantError for others."""
        ...

    def timer_set(self, key: ShardTimerKey) -> None:
        """Called when the state machine has set a timer."""
        ...

    def timer_cancelled(self, key: ShardTimerKey) -> None:
        """Called when the state machine has cancelled a timer, and when it has fired."""
        ...


class CoordinatorShard(Generic[MachineT]):
    """The state machine of one partition, with its log and timers."""

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        epoch: int,
        new_machine: Callable[[], MachineT],
        log: CoordinatorLog,
        append_timeout_ms: int,
        timers: Timers[Hashable],
        wall_ms: Callable[[], int],
        number: int,
        listener: ShardListener[MachineT],
        logger: logging.Logger,
        on_replay_failed: Callable[[CoordinatorShard[MachineT]], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.state: int = LOADING
        self.number = number
        """Distinguishes the shard's timers from those of an earlier shard for the same partition."""
        self.load_backoff = Backoff(LOAD_RETRY_S, LOAD_RETRY_S_MAX)
        self.load_problem = ""
        """The text of the error that ended the last load; empty before the first error."""
        self.machine = new_machine()
        self._new_machine = new_machine
        self._log = log
        self._append_timeout_ms = append_timeout_ms
        self._timers = timers
        self._wall_ms = wall_ms
        self._append_timer = ShardTimerKey(number, ShardTimer.APPEND)
        self._listener = listener
        self._logger = logger
        self._on_replay_failed = on_replay_failed
        """Called when committed records could not be replayed: the state in memory differs from the log."""
        self._outgoing: deque[Outgoing] = deque()
        self._writes: deque[Write] = deque()
        self._is_draining = False
        """Whether :meth:`_finish_writes` is scheduled."""
        self._failed_append: tuple[AnyAppend, ErrorCode] | None = None
        """The latest append of several batches of which an earlier batch failed, with the error."""
        self._accepted = 0
        """The number of appends since the start."""
        self._ended = 0
        """The number of appends that were committed or failed."""
        self._flush_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_active(self) -> bool:
        """Whether the log is loaded, and this broker leads the partition."""
        return self.state == ACTIVE

    @property
    def is_closed(self) -> bool:
        """Whether another broker now leads the partition."""
        return self.state == CLOSED

    def now(self) -> Now:
        """The time of the current event."""
        return Now(monotonic_ms=self._timers.now_ms(), wall_ms=self._wall_ms())

    def submit(self, handle: Callable[[Waiter, Now], None]) -> asyncio.Future[ResponseT]:
        """Calls ``handle`` with a waiter, and performs the effects; returns the waiter."""
        waiter: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()
        handle(Waiter(waiter), self.now())
        self.perform_effects()
        return waiter

    # Effects.

    def perform_effects(self) -> None:
        """Performs the effects that the state machine has emitted."""
        while self.machine.has_effects:
            for effect in self.machine.take_effects():
                try:
                    self._perform(effect)
                except Exception:
                    # The effects of other requests follow.
                    self._logger.exception(
                        "%s-%d: an effect failed: %s", self.topic, self.partition, type(effect).__name__
                    )

    def _perform(self, effect: object) -> None:
        if isinstance(effect, Reply):
            _complete(effect.waiter, effect.response)
        elif isinstance(effect, SetTimer):
            key = ShardTimerKey(self.number, effect.key)
            self._timers.set(key, effect.deadline_ms)
            self._listener.timer_set(key)
        elif isinstance(effect, CancelTimer):
            key = ShardTimerKey(self.number, effect.key)
            self._timers.cancel(key)
            self._listener.timer_cancelled(key)
        elif isinstance(effect, Append):
            if not self._outgoing:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outgoing.append(Outgoing(effect))
            self._accepted += 1
        else:
            self._listener.perform(self, effect)

    # Appends.

    def _flush(self) -> None:
        """Appends the waiting records to the log; many records take several turns of the event loop."""
        if self.state == CLOSED:
            outgoing, self._outgoing = self._outgoing, deque()
            self._ended += len(outgoing)
            for waiting in outgoing:
                self._end_append(waiting.effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._wake_flush_waiters()
            return
        now = self.now()
        deadline_ms = now.monotonic_ms + self._append_timeout_ms
        write = Write(deadline_ms)
        remaining = ITEMS_PER_SLICE
        while self._outgoing and remaining > 0:
            waiting = self._outgoing[0]
            effect = waiting.effect
            if effect.marker is not None:
                self._outgoing.popleft()
                self._start_batch(write)
                self._start_alone(effect, self._append_marker(effect.marker), deadline_ms)
                write = Write(deadline_ms)
                remaining -= 1
                continue
            if effect.producer is not write.producer:
                # The records of a transaction have batches of their own.
                self._start_batch(write)
                write = Write(deadline_ms, effect.producer)
            try:
                encoded = [(record, record.key_bytes(), record.value_bytes()) for record in waiting.take()]
            except Exception as problem:  # noqa: BLE001 - becomes the outcome of the write
                # A failure of this commit must neither fail nor block the other commits of the turn.
                self._outgoing.popleft()
                self._start_batch(write)
                self._start_alone(effect, _raise(problem), deadline_ms)
                write = Write(deadline_ms)
                continue
            for index, (record, key, value) in enumerate(encoded):
                size = write.builder.size_bytes + len(key) + len(value or b"")
                if write.builder.count and size > BATCH_BYTES_MAX:
                    write.continued = effect if index else None
                    self._start(write, self._append(write))
                    write = Write(deadline_ms, effect.producer)
                write.builder.append(now.wall_ms, key, value)
                if effect.replay:
                    write.records.append(record)
            remaining -= len(encoded)
            if waiting.has_records:
                # The slice is over: only an append of more than a slice has further records.
                write.continued = effect
            else:
                self._outgoing.popleft()
                write.ending.append(effect)
        self._start_batch(write)
        if self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._drain()

    def _start_batch(self, write: Write) -> None:
        """Starts the append of a batch, unless it is empty."""
        if write.builder.count:
            self._start(write, self._append(write))

    def _start_alone(self, effect: AnyAppend, append: Awaitable[None], deadline_ms: int) -> None:
        """Starts an append that shares no batch."""
        write = Write(deadline_ms)
        write.ending.append(effect)
        self._start(write, append)

    def _start(self, write: Write, append: Awaitable[None]) -> None:
        """Starts ``append``; its completion is handled after those of the earlier writes."""
        self._writes.append(write)
        write.result = asyncio.ensure_future(append)
        if not write.result.done():
            write.result.add_done_callback(self._drain)
            self._timers.set(self._append_timer, self._writes[0].deadline_ms)

    def _append(self, write: Write) -> Awaitable[None]:
        try:
            if write.producer is None:
                write.batch = write.builder.build()
            else:
                producer_id, epoch = write.producer.producer
                write.batch = write.builder.build(producer_id, epoch, transactional=True)
                write.producer.check()
            return self._log.append(self.partition, write.batch)
        except Exception as problem:  # noqa: BLE001 - becomes the outcome of the write
            return _raise(problem)

    def _append_marker(self, marker: MarkerToWrite) -> Awaitable[None]:
        return self._log.append_marker(self.partition, marker)

    def _drain(self, _: object = None) -> None:
        """Handles the completions of writes, in order, unless this is scheduled."""
        if not self._is_draining:
            self._finish_writes()

    def _finish_writes(self) -> None:
        """Handles the completions of writes, in order; many records take several turns of the event loop."""
        remaining = ITEMS_PER_SLICE
        while self._has_completed_write and remaining > 0:
            write = self._writes.popleft()
            remaining -= len(write.records) + len(write.ending)
            self._finish(write)
        self._is_draining = self._has_completed_write
        if self._is_draining:
            asyncio.get_running_loop().call_soon(self._finish_writes)
        if self._writes:
            self._timers.set(self._append_timer, self._writes[0].deadline_ms)
        else:
            self._timers.cancel(self._append_timer)
        self._wake_flush_waiters()

    @property
    def _has_completed_write(self) -> bool:
        """Whether the oldest write was committed or has failed."""
        result = self._writes[0].result if self._writes else None
        return result is not None and result.done()

    def _wake_flush_waiters(self) -> None:
        """Wakes the callers of :meth:`appends_ended` whose appends have ended."""
        while self._flush_waiters and self._flush_waiters[0][0] <= self._ended:
            future = self._flush_waiters.popleft()[1]
            if not future.done():
                future.set_result(None)

    def _finish(self, write: Write) -> None:
        error = self._outcome(write)
        now = self.now()
        must_reload = False
        if error is ErrorCode.NONE and self.state != CLOSED:
            must_reload = not self._handle(partial(self._replay, write.records, now))
            if must_reload:
                error = ErrorCode.UNKNOWN_SERVER_ERROR
        self._ended += len(write.ending)
        if write.continued is not None and error is not ErrorCode.NONE:
            self._failed_append = (write.continued, error)
        for effect in write.ending:
            if write.responded:
                self._handle(partial(self.machine.timed_out_append_ended, effect.then, error, now))
            elif self._failed_append is not None and self._failed_append[0] is effect:
                self._end_append(effect, self._failed_append[1])
            else:
                self._end_append(effect, error)
        if must_reload:
            self._on_replay_failed(self)

    def _replay(self, records: list[CoordinatorRecord], now: Now) -> None:
        for record in records:
            self.machine.replay(record, now)

    def _handle(self, event: Callable[[], None]) -> bool:
        """Passes the outcome of a write to the state machine, and performs the effects.

        Returns False after an exception, which is a bug. It is logged, so that the other writes end.
        """
        try:
            event()
        except Exception:
            self._logger.exception(
                "%s-%d: the outcome of a write was not handled", self.topic, self.partition
            )
            return False
        finally:
            self.perform_effects()
        return True

    def _outcome(self, write: Write) -> ErrorCode:
        result = write.result
        if result is None or result.cancelled():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = result.exception()
        if problem is None:
            return ErrorCode.NONE
        if isinstance(problem, KafkaError):
            self._logger.warning(
                "%s-%d: %d writes failed: %s",
                self.topic,
                self.partition,
                len(write.ending),
                problem,
            )
            return problem.code
        self._logger.error("%s-%d: an append failed", self.topic, self.partition, exc_info=problem)
        return ErrorCode.UNKNOWN_SERVER_ERROR

    def _end_append(self, effect: AnyAppend, error: ErrorCode) -> None:
        """Passes the outcome of an append to the state machine, with an error code that clients handle."""
        client_error = self.machine.client_error(effect.then, error)
        if not self._handle(partial(self.machine.appended, effect.then, client_error, self.now())):
            self._send_error(effect, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _send_error(self, effect: AnyAppend, error: ErrorCode) -> None:
        """Sends the error response for an append that is not in time, or whose outcome was not handled."""
        self._handle(partial(self.machine.append_timed_out, effect.then, error, self.now()))

    def timer_fired(self, key: Hashable) -> None:
        """Handles the expiry of a timer of the state machine, or of the timer of appends."""
        if key is ShardTimer.APPEND:
            self._time_out_appends()
        else:
            self.machine.timer_fired(key, self.now())
            self.perform_effects()

    def _time_out_appends(self) -> None:
        """Sends error responses for records that are not committed in time; the writes continue."""
        now_ms = self._timers.now_ms()
        for write in self._writes:
            if write.deadline_ms > now_ms:
                self._timers.set(self._append_timer, write.deadline_ms)
                break
            if not write.responded:
                write.responded = True
                for effect in write.ending:
                    self._send_error(effect, APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT])

    async def appends_ended(self) -> None:
        """Returns once all pending appends have completed or failed."""
        if self._ended < self._accepted:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flush_waiters.append((self._accepted, future))
            await future

    def reset(self) -> None:
        """Drops the state, before the log is loaded into a new state machine."""
        self.machine = self._new_machine()

    def activate(self) -> None:
        """Starts to handle requests, after the log was loaded."""
        self.state = TRANSITIONS.after(self.state, ACTIVATE)
        # Replayed records only cancel timers, and none is set yet.
        self.machine.take_effects()
        self.machine.loaded(self.now())
        self.perform_effects()

    def close(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR: another broker leads the partition."""
        self.state = TRANSITIONS.after(self.state, CLOSE)
        self.machine.unload(self.now())
        self.perform_effects()
        for write in self._writes:
            if not write.responded:
                write.responded = True
                for effect in write.ending:
                    self._end_append(effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def _raise(problem: Exception) -> None:
    """Raises ``problem``. It replaces an append that could not begin."""
    raise problem


def _complete(waiter: Waiter, response: object) -> None:
    if not isinstance(waiter, asyncio.Future):
        raise CoordinatorInvariantError(f"the waiter {waiter!r} of a response is no future")
    if not waiter.done():
        waiter.set_result(response)
