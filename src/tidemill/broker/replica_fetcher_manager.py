"""Runs the replica fetchers: for each leader a task that fetches over one connection.

:mod:`tidemill.replication.replica_fetcher` builds the requests and applies the responses, without I/O. This
module has the connections and clocks, and requests the log start and end of the leader.

Without errors a response is appended, and the next request is sent, in the turn of the event loop in which
the response arrives, without a switch to the task: producers with ``acks=all`` wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from tidemill.broker.list_offsets_requests import Offsets, list_offsets
from tidemill.model.errors import ProtocolError, StorageError
from tidemill.model.system_interfaces import Clock
from tidemill.model.task_set import TaskSet
from tidemill.model.types import TopicPartition
from tidemill.net.link import Link, LinkError
from tidemill.replication.abstract_fetcher_manager import AbstractFetcherManager
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import (
    FetchLimits,
    FetchOutcome,
    LeaderOffsets,
    PartitionFailure,
    ReplicaFetcher,
)
from tidemill.replication.replication_quota import ReplicationQuota
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import LAST_VERSION, REPLICA_STATE_FROM
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

logger = logging.getLogger("tidemill.replication")

IN_FLIGHT_MAX = 4
WARNING_INTERVAL_MS = 60_000
"""The interval between two warnings for the same partition."""
TRANSIENT_MS = 5_000
"""Transient errors that last for a shorter time cause no warning."""
REMEMBERED_MAX = 10_000
"""The limit for the partitions whose last warning or transient error is remembered."""

Connect = Callable[[int], Awaitable[Link]]


class LeaderEndPoint:
    """Fetches from one leader over one link, and collects the results that need further processing."""

    def __init__(self, link: Link, fetcher: ReplicaFetcher, clock: Clock) -> None:
        self._link = link
        self._fetcher = fetcher
        self._clock = clock
        self._version = link.version_of(ApiKey.FETCH, REPLICA_STATE_FROM, LAST_VERSION)
        self._timeout_s = (fetcher.limits.socket_timeout_ms + fetcher.limits.wait_ms) / 1000
        self._results: list[FetchOutcome] = []
        self._failure: Exception | None = None
        self._has_results = asyncio.Event()

    def send_fetch(self) -> bool:
        """Sends the next request. Returns False if there is nothing to fetch now."""
        body = self._fetcher.build_request(self._clock.monotonic_ms(), self._version)
        if body is None:
            return False
        self._link.send(ApiKey.FETCH, self._version, body, self, self._timeout_s)
        return True

    def send_new_partitions(self) -> None:
        """Sends a request with new partitions while another is in flight, which completes the latter."""
        if 0 < self._fetcher.in_flight_count < IN_FLIGHT_MAX and self._fetcher.has_changes:
            self.send_fetch()

    def on_response(self, data: bytes, start: int, end: int) -> None:
        """Applies a response, and sends the next request unless the result needs further processing."""
        try:
            clock = self._clock
            result = self._fetcher.handle_response(data, start, end, clock.monotonic_ms(), clock.wall_ms())
            if result is None:
                if self._fetcher.in_flight_count or self.send_fetch():
                    return
            else:
                self._results.append(result)
        except ProtocolError:
            raise
        except Exception as problem:  # noqa: BLE001 - raised by next_results()
            self._failure = problem
        self._has_results.set()

    def on_link_closed(self, reason: str) -> None:
        """Reports the closed link to :meth:`next_results`."""
        if self._failure is None:
            self._failure = LinkError(f"{self._link.name}: {reason}")
        self._has_results.set()

    async def next_results(self) -> list[FetchOutcome]:
        """Waits for results that need further processing, and returns them.

        Raises LinkError when the link is closed, after it has returned all results that arrived before.
        """
        await self._has_results.wait()
        results, self._results = self._results, []
        if self._failure is None:
            self._has_results.clear()
        elif not results:
            raise self._failure
        return results


class ReplicaFetcherTask:
    """The task that fetches from one leader until it is stopped."""

    def __init__(
        self,
        leader: int,
        fetcher: ReplicaFetcher,
        connect: Connect,
        clock: Clock,
    ) -> None:
        self.leader = leader
        self.fetcher = fetcher
        self._connect = connect
        self._clock = clock
        self._changed = asyncio.Event()
        self._warned_ms: dict[str, int] = {}
        self._transient: dict[str, tuple[int, int]] = {}
        """By partition: the times of the first and last transient error in the current leader epoch."""
        self._end_point: LeaderEndPoint | None = None
        self._is_sending_soon = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add_partition(self, partition: Partition) -> None:
        """Adds a partition in its current leader epoch. Raises StorageError."""
        partition.on_flushed = self._changed.set
        self._transient.pop(_name(partition), None)
        clock = self._clock
        self.fetcher.add_partition(partition.log.topic_id, partition, clock.monotonic_ms(), clock.wall_ms())
        self._changed.set()
        if not self._is_sending_soon:
            # One request has all partitions that are added in this turn.
            self._is_sending_soon = True
            asyncio.get_running_loop().call_soon(self._send_new_partitions)

    def _send_new_partitions(self) -> None:
        self._is_sending_soon = False
        if self._end_point is not None:
            self._end_point.send_new_partitions()

    def remove_partition(self, partition: Partition) -> None:
        """Removes a partition."""
        partition.on_flushed = None
        self.fetcher.remove_partition(partition.log.topic_id, int(partition.index))

    async def stop(self) -> None:
        """Ends the task, and closes its connection."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            try:
                link = await self._connect(self.leader)
                try:
                    await self._fetch_over(link)
                finally:
                    self._end_point = None
                    link.close("the fetcher has stopped")
            except LinkError as problem:
                self._warn(f"leader {self.leader}", str(problem))
            except Exception:
                # An unexpected error: without this task no partition of the leader would be replicated.
                logger.exception("fetching from leader %d failed and is retried", self.leader)
            self.fetcher.on_disconnect()
            await asyncio.sleep(self.fetcher.limits.backoff_ms / 1000)

    async def _fetch_over(self, link: Link) -> None:
        end_point = self._end_point = LeaderEndPoint(link, self.fetcher, self._clock)
        while True:
            if not self.fetcher.in_flight_count and not end_point.send_fetch():
                await self._wait_for_work()
                continue
            outcomes = await end_point.next_results()
            # A LinkError of the steps below must not drop the storage error of a partition.
            for outcome in outcomes:
                for failure in outcome.failures:
                    self._handle_error(failure)
            for outcome in outcomes:
                if outcome.session_error is not None:
                    raise LinkError(f"it returned {outcome.session_error.name} to a fetch")
            for outcome in outcomes:
                if outcome.out_of_range:
                    await self._handle_out_of_range(link, outcome.out_of_range)

    async def _wait_for_work(self) -> None:
        """Waits until a partition is added or flushed, or the backoff of a partition ends."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.fetcher.retry_delay_ms(self._clock.monotonic_ms()) / 1000):
                await self._changed.wait()

    def _handle_error(self, failure: PartitionFailure) -> None:
        partition = failure.partition
        name = _name(partition)
        if failure.is_transient and not self._has_lasted(name):
            logger.debug("fetching %s failed and is retried: %s", name, failure.text)
        else:
            self._warn(name, failure.text)
        if failure.storage_error is not None:
            partition.events.on_storage_error(partition, failure.storage_error)

    def _has_lasted(self, name: str) -> bool:
        """Whether the transient errors of a partition have lasted for :data:`TRANSIENT_MS`."""
        now = int(self._clock.monotonic_ms())
        since, last = self._transient.get(name, (now, now))
        if now - last >= TRANSIENT_MS:
            since = now
        if len(self._transient) > REMEMBERED_MAX:
            self._transient.clear()
        self._transient[name] = (since, now)
        return now - since >= TRANSIENT_MS

    def _warn(self, what: str, text: str) -> None:
        now = int(self._clock.monotonic_ms())
        if now - self._warned_ms.get(what, -WARNING_INTERVAL_MS) >= WARNING_INTERVAL_MS:
            if len(self._warned_ms) > REMEMBERED_MAX:
                self._warned_ms.clear()
            self._warned_ms[what] = now
            logger.warning("fetching %s failed and is retried: %s", what, text)

    async def _handle_out_of_range(self, link: Link, partitions: Sequence[Partition]) -> None:
        """Requests the log start and end of the leader, and truncates or restarts the logs of this broker."""
        firsts = await self._list_offsets(link, partitions, EARLIEST)
        ends = await self._list_offsets(link, partitions, LATEST)
        for partition in partitions:
            key = _key(partition)
            if key not in firsts or key not in ends:
                self.fetcher.leader_offsets_failed(
                    partition, partition.log.topic_id, self._clock.monotonic_ms()
                )
                continue
            before = int(partition.log.end_offset)
            first, end = firsts[key].offset, ends[key].offset
            leader = LeaderOffsets(first, firsts[key].leader_epoch, end)
            try:
                now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
                self.fetcher.apply_leader_offsets(partition, partition.log.topic_id, leader, now_ms, wall_ms)
            except StorageError as problem:
                self._handle_error(PartitionFailure(partition, str(problem), problem))
            if partition.log.end_offset != before:
                # The truncation has logged a warning if it removed records. A new replica has none.
                logger.info(
                    "%s ended at %d, outside of the log of the leader from %d to %d: it continues at %d",
                    _name(partition),
                    before,
                    first,
                    end,
                    partition.log.end_offset,
                )

    async def _list_offsets(self, link: Link, partitions: Sequence[Partition], timestamp: int) -> Offsets:
        return await list_offsets(
            link,
            {_key(partition): int(partition.leader_epoch) for partition in partitions},
            replica_id=self.fetcher.node_id,
            timestamp=timestamp,
            timeout_s=self.fetcher.limits.socket_timeout_ms / 1000,
        )


def _key(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, int(partition.index))


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.index}"


class ReplicaFetcherManager(AbstractFetcherManager):
    """The replica fetchers of this broker, by leader."""

    def __init__(
        self,
        node_id: int,
        limits: FetchLimits,
        connect: Connect,
        clock: Clock,
        quota: ReplicationQuota | None = None,
        *,
        node_epoch: int,
    ) -> None:
        self._quota = quota
        self._node_epoch = node_epoch
        self._node_id = node_id
        self._limits = limits
        self._connect = connect
        self._clock = clock
        self._fetcher_tasks: dict[int, ReplicaFetcherTask] = {}
        self._leaders: dict[Partition, int] = {}
        self._ending = TaskSet()

    def registered(self, node_epoch: int) -> None:
        """Sets the broker epoch of a new registration, which the next fetches contain."""
        self._node_epoch = node_epoch
        for fetcher_task in self._fetcher_tasks.values():
            fetcher_task.fetcher.node_epoch = node_epoch

    def add_partition(self, partition: Partition) -> None:
        """Adds ``partition``, in its current leader epoch, to the fetcher of its leader.

        Removes it from the fetcher of a former leader. Raises StorageError, and does not add it then.
        """
        leader = int(partition.leader)
        if self._leaders.get(partition, leader) != leader:
            self.remove_partition(partition)
        fetcher_task = self._fetcher_tasks.get(leader)
        if fetcher_task is None:
            fetcher = ReplicaFetcher(self._node_id, self._limits, self._quota, node_epoch=self._node_epoch)
            fetcher_task = self._fetcher_tasks[leader] = ReplicaFetcherTask(
                leader, fetcher, self._connect, self._clock
            )
        self._leaders[partition] = leader
        try:
            fetcher_task.add_partition(partition)
        except StorageError:
            self.remove_partition(partition)
            raise

    def remove_partition(self, partition: Partition) -> None:
        """Removes ``partition`` from its fetcher. A fetcher without partitions ends."""
        leader = self._leaders.pop(partition, None)
        if leader is None:
            return
        fetcher_task = self._fetcher_tasks[leader]
        fetcher_task.remove_partition(partition)
        if not len(fetcher_task.fetcher):
            del self._fetcher_tasks[leader]
            self._ending.start(fetcher_task.stop())

    async def stop(self) -> None:
        """Ends all fetchers."""
        fetcher_tasks, self._fetcher_tasks = list(self._fetcher_tasks.values()), {}
        self._leaders.clear()
        await asyncio.gather(*(fetcher_task.stop() for fetcher_task in fetcher_tasks), *self._ending)
