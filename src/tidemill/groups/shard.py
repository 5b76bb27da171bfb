"""One partition of ``__consumer_offsets`` that this broker leads: its coordinator, and its way to the log.

Effects are performed in the order in which they came out of the core. Records of one turn of the loop are
gathered into as few batches as they fit in; batches are handed to the log in order and their ends are taken
in order, so that what is replayed is what the log says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from enum import Enum
from typing import Any, Final

from tidemill.groups.coordinator import Coordinator
from tidemill.groups.effects import (
    Append,
    CancelTimer,
    CommitResult,
    Effect,
    Moved,
    Now,
    OffsetsStored,
    Reply,
    Response,
    SetTimer,
    Waiter,
)
from tidemill.groups.offsets import OffsetsRecord
from tidemill.groups.ports import OFFSETS_TOPIC, OffsetsLog
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
"""What a client of the coordinator is told when the coordinator's own append fails; others as they are."""
TOO_LARGE: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE}
)


class ShardState(Enum):
    """Whether the shard answers."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class Write:
    """One batch on its way: what it replays, and which effects end with it."""

    __slots__ = ("answered", "batch", "continued", "deadline_ms", "ending", "records", "task")

    def __init__(
        self, batch: bytes, records: list[OffsetsRecord], ending: list[Append], deadline_ms: int
    ) -> None:
        self.batch = batch
        self.records = records
        self.ending = ending
        self.continued: Append | None = None
        """The effect whose records go on in the next batch: when this one fails, it has failed."""
        self.deadline_ms = deadline_ms
        self.answered = False
        """Clients were told that it takes too long; the records still count once they are committed."""
        self.task: asyncio.Task[None] | None = None


class Shard:
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
        on_moved: Callable[[Moved], None],
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state = ShardState.LOADING
        self.core = Coordinator(config)
        self.number = number
        """Tells the shard's timers from those of an earlier one for the same partition."""
        self._log = offsets_log
        self._timers = timers
        self._wall_ms = wall_ms
        self._append_timeout_ms = append_timeout_ms
        self._on_moved = on_moved
        self._outgoing: list[Append] = []
        self._writes: deque[Write] = deque()
        self._failed: tuple[Append, ErrorCode] | None = None
        self._accepted = 0
        self._ended = 0
        self._settling: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._topics_deleted: deque[Mapping[str, bytes]] = deque()
        """While the log is read."""

    @property
    def is_closed(self) -> bool:
        """Whether another broker leads the partition by now."""
        return self.state is ShardState.CLOSED

    def now(self) -> Now:
        """The time of the event under way."""
        return Now(self._timers.now_ms(), self._wall_ms())

    def perform(self) -> None:
        """Does what the core wants done."""
        while self.core.has_effects:
            for effect in self.core.take_effects():
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            _answer(effect.waiter, effect.response)
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
            self._on_moved(effect)

    # The way to the log.

    def _flush(self) -> None:
        """Hands the log what has gathered in this turn of the loop."""
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
                # Whoever else commits in this turn must not pay for it, nor wait for ever.
                if builder.count:
                    self._write(builder, records, ending, None, deadline_ms)
                    builder, records, ending = BatchBuilder(), [], []
                self._start(Write(b"", [], [effect], deadline_ms), _refuse(problem))
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
        """Has ``append`` run, whose end is taken after those of the writes before it."""
        self._writes.append(write)
        task = asyncio.get_running_loop().create_task(append)
        write.task = task
        task.add_done_callback(self._drain)
        self._timers.set((self.number, "append"), self._writes[0].deadline_ms)

    async def _append(self, write: Write) -> None:
        await self._log.append(self.partition, write.batch)

    def _drain(self, _: object) -> None:
        """Takes the ends of writes, in their order."""
        while self._writes and self._writes[0].task is not None and self._writes[0].task.done():
            self._finish(self._writes.popleft())
        if self._writes:
            self._timers.set((self.number, "append"), self._writes[0].deadline_ms)
        else:
            self._timers.cancel((self.number, "append"))
        self._release()

    def _release(self) -> None:
        """Lets those go on who waited for what has ended by now."""
        while self._settling and self._settling[0][0] <= self._ended:
            future = self._settling.popleft()[1]
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
            if write.answered:
                self.core.overdue_ended(effect.then, error, now)
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
        log.error("%s-%d: an append broke", OFFSETS_TOPIC, self.partition, exc_info=problem)
        return ErrorCode.UNKNOWN_SERVER_ERROR

    def _end(self, effect: Append, error: ErrorCode) -> None:
        """Tells the core how an append ended, in the words of a coordinator's clients."""
        told = APPEND_ERRORS.get(error, error)
        if error in TOO_LARGE and isinstance(effect.then, OffsetsStored):
            told = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self.core.appended(effect.then, told, self.now())
        self.perform()

    def timer_fired(self, key: Hashable) -> None:
        """A timer of this shard is due."""
        if key == "append":
            self._appends_overdue()
        else:
            self.core.timer_fired(key, self.now())  # type: ignore[arg-type]
        self.perform()

    def _appends_overdue(self) -> None:
        """Answers those whose records are not committed in time; the writes themselves go on."""
        now_ms = self._timers.now_ms()
        for write in self._writes:
            if write.deadline_ms > now_ms:
                self._timers.set((self.number, "append"), write.deadline_ms)
                break
            if not write.answered:
                write.answered = True
                for effect in write.ending:
                    error = APPEND_ERRORS[ErrorCode.REQUEST_TIMED_OUT]
                    self.core.overdue(effect.then, error, self.now())
                    self.perform()

    async def settled(self) -> None:
        """Returns once what is on its way to the log now has arrived, or failed."""
        if self._ended < self._accepted:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settling.append((self._accepted, future))
            await future

    def activate(self) -> None:
        """The log was read: the shard answers."""
        self.state = ShardState.ACTIVE
        self.core.loaded(self.now())
        self.perform()
        while self._topics_deleted:
            self.topics_deleted(self._topics_deleted.popleft())

    def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Topics are gone, by name and id: removes their offsets, once they are read."""
        if self.state is ShardState.LOADING:
            self._topics_deleted.append(topics)
        else:
            self.core.topics_deleted(topics, self.now())
            self.perform()

    def close(self) -> None:
        """Another broker leads the partition: everybody who waits is sent there."""
        self.state = ShardState.CLOSED
        self.core.unload(self.now())
        self.perform()
        for write in self._writes:
            if not write.answered:
                write.answered = True
                for effect in write.ending:
                    self._end(effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def _refuse(problem: Exception) -> None:
    """Stands for the append of records that cannot be written down."""
    raise problem


def _answer(waiter: Waiter, response: Response) -> None:
    if isinstance(waiter, asyncio.Future) and not waiter.done():
        waiter.set_result(response)


def failed_commit(count: int, error: ErrorCode) -> CommitResult:
    """The answer to a commit that did not reach a coordinator."""
    return CommitResult((error,) * count)
