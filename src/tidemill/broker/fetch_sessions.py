"""Fetch sessions (KIP-227): the broker remembers what a consumer fetches, and each side sends what changed.

An epoch of 0 with id 0 asks for a new session, -1 for none (and ends the one named); any other must be the
one after the last. A session holds its partitions in an order; those that had data go to its end, so that
none is starved by the limit on a reply.
"""

from __future__ import annotations

import random
from typing import Final

from mypy_extensions import i16, i32, i64

from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode
from tidemill.model.ports import Clock
from tidemill.replication.partition import Partition

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
PARTS_MAX: Final = 500_000
"""Partitions in all sessions together: some hundred bytes each. Whoever finds no room names all of its
partitions in each fetch."""
EVICT_AFTER_MS: Final = 120_000
SESSION_NOT_FOUND: Final[i16] = 70
INVALID_EPOCH: Final[i16] = 71
TOPIC_ID_ERROR: Final[i16] = 106


class FetchPart:
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
        self.told_high_watermark: i64 = -1
        self.told_log_start: i64 = -1

    def fail(self, code: ErrorCode) -> None:
        """Answers this partition with an error."""
        self.error = i16(int(code))
        self.slice = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start = -1


class FetchSession:
    """What one consumer or follower fetches."""

    def __init__(self, session_id: i32, by_id: bool, now_ms: i64) -> None:
        self.session_id: i32 = session_id
        self.by_id = by_id
        """Whether the consumer names topics by id."""
        self.epoch: i32 = 1
        self.incremental = False
        self.used_ms: i64 = now_ms
        self.parts: dict[tuple[bytes, int], FetchPart] = {}

    def parts_in_order(self) -> list[FetchPart]:
        """All partitions, the one that waited longest first."""
        return list(self.parts.values())

    def update(self, wanted: list[FetchPart], forgotten: list[FetchPart]) -> None:
        """Takes what the client changed."""
        for part in wanted:
            key = (part.key, int(part.index))
            known = self.parts.get(key)
            if known is None:
                self.parts[key] = part
            else:
                known.leader_epoch = part.leader_epoch
                known.offset = part.offset
                known.last_fetched_epoch = part.last_fetched_epoch
                known.log_start_there = part.log_start_there
                known.bytes_max = part.bytes_max
        for part in forgotten:
            self.parts.pop((part.key, int(part.index)), None)

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
        return result

    def all_told(self, parts: list[FetchPart]) -> list[FetchPart]:
        """All of them: the first answer of a session is whole."""
        for part in parts:
            self.note(part)
        return parts

    def note(self, part: FetchPart) -> None:
        """Remembers what the client was told. After an error it is told anew in any case."""
        part.told_high_watermark = part.high_watermark if part.error == 0 else -1
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

    def attach(
        self,
        session_id: i32,
        epoch: i32,
        wanted: list[FetchPart],
        forgotten: list[FetchPart],
        by_id: bool,
    ) -> Attachment:
        """Finds, makes or ends the session that a request names."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id != 0:
                self.remove(session_id)
            if epoch == FINAL_EPOCH:
                return Attachment(None, 0)
            return Attachment(self.make(wanted, by_id), 0)
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
        session.used_ms = self.clock.wall_ms()
        before: i64 = len(session.parts)
        session.update(wanted, forgotten)
        self.parts += len(session.parts) - before
        if self.parts > PARTS_MAX:
            self.remove(session_id)
            return Attachment(None, SESSION_NOT_FOUND)
        return Attachment(session, 0)

    def remove(self, session_id: i32) -> None:
        """Ends a session, if there is one."""
        session = self.sessions.pop(int(session_id), None)
        if session is not None:
            self.parts -= len(session.parts)

    def make(self, wanted: list[FetchPart], by_id: bool) -> FetchSession | None:
        """A new session; None when all places are taken by sessions in use."""
        now_ms = self.clock.wall_ms()
        if not wanted or self.sessions_max <= 0 or self.parts + len(wanted) > PARTS_MAX:
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
        session = FetchSession(i32(session_id), by_id, now_ms)
        for part in wanted:
            session.parts[(part.key, int(part.index))] = part
        self.sessions[session_id] = session
        self.parts += len(session.parts)
        return session


def used_at(session: FetchSession) -> i64:
    """When the session was last used."""
    return session.used_ms
