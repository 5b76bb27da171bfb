"""The way of a fetch request: decode, look up, answer now or wait. Compiled.

The layout of request and reply is in :mod:`tidemill.broker.fetch_codec`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i16, i32, i64

from tidemill.broker.fetch_codec import (
    BY_ID,
    FetchFields,
    decode,
    encode,
    encode_error,
)
from tidemill.broker.fetch_sessions import FetchPart, FetchSessions
from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.net.connection import Connection, Reply
from tidemill.net.deadlines import Deadlines
from tidemill.records.batch import ZSTD
from tidemill.replication.partition import Partition
from tidemill.replication.readable import READ_COMMITTED
from tidemill.replication.topics import TopicTable
from tidemill.replication.waiting import CONSUMER, Awaited

RECORDS_BYTES_MAX: Final = 0x70000000
"""Of one reply, so that it stays below 2 GiB with all that goes around the records."""
CURRENT_FORMAT: Final = 4
"""From this version on clients know all message formats: they get records as they are stored."""
WHOLE_FIRST_FROM: Final = 3
"""From this version on the first batch of a reply is whole, whatever the limits; before, they are kept."""
ZSTD_FROM: Final = 10
ANY_REPLICA_FROM: Final = 11
"""From this version on consumers may read from followers (KIP-392)."""
WHOLE: Final = 1 << 40
"""More bytes than a segment has."""
LARGE_BYTES: Final = 64 * 1024
"""A larger request is handled in slices: it names some thousand partitions."""
LARGE_PARTS: Final = 2000
"""More partitions are looked at in slices: some milliseconds of work."""
RANGES_MAX: Final = 10_000
"""Partitions whose records one reply carries: each is a range to send. Others come with the next one."""


def _unregistered(broker_id: int) -> int:
    return -1


class FetchRequest(FetchFields):
    """A decoded request; it waits on its partitions when there is too little to answer with."""

    def __init__(self, path: FetchPath, connection: Connection, version: i16, correlation_id: i32) -> None:
        super().__init__(version, correlation_id)
        self.path = path
        self.connection = connection
        self.reply: Reply | None = None
        self.found_bytes: i64 = 0
        self.incremental = False
        """It is told only what changed in its session."""
        self.at_once = False
        self.held_back = False
        """Whether an open transaction kept it from what others may read."""
        self.throttled = False
        """Whether a follower was kept from partitions of which too much was sent lately."""
        self.done = False
        self.is_large = False
        """It is handled in slices, by :attr:`FetchPath.large`."""
        self.under_way = False
        """It is large, and does not wait for its partitions now."""
        self.stirred = False
        """What happened while it was under way is a reason to answer it."""
        self.has_deadline = False
        self.to_count = False
        """What may be read of it has to be counted anew."""
        self.left_bytes: i64 = 0
        """What the reply may still take, while partitions are looked up."""
        self.taken_bytes: i64 = 0
        self.ranges: i64 = 0

    def on_readable(self, partition: Awaited, added_bytes: i64) -> None:
        """One of the partitions has more, or has changed so that the reader must be told."""
        if self.done:
            return
        if self.throttled and added_bytes > 0 and self.path.throttles(self, partition):
            return
        if (
            added_bytes > 0
            and self.isolation == READ_COMMITTED
            and (self.held_back or (isinstance(partition, Partition) and partition.has_transactions))
        ):
            if self.is_large:
                self.path.large.count_committed(self)
                return
            self.path.count_committed(self)
            if self.at_once:
                added_bytes = 0
        else:
            self.found_bytes += added_bytes
        if added_bytes == 0 or self.found_bytes >= self.bytes_min:
            self.path.wake(self)

    def on_news(self, partition: Awaited, committed: bool) -> None:
        """Consumers read from followers, up to where these know it to be committed: they are told at once."""
        if committed and not self.done and self.path.selector is not None:
            self.path.wake(self)

    def is_over(self) -> bool:
        """Whether the request was answered, or nobody waits for the answer any more."""
        return self.done or self.connection.closed

    def let_go(self) -> None:
        """Keeps nothing: its deadline, which may be far, keeps the request itself."""
        self.parts = []
        session = self.session
        self.session = None
        if session is not None and session.ended:
            session.end()

    def on_deadline(self) -> None:
        """The client's longest wait is over."""
        if not self.done:
            self.path.answer(self)


class FetchPath:
    """Takes fetch requests of all connections."""

    def __init__(
        self, topics: TopicTable, loop: Any, deadlines: Deadlines, sessions: FetchSessions, bytes_max: i64
    ) -> None:
        self.topics = topics
        self.loop = loop
        self.deadlines = deadlines
        self.sessions = sessions
        self.bytes_max: i64 = bytes_max
        self.waiting: i64 = 0
        self.down: Any = None
        """Called with the path and a request of a version whose clients know older formats only: whether it
        answers later, through :meth:`finish`. Its ``in_pieces`` gives the reply its last shape."""
        self.selector: Any = None
        """Called with a consumer's request and one of its parts: the replica that it shall read from, or -1.
        None where all read from the leader."""
        self.aborted: Any = None
        """Called with a log that knows of aborted transactions, an offset and the range found there: what
        :attr:`FetchPart.aborted` holds."""
        self.epoch_registered: Callable[[int], int] = _unregistered
        """Returns the epoch of a broker's registration in the metadata, -1 for an unknown broker."""
        self.throttle: Any = None
        """What holds followers back that catch up, a :class:`tidemill.broker.throttling.LeaderThrottle`."""
        self.large: Any = None
        """Handles requests with many partitions in slices, a
        :class:`tidemill.broker.large_fetches.LargeFetches`; None: all are handled at once."""
        self.large_bytes: i64 = LARGE_BYTES
        self.large_parts: i64 = LARGE_PARTS
        self.ranges_max: i64 = RANGES_MAX
        self.errors: dict[int, int] = {}
        self._woken: list[FetchRequest] = []

    def handle(
        self, connection: Connection, data: bytes, body: i64, end: i64, version: i16, correlation_id: i32
    ) -> None:
        """Takes the request whose fields begin at ``body``. ProtocolError: it is none."""
        request = FetchRequest(self, connection, version, correlation_id)
        if end - body > self.large_bytes and self.large is not None:
            self.large.take(request, data[body:end])
            return
        try:
            decode(request, data, body, end)
        except IndexError as problem:
            raise ProtocolError(f"Fetch version {version} is cut short: {problem}") from None
        if version >= 7:
            code = self.find_session(request)
            session = request.session
            if code == 0 and session is not None:
                session.update(request.parts, request.forgotten)
                code = self.sessions.count(session)
            if code != 0:
                connection.reply_now(encode_error(request, code))
                return
        self.gather(request)
        if len(request.parts) > self.large_parts and self.large is not None:
            self.large.look(request)
            return
        self.look_up(request, True)
        if self.is_answered_now(request):
            self.send(request)
        else:
            self.park(request)

    def find_session(self, request: FetchRequest) -> i16:
        """Finds the session of the request, which does not yet know what it changes; an error, or 0."""
        attached = self.sessions.find(
            request.session_id,
            request.session_epoch,
            len(request.parts),
            request.version >= BY_ID,
            request.replica_id,
            request.replica_epoch,
            request.isolation,
            request.version,
        )
        session = attached.session
        request.session = session
        request.incremental = session is not None and session.incremental
        return attached.code

    def is_answered_now(self, request: FetchRequest) -> bool:
        """Whether a request that was looked up is to be answered without waiting for more."""
        session = request.session
        is_empty = not request.parts if session is None else not session.parts
        return (
            request.found_bytes >= request.bytes_min
            or request.at_once
            or request.wait_ms <= 0
            or is_empty
            or request.connection.ended
            or request.connection.deaf
            or self.is_enough(request)
        )

    def gather(self, request: FetchRequest) -> None:
        """Takes the partitions of the request's session that have to be looked at."""
        session = request.session
        if session is not None:
            request.parts = session.news_in_order() if request.incremental else session.parts_in_order()

    def resolve(self, part: FetchPart, version: i16) -> None:
        """Finds the partition that is meant, unless that is known from the session."""
        partition = part.partition
        if partition is not None and not partition.deleted:
            return
        entry = self.topics.by_id.get(part.key) if version >= BY_ID else self.topics.by_name.get(part.key)
        part.partition = None if entry is None else entry.partition(part.index)
        part.topic_known = entry is not None

    def bytes_limit(self, request: FetchRequest) -> i64:
        """The most bytes of records that the reply may have."""
        left: i64 = request.bytes_max if request.bytes_max < self.bytes_max else self.bytes_max
        return left if left < RECORDS_BYTES_MAX else RECORDS_BYTES_MAX

    def is_enough(self, request: FetchRequest) -> bool:
        """Whether too few bytes were found only because replies end with whole batches, or with a segment.

        As Apache Kafka does it: a partition that has more than its limit counts with the limit, and a reader
        of an older segment does not wait.
        """
        left = self.bytes_limit(request)
        count: i64 = 0
        if request.ranges > self.large_parts:
            return True
        for part in request.parts:
            slice_ = part.slice
            partition = part.partition
            if slice_ is None or partition is None:
                continue
            if part.offset < partition.log.active.base_offset:
                return True
            size = left if left < part.bytes_max else part.bytes_max
            if slice_.size < size:
                limit = partition.limit_offset(request.replica_id, request.isolation)
                try:
                    there = partition.read(part.offset, WHOLE, limit, True)
                except KafkaError:
                    return True
                if there is not None and there.size < size:
                    size = there.size
            else:
                size = slice_.size
            count += size
            left -= size
        return count >= request.bytes_min

    def look_up(self, request: FetchRequest, asked: bool = False) -> None:
        """Finds where the records of every partition lie, within the limits of the request.

        With ``asked`` it was asked just now: a follower has so much at this moment.
        """
        self.begin_look_up(request)
        self.look_up_some(request, 0, len(request.parts), asked)

    def begin_look_up(self, request: FetchRequest) -> None:
        """Nothing is found so far."""
        left = self.bytes_limit(request)
        if request.bytes_min > left:
            request.bytes_min = left
        request.left_bytes = left
        request.taken_bytes = 0
        request.ranges = 0
        request.found_bytes = 0

    def look_up_some(self, request: FetchRequest, begin: i64, end: i64, asked: bool) -> None:
        """As :meth:`look_up`, those of its partitions from ``begin`` up to ``end``."""
        follows = request.replica_id >= 0
        is_outdated = follows and asked and self.is_outdated(request)
        version = request.version
        parts = request.parts
        left = request.left_bytes
        found = request.taken_bytes
        index = begin
        while index < end:
            part = parts[index]
            index += 1
            if asked:
                self.resolve(part, version)
            self.look_up_part(request, part, left, found == 0)
            if is_outdated and part.error == 0:
                part.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif follows and asked and part.error == 0:
                self.note_follower(request, part)
            if part.error != 0 or part.diverging_end >= 0 or part.preferred >= 0:
                request.at_once = True
            slice_ = part.slice
            if slice_ is not None:
                found += slice_.size
                left -= slice_.size
                request.ranges += 1
                if left < 0 or request.ranges >= self.ranges_max:
                    left = 0
        request.left_bytes = left
        request.found_bytes += found - request.taken_bytes
        request.taken_bytes = found

    def look_up_part(self, request: FetchRequest, part: FetchPart, left: i64, first: bool) -> None:
        """Finds one partition's records."""
        part.slice = None
        part.aborted = None
        part.error = 0
        part.diverging_end = -1
        part.preferred = -1
        partition = part.partition
        if partition is not None and partition.deleted:
            self.resolve(part, request.version)
            partition = part.partition
        if partition is None:
            by_id = request.version >= BY_ID and not part.topic_known
            part.fail(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        try:
            if request.replica_id == CONSUMER and request.version >= ANY_REPLICA_FROM:
                partition.check_readable(part.leader_epoch)
                if self.selector is not None and partition.replication is not None:
                    part.preferred = self.selector(request, part)
            else:
                partition.check_leader(part.leader_epoch)
            limit = partition.limit_offset(request.replica_id, request.isolation)
            part.high_watermark = partition.high_watermark
            part.last_stable_offset = partition.last_stable_offset
            if limit < part.high_watermark:
                request.held_back = True
            if request.replica_id == CONSUMER and partition.is_unsettled:
                # As for ListOffsets (KIP-207): what was told before must not seem to go back.
                part.high_watermark = part.told_high_watermark
                part.last_stable_offset = -1
            part.log_start = partition.log.start_offset
            if part.preferred >= 0:
                return
            if part.last_fetched_epoch >= 0 and diverges(part, partition):
                return
            if (left <= 0 and not first) or (request.replica_id >= 0 and self.throttles(request, partition)):
                partition.check_range(part.offset)
                return
            size = left if left < part.bytes_max else part.bytes_max
            if request.version < ZSTD_FROM and partition.storage.codec == ZSTD:
                part.fail(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
                return
            if request.version < CURRENT_FORMAT:
                part.slice = old_slice(partition, part.offset, size, limit, first, request.version)
            else:
                part.slice = partition.read(part.offset, size, limit, first)
            if (
                request.isolation == READ_COMMITTED
                and part.slice is not None
                and partition.log.has_aborts
                and self.aborted is not None
            ):
                part.aborted = self.aborted(partition.log, part.offset, part.slice)
        except KafkaError as error:
            part.fail(error.code)
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                partition.events.storage_trouble(partition, error)

    def throttles(self, request: FetchRequest, partition: Awaited) -> bool:
        """Whether a follower gets nothing of the partition for now, as too much was sent (KIP-73).

        Nobody is held back whom commits wait for: in sync, or about to be.
        """
        if self.throttle is None or not isinstance(partition, Partition) or not self.throttle.is_set:
            return False
        awaited = partition.awaits(request.replica_id, self.sessions.clock.monotonic_ms())
        topic, index = partition.topic, int(partition.index)
        if not self.throttle.holds_back(topic, index, self.loop.time(), in_sync=awaited):
            return False
        request.throttled = True
        return True

    def is_outdated(self, request: FetchRequest) -> bool:
        """Whether a follower has registered anew since: it may have lost what it had when it sent this.

        Source: Apache Kafka, ``Replica.updateFetchStateOrThrow``.
        """
        epoch = request.replica_epoch
        return epoch >= 0 and epoch < self.epoch_registered(request.replica_id)

    def note_follower(self, request: FetchRequest, part: FetchPart) -> None:
        """Takes what a follower's fetch says of its log."""
        partition = part.partition
        if partition is None or part.diverging_end >= 0:
            return
        now_ms = self.sessions.clock.monotonic_ms()
        broker, epoch = request.replica_id, request.replica_epoch
        if not partition.fetched_by(broker, part.offset, part.log_start_there, now_ms, epoch):
            part.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        # It may have moved by this fetch, and the follower serves readers below it.
        part.high_watermark = partition.high_watermark
        part.last_stable_offset = partition.last_stable_offset
        if part.high_watermark > part.told_high_watermark and request.session is not None:
            request.at_once = True
        if 0 <= part.told_log_start < part.log_start:
            # The start moved before the fetch could wait, and DeleteRecords waits for this follower.
            request.at_once = True
        if request.throttled and part.slice is None and part.offset < partition.log.end_offset:
            # It was held back before this fetch told that commits wait for it from now on.
            request.at_once = request.at_once or partition.awaits(request.replica_id, now_ms)

    def park(self, request: FetchRequest) -> None:
        """Lets the request wait on all of its partitions."""
        request.reply = request.connection.reply_later()
        request.connection.state = request
        session = request.session
        for part in request.parts:
            part.slice = None
            partition = part.partition
            if session is None and partition is not None:
                partition.wait_readable(request, request.replica_id)
        if session is not None:
            session.park(request, request.parts)
        self.begin_waiting(request)

    def wait_on_some(self, request: FetchRequest, begin: i64, end: i64) -> None:
        """Lets a large request wait on its partitions from ``begin`` up to ``end``."""
        session = request.session
        index = begin
        while index < end:
            part = request.parts[index]
            partition = part.partition
            if session is not None:
                if part.session is session:
                    part.hang(request.replica_id)
            elif partition is not None:
                partition.wait_readable(request, request.replica_id)
            index += 1

    def begin_waiting(self, request: FetchRequest) -> None:
        """The request is answered when its time is over, at the latest."""
        self.waiting += 1
        if request.has_deadline:
            return
        request.has_deadline = True
        wait_ms = request.wait_ms
        if request.throttled:
            # What is held back keeps its news, and nothing else tells when it may go.
            wait_ms = min(wait_ms, self.throttle.wait_ms(self.loop.time()))
        self.deadlines.add(wait_ms, request)

    def hurry(self, connection: Connection) -> None:
        """Whoever asked may be gone: its fetch is answered with whatever there is, and waits no longer."""
        request = connection.state
        if isinstance(request, FetchRequest) and not request.done:
            if request.under_way:
                request.stirred = True
            else:
                self.answer(request)

    def forget(self, connection: Connection) -> None:
        """Removes the waiting fetch of a connection that has ended."""
        request = connection.state
        connection.state = None
        if isinstance(request, FetchRequest) and not request.done:
            if request.is_large:
                self.large.forget(request)
                return
            self.release(request)
            request.let_go()

    def wake(self, request: FetchRequest) -> None:
        """Answers ``request`` in the loop's next turn, so that all appends of this one are in it."""
        if request.is_large:
            self.large.answer(request)
            return
        self.release(request)
        if not self._woken:
            self.loop.call_soon(self.answer_woken)
        self._woken.append(request)

    def count_committed(self, request: FetchRequest) -> None:
        """Finds how much a request that waits may read where transactions begin and end."""
        self.gather(request)
        self.look_up(request)
        self.drop_found(request)

    def drop_found(self, request: FetchRequest) -> None:
        """Nothing keeps files open while a request waits."""
        for part in request.parts:
            part.slice = None
            part.aborted = None

    def release(self, request: FetchRequest) -> None:
        """The request waits no longer."""
        request.done = True
        request.connection.state = None
        self.waiting -= 1
        session = request.session
        if session is not None:
            session.unpark(request)
            return
        for part in request.parts:
            partition = part.partition
            if partition is not None:
                partition.stop_waiting(request)

    def answer_woken(self) -> None:
        """Answers those whose partitions have enough now."""
        woken = self._woken
        self._woken = []
        for request in woken:
            self.answer_released(request)

    def answer(self, request: FetchRequest) -> None:
        """Answers with whatever there is."""
        if request.is_large:
            self.large.answer(request)
            return
        self.release(request)
        self.answer_released(request)

    def answer_released(self, request: FetchRequest) -> None:
        """Answers a request that waits no longer. What breaks it ends its connection, and no other's."""
        if request.connection.closed:
            request.let_go()
            return
        try:
            self.gather(request)
            if len(request.parts) > self.large_parts and self.large is not None:
                self.large.answer(request)
                return
            self.look_up(request)
            self.send(request)
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            request.let_go()
            request.connection.crash(problem)

    def send(self, request: FetchRequest) -> None:
        """Answers with what was found, once it is in a format that the client knows."""
        request.done = True
        if request.version < CURRENT_FORMAT and self.down is not None and self.down(self, request):
            return
        self.finish(request)

    def finish(self, request: FetchRequest) -> None:
        """Builds the reply of what was found."""
        if request.is_large:
            self.large.finish(request)
            return
        parts = request.parts
        session = request.session
        if session is not None:
            parts = session.changed(parts) if request.incremental else session.all_told(parts)
        reply = encode(request, parts)
        if request.version < CURRENT_FORMAT and self.down is not None:
            reply = self.down.in_pieces(reply)
        self.note_sent(request, parts)
        if session is not None:
            session.settle(request.parts)
        place = request.reply
        if place is None:
            if len(reply) == 1:
                connection = request.connection
                connection.reply_now(reply[0])
                return
            place = request.connection.reply_later()
        else:
            request.let_go()
        place.complete(reply)

    def note_sent(self, request: FetchRequest, parts: list[FetchPart]) -> None:
        """Counts errors and bytes of ``parts`` in the reply; the parts then refer to no records any more."""
        if request.replica_id >= 0 and self.throttle is not None and self.throttle.is_set:
            self.throttle.note_sent(parts, self.loop.time())
        for part in parts:
            if part.error != 0:
                self.errors[part.error] = self.errors.get(part.error, 0) + 1
            part.slice = None
            part.aborted = None


def diverges(part: FetchPart, partition: Partition) -> bool:
    """Whether the log of a follower differs from ours before the offset that it asks for.

    Raises OFFSET_OUT_OF_RANGE when the epoch of its last record is unknown here.
    """
    log = partition.log
    epoch, end = log.leader_epochs.end_offset(int(part.last_fetched_epoch), int(log.end_offset))
    if epoch < 0:
        raise KafkaError(
            f"{partition.topic}-{partition.index} has no record of epoch {part.last_fetched_epoch} or later",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    if epoch == part.last_fetched_epoch and end >= part.offset:
        return False
    part.diverging_epoch = epoch
    part.diverging_end = end
    return True


def old_slice(
    partition: Partition, offset: i64, size: i64, limit_offset: i64, first: bool, version: i16
) -> Slice | None:
    """What clients of old versions get: exactly as much as they ask for, so that the last message is cut.

    They leave a cut message out. One that has not even its first message whole asks for more.
    """
    there = partition.read(offset, WHOLE, limit_offset, True)
    if there is None or there.size <= size:
        return there
    if first and version >= WHOLE_FIRST_FROM:
        whole = partition.read(offset, size, limit_offset, True)
        if whole is not None and whole.size > size:
            return whole
    there.size = size if size > 0 else 0
    return there
