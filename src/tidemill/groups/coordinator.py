"""The coordinator of the groups of one ``__consumer_offsets`` partition: events in, effects out.

It knows no clock, no log and no socket. A method takes an event and its time; what is to be done for it
waits in :meth:`Coordinator.take_effects`, to be performed in order. Committed offsets and deleted groups
change when their records are replayed, never before; members live in memory, as the classic protocol has it,
and are written with each assignment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from tidemill.groups import commits, membership
from tidemill.groups.effects import (
    JOIN_TIMER,
    MEMBER_TIMER,
    SYNC_TIMER,
    AssignmentStored,
    CommitRequest,
    CommitResult,
    Continuation,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    DescribedGroup,
    DescribedMember,
    Effect,
    EmptyGroupStored,
    GroupsRemoved,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    Now,
    OffsetsRemoved,
    OffsetsStored,
    Protocol,
    StaticMemberStored,
    SyncRequest,
    SyncResult,
    TimerKey,
    Waiter,
)
from tidemill.groups.offsets import CommittedOffset, GroupRecord, OffsetRecord, OffsetsRecord
from tidemill.groups.rebalance import (
    GroupConfig,
    Turn,
    drop_member,
    join_timer_fired,
    member_timer_fired,
    prepare_rebalance,
    sync_timer_fired,
    touch,
)
from tidemill.groups.state import Group, GroupState
from tidemill.model.errors import ErrorCode

PENDING_JOINS_MAX: Final = 2_000
"""Ids handed out to members that have yet to join with them. A client comes back with its id at once; what
is left lying until its session ends (half an hour at most) would be memory for the asking."""


class Coordinator:
    """All groups of one partition."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.groups: dict[str, Group] = {}
        self._handed_out: deque[tuple[str, str]] = deque()
        """The latest member ids that were handed out, with their groups, oldest first."""
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call, in order; performed once, by the caller."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def has_effects(self) -> bool:
        """Whether :meth:`take_effects` has something."""
        return bool(self._effects)

    def _turn(self, now: Now) -> Turn:
        return Turn(self.config, now, self._effects)

    # Members.

    def join(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        """A member joins; ``waiter`` gets a :class:`JoinResult` when the generation is complete."""
        turn = self._turn(now)
        unique: dict[str, Protocol] = {}
        for protocol in request.protocols:
            unique.setdefault(protocol.name, protocol)
        if len(unique) != len(request.protocols):
            request = request.replace(protocols=tuple(unique.values()))
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                turn.reply(waiter, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            group = self._create(request.group_id, now)
        membership.join(group, request, waiter, turn)
        if request.new_member_id in group.pending_joins:
            self._handed_out.append((group.group_id, request.new_member_id))
            if len(self._handed_out) > PENDING_JOINS_MAX:
                self._take_back(*self._handed_out.popleft(), turn)
        self._forget_if_nothing(group)

    def _take_back(self, group_id: str, member_id: str, turn: Turn) -> None:
        """Forgets an id that was handed out, unless its member has joined: who brings it gets a new one."""
        group = self.groups.get(group_id)
        if group is not None and member_id in group.pending_joins:
            turn.cancel_timer(MEMBER_TIMER, group, member_id)
            member_timer_fired(group, member_id, turn)
            self._forget_if_nothing(group)

    def sync(self, request: SyncRequest, waiter: Waiter, now: Now) -> None:
        """A member wants its assignment; ``waiter`` gets a :class:`SyncResult`."""
        turn = self._turn(now)
        group = self.groups.get(request.group_id)
        if group is None:
            turn.reply(waiter, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            membership.sync(group, request, waiter, turn)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, now: Now
    ) -> ErrorCode:
        """A member is alive."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return membership.heartbeat(group, member_id, generation, instance_id, self._turn(now))

    def leave(self, group_id: str, members: tuple[LeavingMember, ...], waiter: Waiter, now: Now) -> None:
        """Members leave; ``waiter`` gets a :class:`LeaveResult`."""
        turn = self._turn(now)
        group = self.groups.get(group_id)
        if group is None:
            errors = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members)
            turn.reply(waiter, LeaveResult(ErrorCode.NONE, errors))
            return
        membership.leave(group, members, waiter, turn)
        self._forget_if_nothing(group)

    def timer_fired(self, key: TimerKey, now: Now) -> None:
        """The timer of ``key`` is due."""
        group = self.groups.get(key.group_id)
        if group is None:
            return
        turn = self._turn(now)
        if key.kind == MEMBER_TIMER:
            member_timer_fired(group, key.member_id, turn)
        elif key.kind == JOIN_TIMER:
            join_timer_fired(group, turn)
        else:
            sync_timer_fired(group, turn)
        self._forget_if_nothing(group)

    # Offsets.

    def commit(self, request: CommitRequest, waiter: Waiter, now: Now) -> None:
        """Offsets to commit; ``waiter`` gets a :class:`CommitResult` once they are in the log."""
        turn = self._turn(now)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                missing = ErrorCode.ILLEGAL_GENERATION
                if request.tells_missing_group:
                    missing = ErrorCode.GROUP_ID_NOT_FOUND
                turn.reply(waiter, CommitResult((missing,) * len(request.offsets)))
                return
            group = self._create(request.group_id, now)
        commits.commit(group, request, waiter, turn)
        self._forget_if_nothing(group)

    def offsets(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """What the group has committed, by topic and partition; not to be changed."""
        group = self.groups.get(group_id)
        return {} if group is None else group.offsets

    def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...], waiter: Waiter, now: Now
    ) -> None:
        """Removes committed offsets; ``waiter`` gets a :class:`DeleteOffsetsResult`."""
        turn = self._turn(now)
        group = self.groups.get(group_id)
        if group is None:
            turn.reply(waiter, DeleteOffsetsResult(ErrorCode.GROUP_ID_NOT_FOUND))
        else:
            commits.delete_offsets(group, partitions, waiter, turn)

    def topics_deleted(self, topics: Mapping[str, bytes], now: Now) -> None:
        """Removes what was committed for topics that are gone, by name and id."""
        turn = self._turn(now)
        records = [record for group in self.groups.values() for record in commits.tombstones(group, topics)]
        if records:
            turn.append(tuple(records), GroupsRemoved(None, (), ()), replay=True)

    def expire(self, group_ids: Iterable[str], now: Now) -> int:
        """Removes offsets whose time is over, and empty groups that have none left; how many records."""
        turn = self._turn(now)
        records: list[OffsetsRecord] = []
        removed = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.deleting:
                continue
            gone = commits.expired(group, self.config.offsets_retention_ms, now.wall_ms)
            records.extend(gone)
            left = sum(len(of_topic) for of_topic in group.offsets.values()) - len(gone)
            awaited = group.pending_joins or group.in_flight
            if left == 0 and group.state is GroupState.EMPTY and not awaited:
                group.deleting = True
                removed.append(group_id)
                records.append(GroupRecord(group_id, None))
        if records:
            turn.append(tuple(records), GroupsRemoved(None, tuple(removed), ()), replay=True)
        return len(records)

    # Administration.

    def delete_groups(self, group_ids: tuple[str, ...], waiter: Waiter, now: Now) -> None:
        """Removes groups without members; ``waiter`` gets a :class:`DeleteGroupsResult`."""
        turn = self._turn(now)
        records: list[OffsetsRecord] = []
        removed = []
        errors = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.deleting:
                errors.append(ErrorCode.GROUP_ID_NOT_FOUND)
            elif group.state is not GroupState.EMPTY:
                errors.append(ErrorCode.NON_EMPTY_GROUP)
            else:
                group.deleting = True
                removed.append(group_id)
                records.extend(commits.tombstones(group))
                records.append(GroupRecord(group_id, None))
                errors.append(ErrorCode.NONE)
        if records:
            turn.append(tuple(records), GroupsRemoved(waiter, tuple(removed), tuple(errors)), replay=True)
        else:
            turn.reply(waiter, DeleteGroupsResult(tuple(errors)))

    def describe(self, group_id: str) -> DescribedGroup:
        """The group as an administrator sees it; one that does not exist is dead."""
        group = self.groups.get(group_id)
        if group is None or group.deleting:
            return DescribedGroup(group_id, GroupState.DEAD.value, "", "", (), known=False)
        is_stable = group.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        )
        name = (group.protocol_name or "") if is_stable else ""
        return DescribedGroup(group_id, group.state.value, group.protocol_type or "", name, members)

    def list_groups(self) -> list[ListedGroup]:
        """Every group."""
        return [
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
            for group in self.groups.values()
            if not group.deleting
        ]

    # Records and leadership.

    def replay(self, record: OffsetsRecord, now: Now) -> None:
        """A record of the log, in its order: as it was committed, or while loading."""
        group = self.groups.get(record.group)
        if isinstance(record, OffsetRecord):
            if record.value is not None:
                group = group or self._create(record.group, now)
                group.offsets.setdefault(record.topic, {})[record.partition] = record.value
            elif group is not None:
                of_topic = group.offsets.get(record.topic, {})
                of_topic.pop(record.partition, None)
                if not of_topic:
                    group.offsets.pop(record.topic, None)
                self._forget_if_nothing(group)
        elif record.value is not None:
            (group or self._create(record.group, now)).load(record.value)
        elif group is not None:
            self._remove(group, now)

    def _remove(self, group: Group, now: Now) -> None:
        """The group's tombstone: offsets that were committed behind its back stay a simple consumer's."""
        del self.groups[group.group_id]
        turn = self._turn(now)
        for member in list(group.members.values()):
            drop_member(group, member, turn)
        for member_id in group.pending_joins:
            turn.cancel_timer(MEMBER_TIMER, group, member_id)
        turn.cancel_timer(JOIN_TIMER, group)
        turn.cancel_timer(SYNC_TIMER, group)
        if group.offsets or group.in_flight:
            rest = self._create(group.group_id, now)
            rest.offsets, rest.in_flight = group.offsets, group.in_flight

    def loaded(self, now: Now) -> None:
        """The log was replayed to its end: sessions begin, and groups over the limit shrink."""
        turn = self._turn(now)
        for group in list(self.groups.values()):
            for member in group.members.values():
                touch(group, member, turn)
            if len(group.members) > self.config.max_size:
                prepare_rebalance(group, turn, f"{len(group.members)} members are over group.max.size")

    def unload(self, now: Now) -> None:
        """Another broker coordinates these groups now: whoever waits is sent there."""
        turn = self._turn(now)
        for group in self.groups.values():
            for member in group.members.values():
                joining, syncing = group.set_joining(member, None), member.syncing
                member.syncing = None
                if joining is not None:
                    turn.reply(joining, JoinResult(ErrorCode.NOT_COORDINATOR, member.member_id))
                if syncing is not None:
                    turn.reply(syncing, SyncResult(ErrorCode.NOT_COORDINATOR))
            turn.move(group, GroupState.DEAD, "the partition has another leader")
        self.groups.clear()

    def appended(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Records were committed (and replayed, where that was asked for), or failed with ``error``."""
        turn = self._turn(now)
        if isinstance(done, OffsetsStored):
            commits.answer_commit(done, error, turn)
            self._landed(done)
        elif isinstance(done, OffsetsRemoved):
            commits.offsets_removed(done, error, turn)
        elif isinstance(done, GroupsRemoved):
            self._answer_removal(done, error, turn)
            self._removal_ended(done)
        else:
            self._group_stored(done, error, turn)

    def overdue(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Records are not committed in time: whoever waits is answered with ``error``.

        The write goes on. Once it ends, :meth:`overdue_ended` is called instead of :meth:`appended`.
        """
        turn = self._turn(now)
        if isinstance(done, OffsetsStored):
            commits.answer_commit(done, error, turn)
        elif isinstance(done, GroupsRemoved):
            self._answer_removal(done, error, turn)
        elif isinstance(done, StaticMemberStored):
            group = self.groups.get(done.group_id)
            if group is not None:
                membership.static_member_overdue(group, done, error, turn)
        else:
            self.appended(done, error, now)

    def overdue_ended(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Records of an overdue write were committed and replayed after all, or never will be."""
        if isinstance(done, OffsetsStored):
            self._landed(done)
        elif isinstance(done, GroupsRemoved):
            self._removal_ended(done)
        elif isinstance(done, StaticMemberStored):
            self._group_stored(done, error, self._turn(now))

    def _landed(self, done: OffsetsStored) -> None:
        group = self.groups.get(done.group_id)
        if group is not None:
            commits.landed(group, done)
            self._forget_if_nothing(group)

    def _group_stored(
        self, done: AssignmentStored | StaticMemberStored | EmptyGroupStored, error: ErrorCode, turn: Turn
    ) -> None:
        group = self.groups.get(done.group_id)
        if group is None:
            return
        if isinstance(done, AssignmentStored):
            membership.assignment_stored(group, done, error, turn)
        elif isinstance(done, StaticMemberStored):
            membership.static_member_stored(group, done, error, turn)

    def _removal_ended(self, done: GroupsRemoved) -> None:
        for group_id in done.group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                group.deleting = False

    def _answer_removal(self, done: GroupsRemoved, error: ErrorCode, turn: Turn) -> None:
        if done.waiter is not None:
            errors = done.errors
            if error is not ErrorCode.NONE:
                errors = tuple(error if one is ErrorCode.NONE else one for one in errors)
            turn.reply(done.waiter, DeleteGroupsResult(errors))

    def _create(self, group_id: str, now: Now) -> Group:
        group = Group(group_id, now.wall_ms)
        self.groups[group_id] = group
        return group

    def _forget_if_nothing(self, group: Group) -> None:
        """Drops from memory what a stranger's request left: a group that the log does not know either."""
        if group.is_forgettable and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
