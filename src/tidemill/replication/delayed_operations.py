"""The delayed operations of a partition: Produce, DeleteRecords and Fetch. Compiled.

A delayed produce waits for the high watermark, or for a sync of the leader's log; a delayed DeleteRecords for
the low watermark; a delayed fetch for more records.

An operation is registered on the partition that completes it: an idle partition costs nothing, and an append
checks only the operations of its own partition. The partitions of a fetch session stay registered between its
fetches, and record changes for the next fetch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.model.errors import KafkaError
from tidemill.net.deadlines import DelayedOperation
from tidemill.net.send_queue import FileOwner
from tidemill.replication.replication_quota import ReplicationQuota

CONSUMER: Final[i32] = -1
"""The replica id of consumer fetches."""


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchedPartition(FileOwner):
    """The partition, as a delayed operation sees it."""

    def must_delay_response(self, acks: i32, end_offset: i64) -> bool:
        """Whether the response to a produce with ``acks`` is delayed until ``end_offset`` is reached."""
        raise NotImplementedError

    def commit_error(self) -> KafkaError | None:
        """The error of a produce with ``acks=all`` and too few in-sync replicas; None if enough."""
        raise NotImplementedError

    def has_transactions(self) -> bool:
        """Whether consumers with ``read_committed`` may have a lower limit than others."""
        raise NotImplementedError

    def is_throttled(self, quota: ReplicationQuota, broker: i32, now_ms: i64, quota_now_s: float) -> bool:
        """Whether ``quota`` withholds the records from a follower. The times are of two clocks."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class OffsetWaiter(DelayedOperation):
    """Waits until the high watermark, the synced end or the low watermark has reached an offset."""

    def on_reached(self, partition: WatchedPartition) -> None:
        """Called when the offset is reached."""
        raise NotImplementedError

    def on_failed(self, partition: WatchedPartition, error: KafkaError) -> None:
        """Called when the operation fails: the partition was deleted, lost its leadership, or its disk
        failed.
        """
        raise NotImplementedError


class OffsetCallback(OffsetWaiter):
    """Calls a function with None when the offset is reached, or with the error."""

    def __init__(self, call: Callable[[KafkaError | None], None]) -> None:
        self.call = call

    def on_reached(self, partition: WatchedPartition) -> None:
        """The offset is reached; there may be too few in-sync replicas."""
        self.call(partition.commit_error())

    def on_failed(self, partition: WatchedPartition, error: KafkaError) -> None:
        """The partition was deleted, has another leader, or its disk failed."""
        self.call(error)


@mypyc_attr(allow_interpreted_subclasses=True)
class FetchWaiter(DelayedOperation):
    """Waits until a partition has more records to read."""

    def on_readable(self, partition: WatchedPartition, added_bytes: i64) -> None:
        """Called when ``added_bytes`` more can be read; 0 for other changes (deletion, truncation)."""
        raise NotImplementedError

    def on_change(self, partition: WatchedPartition, committed: bool) -> None:
        """Called for other changes that the next response has to return, without completing the fetch.

        Follower fetches are notified when the high watermark advances (``committed``), and all fetches when
        the log start offset or the partition's state changes.
        """


class DelayedOperations:
    """The delayed operations of one partition."""

    def __init__(self, partition: WatchedPartition) -> None:
        self._partition = partition
        self.appends: list[tuple[i64, OffsetWaiter]] = []
        """Sorted by the end offset to be committed."""
        self.syncs: list[tuple[i64, OffsetWaiter]] = []
        """With the end offset to be synced."""
        self.delete_records: list[tuple[i64, OffsetWaiter]] = []
        """With the log start offset that all live replicas have to reach."""
        self.fetches: dict[FetchWaiter, None] = {}
        self.follower_fetches: dict[FetchWaiter, None] = {}

    @property
    def append_count(self) -> int:
        """The number of delayed produces."""
        return len(self.appends) + len(self.syncs)

    def wait_committed(self, end_offset: i64, waiter: OffsetWaiter) -> None:
        """Calls ``waiter`` once everything below ``end_offset`` is committed."""
        waiters = self.appends
        index: i64 = len(waiters)
        # A retried batch waits for an offset that may precede those of others.
        while index > 0 and waiters[index - 1][0] > end_offset:
            index -= 1
        waiters.insert(index, (end_offset, waiter))

    def wait_synced(self, end_offset: i64, waiter: OffsetWaiter) -> None:
        """Calls ``waiter`` once the leader has synced everything below ``end_offset``."""
        self.syncs.append((end_offset, waiter))

    def wait_deleted(self, start_offset: i64, waiter: OffsetWaiter) -> None:
        """Calls ``waiter`` once :meth:`complete_delete_records` gets a low watermark of ``start_offset``."""
        self.delete_records.append((start_offset, waiter))

    def stop_waiting_deleted(self, waiter: OffsetWaiter) -> None:
        """Removes a ``waiter`` that has timed out."""
        self.delete_records = [entry for entry in self.delete_records if entry[1] is not waiter]

    def wait_readable(self, waiter: FetchWaiter, replica_id: i32 = CONSUMER) -> None:
        """Notifies ``waiter`` of every advance, or a follower of every append, until :meth:`stop_waiting`."""
        if replica_id == CONSUMER:
            self.fetches[waiter] = None
        else:
            self.follower_fetches[waiter] = None

    def stop_waiting(self, waiter: FetchWaiter) -> None:
        """Removes a ``waiter`` that is complete or has timed out."""
        self.fetches.pop(waiter, None)
        self.follower_fetches.pop(waiter, None)

    def advanced(self, high_watermark: i64, added_bytes: i64) -> None:
        """The high watermark has advanced over ``added_bytes``."""
        if self.appends:
            self._complete_appends(high_watermark)
        if self.fetches:
            self.wake_fetches(added_bytes)
        if self.follower_fetches:
            for waiter in list(self.follower_fetches):
                waiter.on_change(self._partition, True)

    def _complete_appends(self, high_watermark: i64) -> None:
        waiters = self.appends
        count: i64 = 0
        for entry in waiters:
            if entry[0] > high_watermark:
                break
            count += 1
        if count > 0:
            self.appends = waiters[count:]
            index: i64 = 0
            while index < count:
                waiters[index][1].on_reached(self._partition)
                index += 1

    def complete_syncs(self, end_offset: i64) -> None:
        """The leader's log is synced below ``end_offset``."""
        waiters = self.syncs
        if not waiters:
            return
        self.syncs = [entry for entry in waiters if entry[0] > end_offset]
        for entry in waiters:
            if entry[0] <= end_offset:
                entry[1].on_reached(self._partition)

    def complete_delete_records(self, low_watermark: i64) -> None:
        """No live replica has records below ``low_watermark``."""
        waiters = self.delete_records
        self.delete_records = [entry for entry in waiters if entry[0] > low_watermark]
        for entry in waiters:
            if entry[0] <= low_watermark:
                entry[1].on_reached(self._partition)

    def wake_fetches(self, added_bytes: i64) -> None:
        """Consumers can read ``added_bytes`` more."""
        for waiter in list(self.fetches):
            waiter.on_readable(self._partition, added_bytes)

    def wake_followers(self, added_bytes: i64) -> None:
        """Followers can read ``added_bytes`` more."""
        for waiter in list(self.follower_fetches):
            waiter.on_readable(self._partition, added_bytes)

    def wake_readers(self) -> None:
        """All fetches check the partition again."""
        self.wake_fetches(0)
        self.wake_followers(0)

    def record_change(self) -> None:
        """The log start offset or the replica state has changed: the next fetches return it."""
        for waiter in list(self.fetches):
            waiter.on_change(self._partition, False)
        for waiter in list(self.follower_fetches):
            waiter.on_change(self._partition, False)

    def fail(self, error: KafkaError) -> None:
        """Completes all operations: produces and deletions of records with ``error``; fetches check again."""
        waiters = [*self.appends, *self.syncs, *self.delete_records]
        self.appends = []
        self.syncs = []
        self.delete_records = []
        for entry in waiters:
            entry[1].on_failed(self._partition, error)
        self.wake_readers()
