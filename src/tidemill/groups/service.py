"""The group coordinator of a broker: every partition of ``__consumer_offsets`` that it leads.

The handlers ask here. A partition that is being read answers COORDINATOR_LOAD_IN_PROGRESS, one that another
broker leads NOT_COORDINATOR. Idle groups cost nothing: timers share one heap, and a heartbeat sets none.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Hashable, Mapping
from typing import Any, Final, cast

from tidemill.groups.effects import (
    CommitRequest,
    CommitResult,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    DescribedGroup,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    Moved,
    SyncRequest,
    SyncResult,
    Waiter,
)
from tidemill.groups.offsets import CommittedOffset
from tidemill.groups.placement import partition_for
from tidemill.groups.ports import (
    OFFSETS_TOPIC,
    CoordinatorEndpoint,
    OffsetsLog,
    OffsetsTopic,
    Scheduler,
)
from tidemill.groups.rebalance import GroupConfig
from tidemill.groups.shard import Shard, ShardState, failed_commit
from tidemill.groups.state import GroupState
from tidemill.groups.timers import Timers
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.ports import Clock

log = logging.getLogger("tidemill.groups")

LOAD_SLICE_RECORDS: Final = 500
"""Records replayed before others get the loop: about two milliseconds."""
LOAD_RETRY_MS: Final = 1_000
EXPIRE_SLICE_GROUPS: Final = 200
UNANSWERED_MS: Final = 3_000
"""How long a broker that stops leaves an OffsetFetch for a group that has moved unanswered. Its connections
are closed before that, unless other partitions take long to hand over."""
MEMBER_NAME_CHARACTERS_MAX: Final = 255
"""What a member's id takes over of its client's: a string of the protocol has an end."""
SERVICE: Final = 0
"""Stands in a timer's key where a shard's number would."""


class GroupService:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        *,
        offsets_log: OffsetsLog,
        topic: OffsetsTopic,
        config: GroupConfig,
        clock: Clock,
        append_timeout_ms: int = 5_000,
        expire_interval_ms: int = 600_000,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.topic = topic
        self.rebalances = 0
        """Assignments handed out since the start: for the metrics."""
        self.commits = 0
        """Offsets committed since the start."""
        self._log = offsets_log
        self._clock = clock
        self._append_timeout_ms = append_timeout_ms
        self._expire_interval_ms = expire_interval_ms
        self._timers = Timers(scheduler or cast(Scheduler, asyncio.get_running_loop()), self._timer_fired)
        self._shards: dict[int, Shard] = {}
        self._by_number: dict[int, Shard] = {}
        self._numbers = SERVICE
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loads: set[asyncio.Task[Any]] = set()
        self._ensuring: asyncio.Task[None] | None = None
        self._tells_moves = asyncio.Event()
        """Set unless the broker is about to stop: an OffsetFetch for a group that has moved is answered."""
        self._tells_moves.set()

    @classmethod
    def from_broker(
        cls, config: Any, offsets_log: OffsetsLog, topic: OffsetsTopic, clock: Clock
    ) -> GroupService:
        """With the keys of a broker configuration."""
        return cls(
            offsets_log=offsets_log,
            topic=topic,
            config=GroupConfig.from_broker(config),
            clock=clock,
            append_timeout_ms=config.int("offsets.commit.timeout.ms"),
            expire_interval_ms=config.int("offsets.retention.check.interval.ms"),
        )

    # Leadership.

    def start(self) -> None:
        """Begins to look for expired offsets every now and then."""
        self._timers.set((SERVICE, "expire"), self._timers.now_ms() + self._expire_interval_ms)

    def begin_stop(self) -> None:
        """The broker hands its partitions over, and closes its connections soon.

        From now on an OffsetFetch for a group that has moved away is left unanswered: every client asks
        again when its connection ends, but librdkafka 2.16 drops a question that NOT_COORDINATOR answers,
        and its consumer stands still until the next rebalance.
        """
        self._tells_moves.clear()
        self._timers.set((SERVICE, "tell moves"), self._timers.now_ms() + UNANSWERED_MS)

    async def stop(self) -> None:
        """Sends everybody who waits elsewhere, and ends."""
        self._tells_moves.set()
        for partition in list(self._shards):
            self.resign(partition)
        self._timers.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def become_leader(self, partition: int, epoch: int) -> None:
        """This broker leads the partition of ``__consumer_offsets`` from ``epoch`` on: it is read."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.epoch = max(shard.epoch, epoch)
            return
        self._numbers += 1
        shard = Shard(
            partition=partition,
            epoch=epoch,
            config=self.config,
            offsets_log=self._log,
            timers=self._timers,
            wall_ms=self._clock.wall_ms,
            append_timeout_ms=self._append_timeout_ms,
            number=self._numbers,
            on_moved=self._moved,
        )
        self._shards[partition] = shard
        self._by_number[shard.number] = shard
        load = self._spawn(self._load(shard))
        self._loads.add(load)
        load.add_done_callback(self._loads.discard)

    async def wait_loaded(self, timeout_s: float) -> None:
        """Waits until the partitions that are being read are in memory, at most ``timeout_s``."""
        if self._loads:
            await asyncio.wait(self._loads, timeout=timeout_s)

    def resign(self, partition: int, epoch: int | None = None) -> None:
        """Another broker leads the partition from ``epoch`` on (None: whatever the epoch)."""
        shard = self._shards.get(partition)
        if shard is None or (epoch is not None and epoch < shard.epoch):
            return
        del self._shards[partition]
        del self._by_number[shard.number]
        shard.close()

    def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Topics are gone, by name and id: so is what was committed for them."""
        for shard in list(self._shards.values()):
            shard.topics_deleted(topics)

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, shard: Shard) -> None:
        # Records are decoded by code that a broker without groups never needs.
        from tidemill.groups.coordinator import Coordinator
        from tidemill.groups.loading import Loader

        started_ms = self._timers.now_ms()
        shard.core = Coordinator(self.config)
        loader = Loader(shard.core, shard.partition)
        try:
            async for data in self._log.read(shard.partition):
                left = LOAD_SLICE_RECORDS
                for _ in loader.replay(data, shard.now()):
                    left -= 1
                    if left == 0:
                        left = LOAD_SLICE_RECORDS
                        await asyncio.sleep(0)
                        if shard.is_closed:
                            return
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            if not shard.is_closed:
                # A disk, or a partition that goes away, is no fault of this program.
                is_ours = not isinstance(problem, KafkaError)
                log.error(
                    "%s-%d could not be read, trying again in %d ms: %s",
                    OFFSETS_TOPIC,
                    shard.partition,
                    LOAD_RETRY_MS,
                    problem,
                    exc_info=problem if is_ours else None,
                )
                self._timers.set((shard.number, "load"), self._timers.now_ms() + LOAD_RETRY_MS)
            return
        if shard.is_closed:
            return
        shard.core.take_effects()
        shard.activate()
        log.log(
            logging.INFO if loader.records else logging.DEBUG,
            "%s-%d: loaded %d groups from %d records in %d ms",
            OFFSETS_TOPIC,
            shard.partition,
            len(shard.core.groups),
            loader.records,
            self._timers.now_ms() - started_ms,
        )

    # Timers.

    def _timer_fired(self, key: Hashable) -> None:
        number, what = cast("tuple[int, Hashable]", key)
        if number == SERVICE and what == "tell moves":
            self._tells_moves.set()
            return
        if number == SERVICE:
            self.start()
            self._spawn(self._expire_in_time())
            return
        shard = self._by_number.get(number)
        if shard is None:
            return
        if what == "load":
            self._spawn(self._load(shard))
            return
        try:
            shard.timer_fired(what)
        except Exception:
            log.exception("the timer %r of %s-%d broke", what, OFFSETS_TOPIC, shard.partition)

    async def _expire_in_time(self) -> None:
        try:
            await self.expire()
        except Exception:
            log.exception("expired offsets stay; they are looked at again in %d ms", self._expire_interval_ms)

    async def expire(self) -> None:
        """Removes expired offsets and groups that have none left, a few groups a turn of the loop."""
        for shard in list(self._shards.values()):
            if shard.state is not ShardState.ACTIVE:
                continue
            group_ids = list(shard.core.groups)
            removed = 0
            for start in range(0, len(group_ids), EXPIRE_SLICE_GROUPS):
                if shard.is_closed:
                    break
                removed += shard.core.expire(group_ids[start : start + EXPIRE_SLICE_GROUPS], shard.now())
                shard.perform()
                await asyncio.sleep(0)
            if removed:
                log.info("%s-%d: %d expired records removed", OFFSETS_TOPIC, shard.partition, removed)

    def _moved(self, effect: Moved) -> None:
        if effect.after == GroupState.STABLE.value:
            self.rebalances += 1
        log.log(
            logging.DEBUG if effect.after == GroupState.DEAD.value else logging.INFO,
            "group %s goes from %s to %s in generation %d with %d members: %s",
            effect.group_id,
            effect.before,
            effect.after,
            effect.generation,
            effect.members,
            effect.reason,
        )

    # What handlers ask.

    def partition_for(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that the group belongs to."""
        return partition_for(group_id, self.topic.partition_count())

    def _find(self, group_id: str) -> tuple[Shard | None, ErrorCode]:
        shard = self._shards.get(partition_for(group_id, self.topic.partition_count()))
        if shard is None:
            return None, ErrorCode.NOT_COORDINATOR
        if shard.state is not ShardState.ACTIVE:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return shard, ErrorCode.NONE

    async def find_coordinator(self, group_id: str, listener: str) -> CoordinatorEndpoint:
        """Who coordinates the group; the topic is created first where it is missing.

        Raises KafkaError with COORDINATOR_NOT_AVAILABLE when nobody does yet.
        """
        partition = self.partition_for(group_id)
        endpoint = self.topic.leader(partition, listener)
        if endpoint is None:
            await self._ensure_topic()
            partition = self.partition_for(group_id)
            endpoint = self.topic.leader(partition, listener)
        if endpoint is None:
            raise KafkaError(
                f"{OFFSETS_TOPIC}-{partition} has no leader on listener {listener} now; ask again",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        return endpoint

    async def _ensure_topic(self) -> None:
        """Creates the topic once, however many ask for it together."""
        if self._ensuring is None or self._ensuring.done():
            self._ensuring = self._spawn(self.topic.ensure())
        try:
            await asyncio.shield(self._ensuring)
        except KafkaError as problem:
            raise KafkaError(
                f"{OFFSETS_TOPIC} could not be created: {problem}", ErrorCode.COORDINATOR_NOT_AVAILABLE
            ) from problem

    async def join(self, request: JoinRequest) -> JoinResult:
        """A member joins; answered when its generation is complete. A new member's id is made here."""
        error = self._check_join(request)
        if error is not ErrorCode.NONE:
            return JoinResult(error, request.member_id)
        shard, error = self._find(request.group_id)
        if shard is None:
            return JoinResult(error, request.member_id)
        if not request.new_member_id:
            name = request.instance_id if request.instance_id is not None else request.client_id
            request = request.replace(new_member_id=f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{uuid.uuid4()}")
        waiter = asyncio.get_running_loop().create_future()
        shard.core.join(request, Waiter(waiter), shard.now())
        shard.perform()
        return cast(JoinResult, await waiter)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        config = self.config
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    async def sync(self, request: SyncRequest) -> SyncResult:
        """A member asks for its assignment; answered when the leader's is written."""
        if not request.group_id:
            return SyncResult(ErrorCode.INVALID_GROUP_ID)
        shard, error = self._find(request.group_id)
        if shard is None:
            return SyncResult(error)
        waiter = asyncio.get_running_loop().create_future()
        shard.core.sync(request, Waiter(waiter), shard.now())
        shard.perform()
        return cast(SyncResult, await waiter)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """A member is alive."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        shard, error = self._find(group_id)
        if shard is None:
            # A member of a group that is being loaded is alive for all we know.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        result = shard.core.heartbeat(group_id, member_id, generation, instance_id, shard.now())
        if shard.core.has_effects:
            shard.perform()
        return result

    async def leave(self, group_id: str, members: tuple[LeavingMember, ...]) -> LeaveResult:
        """Members leave."""
        if not group_id:
            return LeaveResult(ErrorCode.INVALID_GROUP_ID)
        shard, error = self._find(group_id)
        if shard is None:
            return LeaveResult(error)
        waiter = asyncio.get_running_loop().create_future()
        shard.core.leave(group_id, members, Waiter(waiter), shard.now())
        shard.perform()
        return cast(LeaveResult, await waiter)

    async def commit(self, request: CommitRequest) -> CommitResult:
        """Commits offsets; answered when all in-sync replicas have them."""
        shard, error = self._find(request.group_id)
        if shard is None:
            return failed_commit(len(request.offsets), error)
        waiter = asyncio.get_running_loop().create_future()
        shard.core.commit(request, Waiter(waiter), shard.now())
        shard.perform()
        result = cast(CommitResult, await waiter)
        self.commits += result.errors.count(ErrorCode.NONE)
        return result

    async def fetch(
        self, group_id: str, require_stable: bool = False
    ) -> tuple[ErrorCode, dict[str, dict[int, CommittedOffset]]]:
        """What the group has committed, by topic and partition: not to be changed, and read at once.

        With ``require_stable`` after what is on its way to the log has arrived. For a group that has moved
        from a broker that is about to stop, NOT_COORDINATOR comes late (:meth:`begin_stop`).
        """
        shard, error = self._find(group_id)
        if shard is not None and require_stable:
            await shard.settled()
            shard, error = self._find(group_id)
        if shard is None:
            if error is ErrorCode.NOT_COORDINATOR:
                await self._tells_moves.wait()
            return error, {}
        return ErrorCode.NONE, shard.core.offsets(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> DeleteOffsetsResult:
        """Removes committed offsets of partitions that no member consumes."""
        if not group_id:
            return DeleteOffsetsResult(ErrorCode.INVALID_GROUP_ID)
        shard, error = self._find(group_id)
        if shard is None:
            return DeleteOffsetsResult(error)
        waiter = asyncio.get_running_loop().create_future()
        shard.core.delete_offsets(group_id, partitions, Waiter(waiter), shard.now())
        shard.perform()
        return cast(DeleteOffsetsResult, await waiter)

    def describe(self, group_id: str) -> DescribedGroup | ErrorCode:
        """A group, or why it cannot be said."""
        shard, error = self._find(group_id)
        return error if shard is None else shard.core.describe(group_id)

    def group_count(self) -> int:
        """How many groups this broker coordinates: for the metrics."""
        return sum(
            len(shard.core.groups) for shard in self._shards.values() if shard.state is ShardState.ACTIVE
        )

    def committed(self) -> list[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of all that is committed here: for the metrics."""
        return [
            (group_id, topic, partition, one.offset)
            for shard in self._shards.values()
            if shard.state is ShardState.ACTIVE
            for group_id, group in shard.core.groups.items()
            for topic, of_topic in group.offsets.items()
            for partition, one in of_topic.items()
        ]

    def list_groups(self) -> tuple[ErrorCode, list[ListedGroup]]:
        """The groups that this broker coordinates; an error while some of them are being loaded."""
        groups: list[ListedGroup] = []
        error = ErrorCode.NONE
        for shard in self._shards.values():
            if shard.state is ShardState.ACTIVE:
                groups.extend(shard.core.list_groups())
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error, groups

    async def delete_groups(self, group_ids: tuple[str, ...]) -> list[ErrorCode]:
        """Removes groups without members, and their offsets: an error for each, in their order."""
        results: dict[str, ErrorCode] = {}
        by_shard: dict[int, list[str]] = {}
        for group_id in dict.fromkeys(group_ids):
            shard, results[group_id] = self._find(group_id)
            if shard is not None:
                by_shard.setdefault(shard.number, []).append(group_id)
        waiting = []
        for number, ids in by_shard.items():
            shard = self._by_number[number]
            waiter = asyncio.get_running_loop().create_future()
            shard.core.delete_groups(tuple(ids), Waiter(waiter), shard.now())
            shard.perform()
            waiting.append((ids, waiter))
        for ids, waiter in waiting:
            result = cast(DeleteGroupsResult, await waiter)
            results.update(zip(ids, result.errors, strict=True))
        return [results[group_id] for group_id in group_ids]
