"""Who waits for a partition: produces, DeleteRecords and fetches. Compiled.

Produces wait for the high watermark, or for the leader's sync; DeleteRecords for the low watermark; fetches
for more to read.

What waits hangs on the partition that it waits for, so that a partition where nothing happens costs
nothing, and an append looks only at those who wait for it. Partitions of a fetch session hang there as long
as the session has looked at all that there is: what is told is noted, so that the next fetch looks at that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.model.errors import KafkaError
from tidemill.net.deadlines import Waiting

CONSUMER: Final[i32] = -1
"""The replica id with which consumers fetch."""


@mypyc_attr(allow_interpreted_subclasses=True)
class AppendWaiter(Waiting):
    """Waits until what it appended is committed or synced, or what it deletes is deleted everywhere."""

    def on_committed(self, partition: Awaited) -> None:
        """The high watermark, the leader's sync or the low watermark has reached what was waited for."""
        raise NotImplementedError

    def on_append_failed(self, partition: Awaited, error: KafkaError) -> None:
        """It will not be reached here: the partition is gone, no longer led, or its disk failed."""
        raise NotImplementedError


class CommitCallback(AppendWaiter):
    """Calls a function once the commit is there (with None) or has failed (with the error)."""

    def __init__(self, call: Callable[[KafkaError | None], None]) -> None:
        self.call = call

    def on_committed(self, partition: Awaited) -> None:
        """The offset is committed, if not by as many as it takes."""
        self.call(partition.commit_error())

    def on_append_failed(self, partition: Awaited, error: KafkaError) -> None:
        """It will not be."""
        self.call(error)


class DeletionCallback(AppendWaiter):
    """Calls a function with None once all live replicas have deleted the records, or with the error."""

    def __init__(self, call: Callable[[KafkaError | None], None]) -> None:
        self.call = call

    def on_committed(self, partition: Awaited) -> None:
        """All live replicas have deleted the records."""
        self.call(None)

    def on_append_failed(self, partition: Awaited, error: KafkaError) -> None:
        """The partition is gone, has another leader, or its disk failed."""
        self.call(error)


@mypyc_attr(allow_interpreted_subclasses=True)
class FetchWaiter(Waiting):
    """Waits until a partition has more to read."""

    def on_readable(self, partition: Awaited, added_bytes: i64) -> None:
        """``added_bytes`` more can be read; 0 when the partition changed otherwise (deleted, truncated)."""
        raise NotImplementedError

    def on_news(self, partition: Awaited, committed: bool) -> None:
        """Something else changed that the next answer has to tell; nobody need be woken for it.

        Readers up to the log's end (followers) are told so when the high watermark moved (``committed``),
        and all of them when the log's start or the partition's state did.
        """


class Awaited:
    """A high watermark that moves forward, and who is told of it."""

    def __init__(self, high_watermark: i64) -> None:
        self.high_watermark: i64 = high_watermark
        """Everything below is on all replicas in sync."""
        self.has_moved = False
        """The high watermark differs from the checkpoint, and is noted for the next one."""
        self._append_waiters: list[tuple[i64, AppendWaiter]] = []
        self._sync_waiters: list[tuple[i64, AppendWaiter]] = []
        self._deletion_waiters: list[tuple[i64, AppendWaiter]] = []
        self._fetch_waiters: dict[FetchWaiter, None] = {}
        self._follower_waiters: dict[FetchWaiter, None] = {}

    @property
    def waiting_fetches(self) -> int:
        """How many fetches wait here."""
        return len(self._fetch_waiters)

    @property
    def waiting_appends(self) -> int:
        """How many produces wait here."""
        return len(self._append_waiters) + len(self._sync_waiters)

    def is_committed(self, end_offset: i64) -> bool:
        """Whether everything below ``end_offset`` is committed."""
        return self.high_watermark >= end_offset

    def holds_back(self, acks: i32, end_offset: i64) -> bool:
        """Whether the reply to a produce with ``acks`` has to wait for everything below ``end_offset``."""
        return acks == -1 and self.high_watermark < end_offset

    def commit_error(self) -> KafkaError | None:
        """What those with ``acks=all`` are told once all in sync have it; None when these are enough."""
        return None

    def wait_committed(self, end_offset: i64, waiter: AppendWaiter) -> None:
        """Calls ``waiter`` once everything below ``end_offset`` is committed."""
        waiters = self._append_waiters
        index: i64 = len(waiters)
        # A batch that is sent again waits for an offset that may be before those of others.
        while index > 0 and waiters[index - 1][0] > end_offset:
            index -= 1
        waiters.insert(index, (end_offset, waiter))

    def wait_synced(self, end_offset: i64, waiter: AppendWaiter) -> None:
        """Calls ``waiter`` once the leader has everything below ``end_offset`` on its disk."""
        self._sync_waiters.append((end_offset, waiter))

    def low_watermark(self) -> i64:
        """Below this no live replica has any record."""
        raise NotImplementedError

    def wait_deleted(self, start_offset: i64, waiter: AppendWaiter) -> None:
        """Calls ``waiter`` once every live replica starts at ``start_offset`` or behind it.

        As a commit does it takes ``min.insync.replicas`` replicas in sync: below that a replica that is away
        is eligible, and would bring the records back.
        """
        self._deletion_waiters.append((start_offset, waiter))
        self._wake_deletions()

    def stop_waiting_deleted(self, waiter: AppendWaiter) -> None:
        """``waiter`` gave up."""
        self._deletion_waiters = [entry for entry in self._deletion_waiters if entry[1] is not waiter]

    def _wake_deletions(self) -> None:
        waiters = self._deletion_waiters
        if not waiters or self.commit_error() is not None:
            return
        low: i64 = self.low_watermark()
        self._deletion_waiters = [entry for entry in waiters if entry[0] > low]
        for entry in waiters:
            if entry[0] <= low:
                entry[1].on_committed(self)

    def wait_readable(self, waiter: FetchWaiter, replica_id: i32 = CONSUMER) -> None:
        """Tells ``waiter`` of every advance, or a follower of every append, until :meth:`stop_waiting`."""
        if replica_id == CONSUMER:
            self._fetch_waiters[waiter] = None
        else:
            self._follower_waiters[waiter] = None

    def stop_waiting(self, waiter: FetchWaiter) -> None:
        """``waiter`` has had enough, or gave up."""
        self._fetch_waiters.pop(waiter, None)
        self._follower_waiters.pop(waiter, None)

    def _advance(self, offset: i64, added_bytes: i64) -> None:
        """Moves the high watermark forward, and wakes who waited for it."""
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if not self.has_moved:
            self.note_move()
        if self._append_waiters:
            self._wake_appends()
        if self._fetch_waiters:
            self._wake_fetches(added_bytes)
        if self._follower_waiters:
            for waiter in list(self._follower_waiters):
                waiter.on_news(self, True)

    def note_move(self) -> None:
        """The high watermark is another than was written down."""
        self.has_moved = True

    def _wake_appends(self) -> None:
        waiters = self._append_waiters
        count: i64 = 0
        for entry in waiters:
            if entry[0] > self.high_watermark:
                break
            count += 1
        if count > 0:
            self._append_waiters = waiters[count:]
            index: i64 = 0
            while index < count:
                waiters[index][1].on_committed(self)
                index += 1

    def _wake_synced(self, end_offset: i64) -> None:
        """Wakes who waited for a sync of no more than what lies below ``end_offset``."""
        waiters = self._sync_waiters
        if not waiters:
            return
        self._sync_waiters = [entry for entry in waiters if entry[0] > end_offset]
        for entry in waiters:
            if entry[0] <= end_offset:
                entry[1].on_committed(self)

    def _wake_fetches(self, added_bytes: i64) -> None:
        for waiter in list(self._fetch_waiters):
            waiter.on_readable(self, added_bytes)

    def _wake_followers(self, added_bytes: i64) -> None:
        for waiter in list(self._follower_waiters):
            waiter.on_readable(self, added_bytes)

    def tell_news(self) -> None:
        """The log's start, or what is known of the replicas, has changed: the next fetches look at it."""
        for waiter in list(self._fetch_waiters):
            waiter.on_news(self, False)
        for waiter in list(self._follower_waiters):
            waiter.on_news(self, False)

    def _fail_waiters(self, error: KafkaError) -> None:
        waiters = [*self._append_waiters, *self._sync_waiters, *self._deletion_waiters]
        self._append_waiters = []
        self._sync_waiters = []
        self._deletion_waiters = []
        for entry in waiters:
            entry[1].on_append_failed(self, error)
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._wake_fetches(0)
        self._wake_followers(0)
