"""One partition of ``__consumer_offsets`` that this broker leads: its groups and its appends.

The shard passes each event to the state machine of its groups, and performs the effects in the order in which
they are emitted. Records of one turn of the event loop share as few batches as possible; many records are
encoded, and replayed, in slices. Batches are appended in order, and their completions are handled in order,
so that the replayed records match the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.groups.coordinator_effects import (
    Append,
    CancelTimer,
    CommitRequest,
    CommitResult,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    DescribedGroup,
    Effect,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    Now,
    OffsetsStored,
    Reply,
    Response,
    SetTimer,
    StateChanged,
    SyncRequest,
    SyncResult,
    TimerKey,
    TimerKind,
    Waiter,
)
from tidemill.groups.coordinator_interfaces import OffsetsLog
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata import GroupInvariantError, GroupMetadata
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import CommittedOffset, OffsetsRecord
from tidemill.groups.pending_joins import PendingJoins
from tidemill.groups.pending_writes import Outgoing, Write
from tidemill.groups.timers import CoordinatorTimerKey, ShardTimer, ShardTimerKey, Timers
from tidemill.model.backoff import Backoff
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, slices_by_weight
from tidemill.model.transition_table import NONE, TransitionTable

if TYPE_CHECKING:
    from tidemill.groups.offsets_loader import OffsetsLoader

logger = logging.getLogger("tidemill.groups")

LOAD_RETRY_S: Final = 1.0
LOAD_RETRY_S_MAX: Final = 60.0
"""The pause before a failed load is repeated, at first and at most."""
OFFSETS_PER_SLICE: Final = 2_000
"""Offsets that an event may visit: about a microsecond for each."""
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

ResponseT = TypeVar("ResponseT", bound=Response)


class GroupCoordinatorShard:
    """The groups of one partition, with their log and timers.

    A request returns a future, which completes with its response.
    """

    def __init__(
        self,
        *,
        partition: int,
        epoch: int,
        config: GroupCoordinatorConfig,
        offsets_log: OffsetsLog,
        timers: Timers[CoordinatorTimerKey],
        pending_joins: PendingJoins,
        wall_ms: Callable[[], int],
        number: int,
        on_state_changed: Callable[[StateChanged], None],
        on_replay_failed: Callable[[GroupCoordinatorShard], None],
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state: int = LOADING
        self.number = number
        """Distinguishes the shard's timers from those of an earlier shard for the same partition."""
        self.load_backoff = Backoff(LOAD_RETRY_S, LOAD_RETRY_S_MAX)
        self.load_problem = ""
        """The text of the error that ended the last load; empty before the first error."""
        self._config = config
        self._state_machine = GroupMetadataManager(config)
        self._log = offsets_log
        self._timers = timers
        self._pending_joins = pending_joins
        self._wall_ms = wall_ms
        self._append_timer = ShardTimerKey(number, ShardTimer.APPEND)
        self._on_state_changed = on_state_changed
        self._on_replay_failed = on_replay_failed
        """Called when committed records could not be replayed: the groups in memory differ from the log."""
        self._outgoing: deque[Outgoing] = deque()
        self._writes: deque[Write] = deque()
        self._is_draining = False
        """Whether :meth:`_finish_writes` is scheduled."""
        self._failed_append: tuple[Append, ErrorCode] | None = None
        """The latest append of several batches of which an earlier batch failed, with the error."""
        self._accepted = 0
        """The number of appends since the start."""
        self._ended = 0
        """The number of appends that were committed or failed."""
        self._flush_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.topics_deleted_during_load: deque[Mapping[str, bytes]] = deque()
        """The coordinator passes these to :meth:`topics_deleted` again once the log is loaded."""

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

    @property
    def groups(self) -> Mapping[str, GroupMetadata]:
        """The groups by id, to be read at once."""
        return self._state_machine.groups

    # Requests.

    def join(self, request: JoinRequest) -> asyncio.Future[JoinResult]:
        """Adds a member; the response is sent when the generation is complete."""
        return self._submit(partial(self._state_machine.join, request))

    def sync(self, request: SyncRequest) -> asyncio.Future[SyncResult]:
        """Requests a member's assignment."""
        return self._submit(partial(self._state_machine.sync, request))

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Restarts the member's session; returns REBALANCE_IN_PROGRESS if the member should rejoin."""
        result = self._state_machine.heartbeat(group_id, member_id, generation, instance_id, self.now())
        self._perform_effects()
        return result

    def leave(self, group_id: str, members: tuple[LeavingMember, ...]) -> asyncio.Future[LeaveResult]:
        """Removes members."""
        return self._submit(partial(self._state_machine.leave, group_id, members))

    def commit(self, request: CommitRequest) -> asyncio.Future[CommitResult]:
        """Commits offsets; the response is sent once they are in the log."""
        return self._submit(partial(self._state_machine.commit, request))

    def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> asyncio.Future[DeleteOffsetsResult]:
        """Removes committed offsets."""
        return self._submit(partial(self._state_machine.delete_offsets, group_id, partitions))

    def delete_groups(self, group_ids: tuple[str, ...]) -> asyncio.Future[DeleteGroupsResult]:
        """Removes groups without members."""
        return self._submit(partial(self._state_machine.delete_groups, group_ids))

    def offsets(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """Returns the group's committed offsets by topic and partition; the caller must not change them."""
        return self._state_machine.offsets(group_id)

    def describe(self, group_id: str) -> DescribedGroup:
        """Describes the group for administrators."""
        return self._state_machine.describe(group_id)

    def list_groups(self) -> list[ListedGroup]:
        """Returns all groups that are not being deleted."""
        return self._state_machine.list_groups()

    def group_slices(self) -> Iterator[Sequence[str]]:
        """Yields the ids of all groups, in slices for an event that visits all their offsets."""

        def weight(group_id: str) -> int:
            group = self.groups.get(group_id)
            return 1 if group is None else 1 + group.offset_count

        return slices_by_weight(list(self.groups), weight, OFFSETS_PER_SLICE)

    def expire(self, group_ids: Iterable[str]) -> int:
        """Removes expired offsets, and empty groups without offsets; returns the number of tombstones."""
        removed = self._state_machine.expire(group_ids, self.now())
        self._perform_effects()
        return removed

    def _submit(self, handle: Callable[[Waiter, Now], None]) -> asyncio.Future[ResponseT]:
        """Calls ``handle`` with a waiter, and performs its effects; returns the waiter."""
        waiter: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()
        handle(Waiter(waiter), self.now())
        self._perform_effects()
        return waiter

    # Effects.

    def _perform_effects(self) -> None:
        while self._state_machine.has_effects:
            for effect in self._state_machine.take_effects():
                try:
                    self._perform(effect)
                except Exception:
                    # The effects of other requests follow.
                    logger.exception(
                        "%s-%d: an effect failed: %s", OFFSETS_TOPIC, self.partition, type(effect).__name__
                    )

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            _complete(effect.waiter, effect.response)
        elif isinstance(effect, SetTimer):
            self._timers.set(ShardTimerKey(self.number, effect.key), effect.deadline_ms)
            if effect.key.kind is TimerKind.PENDING_JOIN:
                self._pending_joins.add(self.number, effect.key)
        elif isinstance(effect, CancelTimer):
            key = ShardTimerKey(self.number, effect.key)
            self._timers.cancel(key)
            self._pending_joins.discard(key)
        elif isinstance(effect, Append):
            if not self._outgoing:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outgoing.append(Outgoing(effect))
            self._accepted += 1
        else:
            self._on_state_changed(effect)

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
        deadline_ms = now.monotonic_ms + self._config.offset_commit_timeout_ms
        write = Write(deadline_ms)
        remaining = ITEMS_PER_SLICE
        while self._outgoing and remaining > 0:
            waiting = self._outgoing[0]
            effect = waiting.effect
            try:
                encoded = [(record, record.key_bytes(), record.value_bytes()) for record in waiting.take()]
            except Exception as problem:  # noqa: BLE001 - becomes the outcome of the write
                # A failure of this commit must neither fail nor block the other commits of the turn.
                self._outgoing.popleft()
                if write.builder.count:
                    self._start(write, self._append(write))
                write = Write(deadline_ms)
                write.ending.append(effect)
                self._start(write, _raise(problem))
                write = Write(deadline_ms)
                continue
            for index, (record, key, value) in enumerate(encoded):
                size = write.builder.size_bytes + len(key) + len(value or b"")
                if write.builder.count and size > BATCH_BYTES_MAX:
                    write.continued = effect if index else None
                    self._start(write, self._append(write))
                    write = Write(deadline_ms)
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
        if write.builder.count:
            self._start(write, self._append(write))
        if self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)

    def _start(self, write: Write, append: Coroutine[Any, Any, None]) -> None:
        """Starts ``append``; its completion is handled after those of the earlier writes."""
        self._writes.append(write)
        task = asyncio.get_running_loop().create_task(append)
        write.task = task
        task.add_done_callback(self._drain)
        self._timers.set(self._append_timer, self._writes[0].deadline_ms)

    async def _append(self, write: Write) -> None:
        write.batch = write.builder.build()
        await self._log.append(self.partition, write.batch)

    def _drain(self, _: object) -> None:
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
        task = self._writes[0].task if self._writes else None
        return task is not None and task.done()

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
                self._handle(partial(self._state_machine.timed_out_append_ended, effect.then, error, now))
            elif self._failed_append is not None and self._failed_append[0] is effect:
                self._end_append(effect, self._failed_append[1])
            else:
                self._end_append(effect, error)
        if must_reload:
            self._on_replay_failed(self)

    def _replay(self, records: list[OffsetsRecord], now: Now) -> None:
        for record in records:
            self._state_machine.replay(record, now)

    def _handle(self, event: Callable[[], None]) -> bool:
        """Passes the outcome of a write to the state machine, and performs the effects.

        Returns False after an exception, which is a bug. It is logged, so that the other writes end.
        """
        try:
            event()
        except Exception:
            logger.exception("%s-%d: the outcome of a write was not handled", OFFSETS_TOPIC, self.partition)
            return False
        finally:
            self._perform_effects()
        return True

    def _outcome(self, write: Write) -> ErrorCode:
        task = write.task
        if task is None or task.cancelled():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        problem = task.exception()
        if problem is None:
            return ErrorCode.NONE
        if isinstance(problem, KafkaError):
            logger.warning(
                "%s-%d: %d writes of groups and offsets failed: %s",
                OFFSETS_TOPIC,
                self.partition,
                len(write.ending),
                problem,
            )
            return problem.code
        logger.error("%s-%d: an append failed", OFFSETS_TOPIC, self.partition, exc_info=problem)
        return ErrorCode.UNKNOWN_SERVER_ERROR

    def _end_append(self, effect: Append, error: ErrorCode) -> None:
        """Passes the outcome of an append to the state machine, with an error code that clients handle."""
        client_error = APPEND_ERRORS.get(error, error)
        if error in TOO_LARGE and isinstance(effect.then, OffsetsStored):
            client_error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if not self._handle(partial(self._state_machine.appended, effect.then, client_error, self.now())):
            self._send_error(effect, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _send_error(self, effect: Append, error: ErrorCode) -> None:
        """Sends the error response for an append that is not in time, or whose outcome was not handled."""
        self._handle(partial(self._state_machine.append_timed_out, effect.then, error, self.now()))

    def timer_fired(self, key: ShardTimer | TimerKey) -> None:
        """Handles the expiry of a timer of a group, or of the timer of appends."""
        if isinstance(key, TimerKey):
            self._state_machine.timer_fired(key, self.now())
            self._perform_effects()
        else:
            self._time_out_appends()

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

    def new_loader(self) -> OffsetsLoader:
        """Drops all groups; returns a loader that replays the log into this shard."""
        # Imported late: a broker without groups decodes no records.
        from tidemill.groups.offsets_loader import OffsetsLoader

        self._state_machine = GroupMetadataManager(self._config)
        return OffsetsLoader(self._state_machine, self.partition, self._config.unpacked_bytes_max)

    def activate(self) -> None:
        """Starts to handle requests, after the log was loaded."""
        self.state = TRANSITIONS.after(self.state, ACTIVATE)
        # Replayed records only cancel timers, and none is set yet.
        self._state_machine.take_effects()
        self._state_machine.loaded(self.now())
        self._perform_effects()

    async def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Removes the offsets of deleted topics, given as a map of name to id, in slices."""
        if self.state == LOADING:
            self.topics_deleted_during_load.append(topics)
            return
        for group_ids in self.group_slices():
            self._state_machine.topics_deleted(topics, group_ids, self.now())
            self._perform_effects()
            await asyncio.sleep(0)

    def close(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR: another broker leads the partition."""
        self.state = TRANSITIONS.after(self.state, CLOSE)
        self._state_machine.unload(self.now())
        self._perform_effects()
        for write in self._writes:
            if not write.responded:
                write.responded = True
                for effect in write.ending:
                    self._end_append(effect, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def _raise(problem: Exception) -> None:
    """Raises ``problem``. It replaces the append of records that cannot be encoded."""
    raise problem


def _complete(waiter: Waiter, response: Response) -> None:
    if not isinstance(waiter, asyncio.Future):
        raise GroupInvariantError(f"the waiter {waiter!r} of a response is no future")
    if not waiter.done():
        waiter.set_result(response)
