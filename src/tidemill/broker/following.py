"""Following at work: one loop per leader, which fetches over one connection and takes what comes.

What to ask, and what an answer means, is decided in :mod:`tidemill.replication.fetcher`. Here is what that
needs of the world: connections, time, and the leader's first and last offset where a log lies outside.

As long as all is well, an answer is stored and the next request sent in the turn of the loop in which the
answer comes, without the task: everybody who produces with ``acks=all`` waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from tidemill.model.errors import ProtocolError, StorageError
from tidemill.model.ports import Clock
from tidemill.net.link import Link, LinkError
from tidemill.replication.fetcher import Answered, FetchLimits, LeaderFetcher, LeadersLog, Trouble
from tidemill.replication.follows import Follows
from tidemill.replication.partition import Partition
from tidemill.replication.throttle import Throttle
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

log = logging.getLogger("tidemill.replication")

FETCH_VERSIONS = (15, 18)
"""From 15 on a follower names itself in a tagged field, and topics go by id."""
UNDER_WAY_MAX = 4
LIST_OFFSETS_VERSIONS = (4, 11)
LATEST, EARLIEST = -1, -2
TOLD_AGAIN_MS = 60_000
"""A partition's trouble is logged once in this time."""
TRANSIENT_MS = 5_000
"""How long transient errors last without a warning."""
TOLD_MAX = 10_000
"""Limit of the partitions whose last log line is remembered."""

Connect = Callable[[int], Awaitable[Link]]


class Fetching:
    """Fetches over one link, until something else has to be done."""

    def __init__(self, link: Link, fetcher: LeaderFetcher, clock: Clock) -> None:
        self._link = link
        self._fetcher = fetcher
        self._clock = clock
        self._version = link.version_of(ApiKey.FETCH, *FETCH_VERSIONS)
        self._patience_s = (fetcher.limits.patience_ms + fetcher.limits.wait_ms) / 1000
        self._results: list[Answered] = []
        self._failure: Exception | None = None
        self._paused = asyncio.Event()

    def ask(self) -> bool:
        """Sends the next request; False when there is nothing to fetch at present."""
        body = self._fetcher.request(self._clock.monotonic_ms(), self._version)
        if body is None:
            return False
        self._link.post(ApiKey.FETCH, self._version, body, self, self._patience_s)
        return True

    def ask_more(self) -> None:
        """Tells of partitions that came while a request is under way: the leader ends its wait for that."""
        if 0 < self._fetcher.under_way < UNDER_WAY_MAX and self._fetcher.has_news:
            self.ask()

    def on_answer(self, data: bytes, start: int, end: int) -> None:
        """Stores what came, and asks for more unless something was wrong."""
        try:
            clock = self._clock
            result = self._fetcher.answer(data, start, end, clock.monotonic_ms(), clock.wall_ms())
            if result is None:
                if self._fetcher.under_way or self.ask():
                    return
            else:
                self._results.append(result)
        except ProtocolError:
            raise
        except Exception as problem:  # noqa: BLE001 - whoever follows tells it
            self._failure = problem
        self._paused.set()

    def on_link_closed(self, reason: str) -> None:
        """No answer comes any more."""
        if self._failure is None:
            self._failure = LinkError(f"{self._link.name}: {reason}")
        self._paused.set()

    async def paused(self) -> list[Answered]:
        """What is to be looked at before more is asked. Raises LinkError."""
        await self._paused.wait()
        self._paused.clear()
        if self._failure is not None:
            raise self._failure
        results, self._results = self._results, []
        return results


class LeaderLoop:
    """Follows one leader until it is stopped."""

    def __init__(
        self,
        leader: int,
        fetcher: LeaderFetcher,
        connect: Connect,
        clock: Clock,
        storage_failed: Callable[[Partition, StorageError], None],
    ) -> None:
        self.leader = leader
        self.fetcher = fetcher
        self._connect = connect
        self._clock = clock
        self._storage_failed = storage_failed
        self._changed = asyncio.Event()
        self._told: dict[str, int] = {}
        self._transient: dict[str, tuple[int, int]] = {}
        """By partition, since it is followed in its leader epoch: the first and the last transient error."""
        self._fetching: Fetching | None = None
        self._hurries = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def follow(self, partition: Partition) -> None:
        """Follows one more partition, in the epoch that it is in. Raises StorageError."""
        partition.on_flushed = self._changed.set
        # What was wrong before is over, or comes again.
        self._transient.pop(_name(partition), None)
        clock = self._clock
        self.fetcher.follow(partition.log.topic_id, partition, clock.monotonic_ms(), clock.wall_ms())
        self._changed.set()
        if not self._hurries:
            # Many come together.
            self._hurries = True
            asyncio.get_running_loop().call_soon(self._hurry)

    def _hurry(self) -> None:
        self._hurries = False
        if self._fetching is not None:
            self._fetching.ask_more()

    def leave(self, partition: Partition) -> None:
        """Follows a partition no longer."""
        partition.on_flushed = None
        self.fetcher.leave(partition.log.topic_id, int(partition.index))

    async def stop(self) -> None:
        """Ends the loop, and its connection."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            try:
                link = await self._connect(self.leader)
                try:
                    await self._follow_over(link)
                finally:
                    self._fetching = None
                    link.close("the leader is not followed over it any more")
            except LinkError as problem:
                self._tell(f"leader {self.leader}", str(problem))
            except Exception:
                # A fault of this program: without this loop nothing of that leader would be followed.
                log.exception("following leader %d failed; it is tried again", self.leader)
            self.fetcher.lost()
            await asyncio.sleep(self.fetcher.limits.backoff_ms / 1000)

    async def _follow_over(self, link: Link) -> None:
        fetching = self._fetching = Fetching(link, self.fetcher, self._clock)
        while True:
            if not self.fetcher.under_way and not fetching.ask():
                await self._rest()
                continue
            for result in await fetching.paused():
                if result.refused:
                    raise LinkError(f"it answers a fetch with error {result.refused}")
                for trouble in result.troubles:
                    self._meet(trouble)
                if result.out_of_range:
                    await self._locate(link, result.out_of_range)

    async def _rest(self) -> None:
        """Until there is something to follow, or a partition has rested."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.fetcher.rest_ms(self._clock.monotonic_ms()) / 1000):
                await self._changed.wait()

    def _meet(self, trouble: Trouble) -> None:
        partition = trouble.partition
        name = _name(partition)
        if trouble.is_transient and not self._lasts(name):
            log.debug("following %s: %s; it is tried again", name, trouble.text)
        else:
            self._tell(name, trouble.text)
        if trouble.storage is not None:
            self._storage_failed(partition, trouble.storage)

    def _lasts(self, name: str) -> bool:
        """Whether the transient errors of a partition have lasted for too long, without a break."""
        now = int(self._clock.monotonic_ms())
        since, last = self._transient.get(name, (now, now))
        if now - last >= TRANSIENT_MS:
            since = now
        if len(self._transient) > TOLD_MAX:
            self._transient.clear()
        self._transient[name] = (since, now)
        return now - since >= TRANSIENT_MS

    def _tell(self, what: str, text: str) -> None:
        now = int(self._clock.monotonic_ms())
        if now - self._told.get(what, -TOLD_AGAIN_MS) >= TOLD_AGAIN_MS:
            if len(self._told) > TOLD_MAX:
                self._told.clear()
            self._told[what] = now
            log.warning("following %s: %s; it is tried again", what, text)

    async def _locate(self, link: Link, partitions: list[Partition]) -> None:
        """Asks where the leader's logs begin and end, and puts ours there."""
        firsts = await self._offsets(link, partitions, EARLIEST)
        ends = await self._offsets(link, partitions, LATEST)
        for partition in partitions:
            key = (partition.topic, int(partition.index))
            if key not in firsts or key not in ends:
                self.fetcher.not_found(partition, partition.log.topic_id, self._clock.monotonic_ms())
                continue
            before = int(partition.log.end_offset)
            first, end = firsts[key].offset, ends[key].offset
            leaders = LeadersLog(first, firsts[key].leader_epoch, end)
            try:
                now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
                self.fetcher.found(partition, partition.log.topic_id, leaders, now_ms, wall_ms)
            except StorageError as problem:
                self._meet(Trouble(partition, str(problem), problem))
            if partition.log.end_offset != before:
                # Of records that are cut there is a warning already; a new replica has none.
                log.info(
                    "%s ended at %d, the leader's log holds %d to %d: it goes on at %d",
                    _name(partition),
                    before,
                    first,
                    end,
                    partition.log.end_offset,
                )

    async def _offsets(
        self, link: Link, partitions: list[Partition], timestamp: int
    ) -> dict[tuple[str, int], ListOffsetsPartitionResponse]:
        topics: dict[str, ListOffsetsTopic] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic, ListOffsetsTopic(name=partition.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=int(partition.index),
                    current_leader_epoch=int(partition.leader_epoch),
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(replica_id=self.fetcher.node_id, topics=list(topics.values()))
        version = link.version_of(ApiKey.LIST_OFFSETS, *LIST_OFFSETS_VERSIONS)
        answer = await link.ask(ApiKey.LIST_OFFSETS, version, request, self.fetcher.limits.patience_ms / 1000)
        return {
            (topic.name, one.partition_index): one
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code == 0
        }


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.index}"


class Following(Follows):
    """All that this broker follows, by leader."""

    def __init__(
        self,
        node_id: int,
        node_epoch: int,
        limits: FetchLimits,
        connect: Connect,
        clock: Clock,
        storage_failed: Callable[[Partition, StorageError], None],
        throttle: Throttle | None = None,
    ) -> None:
        self._throttle = throttle
        self._node_epoch = node_epoch
        self._node_id = node_id
        self._limits = limits
        self._connect = connect
        self._clock = clock
        self._storage_failed = storage_failed
        self._loops: dict[int, LeaderLoop] = {}
        self._leaders: dict[Partition, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def registered(self, node_epoch: int) -> None:
        """This broker has a new registration: leaders hear of its epoch with the next fetches."""
        self._node_epoch = node_epoch
        for loop in self._loops.values():
            loop.fetcher.node_epoch = node_epoch

    def follow(self, partition: Partition) -> None:
        """Follows ``partition`` in the epoch that it is in now, and no other leader of it.

        Raises StorageError, and does not follow it then.
        """
        leader = int(partition.leader)
        if self._leaders.get(partition, leader) != leader:
            self.leave(partition)
        loop = self._loops.get(leader)
        if loop is None:
            fetcher = LeaderFetcher(self._node_id, self._node_epoch, self._limits, self._throttle)
            loop = self._loops[leader] = LeaderLoop(
                leader, fetcher, self._connect, self._clock, self._storage_failed
            )
        self._leaders[partition] = leader
        try:
            loop.follow(partition)
        except StorageError:
            self.leave(partition)
            raise

    def leave(self, partition: Partition) -> None:
        """Follows ``partition`` no longer, if it did. A leader without partitions is left alone."""
        leader = self._leaders.pop(partition, None)
        if leader is None:
            return
        loop = self._loops[leader]
        loop.leave(partition)
        if not len(loop.fetcher):
            del self._loops[leader]
            task = asyncio.get_running_loop().create_task(loop.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        """Follows nobody any more."""
        loops, self._loops = list(self._loops.values()), {}
        self._leaders.clear()
        await asyncio.gather(*(loop.stop() for loop in loops), *self._ending)
