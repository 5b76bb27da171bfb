"""Fetch sessions (KIP-227): the broker remembers what a consumer fetches, and each side sends what changed.

An epoch of 0 with id 0 asks for a new session, -1 for none (and ends the one named); any other must be the
one after the last. A session holds its partitions in an order; those that had data go to its end, so that
none is starved by the limit on a reply.

What a fetch costs follows what happened, not how many partitions the session has. A partition of which the
client was told everything hangs on the log's partition, which tells it what happens there: then it has news,
and only those with news, and those that the request names, are looked at. They keep their news until the
client has it all; what did not fit into a reply keeps it, too.
"""

from __future__ import annotations

import random
from typing import Any, Final

from mypy_extensions import i16, i32, i64

from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode
from tidemill.model.ports import Clock
from tidemill.replication.partition import Partition
from tidemill.replication.waiting import CONSUMER, Awaited, FetchWaiter

NOT_SAID: Final[i64] = 0x7FFFFFFFFFFFFFFF
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
PARTS_MAX: Final = 500_000
"""Partitions in all sessions together: some hundred bytes each. Whoever finds no room names all of its
partitions in each fetch."""
SORTED_MAX: Final = 10_000
"""Of more partitions with news, those are looked at first that had news first: sorting takes too long."""
END_AT_ONCE_MAX: Final = 2000
"""A session with more partitions is dropped in slices."""
EVICT_AFTER_MS: Final = 120_000
SESSION_NOT_FOUND: Final[i16] = 70
INVALID_EPOCH: Final[i16] = 71
TOPIC_ID_ERROR: Final[i16] = 106


class FetchPart(FetchWaiter):
    """One partition of a fetch: what is asked for, and what was found."""

    def __init__(self, key: bytes, index: i32) -> None:
        self.key = key
        """The topic's name, or its id from version 13 on."""
        self.index: i32 = index
        self.leader_epoch: i64 = -1
        self.offset: i64 = 0
        self.last_fetched_epoch: i64 = -1
        self.log_start_there: i64 = -1
        """Where a follower's own log starts."""
        self.high_watermark_there: i64 = NOT_SAID
        """How far a follower knows the partition to be committed (KIP-1166)."""
        self.bytes_max: i64 = 0
        self.partition: Partition | None = None
        self.topic_known = False
        self.error: i16 = 0
        self.high_watermark: i64 = -1
        self.last_stable_offset: i64 = -1
        self.log_start: i64 = -1
        self.slice: Slice | None = None
        self.diverging_epoch: i64 = -1
        self.diverging_end: i64 = -1
        """From here on the follower has another log, -1: it has not. The epoch is the one that ends here."""
        self.aborted: list[tuple[int, int]] | None = None
        """Producer id and first offset of the aborted transactions among the records, if asked for."""
        self.preferred: i32 = -1
        """The replica that the consumer shall fetch from instead (KIP-392); -1: this one."""
        self.told_high_watermark: i64 = -1
        self.told_log_start: i64 = -1
        self.session: FetchSession | None = None
        self.rank: i64 = 0
        """Its place in the session's order, the smallest first."""
        self.has_news = False
        """It has to be looked at by the next fetch of its session."""
        self.waits_at: Partition | None = None
        """Where it hangs, to be told what happens."""

    def on_readable(self, partition: Awaited, added_bytes: i64) -> None:
        """There is more to read: whoever waits is told, and else the next fetch looks at it."""
        for request in self._told():
            request.on_readable(partition, added_bytes)

    def on_news(self, partition: Awaited, committed: bool) -> None:
        """There is something to tell: the next fetch looks at it."""
        for request in self._told():
            request.on_news(partition, committed)

    def _told(self) -> tuple[FetchWaiter, ...]:
        """The requests that wait for news of this partition, after these were noted."""
        session = self.session
        if session is None:
            return ()
        session.add_news(self)
        if not session.parked:
            # It is known; a client that never comes back costs the partition nothing more.
            self.leave()
        return tuple(session.parked)

    def hang(self, replica_id: i32) -> None:
        """Is told from now on what happens to its partition."""
        partition = self.partition
        if self.waits_at is not partition:
            self.leave()
            if partition is not None:
                partition.wait_readable(self, replica_id)
                self.waits_at = partition

    def leave(self) -> None:
        """Is told nothing any more."""
        if self.waits_at is not None:
            self.waits_at.stop_waiting(self)
            self.waits_at = None

    def is_told(self, replica_id: i32, isolation: i32) -> bool:
        """Whether the client knows everything of this partition, and anything more will be told here.

        The fetches of a follower are noted one by one as long as it is not in sync, or something is not
        committed: what it has, and when it was caught up, decides of both.
        """
        partition = self.partition
        if partition is None or partition.deleted or self.error != 0 or self.diverging_end >= 0:
            return False
        limit = partition.limit_offset(replica_id, isolation)
        # An open transaction holds back more than what comes next: how much is counted by looking.
        if self.preferred >= 0 or self.offset < limit or limit < partition.high_watermark:
            return False
        if replica_id >= 0 and not partition.is_in_sync(replica_id, self.offset):
            return False
        high_watermark = partition.high_watermark
        return (
            self.high_watermark == high_watermark == self.told_high_watermark
            and self.log_start == partition.log.start_offset == self.told_log_start
            and (replica_id == CONSUMER or high_watermark >= partition.log.end_offset)
        )

    def believe(self, asked: FetchPart) -> None:
        """Takes a follower's word for what it was told: answers that came too late for it do not count."""
        if asked.high_watermark_there < self.told_high_watermark:
            self.told_high_watermark = asked.high_watermark_there
        if 0 <= asked.log_start_there < self.told_log_start:
            self.told_log_start = -1

    def fail(self, code: ErrorCode) -> None:
        """Answers this partition with an error."""
        self.error = i16(int(code))
        self.slice = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start = -1


class FetchSession:
    """What one consumer or follower fetches."""

    def __init__(self, owner: FetchSessions, session_id: i32, by_id: bool, now_ms: i64) -> None:
        self.owner = owner
        self.session_id: i32 = session_id
        self.by_id = by_id
        """Whether the consumer names topics by id."""
        self.epoch: i32 = 1
        self.incremental = False
        self.used_ms: i64 = now_ms
        self.parts: dict[tuple[bytes, int], FetchPart] = {}
        self.news: dict[FetchPart, None] = {}
        """Those that the next fetch looks at, in the order in which they came, or were answered with data.
        All others hang at their partitions."""
        self.parked: list[FetchWaiter] = []
        """Fetches of this session that wait; more than one only when connections share it."""
        self.ended = False
        self.counted: i64 = 0
        """The number of its partitions that :attr:`FetchSessions.parts` includes."""
        self._replica_id: i32 = CONSUMER
        self._replica_epoch: i64 = -1
        self._isolation: i32 = 0
        self._version: i16 = 0
        self._rank: i64 = 0

    def parts_in_order(self) -> list[FetchPart]:
        """All partitions, the one that waited longest first."""
        return list(self.parts.values())

    def news_in_order(self) -> list[FetchPart]:
        """Those that have to be looked at, the one that waited longest first."""
        news = list(self.news)
        if 1 < len(news) <= SORTED_MAX:
            news.sort(key=rank_of)
        return news

    def add(self, part: FetchPart) -> None:
        """Takes a partition in, behind all others."""
        part.session = self
        self.parts[(part.key, int(part.index))] = part
        self._to_end(part)
        self.add_news(part)

    def _to_end(self, part: FetchPart) -> None:
        self._rank += 1
        part.rank = self._rank

    def add_news(self, part: FetchPart) -> None:
        """Has ``part`` looked at by the next fetch."""
        if part.has_news:
            return
        self._note_follower(part)
        part.has_news = True
        self.news[part] = None

    def _note_follower(self, part: FetchPart) -> None:
        """Tells of the fetches of a follower in which ``part`` was not looked at, for it had no news."""
        partition = part.waits_at
        if self._replica_id >= 0 and partition is not None and not part.has_news:
            partition.asked_again(self._replica_id, self.used_ms, self._replica_epoch)

    def read_as(self, replica_id: i32, replica_epoch: i64, isolation: i32, version: i16) -> None:
        """Whoever reads now reads in this way. In another one all that was told counts no more."""
        if (
            self._replica_id == replica_id
            and self._replica_epoch == replica_epoch
            and self._isolation == isolation
            and self._version == version
        ):
            return
        for part in self.parts.values():
            self.add_news(part)
            part.leave()
        self._replica_id = replica_id
        self._replica_epoch = replica_epoch
        self._isolation = isolation
        self._version = version

    def update(self, wanted: list[FetchPart], forgotten: list[FetchPart]) -> None:
        """Takes what the client changed."""
        for part in wanted:
            known = self.parts.get((part.key, int(part.index)))
            if known is None:
                self.add(part)
            else:
                known.leader_epoch = part.leader_epoch
                known.offset = part.offset
                known.last_fetched_epoch = part.last_fetched_epoch
                known.log_start_there = part.log_start_there
                known.bytes_max = part.bytes_max
                known.believe(part)
                self.add_news(known)
        for part in forgotten:
            gone = self.parts.pop((part.key, int(part.index)), None)
            if gone is not None:
                self._drop(gone)

    def _drop(self, part: FetchPart) -> None:
        self._note_follower(part)
        part.leave()
        part.session = None
        self.news.pop(part, None)

    def park(self, request: FetchWaiter, parts: list[FetchPart]) -> None:
        """``request``, which looked at ``parts``, waits until one of the session's partitions has more."""
        self.parked.append(request)
        for part in parts:
            if part.session is self:
                part.hang(self._replica_id)
        self.settle(parts)

    def unpark(self, request: FetchWaiter) -> None:
        """``request`` waits no longer."""
        self.parked.remove(request)

    def settle(self, parts: list[FetchPart]) -> None:
        """Leaves those of ``parts`` alone of which the client knows everything, until something happens."""
        if self.ended:
            return
        for part in parts:
            if part.session is self and part.is_told(self._replica_id, self._isolation):
                part.hang(self._replica_id)
                part.has_news = False
                self.news.pop(part, None)

    def end(self) -> None:
        """Drops its partitions once no fetch of the session waits; waiting fetches are answered first."""
        self.ended = True
        if self.parked:
            return
        if len(self.parts) > END_AT_ONCE_MAX and self.owner.end_in_slices is not None:
            self.owner.end_in_slices(self)
        else:
            self.let_go(len(self.parts))

    def let_go(self, count: i64) -> bool:
        """Lets go of ``count`` partitions; whether these were all."""
        while self.parts and count > 0:
            _, part = self.parts.popitem()
            self._drop(part)
            count -= 1
        return not self.parts

    def changed(self, parts: list[FetchPart]) -> list[FetchPart]:
        """Those that the client must be told of; they go to the end of the order when they had data."""
        result: list[FetchPart] = []
        for part in parts:
            slice_ = part.slice
            has_data = slice_ is not None and slice_.size > 0
            news = (
                has_data
                or part.error != 0
                or part.diverging_end >= 0
                or part.preferred >= 0
                or part.high_watermark != part.told_high_watermark
                or part.log_start != part.told_log_start
            )
            if news:
                result.append(part)
                self.note(part)
            if has_data:
                key = (part.key, int(part.index))
                if key in self.parts:
                    del self.parts[key]
                    self.parts[key] = part
                    self._to_end(part)
                if part.has_news:
                    self.news.pop(part, None)
                    self.news[part] = None
        return result

    def all_told(self, parts: list[FetchPart]) -> list[FetchPart]:
        """All of them: the first answer of a session is whole."""
        for part in parts:
            self.note(part)
        return parts

    def note(self, part: FetchPart) -> None:
        """Remembers what the client was told. After an error it is told anew in any case, and so is a
        follower that has to cut its log first."""
        heeded = part.error == 0 and part.diverging_end < 0
        part.told_high_watermark = part.high_watermark if heeded else -1
        part.told_log_start = part.log_start


class Attachment:
    """The session of a request, or the error that there is none."""

    def __init__(self, session: FetchSession | None, code: i16) -> None:
        self.session = session
        self.code: i16 = code


class FetchSessions:
    """All sessions of the broker, at most ``sessions_max``; the one longest unused makes room."""

    def __init__(self, clock: Clock, sessions_max: int) -> None:
        self.clock = clock
        self.sessions_max = sessions_max
        self.sessions: dict[int, FetchSession] = {}
        self.parts: i64 = 0
        """Partitions in all sessions together."""
        self.end_in_slices: Any = None
        """Called with a session of many partitions that has ended: calls :meth:`FetchSession.let_go`."""

    def find(
        self,
        session_id: i32,
        epoch: i32,
        count: i64,
        by_id: bool,
        replica_id: i32,
        replica_epoch: i64,
        isolation: i32,
        version: i16,
    ) -> Attachment:
        """Finds, makes or ends the session that a request names; the rest tells how it reads.

        The request's ``count`` partitions are then to be taken in (:meth:`FetchSession.update`), and counted
        (:meth:`count`).
        """
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != 0:
                self.remove(session_id)
            if epoch == FINAL_EPOCH:
                return Attachment(None, 0)
            made = self._make(count, by_id)
            if made is not None:
                made.read_as(replica_id, replica_epoch, isolation, version)
            return Attachment(made, 0)
        session = self.sessions.get(int(session_id))
        if session is None:
            return Attachment(None, SESSION_NOT_FOUND)
        if session.epoch != epoch:
            return Attachment(None, INVALID_EPOCH)
        if session.by_id != by_id:
            self.remove(session_id)
            return Attachment(None, TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        session.incremental = True
        session.read_as(replica_id, replica_epoch, isolation, version)
        return Attachment(session, 0)

    def count(self, session: FetchSession) -> i16:
        """Counts the partitions of ``session``; an error when it has ended, or all have too many."""
        if session.ended:
            return SESSION_NOT_FOUND
        session.used_ms = self.clock.monotonic_ms()
        self.parts += len(session.parts) - session.counted
        session.counted = len(session.parts)
        if self.parts > PARTS_MAX:
            self.remove(session.session_id)
            return SESSION_NOT_FOUND
        return 0

    def remove(self, session_id: i32) -> None:
        """Ends a session, if there is one."""
        session = self.sessions.pop(int(session_id), None)
        if session is not None:
            self.parts -= session.counted
            session.end()

    def _make(self, count: i64, by_id: bool) -> FetchSession | None:
        """A new session; None when all places are taken by sessions in use."""
        now_ms = self.clock.monotonic_ms()
        if count == 0 or self.sessions_max <= 0 or self.parts + count > PARTS_MAX:
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
        session = FetchSession(self, i32(session_id), by_id, now_ms)
        self.sessions[session_id] = session
        return session


def rank_of(part: FetchPart) -> i64:
    """Its place in the order of its session."""
    return part.rank


def used_at(session: FetchSession) -> i64:
    """When the session was last used."""
    return session.used_ms
