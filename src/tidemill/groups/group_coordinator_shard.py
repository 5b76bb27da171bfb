"""One partition of ``__consumer_offsets`` that this broker leads: its coordinator and its appends.

Effects are performed in the order in which the core emits them. Records of one loop iteration share as few
batches as possible. Batches are appended in order, and their completions are handled in order, so that the
replayed records match the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from enum import Enum
from typing import Any, Final

from tidemill.groups.coordinator_effects import (
    Append,
    CancelTimer,
    CommitResult,
    Effect,
    Now,
    OffsetsStored,
    Reply,
    Response,
    SetTimer,
    StateChanged,
    Waiter,
)
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.interfaces import OFFSETS_TOPIC, OffsetsLog
from tidemill.groups.offset_records import OffsetsRecord
from tidemill.groups.rebalance import GroupConfig
from tidemill.groups.timers import Timers
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.builder import BatchBuilder
from tidemill.wire.schema import EncodeError

log = logging.getLogger("tidemill.groups")

BATCH_BYTES_MAX: Final = 512 * 1024
"""Records of several requests share a batch up to this size, well under the topic's max.message.bytes."""

APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error codes for clients when the coordinator's own append fails; other codes are passed on."""
TOO_LARGE: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE}
)


class ShardState(Enum):
    """Whether the shard handles requests."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class Write:
    """A batch that is being appended: the records to replay, and the effects that complete with it."""

    __slots__ = ("batch", "continued", "deadline_ms", "ending", "records", "responded", "task")

    def __init__(
        self, batch: bytes, records: list[OffsetsRecord], ending: list[Append], deadline_ms: int
    ) -> None:
        self.batch = batch
        self.records = records
        self.ending = ending
        self.continued: Append | None = None
        """The effect whose records continue in the next batch: it fails when this batch fails."""
        self.deadline_ms = deadline_ms
        self.responded = False
        """Whether the clients already have an error response; the records are replayed once committed."""
        self.task: asyncio.Task[None] | None = None


class GroupCoordinatorShard:
    """A coordinator with its log and timers."""

    def __init__(
        self,
        *,
        partition: int,
        epoch: int,
        config: GroupConfig,
        offsets_log: OffsetsLog,
        timers: Timers,
        wall_ms: Callable[[], int],
        append_timeout_ms: int,
        number: int,
        on_state_changed: Callable[[StateChanged], None],
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state = ShardState.LOADING
        self.core = GroupMetadataManager(config)
        self.number = number
        """Distinguishes the shard's timers from those of an earlier shard for the same partition."""
        self._log = offsets_log
        self._timers = timers
        self._wall_ms = wall_ms
        self._append_timeout_ms = append_timeout_ms
        self._on_state_changed = on_state_changed
        self._outgoing: list[Append] = []
        self._writes: deque[Write] = deque()
        self._failed: tuple[Append, ErrorCode] | None = None
        self._accepted = 0
        self._ended = 0
        self._flush_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._topics_deleted: deque[Mapping[str, bytes]] = deque()
        """Deletions that arrive while the log is loaded."""

    @property
    def is_closed(self) -> bool:
        """Whether another broker now leads the partition."""
        return self.state is ShardState.CLOSED

    def now(self) -> Now:
        """The time of the current event."""
        return Now(self._timers.now_ms(), self._wall_ms())

    def perform(self) -> None:
        """Performs the effects of the core."""
        while self.core.has_effects:
            for effect in self.core.take_effects():
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            _complete(effect.waiter, effect.response)
        elif isinstance(effect, SetTimer):
            self._timers.set((self.number, effect.key), effect.deadline_ms)
        elif isinstance(effect, CancelTimer):
            self._timers.cancel((self.number, effect.key))
        elif isinstance(effect, Append):
            if not self._outgoing:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outgoing.append(effect)
            self._accepted += 1
        else:
            self._on_state_changed(effect)

    # Appends.

    def _flush(self) -> None:
        """Appends the records of this loop iteration to the log."""
        outgoing, self._outgoing = self._outgoing, []
        if self.state is ShardState.CLOSED:
            self._ended += len(outgoing)
            for effect in outgoing:
                self._end(effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._release()
            return
        now = self.now()
        deadline_ms = now.steady_ms + self._append_timeout_ms
        builder = BatchBuilder()
        records: list[OffsetsRecord] = []
        ending: list[Append] = []
        for effect in outgoing:
            try:
                encoded = [(record.key_bytes(), record.value_bytes()) for record in effect.records]
            except EncodeError as problem:
                # A failure of this commit must neither fail nor block the other commits of the iteration.
                if builder.count:
                    self._write(builder, records, ending, None, deadline_ms)
                    builder, records, ending = BatchBuilder(), [], []
                self._start(Write(b"", [], [effect], deadline_ms), _raise(problem))
                continue
            for index, (record, (key, value)) in enumerate(zip(effect.records, encoded, strict=True)):
                if builder.count and builder.size_bytes + len(key) + len(value or b"") > BATCH_BYTES_MAX:
                    self._write(builder, records, ending, effect if index else None, deadline_ms)
                    builder, records, ending = BatchBuilder(), [], []
                builder.append(now.wall_ms, key, value)
                if effect.replay:
                    records.append(record)
            ending.append(effect)
        if builder.count:
            self._write(builder, records, ending, None, deadline_ms)

    def _write(
        self,
        builder: BatchBuilder,
        records: list[OffsetsRecord],
        ending: list[Append],
        continued: Append | None,
        deadline_ms: int,
    ) -> None:
        write = Write(builder.build(), records, ending, deadline_ms)
        write.continued = continued
        self._start(write, self._append(write))

    def _start(self, write: Write, append: Coroutine[Any, Any, None]) -> None:
        """Starts ``append``; its completion is handled after those of the earlier writes."""
        self._writes.append(write)
        task = asyncio.get_running_loop().create_task(append)
        write.task = task
        task.add_done_callback(self._drain)
        self._timers.set((self.number, "append"), self._writes[0].deadline_ms)

    async def _append(self, write: Write) -> None:
        await self._log.append(self.partition, write.batch)

    def _drain(self, _: object) -> None:
        """Handles the completions of writes, in order."""
        while self._writes and self._writes[0].task is not None and self._writes[0].task.done():
            self._finish(self._writes.popleft())
        if self._writes:
            self._timers.set((self.number, "append"), self._writes[0].deadline_ms)
        else:
            self._timers.cancel((self.number, "append"))
        self._release()

    def _release(self) -> None:
        """Wakes the callers of :meth:`appends_ended` whose appends have ended."""
        while self._flush_waiters and self._flush_waiters[0][0] <= self._ended:
            future = self._flush_waiters.popleft()[1]
            if not future.done():
                future.set_result(None)

    def _finish(self, write: Write) -> None:
        error = self._outcome(write)
        now = self.now()
        if error is ErrorCode.NONE and self.state is not ShardState.CLOSED:
            for record in write.records:
                self.core.replay(record, now)
        self._ended += len(write.ending)
        if write.continued is not None and error is not ErrorCode.NONE:
            self._failed = (write.continued, error)
        for effect in write.ending:
            if write.responded:
                self.core.timed_out_append_ended(effect.then, error, now)
                continue
            failed = self._failed is not None and self._failed[0] is effect
            self._end(effect, self._failed[1] if failed and self._failed is not None else error)
        self.perform()

    def _outcome(self, write: Write) -> ErrorCode:
        task = write.task
        if task is None or task.cancelled():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = task.exception()
        if problem is None:
            return ErrorCode.NONE
        if isinstance(problem, KafkaError):
            log.warning("%s-%d: %d groups' records were not written: %s", OFFSETS_TOPIC, self.partition,
                        len(write.ending), problem)  # fmt: skip
            return problem.code
        log.error("%s-%d: an append failed", OFFSETS_TOPIC, self.partition, exc_info=problem)
        return ErrorCode.UNKNOWN_SERVER_ERROR

    def _end(self, effect: Append, error: ErrorCode) -> None:
        """Passes the outcome of an append to the core, with the error codes that coordinator clients know."""
        client_error = APPEND_ERRORS.get(error, error)
        if error in TOO_LARGE and isinstance(effect.then, OffsetsStored):
            client_error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self.core.appended(effect.then, client_error, self.now())
        self.perform()

    def timer_fired(self, key: Hashable) -> None:
        """Handles the expiry of a timer of this shard."""
        if key == "append":
            self._time_out_appends()
        else:
            self.core.timer_fired(key, self.now())  # type: ignore[arg-type]
        self.perform()

    def _time_out_appends(self) -> None:
        """Sends error responses for records that are not committed in time; the writes continue."""
        now_ms = self._timers.now_ms()
        for write in self._writes:
            if write.deadline_ms > now_ms:
                self._timers.set((self.number, "append"), write.deadline_ms)
                break
            if not write.responded:
                write.responded = True
                for effect in write.ending:
                    error = APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT]
                    self.core.append_timed_out(effect.then, error, self.now())
                    self.perform()

    async def appends_ended(self) -> None:
        """Returns once all pending appends have completed or failed."""
        if self._ended < self._accepted:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flush_waiters.append((self._accepted, future))
            await future

    def activate(self) -> None:
        """Starts to handle requests, after the log was loaded."""
        self.state = ShardState.ACTIVE
        self.core.loaded(self.now())
        self.perform()
        while self._topics_deleted:
            self.topics_deleted(self._topics_deleted.popleft())

    def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Removes the offsets of deleted topics, given as a map of name to id, once the log is loaded."""
        if self.state is ShardState.LOADING:
            self._topics_deleted.append(topics)
        else:
            self.core.topics_deleted(topics, self.now())
            self.perform()

    def close(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR: another broker leads the partition."""
        self.state = ShardState.CLOSED
        self.core.unload(self.now())
        self.perform()
        for write in self._writes:
            if not write.responded:
                write.responded = True
                for effect in write.ending:
                    self._end(effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def _raise(problem: Exception) -> None:
    """Raises ``error`` instead of an append, for records that cannot be encoded."""
    raise problem


def _complete(waiter: Waiter, response: Response) -> None:
    if isinstance(waiter, asyncio.Future) and not waiter.done():
        waiter.set_result(response)


def failed_commit(count: int, error: ErrorCode) -> CommitResult:
    """The response to a commit that reached no coordinator."""
    return CommitResult((error,) * count)
