"""The group coordinator of a broker: all partitions of ``__consumer_offsets`` that the broker leads.

Request handlers call :class:`GroupCoordinator`. A request for a partition that is being loaded fails with
COORDINATOR_LOAD_IN_PROGRESS, a request for a partition that another broker leads with NOT_COORDINATOR. Idle
groups cost no CPU time: timers share one heap, and a heartbeat sets no timer.

A partition that cannot be loaded is loaded again after a growing pause: the fault may be temporary.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.groups.coordinator_effects import (
    CommitRequest,
    CommitResult,
    DeleteOffsetsResult,
    DescribedGroup,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    StateChanged,
    SyncRequest,
    SyncResult,
)
from tidemill.groups.coordinator_interfaces import CoordinatorEndpoint, OffsetsLog, OffsetsTopic
from tidemill.groups.coordinator_partition import partition_for
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_coordinator_shard import LOAD_RETRY_S_MAX, GroupCoordinatorShard
from tidemill.groups.offset_records import CommittedOffset
from tidemill.groups.pending_joins import PendingJoins
from tidemill.groups.timers import (
    CoordinatorTimer,
    CoordinatorTimerKey,
    ShardTimer,
    ShardTimerKey,
    Timers,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_in_slices
from tidemill.model.system_interfaces import Clock
from tidemill.model.task_set import TaskSet
from tidemill.net.deadlines import Scheduler

if TYPE_CHECKING:
    from tidemill.model.configs import BrokerConfig

logger = logging.getLogger("tidemill.groups")

LOAD_SLICE_RECORDS: Final = 500
"""Records that are replayed before other tasks get the event loop: about two milliseconds."""
RESPONSE_DELAY_MS: Final = 3_000
"""The time by which a stopping broker delays the response to an OffsetFetch for a group that moved. The
broker closes its connections before that, unless the handover of other partitions takes long."""
MEMBER_NAME_CHARACTERS_MAX: Final = 255
"""Characters of the client id that a member id may contain: protocol strings are limited in length."""


class GroupCoordinator:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        *,
        offsets_log: OffsetsLog,
        topic: OffsetsTopic,
        config: GroupCoordinatorConfig,
        clock: Clock,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.topic = topic
        self.rebalances = 0
        """Assignments distributed to members since the start, for the metrics."""
        self.commits = 0
        """Offsets committed since the start."""
        self._log = offsets_log
        self._clock = clock
        self._timers = Timers[CoordinatorTimerKey](scheduler or asyncio.get_running_loop(), self._timer_fired)
        self.pending_joins = PendingJoins()
        """The unused member ids of all shards, also of those that were closed while their timers are set."""
        self._shards: dict[int, GroupCoordinatorShard] = {}
        self._by_number: dict[int, GroupCoordinatorShard] = {}
        self._numbers = 0
        self._tasks = TaskSet()
        self._loads = TaskSet()
        self._subscriptions_lock = asyncio.Lock()
        self._topic_creation: asyncio.Task[None] | None = None
        self._reports_moves = asyncio.Event()
        """Cleared while the broker stops. OffsetFetch requests for groups that moved wait until it is set."""
        self._reports_moves.set()

    @classmethod
    def from_broker(
        cls, config: BrokerConfig, offsets_log: OffsetsLog, topic: OffsetsTopic, clock: Clock
    ) -> GroupCoordinator:
        """Creates the coordinator with the keys of a broker configuration."""
        return cls(
            offsets_log=offsets_log,
            topic=topic,
            config=GroupCoordinatorConfig.from_broker(config),
            clock=clock,
        )

    # Leadership.

    def start(self) -> None:
        """Starts the periodic check for expired offsets."""
        interval_ms = self.config.offsets_retention_check_interval_ms
        self._timers.set(CoordinatorTimer.EXPIRE_OFFSETS, self._timers.now_ms() + interval_ms)

    def begin_stop(self) -> None:
        """Called when the broker begins to hand over its partitions, before it closes its connections.

        From this call on, an OffsetFetch for a group that moved gets no response. Every client retries when
        its connection closes. But librdkafka 2.16 drops an OffsetFetch that fails with NOT_COORDINATOR, and
        its consumer stalls until the next rebalance.
        """
        self._reports_moves.clear()
        self._timers.set(CoordinatorTimer.REPORT_MOVES, self._timers.now_ms() + RESPONSE_DELAY_MS)

    async def stop(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR, and stops the timers and tasks."""
        self._reports_moves.set()
        for partition in list(self._shards):
            self.resign(partition)
        self._timers.close()
        await self._tasks.cancel()

    def become_leader(self, partition: int, epoch: int) -> None:
        """Starts to load the partition of ``__consumer_offsets`` that this broker leads from ``epoch`` on."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.epoch = max(shard.epoch, epoch)
        else:
            self._add_shard(partition, epoch, None)

    def _reload(self, failed: GroupCoordinatorShard) -> None:
        """Replaces a shard by one that loads the log again."""
        logger.error("%s-%d is loaded again after a failure", OFFSETS_TOPIC, failed.partition)
        self.resign(failed.partition)
        self._add_shard(failed.partition, failed.epoch, failed)

    def _add_shard(self, partition: int, epoch: int, former: GroupCoordinatorShard | None) -> None:
        """Starts to load a new shard, after the pending writes of a ``former`` one have ended."""
        self._numbers += 1
        shard = GroupCoordinatorShard(
            partition=partition,
            epoch=epoch,
            config=self.config,
            offsets_log=self._log,
            timers=self._timers,
            pending_joins=self.pending_joins,
            wall_ms=self._clock.wall_ms,
            number=self._numbers,
            on_state_changed=self._state_changed,
            on_replay_failed=self._reload,
        )
        self._shards[partition] = shard
        self._by_number[shard.number] = shard
        self._loads.track(self._tasks.start(self._load(shard, former)))

    async def wait_loaded(self, timeout_s: float) -> None:
        """Waits until the partitions that are being loaded are in memory, at most ``timeout_s``."""
        if self._loads:
            await asyncio.wait(self._loads, timeout=timeout_s)

    def resign(self, partition: int, epoch: int | None = None) -> None:
        """Unloads a partition that another broker leads from ``epoch`` on (None: regardless of the epoch)."""
        shard = self._shards.get(partition)
        if shard is None or (epoch is not None and epoch < shard.epoch):
            return
        del self._shards[partition]
        del self._by_number[shard.number]
        shard.close()

    async def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Removes the offsets committed for deleted topics, given as a map of name to id."""
        for shard in list(self._shards.values()):
            await shard.topics_deleted(topics)

    async def _load(self, shard: GroupCoordinatorShard, former: GroupCoordinatorShard | None = None) -> None:
        if former is not None:
            # A write that ends later would be in the log, and not in memory.
            await former.appends_ended()
            if shard.is_closed:
                return
        started_ms = self._timers.now_ms()
        loader = shard.new_loader()
        try:
            async for data in self._log.read(shard.partition):
                remaining = LOAD_SLICE_RECORDS
                for _ in loader.replay(data, shard.now()):
                    remaining -= 1
                    if remaining == 0:
                        remaining = LOAD_SLICE_RECORDS
                        await asyncio.sleep(0)
                        if shard.is_closed:
                            return
        except Exception as problem:  # noqa: BLE001 - logged
            if not shard.is_closed:
                self._load_failed(shard, loader.offset, problem)
            return
        if shard.is_closed:
            return
        shard.activate()
        logger.log(
            logging.INFO if loader.records or shard.load_problem else logging.DEBUG,
            "%s-%d: loaded %d groups from %d records in %d ms",
            OFFSETS_TOPIC,
            shard.partition,
            len(shard.groups),
            loader.records,
            self._timers.now_ms() - started_ms,
        )
        while shard.topics_deleted_during_load:
            await shard.topics_deleted(shard.topics_deleted_during_load.popleft())

    def _load_failed(self, shard: GroupCoordinatorShard, offset: int, problem: Exception) -> None:
        """Schedules the next load after a growing pause. Logs each error once, and not at every attempt."""
        pause_s = shard.load_backoff.next_s()
        text = f"after offset {offset}: {problem!r}"
        logger.log(
            logging.DEBUG if text == shard.load_problem else logging.ERROR,
            "%s-%d could not be loaded (%s); its groups have no coordinator before that. It is repeated after"
            " pauses of up to %d s. 'tidemill log dump' shows the records.",
            OFFSETS_TOPIC,
            shard.partition,
            text,
            LOAD_RETRY_S_MAX,
            # Storage errors and a removed partition are KafkaErrors. Other exceptions are bugs.
            exc_info=None if isinstance(problem, KafkaError) else problem,
        )
        shard.load_problem = text
        key = ShardTimerKey(shard.number, ShardTimer.LOAD)
        self._timers.set(key, self._timers.now_ms() + int(pause_s * 1_000))

    # Timers.

    def _timer_fired(self, key: CoordinatorTimerKey) -> None:
        if key is CoordinatorTimer.REPORT_MOVES:
            self._reports_moves.set()
        elif key is CoordinatorTimer.EXPIRE_OFFSETS:
            self.start()
            self._tasks.start(self._expire_offsets())
        else:
            self._shard_timer_fired(key)

    def _shard_timer_fired(self, key: ShardTimerKey) -> None:
        self.pending_joins.discard(key)
        shard = self._by_number.get(key.shard)
        if shard is None:
            return
        if key.timer is ShardTimer.LOAD:
            self._loads.track(self._tasks.start(self._load(shard)))
            return
        try:
            shard.timer_fired(key.timer)
        except Exception:
            logger.exception("the timer %r of %s-%d failed", key.timer, OFFSETS_TOPIC, shard.partition)

    async def _expire_offsets(self) -> None:
        try:
            await self.expire()
        except Exception:
            logger.exception(
                "expired offsets were not removed; retrying in %d ms",
                self.config.offsets_retention_check_interval_ms,
            )

    async def expire(self) -> None:
        """Removes expired offsets and groups without offsets, in slices."""
        for shard in list(self._shards.values()):
            if not shard.is_active:
                continue
            removed = 0
            for group_ids in shard.group_slices():
                for group_id in group_ids:
                    await self._read_subscriptions(shard, group_id)
                if shard.is_closed:
                    break
                removed += shard.expire(group_ids)
                await asyncio.sleep(0)
            if removed:
                logger.info("%s-%d: %d expired records removed", OFFSETS_TOPIC, shard.partition, removed)

    def _state_changed(self, effect: StateChanged) -> None:
        if effect.after is GroupState.STABLE:
            self.rebalances += 1
        logger.log(
            logging.DEBUG if effect.after is GroupState.DEAD else logging.INFO,
            "group %s changed from %s to %s in generation %d with %d members: %s",
            effect.group_id,
            effect.before.value,
            effect.after.value,
            effect.generation,
            effect.members,
            effect.reason,
        )

    # Calls of the request handlers.

    def partition_for(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that the group belongs to."""
        return partition_for(group_id, self.topic.partition_count())

    def _find(self, group_id: str) -> tuple[GroupCoordinatorShard | None, ErrorCode]:
        shard = self._shards.get(partition_for(group_id, self.topic.partition_count()))
        if shard is None:
            return None, ErrorCode.NOT_COORDINATOR
        if not shard.is_active:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return shard, ErrorCode.NONE

    def _find_named(self, group_id: str) -> tuple[GroupCoordinatorShard | None, ErrorCode]:
        """As :meth:`_find`, but refuses the empty name, which no group with members has."""
        return self._find(group_id) if group_id else (None, ErrorCode.INVALID_GROUP_ID)

    async def find_coordinator(self, group_id: str, listener: str) -> CoordinatorEndpoint:
        """Returns the address of the group's coordinator; creates ``__consumer_offsets`` where it is missing.

        Raises KafkaError with COORDINATOR_NOT_AVAILABLE while the partition has no leader.
        """
        partition = self.partition_for(group_id)
        endpoint = self.topic.leader(partition, listener)
        if endpoint is None:
            await self._ensure_topic()
            partition = self.partition_for(group_id)
            endpoint = self.topic.leader(partition, listener)
        if endpoint is None:
            raise KafkaError(
                f"{OFFSETS_TOPIC}-{partition} has no leader on listener {listener} now; retry",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        return endpoint

    async def _ensure_topic(self) -> None:
        """Creates the topic; concurrent callers share the attempt."""
        if self._topic_creation is None or self._topic_creation.done():
            self._topic_creation = self._tasks.start(self.topic.ensure())
        try:
            await asyncio.shield(self._topic_creation)
        except KafkaError as problem:
            raise KafkaError(
                f"{OFFSETS_TOPIC} could not be created: {problem}", ErrorCode.COORDINATOR_NOT_AVAILABLE
            ) from problem

    async def join(self, request: JoinRequest) -> JoinResult:
        """Adds a member; returns when the generation is complete. Generates the id of a new member."""
        error = self._check_join(request)
        if error is not ErrorCode.NONE:
            return JoinResult(error=error, member_id=request.member_id)
        shard, error = self._find(request.group_id)
        if shard is None:
            return JoinResult(error=error, member_id=request.member_id)
        if not request.new_member_id:
            name = request.instance_id if request.instance_id is not None else request.client_id
            request = request.replace(new_member_id=f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{uuid.uuid4()}")
        response = shard.join(request)
        self._expire_pending_joins()
        return await response

    def _expire_pending_joins(self) -> None:
        """Removes the oldest unused member ids, before their timers fire, while these use too much memory."""
        while (key := self.pending_joins.oldest_over_limit()) is not None:
            self._timers.cancel(key)
            self._shard_timer_fired(key)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        config = self.config
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Returns a member's assignment, once the leader's assignment is written."""
        shard, error = self._find_named(request.group_id)
        if shard is None:
            return SyncResult(error=error)
        return await shard.sync(request)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Restarts the member's session; returns REBALANCE_IN_PROGRESS if the member should rejoin."""
        shard, error = self._find_named(group_id)
        if shard is None:
            # Members of a group that is being loaded count as alive.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        return shard.heartbeat(group_id, member_id, generation, instance_id)

    async def leave(self, group_id: str, members: tuple[LeavingMember, ...]) -> LeaveResult:
        """Removes members from the group."""
        shard, error = self._find_named(group_id)
        if shard is None:
            return LeaveResult(error=error)
        return await shard.leave(group_id, members)

    async def commit(self, request: CommitRequest) -> CommitResult:
        """Commits offsets; returns when all in-sync replicas have them."""
        shard, error = self._find(request.group_id)
        if shard is None:
            return CommitResult(errors=(error,) * len(request.offsets))
        result = await shard.commit(request)
        self.commits += result.errors.count(ErrorCode.NONE)
        return result

    async def fetch(
        self, group_id: str, require_stable: bool = False
    ) -> tuple[ErrorCode, dict[str, dict[int, CommittedOffset]]]:
        """Returns the group's committed offsets by topic and partition.

        The caller must read the result at once and must not change it. With ``require_stable``, waits until
        the pending appends have ended. For a group that moved away from a stopping broker, NOT_COORDINATOR is
        delayed (:meth:`begin_stop`).
        """
        shard, error = self._find(group_id)
        if shard is not None and require_stable:
            await shard.appends_ended()
            shard, error = self._find(group_id)
        if shard is None:
            if error is ErrorCode.NOT_COORDINATOR:
                await self._reports_moves.wait()
            return error, {}
        return ErrorCode.NONE, shard.offsets(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> DeleteOffsetsResult:
        """Removes committed offsets of partitions that no member consumes."""
        shard, error = self._find_named(group_id)
        while shard is not None and await self._read_subscriptions(shard, group_id):
            shard, error = self._find_named(group_id)
        if shard is None:
            return DeleteOffsetsResult(error=error)
        return await shard.delete_offsets(group_id, partitions)

    async def _read_subscriptions(self, shard: GroupCoordinatorShard, group_id: str) -> bool:
        """Decodes the subscriptions of a group, in slices, and of one group at a time.

        Returns False if they were decoded before. Otherwise the group may have another generation now.
        """
        group = shard.groups.get(group_id)
        if group is None or group.unread_subscriptions is None:
            return False
        async with self._subscriptions_lock:
            await run_in_slices(group.read_subscriptions_in_slices())
        return True

    def describe(self, group_id: str) -> DescribedGroup | ErrorCode:
        """Returns a group's description, or the error that prevents it."""
        shard, error = self._find(group_id)
        return error if shard is None else shard.describe(group_id)

    def group_count(self) -> int:
        """The number of groups that this broker coordinates, for the metrics."""
        return sum(len(shard.groups) for shard in self._shards.values() if shard.is_active)

    def committed(self) -> list[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of all offsets committed on this broker, for the metrics."""
        return [
            (group_id, topic, partition, committed.offset)
            for shard in self._shards.values()
            if shard.is_active
            for group_id, group in shard.groups.items()
            for topic, of_topic in group.offsets.items()
            for partition, committed in of_topic.items()
        ]

    def list_groups(self) -> tuple[ErrorCode, list[ListedGroup]]:
        """Returns the groups that this broker coordinates, with an error while some are being loaded."""
        groups: list[ListedGroup] = []
        error = ErrorCode.NONE
        for shard in self._shards.values():
            if shard.is_active:
                groups.extend(shard.list_groups())
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error, groups

    async def delete_groups(self, group_ids: tuple[str, ...]) -> list[ErrorCode]:
        """Removes groups without members, and their offsets; returns an error code per group, in order."""
        results: dict[str, ErrorCode] = {}
        by_shard: dict[GroupCoordinatorShard, list[str]] = {}
        for group_id in dict.fromkeys(group_ids):
            shard, results[group_id] = self._find(group_id)
            if shard is not None:
                by_shard.setdefault(shard, []).append(group_id)
        pending = [(ids, shard.delete_groups(tuple(ids))) for shard, ids in by_shard.items()]
        for ids, response in pending:
            results.update(zip(ids, (await response).errors, strict=True))
        return [results[group_id] for group_id in group_ids]
