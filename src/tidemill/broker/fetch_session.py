"""Fetch sessions (KIP-227): the broker keeps the partitions of a client, and both sides send changes only.

A request with epoch 0 creates a session. Epoch -1 ends the named session and creates none. Any other epoch
must follow the previous one. A session keeps its partitions in an order. A partition whose records were sent
moves to the end, so that the limit of a response starves no partition.

The cost of a fetch depends on the number of changed partitions, not on the size of the session. If the client
has everything of a partition, its :class:`SessionPartition` is registered with the partition of the log,
which notifies it of changes. A fetch looks up the changed partitions and those that the request names. A
partition stays changed until the client has everything of it, also if it did not fit into the response.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from mypy_extensions import i16, i32, i64

from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.system_interfaces import Clock
from tidemill.replication.delayed_operations import CONSUMER, FetchWaiter, WatchedPartition
from tidemill.replication.partition import Partition
from tidemill.wire.fetch_layout import BY_ID, FetchRequest, RequestedPartition

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
PARTITIONS_MAX: Final = 500_000
"""The limit for the partitions of all sessions, some hundred bytes each. A client without a session names all
of its partitions in each fetch."""
SORTED_MAX: Final = 10_000
"""More changed partitions are looked up in the order of their changes, because sorting takes too long."""
END_AT_ONCE_MAX: Final = 2000
"""A session with more partitions is dropped in slices."""
EVICT_AFTER_MS: Final = 120_000


class SessionPartition(FetchWaiter):
    """A partition of a session: the fields that the client requested, and the state last sent to it."""

    def __init__(self, session: FetchSession, requested: RequestedPartition) -> None:
        self.session: FetchSession | None = session
        """None after :meth:`FetchSession._drop` has removed the partition from its session.

        A copy of the membership: events and earlier look-ups need not search the session by the key.
        """
        self.requested = requested
        self.partition: Partition | None = None
        """None: this broker had no replica at the last look-up."""
        self.sent_high_watermark: i64 = -1
        self.sent_log_start: i64 = -1
        self.rank: i64 = 0
        """The position in the order of the session, smallest first."""
        self._registered_on: Partition | None = None

    def on_readable(self, partition: WatchedPartition, added_bytes: i64) -> None:
        """Marks the partition as changed, and notifies the delayed fetches of the session."""
        for waiter in self._mark():
            waiter.on_readable(partition, added_bytes)

    def on_change(self, partition: WatchedPartition, committed: bool) -> None:
        """Marks the partition as changed, and notifies the delayed fetches of the session."""
        for waiter in self._mark():
            waiter.on_change(partition, committed)

    def _mark(self) -> tuple[FetchWaiter, ...]:
        """Marks the partition as changed. Returns the delayed fetches of its session."""
        session = self.session
        if session is None:
            return ()
        session.mark_changed(self)
        if not session.waiters:
            # The next fetch looks it up anyway, and a client that has left causes no further notifications.
            self.unregister()
        return tuple(session.waiters)

    def register(self, replica_id: i32) -> None:
        """Registers with the partition for notifications of changes."""
        partition = self.partition
        if self._registered_on is not partition:
            self.unregister()
            if partition is not None:
                partition.delayed.wait_readable(self, replica_id)
                self._registered_on = partition

    def unregister(self) -> None:
        """Ends the notifications."""
        if self._registered_on is not None:
            self._registered_on.delayed.stop_waiting(self)
            self._registered_on = None

    def record_fetches(self, replica_id: i32, now_ms: i64, replica_epoch: i64) -> None:
        """Records the fetches of a follower since the last look-up, while the partition was unchanged."""
        partition = self._registered_on
        if replica_id >= 0 and partition is not None:
            partition.fetch_repeated(replica_id, now_ms, replica_epoch)

    def is_up_to_date(self, data: FetchPartitionData, replica_id: i32, isolation: i32) -> bool:
        """Whether the client has everything of the partition, so that the next fetch need not look it up.

        ``data`` is the result of the last look-up. The fetches of a follower are looked up while it is not in
        sync, or while records are not committed, because the leader needs the offset and time of each.
        """
        partition = self.partition
        if partition is None or partition.deleted or data.completes_fetch:
            return False
        offset = self.requested.offset
        limits = partition.read_limits
        limit = limits.limit_offset(replica_id, isolation)
        high_watermark = limits.high_watermark
        # Below an open transaction the readable bytes change without an append: only a look-up counts them.
        if offset < limit or limit < high_watermark:
            return False
        if replica_id >= 0 and not partition.is_in_sync(replica_id, offset):
            return False
        return (
            data.high_watermark == high_watermark == self.sent_high_watermark
            and data.log_start_offset == partition.log.start_offset == self.sent_log_start
            and (replica_id == CONSUMER or high_watermark >= partition.log.end_offset)
        )

    def set_requested(self, requested: RequestedPartition) -> None:
        """Replaces the requested fields.

        A follower names its high watermark and log start: later values that were sent count as not received.
        """
        self.requested = requested
        if requested.high_watermark < self.sent_high_watermark:
            self.sent_high_watermark = requested.high_watermark
        if 0 <= requested.log_start_offset < self.sent_log_start:
            self.sent_log_start = -1

    def is_news(self, data: FetchPartitionData) -> bool:
        """Whether the response must include ``data``."""
        log_range = data.log_range
        return (
            (log_range is not None and log_range.size > 0)
            or data.completes_fetch
            or data.high_watermark != self.sent_high_watermark
            or data.log_start_offset != self.sent_log_start
        )

    def set_sent(self, data: FetchPartitionData) -> None:
        """Stores the state that is sent.

        After an error or a diverging epoch, the next response includes the partition in any case.
        """
        is_used = data.error == 0 and data.diverging_epoch is None
        self.sent_high_watermark = data.high_watermark if is_used else -1
        self.sent_log_start = data.log_start_offset


class FetchSession:
    """The session of one consumer or follower, which ``request`` creates."""

    def __init__(self, owner: FetchSessions, session_id: i32, request: FetchRequest, now_ms: i64) -> None:
        self.owner = owner
        self.session_id: i32 = session_id
        self.epoch: i32 = 1
        """The epoch of the next request."""
        self.used_ms: i64 = now_ms
        self.partitions: dict[tuple[bytes, int], SessionPartition] = {}
        """By topic key and partition index. :attr:`SessionPartition.rank` is their order."""
        self.changed: dict[SessionPartition, None] = {}
        """The partitions that the next fetch looks up, in the order in which they changed or had records.

        All others are registered with their partitions.
        """
        self.waiters: list[FetchWaiter] = []
        """The delayed fetches of the session; more than one only if connections share the session."""
        self.ended = False
        """Set when :meth:`FetchSessions.remove` removes the session: fetches need not search it by its id."""
        # Of the last request, which is not kept: partitions change between two requests.
        self._replica_id: i32 = request.replica_id
        self._replica_epoch: i64 = request.replica_epoch
        self._isolation: i32 = request.isolation
        self._version: i16 = request.version
        self._rank: i64 = 0
        """The highest rank of a partition."""

    @property
    def by_id(self) -> bool:
        """Whether the client names topics by id."""
        return self._version >= BY_ID

    def all_as_added(self) -> list[SessionPartition]:
        """Returns all partitions in the order in which they were added: that of the first response."""
        return list(self.partitions.values())

    def changed_in_order(self) -> list[SessionPartition]:
        """Returns the changed partitions, up to :data:`SORTED_MAX` in the order of the session."""
        changed = list(self.changed)
        if 1 < len(changed) <= SORTED_MAX:
            changed.sort(key=rank_of)
        return changed

    def _move_to_end(self, partition: SessionPartition) -> None:
        self._rank += 1
        partition.rank = self._rank

    def mark_changed(self, partition: SessionPartition) -> None:
        """Marks ``partition`` as changed: the next fetch looks it up."""
        if partition not in self.changed:
            self._record_fetches(partition)
            self.changed[partition] = None

    def _record_fetches(self, partition: SessionPartition) -> None:
        partition.record_fetches(self._replica_id, self.used_ms, self._replica_epoch)

    def set_reader(self, request: FetchRequest) -> None:
        """Sets replica, isolation level and version. If one of them differs, all partitions are changed."""
        if (
            self._replica_id == request.replica_id
            and self._replica_epoch == request.replica_epoch
            and self._isolation == request.isolation
            and self._version == request.version
        ):
            return
        for partition in self.partitions.values():
            self.mark_changed(partition)
            partition.unregister()
        self._replica_id = request.replica_id
        self._replica_epoch = request.replica_epoch
        self._isolation = request.isolation
        self._version = request.version

    def update(
        self, requested: tuple[RequestedPartition, ...], forgotten: tuple[tuple[bytes, int], ...]
    ) -> None:
        """Adds or updates the ``requested`` partitions, and removes the ``forgotten`` ones.

        The caller then calls :meth:`FetchSessions.enforce_partition_limit`.
        """
        count_before: i64 = len(self.partitions)
        for one in requested:
            key = (one.key, int(one.index))
            partition = self.partitions.get(key)
            if partition is None:
                partition = SessionPartition(self, one)
                self.partitions[key] = partition
                self._move_to_end(partition)
            else:
                partition.set_requested(one)
            self.mark_changed(partition)
        for key in forgotten:
            partition = self.partitions.pop(key, None)
            if partition is not None:
                self._drop(partition)
        self.owner.partition_count += len(self.partitions) - count_before

    def _drop(self, partition: SessionPartition) -> None:
        if partition in self.changed:
            del self.changed[partition]
        else:
            self._record_fetches(partition)
        partition.unregister()
        partition.session = None

    # The following methods handle ``partitions[begin:end]``, whose results are ``found[begin:end]``.

    def register_some(
        self, partitions: list[SessionPartition], found: list[FetchPartitionData], begin: i64, end: i64
    ) -> None:
        """Registers partitions of a delayed fetch of :attr:`waiters`."""
        index = begin
        while index < end:
            partition = partitions[index]
            if partition.session is self:
                partition.register(self._replica_id)
            index += 1
        self.clear_up_to_date(partitions, found, begin, end)

    def clear_up_to_date(
        self, partitions: list[SessionPartition], found: list[FetchPartitionData], begin: i64, end: i64
    ) -> None:
        """Clears the marks of those partitions whose current state the client has."""
        if self.ended:
            return
        index = begin
        while index < end:
            partition = partitions[index]
            data = found[index]
            index += 1
            if partition.session is self and partition.is_up_to_date(data, self._replica_id, self._isolation):
                partition.register(self._replica_id)
                self.changed.pop(partition, None)

    def end(self) -> None:
        """Ends the session: removes its partitions, after the response to the last delayed fetch."""
        self.ended = True
        if self.waiters:
            return
        end_large = self.owner.end_large
        if len(self.partitions) > END_AT_ONCE_MAX and end_large is not None:
            end_large(self)
        else:
            self.drop_some(len(self.partitions))

    def drop_some(self, count: i64) -> bool:
        """Removes up to ``count`` partitions. Returns whether the session has no more."""
        while self.partitions and count > 0:
            _, partition = self.partitions.popitem()
            self._drop(partition)
            count -= 1
        return not self.partitions

    def select_changed(
        self, partitions: list[SessionPartition], found: list[FetchPartitionData], begin: i64, end: i64
    ) -> list[FetchPartitionData]:
        """Returns the results that the response must include. Partitions with records move to the end."""
        result: list[FetchPartitionData] = []
        index = begin
        while index < end:
            partition = partitions[index]
            data = found[index]
            index += 1
            if not partition.is_news(data):
                continue
            result.append(data)
            partition.set_sent(data)
            log_range = data.log_range
            if log_range is not None and log_range.size > 0 and partition.session is self:
                self._move_to_end(partition)
                if partition in self.changed:
                    del self.changed[partition]
                    self.changed[partition] = None
        return result

    def select_all(
        self, partitions: list[SessionPartition], found: list[FetchPartitionData], begin: i64, end: i64
    ) -> list[FetchPartitionData]:
        """As :meth:`select_changed`, for the first response of a session, which includes all partitions."""
        index = begin
        while index < end:
            partitions[index].set_sent(found[index])
            index += 1
        return found[begin:end]


class FetchSessions:
    """The sessions of the broker, at most ``sessions_max``.

    A new session may replace the least recently used one, after :data:`EVICT_AFTER_MS` without a fetch.
    """

    def __init__(
        self, clock: Clock, sessions_max: int, end_large: Callable[[FetchSession], None] | None = None
    ) -> None:
        self.clock = clock
        self.sessions_max = sessions_max
        self.end_large = end_large
        """Calls :meth:`FetchSession.drop_some` in slices until it returns True."""
        self.sessions: dict[int, FetchSession] = {}
        self.partition_count: i64 = 0
        """The partitions of all sessions, kept by :meth:`FetchSession.update` and :meth:`remove`."""

    def find(self, request: FetchRequest) -> FetchSession | None:
        """Finds, creates or ends the session that a request names. None: the fetch has no session.

        The caller then calls :meth:`FetchSession.update` with the partitions, and
        :meth:`enforce_partition_limit`. Raises KafkaError for a session that does not exist, or that does not
        match the request.
        """
        epoch = request.session_epoch
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id != 0:
                self.remove(request.session_id)
            if epoch == FINAL_EPOCH:
                return None
            return self._make(request)
        session = self.sessions.get(int(request.session_id))
        if session is None:
            raise session_not_found(request.session_id)
        if session.epoch != epoch:
            raise KafkaError(
                f"fetch session {request.session_id} has the epoch {session.epoch}, not {epoch}",
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            )
        if session.by_id != request.by_id:
            self.remove(request.session_id)
            raise KafkaError(
                f"fetch session {request.session_id} names topics by {'id' if session.by_id else 'name'}",
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        session.set_reader(request)
        return session

    def enforce_partition_limit(self, session: FetchSession) -> None:
        """Ends ``session`` if all sessions have more than :data:`PARTITIONS_MAX` partitions.

        Raises KafkaError (FETCH_SESSION_ID_NOT_FOUND) if it has ended.
        """
        if session.ended:
            raise session_not_found(session.session_id)
        session.used_ms = self.clock.monotonic_ms()
        if self.partition_count > PARTITIONS_MAX:
            self.remove(session.session_id)
            raise session_not_found(session.session_id)

    def remove(self, session_id: i32) -> None:
        """Ends the session with this id, if it exists."""
        session = self.sessions.pop(int(session_id), None)
        if session is not None:
            self.partition_count -= len(session.partitions)
            session.end()

    def _make(self, request: FetchRequest) -> FetchSession | None:
        """Creates a session. Returns None if the limits are reached and no session may be evicted."""
        count: i64 = len(request.partitions)
        now_ms = self.clock.monotonic_ms()
        if count == 0 or self.sessions_max <= 0 or self.partition_count + count > PARTITIONS_MAX:
            return None
        if len(self.sessions) >= self.sessions_max:
            oldest = min(self.sessions.values(), key=used_at)
            if now_ms - oldest.used_ms < EVICT_AFTER_MS:
                return None
            self.remove(oldest.session_id)
        while True:
            session_id = random.randint(1, 0x7FFFFFFF)
            if session_id not in self.sessions:
                break
        session = FetchSession(self, i32(session_id), request, now_ms)
        self.sessions[session_id] = session
        return session


def session_not_found(session_id: i32) -> KafkaError:
    """Returns the error for a fetch session that does not exist, or that has ended."""
    return KafkaError(f"fetch session {session_id} does not exist", ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def rank_of(partition: SessionPartition) -> i64:
    """Returns the position of ``partition`` in its session."""
    return partition.rank


def used_at(session: FetchSession) -> i64:
    """Returns the time of the last fetch of ``session``."""
    return session.used_ms
