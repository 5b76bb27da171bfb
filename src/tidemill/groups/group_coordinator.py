"""The group coordinator of a broker: the groups of all partitions of ``__consumer_offsets`` that it leads.

Request handlers call :class:`GroupCoordinator`. Idle groups cost no CPU time: timers share one heap, and a
heartbeat sets no timer.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.coordinator_runtime.coordinator_interfaces import (
    CoordinatorLog,
    CoordinatorTopic,
)
from tidemill.coordinator_runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinator_runtime.coordinator_shard import CoordinatorInvariantError, CoordinatorShard
from tidemill.coordinator_runtime.state_machine import Loader
from tidemill.coordinator_runtime.timers import ShardTimerKey
from tidemill.groups.coordinator_effects import (
    CommitRequest,
    CommitResult,
    CoordinatorTimer,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    DescribedGroup,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    MarkerResult,
    StateChanged,
    SyncRequest,
    SyncResult,
    TimerKey,
    TimerKind,
)
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import CommittedOffset
from tidemill.groups.pending_joins import PendingJoins
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_in_slices, slices_by_weight
from tidemill.model.system_interfaces import Clock
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.net.deadlines import Scheduler

if TYPE_CHECKING:
    from tidemill.model.configs import BrokerConfig

logger = logging.getLogger("tidemill.groups")

OFFSETS_PER_SLICE: Final = 2_000
"""Offsets that an event may visit: about a microsecond for each."""
RESPONSE_DELAY_MS: Final = 3_000
"""The time by which a stopping broker delays the response to an OffsetFetch for a group that moved. The
broker closes its connections before that, unless the handover of other partitions takes long."""
MEMBER_NAME_CHARACTERS_MAX: Final = 255
"""Characters of the client id that a member id may contain: protocol strings are limited in length."""

GroupShard: TypeAlias = CoordinatorShard[GroupMetadataManager]
"""A partition of ``__consumer_offsets``."""


class GroupCoordinator:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        *,
        offsets_log: CoordinatorLog,
        topic: CoordinatorTopic,
        config: GroupCoordinatorConfig,
        clock: Clock,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.rebalances = 0
        """Assignments distributed to members since the start, for the metrics."""
        self.commits = 0
        """Offsets committed since the start."""
        self.pending_joins = PendingJoins()
        """The unused member ids of all shards, also of those that were closed while their timers are set."""
        self.runtime = CoordinatorRuntime[GroupMetadataManager](
            coordinator=self,
            log=offsets_log,
            topic=topic,
            append_timeout_ms=config.offset_commit_timeout_ms,
            clock=clock,
            scheduler=scheduler,
            logger=logger,
        )
        self._topics_deleted_during_load = WeakKeyDictionary[GroupShard, deque[Mapping[str, bytes]]]()
        """By shard: deletions to handle once its log is loaded."""
        self._subscriptions_lock = asyncio.Lock()
        self._reports_moves = asyncio.Event()
        """Cleared while the broker stops. OffsetFetch requests for groups that moved wait until it is set."""
        self._reports_moves.set()

    @classmethod
    def from_broker(
        cls, config: BrokerConfig, offsets_log: CoordinatorLog, topic: CoordinatorTopic, clock: Clock
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
        self.runtime.timers.set(CoordinatorTimer.EXPIRE_OFFSETS, self.runtime.timers.now_ms() + interval_ms)

    def begin_stop(self) -> None:
        """Called when the broker begins to hand over its partitions, before it closes its connections.

        From this call on, an OffsetFetch for a group that moved gets no response. Every client retries when
        its connection closes. But librdkafka 2.16 drops an OffsetFetch that fails with NOT_COORDINATOR, and
        its consumer stalls until the next rebalance.
        """
        self._reports_moves.clear()
        self.runtime.timers.set(
            CoordinatorTimer.REPORT_MOVES, self.runtime.timers.now_ms() + RESPONSE_DELAY_MS
        )

    async def stop(self) -> None:
        """Fails all waiting requests with NOT_COORDINATOR, and stops the timers and tasks."""
        self._reports_moves.set()
        await self.runtime.stop()

    async def topics_deleted(self, topics: Mapping[str, bytes]) -> None:
        """Removes the offsets committed for deleted topics, given as a map of name to id."""
        for shard in list(self.runtime.shards.values()):
            await self._topics_deleted(shard, topics)

    async def _topics_deleted(self, shard: GroupShard, topics: Mapping[str, bytes]) -> None:
        """Removes the offsets of deleted topics from a shard, in slices; during a load after it."""
        if not shard.is_active and not shard.is_closed:
            self._topics_deleted_during_load.setdefault(shard, deque()).append(topics)
            return
        for group_ids in self._group_slices(shard):
            shard.machine.topics_deleted(topics, group_ids, shard.now())
            shard.perform_effects()
            await asyncio.sleep(0)

    # Calls of the runtime.

    def new_machine(self) -> GroupMetadataManager:
        """Returns a state machine without groups."""
        return GroupMetadataManager(self.config)

    def loader(self, shard: GroupShard) -> Loader:
        """Returns the loader for the state machine of ``shard``."""
        # Imported late: a broker without groups decodes no records.
        from tidemill.groups.offsets_loader import offsets_loader

        return offsets_loader(shard.machine, shard.partition, self.config.unpacked_bytes_max)

    async def loaded(self, shard: GroupShard) -> None:
        """Handles the deletions of topics that came during the load."""
        deletions = self._topics_deleted_during_load.pop(shard, None)
        while deletions:
            await self._topics_deleted(shard, deletions.popleft())

    def perform(self, shard: GroupShard, effect: object) -> None:
        """Logs a change of a group's state."""
        if not isinstance(effect, StateChanged):
            raise CoordinatorInvariantError(f"a group coordinator cannot perform {effect!r}")
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

    def timer_set(self, key: ShardTimerKey) -> None:
        """Counts an unused member id."""
        timer = key.timer
        if isinstance(timer, TimerKey) and timer.kind is TimerKind.PENDING_JOIN:
            self.pending_joins.add(key.shard, timer)

    def timer_cancelled(self, key: ShardTimerKey) -> None:
        """Stops counting an unused member id."""
        self.pending_joins.discard(key)

    def timer_fired(self, key: Hashable) -> None:
        """Handles the expiry of a timer that belongs to no group."""
        if key is CoordinatorTimer.REPORT_MOVES:
            self._reports_moves.set()
        else:
            self.start()
            self.runtime.tasks.start(self._expire_offsets())

    # Expiry of offsets.

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
        for shard in list(self.runtime.shards.values()):
            if not shard.is_active:
                continue
            removed = 0
            for group_ids in self._group_slices(shard):
                for group_id in group_ids:
                    await self._read_subscriptions(shard, group_id)
                if shard.is_closed:
                    break
                removed += shard.machine.expire(group_ids, shard.now())
                shard.perform_effects()
                await asyncio.sleep(0)
            if removed:
                logger.info("%s-%d: %d expired records removed", OFFSETS_TOPIC, shard.partition, removed)

    @staticmethod
    def _group_slices(shard: GroupShard) -> Iterator[Sequence[str]]:
        """Yields the ids of all groups, in slices for an event that visits all their offsets."""
        groups = shard.machine.groups

        def weight(group_id: str) -> int:
            group = groups.get(group_id)
            return 1 if group is None else 1 + group.offset_count

        return slices_by_weight(list(groups), weight, OFFSETS_PER_SLICE)

    # Calls of the request handlers.

    def _find_named(self, group_id: str) -> tuple[GroupShard | None, ErrorCode]:
        """Refuses the empty name, which no group with members has; finds the shard of another name."""
        return self.runtime.find(group_id) if group_id else (None, ErrorCode.INVALID_GROUP_ID)

    async def join(self, request: JoinRequest) -> JoinResult:
        """Adds a member; returns when the generation is complete. Generates the id of a new member."""
        error = self._check_join(request)
        if error is not ErrorCode.NONE:
            return JoinResult(error=error, member_id=request.member_id)
        shard, error = self.runtime.find(request.group_id)
        if shard is None:
            return JoinResult(error=error, member_id=request.member_id)
        if not request.new_member_id:
            name = request.instance_id if request.instance_id is not None else request.client_id
            request = request.replace(new_member_id=f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{uuid.uuid4()}")
        response: asyncio.Future[JoinResult] = shard.submit(partial(shard.machine.join, request))
        self._expire_pending_joins()
        return await response

    def _expire_pending_joins(self) -> None:
        """Removes the oldest unused member ids, before their timers fire, while these use too much memory."""
        while (key := self.pending_joins.oldest_over_limit()) is not None:
            self.runtime.timers.cancel(key)
            self.runtime.fire(key)

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
        response: asyncio.Future[SyncResult] = shard.submit(partial(shard.machine.sync, request))
        return await response

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Restarts the member's session; returns REBALANCE_IN_PROGRESS if the member should rejoin."""
        shard, error = self._find_named(group_id)
        if shard is None:
            # Members of a group that is being loaded count as alive.
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        result = shard.machine.heartbeat(group_id, member_id, generation, instance_id, shard.now())
        shard.perform_effects()
        return result

    async def leave(self, group_id: str, members: tuple[LeavingMember, ...]) -> LeaveResult:
        """Removes members from the group."""
        shard, error = self._find_named(group_id)
        if shard is None:
            return LeaveResult(error=error)
        response: asyncio.Future[LeaveResult] = shard.submit(partial(shard.machine.leave, group_id, members))
        return await response

    async def commit(self, request: CommitRequest) -> CommitResult:
        """Commits offsets; returns when all in-sync replicas have them."""
        shard, error = self.runtime.find(request.group_id)
        if shard is None:
            return CommitResult(errors=(error,) * len(request.offsets))
        response: asyncio.Future[CommitResult] = shard.submit(partial(shard.machine.commit, request))
        result = await response
        self.commits += result.errors.count(ErrorCode.NONE)
        return result

    async def end_transaction(self, partition: int, marker: MarkerToWrite) -> None:
        """Writes a marker into a partition of ``__consumer_offsets``; it ends the transaction of offsets.

        Raises KafkaError if it is not committed.
        """
        shard = self.runtime.shards.get(partition)
        if shard is None or not shard.is_active:
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if shard is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
            raise KafkaError(f"{OFFSETS_TOPIC}-{partition} has no coordinator here now", code)
        response: asyncio.Future[MarkerResult] = shard.submit(partial(shard.machine.end_transaction, marker))
        error = (await response).error
        if error is not ErrorCode.NONE:
            raise KafkaError(f"the marker was not written to {OFFSETS_TOPIC}-{partition}", error)

    def unstable(self, group_id: str) -> Collection[tuple[str, int]]:
        """Returns the partitions of a group with offsets in open transactions.

        They change, together with the offsets, as transactions end: a caller that takes several turns of the
        event loop looks up both for each partition.
        """
        shard, _ = self.runtime.find(group_id)
        return () if shard is None else shard.machine.unstable(group_id)

    async def fetch(
        self, group_id: str, require_stable: bool = False
    ) -> tuple[ErrorCode, dict[str, dict[int, CommittedOffset]]]:
        """Returns the group's committed offsets by topic and partition.

        The caller must read the result at once and must not change it. With ``require_stable``, waits until
        the pending appends have ended. For a group that moved away from a stopping broker, NOT_COORDINATOR is
        delayed (:meth:`begin_stop`).
        """
        shard, error = self.runtime.find(group_id)
        if shard is not None and require_stable:
            await shard.appends_ended()
            shard, error = self.runtime.find(group_id)
        if shard is None:
            if error is ErrorCode.NOT_COORDINATOR:
                await self._reports_moves.wait()
            return error, {}
        return ErrorCode.NONE, shard.machine.offsets(group_id)

    async def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...]
    ) -> DeleteOffsetsResult:
        """Removes committed offsets of partitions that no member consumes."""
        shard, error = self._find_named(group_id)
        while shard is not None and await self._read_subscriptions(shard, group_id):
            shard, error = self._find_named(group_id)
        if shard is None:
            return DeleteOffsetsResult(error=error)
        response: asyncio.Future[DeleteOffsetsResult] = shard.submit(
            partial(shard.machine.delete_offsets, group_id, partitions)
        )
        return await response

    async def _read_subscriptions(self, shard: GroupShard, group_id: str) -> bool:
        """Decodes the subscriptions of a group, in slices, and of one group at a time.

        Returns False if they were decoded before. Otherwise the group may have another generation now.
        """
        group = shard.machine.groups.get(group_id)
        if group is None or group.unread_subscriptions is None:
            return False
        async with self._subscriptions_lock:
            await run_in_slices(group.read_subscriptions_in_slices())
        return True

    def describe(self, group_id: str) -> DescribedGroup | ErrorCode:
        """Returns a group's description, or the error that prevents it."""
        shard, error = self.runtime.find(group_id)
        return error if shard is None else shard.machine.describe(group_id)

    def group_count(self) -> int:
        """The number of groups that this broker coordinates, for the metrics."""
        return sum(len(shard.machine.groups) for shard in self.runtime.shards.values() if shard.is_active)

    def committed(self) -> list[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of all offsets committed on this broker, for the metrics."""
        return [
            (group_id, topic, partition, committed.offset)
            for shard in self.runtime.shards.values()
            if shard.is_active
            for group_id, group in shard.machine.groups.items()
            for topic, of_topic in group.offsets.items()
            for partition, committed in of_topic.items()
        ]

    def list_groups(self) -> tuple[ErrorCode, list[ListedGroup]]:
        """Returns the groups that this broker coordinates, with an error while some are being loaded."""
        groups: list[ListedGroup] = []
        error = ErrorCode.NONE
        for shard in self.runtime.shards.values():
            if shard.is_active:
                groups.extend(shard.machine.list_groups())
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error, groups

    async def delete_groups(self, group_ids: tuple[str, ...]) -> list[ErrorCode]:
        """Removes groups without members, and their offsets; returns an error code per group, in order."""
        results: dict[str, ErrorCode] = {}
        by_shard: dict[GroupShard, list[str]] = {}
        for group_id in dict.fromkeys(group_ids):
            shard, results[group_id] = self.runtime.find(group_id)
            if shard is not None:
                by_shard.setdefault(shard, []).append(group_id)
        pending: list[tuple[list[str], asyncio.Future[DeleteGroupsResult]]] = [
            (ids, shard.submit(partial(shard.machine.delete_groups, tuple(ids))))
            for shard, ids in by_shard.items()
        ]
        for ids, response in pending:
            results.update(zip(ids, (await response).errors, strict=True))
        return [results[group_id] for group_id in group_ids]
