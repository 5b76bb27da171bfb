"""The state and the responses of group coordinators: the promise ``coordinator``.

Each coordinator is compared with a replay of its log, computed from the batches and not from the
coordinator's state: when it has loaded a partition, whenever a write has ended, and whenever it returns
offsets or other responses. Every member has a session, and a generation has the members that joined it.
Nothing here uses the random stream, or writes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from log_inspection import records_of
from transaction_state_promise import TransactionStatePromise

from tidemill.broker import coordinator_topic
from tidemill.broker.coordinator_topic import PartitionCoordinatorLog
from tidemill.broker.transaction_markers import append_marker
from tidemill.coordination.topic_image import OFFSETS_TOPIC, TRANSACTION_TOPIC
from tidemill.coordinator_runtime.coordinator_effects import Append, Now, Reply, Waiter
from tidemill.coordinator_runtime.coordinator_shard import CoordinatorShard
from tidemill.coordinator_runtime.pending_writes import Write
from tidemill.coordinator_runtime.timers import ShardTimer, ShardTimerKey
from tidemill.groups.coordinator_effects import (
    AssignmentStored,
    CommitResult,
    Effect,
    GroupState,
    JoinResult,
    OffsetsStored,
    StateChanged,
    SyncRequest,
    SyncResult,
    TimerKey,
    TimerKind,
)
from tidemill.groups.group_coordinator import GroupCoordinator, GroupShard
from tidemill.groups.group_metadata import GroupMetadata
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import (
    CommittedOffset,
    GroupMetadataValue,
    OffsetRecord,
    TransactionalOffset,
    decode_record,
)
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import Batch
from tidemill.records.end_transaction_marker import COMMIT, read_marker
from tidemill.records.record_reader import iter_records, iter_stored, read_stored

if TYPE_CHECKING:
    from tidemill.groups.group_coordinator import GroupCoordinator
    from tidemill.replication.partition import Partition
    from tidemill.replication.replica_manager import ReplicaManager

APPEND = PartitionCoordinatorLog.append
APPEND_MARKER = append_marker
FINISH, ACTIVATE, CLOSE = (
    CoordinatorShard._finish,
    CoordinatorShard.activate,
    CoordinatorShard.close,
)
TIMER_FIRED, TOPICS_DELETED = CoordinatorShard.timer_fired, GroupCoordinator._topics_deleted
TAKE_EFFECTS, OFFSETS, SYNC = (
    GroupMetadataManager.take_effects,
    GroupMetadataManager.offsets,
    GroupMetadataManager.sync,
)
HEARTBEAT = GroupMetadataManager.heartbeat
ALIVE = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""How a heartbeat of a member is answered."""
SYNCED = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)

Offsets = dict[str, dict[int, CommittedOffset]]
"""By topic and partition."""
OffsetKey = tuple[str, str, int]
"""Group, topic and partition."""

decode = lru_cache(maxsize=4096)(decode_record)


class DeletedTopicOffset(NamedTuple):
    """An offset of a deleted topic, which one of the next writes removes."""

    group: str
    topic: str
    partition: int
    topic_id: bytes
    accepted: int
    """The number of writes that the coordinator had begun when it was notified of the deletion."""

    @property
    def key(self) -> tuple[str, str, int, bytes]:
        """The key of its tombstone, with the id of the topic."""
        return self.group, self.topic, self.partition, self.topic_id


class Replayed:
    """The content of the committed part of a log.

    A write with an error response may be in the log nevertheless: the next coordinator reads it.
    """

    def __init__(self) -> None:
        self.offsets: dict[str, Offsets] = {}
        self.groups: dict[str, GroupMetadataValue] = {}
        self.written: set[OffsetRecord] = set()
        """Every position that was written."""
        self._count = 0
        self._applied: dict[OffsetKey, int] = {}
        """When the last record of an offset was written that took effect, as a number of records."""
        self._open: dict[int, dict[OffsetKey, tuple[int, OffsetRecord]]] = {}
        """The last record of each offset in the open transaction of a producer."""

    def offset(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        """Returns the offset of a partition; None without one."""
        return self.offsets.get(group, {}).get(topic, {}).get(partition)

    def take(self, data: bytes) -> None:
        """Replays batches."""
        for batch in iter_stored(data):
            if isinstance(batch, Batch) and batch.is_control:
                marker = read_marker(batch)
                if marker is not None:
                    self.end(int(batch.producer_id), is_commit=marker.control_type == COMMIT)
                continue
            is_transactional = isinstance(batch, Batch) and batch.is_transactional
            for record in read_stored(batch, True, UNPACKED_BYTES_MAX):
                self._count += 1
                change = decode(record.key, record.value)
                if isinstance(change, OffsetRecord) and is_transactional:
                    key = (change.group, change.topic, change.partition)
                    self._open.setdefault(int(batch.producer_id), {})[key] = (self._count, change)
                    self.written.add(change)
                elif isinstance(change, OffsetRecord):
                    self._take_offset(change, self._count)
                elif change is not None and change.value is not None:
                    self.groups[change.group] = change.value
                elif change is not None:
                    self.groups.pop(change.group, None)

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        """Replays a marker: the offsets take effect unless a later record has."""
        for number, change in self._open.pop(producer_id, {}).values():
            key = (change.group, change.topic, change.partition)
            if is_commit and number > self._applied.get(key, -1):
                self._take_offset(change, number)

    def unstable(self, group: str) -> set[tuple[str, int]]:
        """Returns the partitions with offsets in open transactions that may still take effect."""
        return {
            key[1:]
            for of_producer in self._open.values()
            for key, (number, _) in of_producer.items()
            if key[0] == group and number > self._applied.get(key, -1)
        }

    def _take_offset(self, change: OffsetRecord, number: int) -> None:
        self._applied[change.group, change.topic, change.partition] = number
        of_group = self.offsets.setdefault(change.group, {})
        of_topic = of_group.setdefault(change.topic, {})
        if change.value is not None:
            of_topic[change.partition] = change.value
            self.written.add(change)
            return
        of_topic.pop(change.partition, None)
        if not of_topic:
            del of_group[change.topic]
        if not of_group:
            del self.offsets[change.group]


class Watched:
    """An active coordinator, and its expected state."""

    def __init__(self, shard: GroupShard, partition: Partition) -> None:
        self.shard = shard
        self.partition = partition
        self.replayed = Replayed()
        self.commits: dict[int, tuple[Waiter, tuple[OffsetRecord, ...], tuple[ErrorCode, ...]]] = {}
        """By the id of the waiter: the records of a commit, and the responses after their write."""
        self.syncs: dict[int, tuple[Waiter, SyncRequest]] = {}
        self.gone: list[DeletedTopicOffset] = []
        self.kept: set[tuple[str, str, int, bytes]] = set()
        """Offsets whose tombstones could not be written, and are not written again."""

    @property
    def state_machine(self) -> GroupMetadataManager:
        """The coordinator."""
        return self.shard.machine


class CoordinatorPromise:
    """Compares coordinators with their logs."""

    def __init__(self, broken: Callable[[str, str], None], excused: Callable[[str], bool]) -> None:
        self._broken = broken
        self._excused = excused
        self.transactions = TransactionStatePromise(broken)
        self._watched: dict[GroupShard, Watched] = {}
        self._by_state_machine: dict[GroupMetadataManager, Watched] = {}
        self._former: set[GroupMetadataManager] = set()
        """Coordinators that were closed: a request may still reach them."""
        self._ends: dict[int, tuple[bytes, int]] = {}
        """Where batches that were appended end, by their ids; and the batches, so that these last."""
        self._marker_ends: dict[int, tuple[MarkerToWrite, int]] = {}
        """The same for markers."""

    def patches(self) -> list[Any]:
        """Returns the patches of the program by which the checker is notified."""
        return [
            mock.patch.object(PartitionCoordinatorLog, "append", lambda *of: self._append(*of)),
            mock.patch.object(coordinator_topic, "append_marker", lambda *of: self._append_marker(*of)),
            mock.patch.object(CoordinatorShard, "_finish", lambda *of: self._finish(*of)),
            mock.patch.object(CoordinatorShard, "activate", lambda *of: self._activate(*of)),
            mock.patch.object(CoordinatorShard, "close", lambda *of: self._close(*of)),
            mock.patch.object(CoordinatorShard, "timer_fired", lambda *of: self._timer_fired(*of)),
            mock.patch.object(GroupCoordinator, "_topics_deleted", lambda *of: self._topics_deleted(*of)),
            mock.patch.object(GroupMetadataManager, "take_effects", lambda *of: self._take_effects(*of)),
            mock.patch.object(GroupMetadataManager, "offsets", lambda *of: self._offsets(*of)),
            mock.patch.object(GroupMetadataManager, "sync", lambda *of: self._sync(*of)),
            mock.patch.object(GroupMetadataManager, "heartbeat", lambda *of: self._heartbeat(*of)),
        ]

    def look(self, broker: str, service: GroupCoordinator, partitions: ReplicaManager) -> None:
        """A running broker coordinates the groups of the partitions that it leads."""
        shards = service.runtime.shards
        if not shards and partitions.topics.by_name.get(OFFSETS_TOPIC.encode()) is None:
            return
        entry = partitions.topics.by_name.get(OFFSETS_TOPIC.encode())
        led = {
            int(one.index)
            for one in (entry.partitions if entry is not None else ())
            if one is not None and one.is_leader and not one.is_offline
        }
        if led != shards.keys():
            self._broken(
                "coordinator",
                f"{broker} leads partitions {sorted(led)} of {OFFSETS_TOPIC}, and coordinates the groups of"
                f" {sorted(shards)}",
            )

    # -- the log

    def _append(self, log: PartitionCoordinatorLog, partition: int, batch: bytes) -> Any:
        found = log._broker.replica_manager.find(log._topic, partition)
        before = int(found.log.end_offset) if found is not None else 0
        result = APPEND(log, partition, batch)
        if found is not None and int(found.log.end_offset) > before:
            self._ends[id(batch)] = (batch, int(found.log.end_offset))
        return result

    def _append_marker(self, broker: Any, partition: Partition, marker: MarkerToWrite) -> None:
        """The marker of a transaction is appended."""
        APPEND_MARKER(broker, partition, marker)
        self._marker_ends[id(marker)] = (marker, int(partition.log.end_offset))

    def _activate(self, shard: Any) -> None:
        """A coordinator has loaded its log, and starts to respond."""
        log = shard._log
        if isinstance(log, PartitionCoordinatorLog):
            partition = log._broker.replica_manager.find(log._topic, shard.partition)
            if partition is None or not partition.is_leader or partition.is_offline:
                pass
            elif log._topic == TRANSACTION_TOPIC:
                self.transactions.loaded(shard, partition)
            else:
                watched = Watched(shard, partition)
                watched.replayed.take(records_of(partition))
                self._watched[shard] = self._by_state_machine[shard.machine] = watched
                self.check_loaded(watched)
        ACTIVATE(shard)

    def check_loaded(self, watched: Watched) -> None:
        """A new coordinator has the state of its log, and the whole log is committed."""
        partition, known = watched.partition, watched.state_machine.groups
        if int(partition.high_watermark) < int(partition.log.end_offset):
            self._tell(
                watched,
                f"has loaded its log up to {partition.log.end_offset}, which is committed up to"
                f" {partition.high_watermark}",
            )
        self._check_offsets(watched)
        for group_id in {*known, *watched.replayed.groups}:
            group, value = known.get(group_id), watched.replayed.groups.get(group_id)
            if group is None or (value is None and group.generation):
                self._tell(watched, f"knows {group} of group {group_id}, and its log has {value}")
            elif value is not None and not _is_as_written(group, value):
                self._tell(watched, f"has not loaded group {group_id} as its log has it: {value}")

    def _finish(self, shard: Any, write: Write) -> None:
        """A write has ended."""
        watched = self._watched.get(shard)
        batch, end = self._ends.pop(id(write.batch), (b"", -1))
        if shard.topic == TRANSACTION_TOPIC:
            if write.result is not None and not write.result.cancelled() and write.result.exception() is None:
                self.transactions.written(shard, write, batch, end)
            FINISH(shard, write)
            self.transactions.ended(shard, write)
            return
        if watched is not None:
            result = write.result
            marker = next((one.marker for one in write.ending if one.marker is not None), None)
            if result is None or result.cancelled() or result.exception() is not None:
                _tombstones_failed(watched, write)
            elif marker is not None:
                self._marker_written(watched, marker)
            else:
                self._written(watched, batch, end)
        FINISH(shard, write)
        if watched is not None and shard in self._watched:
            self.check(watched)

    def _written(self, watched: Watched, batch: bytes, end: int) -> None:
        mark = int(watched.partition.high_watermark)
        if not batch or end > mark:
            self._tell(watched, f"treats records up to {end} as written, and {mark} is committed")
        watched.replayed.take(batch)

    def _marker_written(self, watched: Watched, marker: MarkerToWrite) -> None:
        _, end = self._marker_ends.pop(id(marker), (marker, -1))
        mark = int(watched.partition.high_watermark)
        if not 0 <= end <= mark:
            self._tell(watched, f"treats {marker} up to {end} as written, and {mark} is committed")
        watched.replayed.end(marker.producer.producer_id, is_commit=marker.is_commit)

    def _close(self, shard: Any) -> None:
        self.transactions.closed(shard)
        watched = self._watched.pop(shard, None)
        if watched is not None:
            del self._by_state_machine[watched.state_machine]
        self._former.add(shard.machine)
        CLOSE(shard)

    # -- what it shows and answers

    def _offsets(self, state_machine: GroupMetadataManager, group_id: str) -> Any:
        shown = OFFSETS(state_machine, group_id)
        watched = self._asked(state_machine)
        if watched is not None and shown != watched.replayed.offsets.get(group_id, {}):
            self._check_offsets(watched)
        return shown

    def _asked(self, state_machine: GroupMetadataManager) -> Watched | None:
        """A client sends a request to a coordinator, which must have loaded its log."""
        watched = self._by_state_machine.get(state_machine)
        if watched is None and state_machine not in self._former:
            self._broken(
                "coordinator", f"one is asked that has not loaded its log: {sorted(state_machine.groups)}"
            )
        return watched

    def _heartbeat(
        self, state_machine: GroupMetadataManager, group_id: str, member_id: str, *of: Any
    ) -> ErrorCode:
        """A heartbeat of a member arrives: its session starts again."""
        watched = self._asked(state_machine)
        # Before the call: the real clock advances during it.
        now_ms = watched.shard.now().monotonic_ms if watched is not None else 0
        code = HEARTBEAT(state_machine, group_id, member_id, *of)
        if watched is not None and code in ALIVE:
            member = state_machine.groups[group_id].members.get(member_id)
            if member is None or member.deadline_ms < now_ms + member.session_timeout_ms:
                self._tell(
                    watched, f"received a request of {member_id}, and its session timeout is unchanged"
                )
        return code

    def _take_effects(self, state_machine: GroupMetadataManager) -> list[Effect]:
        effects = TAKE_EFFECTS(state_machine)
        watched = self._by_state_machine.get(state_machine)
        if watched is not None:
            self._check_offsets(watched)
            for index, effect in enumerate(effects):
                if isinstance(effect, Append):
                    self._begun(watched, effect)
                elif isinstance(effect, Reply):
                    self._answered(watched, effect)
                elif isinstance(effect, StateChanged) and effect.after is GroupState.COMPLETING_REBALANCE:
                    self._joined(watched, effect, effects[index + 1 :])
        return effects

    @staticmethod
    def _begun(watched: Watched, effect: Append) -> None:
        then = effect.then
        if isinstance(then, OffsetsStored):
            found = (one.record if isinstance(one, TransactionalOffset) else one for one in effect.records)
            records = tuple(one for one in found if isinstance(one, OffsetRecord))
            watched.commits[id(then.waiter)] = (then.waiter, records, then.errors)

    def _answered(self, watched: Watched, effect: Reply) -> None:
        response = effect.response
        if isinstance(response, CommitResult):
            _, records, errors = watched.commits.pop(id(effect.waiter), (None, (), ()))
            written = watched.replayed.written
            if response.errors == errors and any(record not in written for record in records):
                self._tell(watched, f"answers {records} as committed, and its log does not have it")
        elif isinstance(response, SyncResult):
            _, request = watched.syncs.pop(id(effect.waiter), (None, None))
            if request is not None and response.error is ErrorCode.NONE:
                self._assigned(watched, request, response)

    def _assigned(self, watched: Watched, request: SyncRequest, response: SyncResult) -> None:
        """A member receives the assignment that was written for its generation."""
        value = watched.replayed.groups.get(request.group_id)
        given = _assignments(value)
        if value is None or value.generation != request.generation:
            self._tell(
                watched,
                f"answers {request.member_id} of {request.group_id} in generation {request.generation} with"
                f" an assignment, and its log has that of {value.generation if value is not None else None}",
            )
        elif given.get(request.member_id) != response.assignment:
            self._tell(
                watched,
                f"assigns {response.assignment!r} to {request.member_id} of {request.group_id}, and its log"
                f" has {given.get(request.member_id)!r}",
            )

    def _sync(
        self, state_machine: GroupMetadataManager, request: SyncRequest, waiter: Waiter, now: Now
    ) -> None:
        """A member requests its assignment; only the leader's assignments are used."""
        watched = self._asked(state_machine)
        if watched is None:
            SYNC(state_machine, request, waiter, now)
            return
        watched.syncs[id(waiter)] = (waiter, request)
        before = len(state_machine._effects)
        SYNC(state_machine, request, waiter, now)
        group = state_machine.groups.get(request.group_id)
        for effect in state_machine._effects[before:]:
            if not isinstance(effect, Append) or not isinstance(effect.then, AssignmentStored):
                continue
            given = dict(request.assignments)
            wanted = {one: given.get(one, b"") for one in (group.members if group is not None else ())}
            is_leaders = group is not None and group.leader == request.member_id
            if not is_leaders or effect.then.assignment != wanted:
                self._tell(watched, f"takes {effect.then} of {request}, led by {group and group.leader}")

    def _joined(self, watched: Watched, effect: StateChanged, then: Iterable[Effect]) -> None:
        """A generation has the members that have joined it; static members may be absent."""
        group = watched.state_machine.groups.get(effect.group_id)
        if group is None or group.generation != effect.generation:
            return
        told = {
            one.response.member_id
            for one in then
            if isinstance(one, Reply)
            and isinstance(one.response, JoinResult)
            and one.response.error is ErrorCode.NONE
            and one.response.generation == effect.generation
        }
        absent = [one.member_id for one in group.members.values() if one.instance_id is None]
        absent = sorted(one for one in absent if one not in told)
        if absent:
            self._tell(
                watched,
                f"has {absent} in generation {effect.generation} of {effect.group_id}, and they did not join",
            )

    # -- what it knows

    def _timer_fired(self, shard: Any, key: ShardTimer | TimerKey) -> None:
        TIMER_FIRED(shard, key)
        if shard.topic == TRANSACTION_TOPIC:
            self.transactions.ended(shard)
            return
        watched = self._watched.get(shard)
        if watched is not None and isinstance(key, TimerKey):
            self._check_group(watched, key.group_id)

    def topic_gone(self, replicas: Any, topic: str, topic_id: bytes) -> None:
        """The broker with these replicas has applied the deletion of a topic."""
        for shard, watched in self._watched.items():
            broker = getattr(shard._log, "_broker", None)
            if broker is not None and broker.replica_manager is replicas:
                self._expect_gone(watched, {topic: topic_id})
                self._check_gone(watched)

    @staticmethod
    def _expect_gone(watched: Watched, topics: Mapping[str, bytes]) -> None:
        """The offsets of deleted topics are removed with the writes that have begun by now."""
        watched.gone += [
            DeletedTopicOffset(group_id, topic, partition, topics[topic], watched.shard._accepted)
            for group_id, of_group in watched.replayed.offsets.items()
            for topic in of_group.keys() & topics.keys()
            for partition, value in of_group[topic].items()
            if value.topic_id == topics[topic]
        ]

    async def _topics_deleted(
        self, service: GroupCoordinator, shard: GroupShard, topics: Mapping[str, bytes]
    ) -> None:
        was_active = shard.is_active
        await TOPICS_DELETED(service, shard, topics)
        watched = self._watched.get(shard)
        if watched is not None and was_active and shard.is_active:
            self._expect_gone(watched, topics)
            self._check_gone(watched)

    def check(self, watched: Watched) -> None:
        """Compares the whole state of a coordinator with its log."""
        self._check_offsets(watched)
        self._check_gone(watched)
        self._check_in_flight(watched)
        for group_id in list(watched.state_machine.groups):
            self._check_group(watched, group_id)

    def _check_offsets(self, watched: Watched) -> None:
        known = {
            group_id: one.offsets for group_id, one in watched.state_machine.groups.items() if one.offsets
        }
        written = watched.replayed.offsets
        for group_id, one in watched.state_machine.groups.items():
            unstable = watched.replayed.unstable(group_id)
            if set(one.unstable) != unstable:
                self._tell(
                    watched,
                    f"has open offsets of {group_id} for {dict(one.unstable)}, and its log for {unstable}",
                )
        if known != written:
            differs = {one for one in {*known, *written} if known.get(one) != written.get(one)}
            (group_id, *_) = sorted(differs)
            self._tell(
                watched,
                f"knows {known.get(group_id, {})} of group {group_id}, and the committed part of its log has"
                f" {written.get(group_id, {})}",
            )

    def _check_gone(self, watched: Watched) -> None:
        """Offsets of deleted topics are removed with the writes that had begun then."""
        waiting = []
        for one in watched.gone:
            value = watched.replayed.offset(one.group, one.topic, one.partition)
            if one.accepted > watched.shard._ended:
                waiting.append(one)
                continue
            is_kept = value is not None and value.topic_id == one.topic_id
            if is_kept and not (one.key in watched.kept and self._excused("tombstone-unwritten")):
                self._tell(watched, f"keeps {value} of {one}")
        watched.gone = waiting

    def _check_in_flight(self, watched: Watched) -> None:
        """The pending writes of a coordinator are those in flight."""
        shard = watched.shard
        under_way: dict[str, Counter[tuple[str, int, bytes]]] = {}
        outgoing = (one.effect for one in shard._outgoing)
        for effect in (*outgoing, *(one for write in shard._writes for one in write.ending)):
            if isinstance(effect.then, OffsetsStored):
                under_way.setdefault(effect.then.group_id, Counter()).update(effect.then.partitions)
        known = {
            group_id: one.in_flight for group_id, one in watched.state_machine.groups.items() if one.in_flight
        }
        if known != under_way:
            self._tell(watched, f"takes {known} for being on its way, and {under_way} is")

    def _check_group(self, watched: Watched, group_id: str) -> None:
        group = watched.state_machine.groups.get(group_id)
        if group is None:
            return
        value = watched.replayed.groups.get(group_id)
        if value is not None and group.generation < value.generation:
            self._tell(watched, f"has generation {group.generation} of {group_id}, and its log has {value}")
        if group.state is GroupState.STABLE and not _is_as_written(group, value):
            is_replaced = value is not None and _is_as_written_but_for_ids(group, value)
            if not (is_replaced and self._excused("static-id")):
                self._tell(watched, f"treats {group_id} as stable, and its log does not: {value}")
        problem = _inconsistency_of(group) or self._missing_timer(watched.shard, group)
        if problem:
            self._tell(watched, f"group {group_id} is {group.state.value}, and {problem}")

    @staticmethod
    def _missing_timer(shard: GroupShard, group: GroupMetadata) -> str:
        """Returns the first missing timer."""
        timers, now_ms = shard._timers.current, shard.now().monotonic_ms
        for member in group.members.values():
            waits = member.is_new or member.awaits_response
            if not waits and member.deadline_ms > now_ms + member.session_timeout_ms:
                return f"the session of {member.member_id} is longer than it asked for"
            key = TimerKey(TimerKind.MEMBER, group.group_id, member.member_id)
            if member.timer_ms is None and not member.awaits_response:
                return f"the session of {member.member_id} has ended, or never ends"
            if member.timer_ms is not None and ShardTimerKey(shard.number, key) not in timers:
                return f"the session of {member.member_id} never ends"
        kind: TimerKind | None = None
        if group.state is GroupState.PREPARING_REBALANCE:
            kind = TimerKind.JOIN
        elif group.state in SYNCED and group.pending_syncs:
            kind = TimerKind.SYNC
        if kind and ShardTimerKey(shard.number, TimerKey(kind, group.group_id)) not in timers:
            return f"the time to {kind.value} never ends"
        return ""

    def _tell(self, watched: Watched, text: str) -> None:
        led = watched.partition
        self._broken("coordinator", f"the coordinator of {led.topic}-{led.index} {text}")


def _assignments(value: GroupMetadataValue | None) -> dict[str, bytes]:
    return {one.member_id: one.assignment for one in value.members} if value is not None else {}


def _is_as_written(group: GroupMetadata, value: GroupMetadataValue | None) -> bool:
    """Whether a group has the last written generation, leader and assignments."""
    return (
        value is not None
        and group.generation == value.generation
        and group.protocol_name == value.protocol
        and group.leader == value.leader
        and {one.member_id: one.assignment for one in group.members.values()} == _assignments(value)
    )


def _is_as_written_but_for_ids(group: GroupMetadata, value: GroupMetadataValue) -> bool:
    """As :func:`_is_as_written`, with static members compared by their instance ids.

    The member ids of static members are omitted: a returning member gets another id at once, and the write of
    that may fail.
    """
    known = {one.member_id: one.instance_id or one.member_id for one in group.members.values()}
    written = {one.member_id: one.group_instance_id or one.member_id for one in value.members}
    is_same_leader = known.get(group.leader or "") == written.get(value.leader or "")
    return (
        (group.generation, group.protocol_name) == (value.generation, value.protocol)
        and is_same_leader
        and {known[one.member_id]: one.assignment for one in group.members.values()}
        == {written[one]: assignment for one, assignment in _assignments(value).items()}
    )


def _tombstones_failed(watched: Watched, write: Write) -> None:
    """Failed writes of tombstones are not repeated."""
    records = [
        decode(one.key, one.value) for one in iter_records(write.batch, unpacked_bytes_max=UNPACKED_BYTES_MAX)
    ]
    # An unencodable record has no batch.
    records += [one for effect in write.ending if not write.batch for one in effect.records]
    for one in records:
        if isinstance(one, OffsetRecord) and one.value is None:
            value = watched.replayed.offset(one.group, one.topic, one.partition)
            if value is not None:
                watched.kept.add((one.group, one.topic, one.partition, value.topic_id))


def _inconsistency_of(group: GroupMetadata) -> str:
    """Returns the contradictions within a group."""
    members = group.members
    waiting = sum(one.joining is not None for one in members.values())
    if waiting != group.awaiting_join:
        return f"{waiting} members wait for the next generation, and it counts {group.awaiting_join}"
    syncing = sorted(one.member_id for one in members.values() if one.syncing is not None)
    if syncing and group.state is not GroupState.COMPLETING_REBALANCE:
        return f"{syncing} wait for an assignment without a leader"
    if not group.pending_syncs <= members.keys():
        return f"it waits for {sorted(group.pending_syncs - members.keys())}, which are not members"
    if members and group.leader not in members:
        return f"it is led by {group.leader}, which is not a member"
    if members and group.state is GroupState.EMPTY:
        return f"it has members {sorted(members)}"
    return ""
