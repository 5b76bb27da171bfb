"""The coordinator of the groups of one ``__consumer_offsets`` partition: events in, effects out.

The manager has no clock, no log and no socket. A method takes an event and its time; the resulting effects
wait in :meth:`GroupMetadataManager.take_effects`, to be performed in order. Committed offsets and deleted
groups change only when their records are replayed. Members live in memory, as in the classic protocol, and
are written with each assignment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from tidemill.groups import membership, offset_commits
from tidemill.groups.coordinator_effects import (
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
from tidemill.groups.group_metadata import GroupMetadata, GroupState
from tidemill.groups.offset_records import CommittedOffset, GroupRecord, OffsetRecord, OffsetsRecord
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
from tidemill.model.errors import ErrorCode

PENDING_JOINS_MAX: Final = 2_000
"""Member ids handed out to clients that have not joined with them yet. A client rejoins with its id at once.
Ids are kept until the session timeout (half an hour at most), and without this limit requests for ids could
exhaust memory."""


class GroupMetadataManager:
    """All groups of one partition of ``__consumer_offsets``."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.groups: dict[str, GroupMetadata] = {}
        self._unconfirmed_ids: deque[tuple[str, str]] = deque()
        """The latest member ids that were handed out, with their groups, oldest first."""
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """Returns the effects since the last call, in order; the caller performs them once."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def has_effects(self) -> bool:
        """Whether :meth:`take_effects` would return effects."""
        return bool(self._effects)

    def _turn(self, now: Now) -> Turn:
        return Turn(self.config, now, self._effects)

    # Members.

    def join(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        """Adds a member; ``waiter`` gets a :class:`JoinResult` when the generation is complete."""
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
            self._unconfirmed_ids.append((group.group_id, request.new_member_id))
            if len(self._unconfirmed_ids) > PENDING_JOINS_MAX:
                self._expire_pending_join(*self._unconfirmed_ids.popleft(), turn)
        self._drop_if_empty(group)

    def _expire_pending_join(self, group_id: str, member_id: str, turn: Turn) -> None:
        """Drops an id that was handed out unless its member has joined; a later join with it fails."""
        group = self.groups.get(group_id)
        if group is not None and member_id in group.pending_joins:
            turn.cancel_timer(MEMBER_TIMER, group, member_id)
            member_timer_fired(group, member_id, turn)
            self._drop_if_empty(group)

    def sync(self, request: SyncRequest, waiter: Waiter, now: Now) -> None:
        """Requests a member's assignment; ``waiter`` gets a :class:`SyncResult`."""
        turn = self._turn(now)
        group = self.groups.get(request.group_id)
        if group is None:
            turn.reply(waiter, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            membership.sync(group, request, waiter, turn)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, now: Now
    ) -> ErrorCode:
        """Restarts the member's session; returns REBALANCE_IN_PROGRESS if the member should rejoin."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return membership.heartbeat(group, member_id, generation, instance_id, self._turn(now))

    def leave(self, group_id: str, members: tuple[LeavingMember, ...], waiter: Waiter, now: Now) -> None:
        """Removes members; ``waiter`` gets a :class:`LeaveResult`."""
        turn = self._turn(now)
        group = self.groups.get(group_id)
        if group is None:
            errors = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members)
            turn.reply(waiter, LeaveResult(ErrorCode.NONE, errors))
            return
        membership.leave(group, members, waiter, turn)
        self._drop_if_empty(group)

    def timer_fired(self, key: TimerKey, now: Now) -> None:
        """Handles the expiry of the timer ``key``."""
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
        self._drop_if_empty(group)

    # Offsets.

    def commit(self, request: CommitRequest, waiter: Waiter, now: Now) -> None:
        """Commits offsets; ``waiter`` gets a :class:`CommitResult` once they are in the log."""
        turn = self._turn(now)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                missing = ErrorCode.ILLEGAL_GENERATION
                if request.reports_missing_group:
                    missing = ErrorCode.GROUP_ID_NOT_FOUND
                turn.reply(waiter, CommitResult((missing,) * len(request.offsets)))
                return
            group = self._create(request.group_id, now)
        offset_commits.commit(group, request, waiter, turn)
        self._drop_if_empty(group)

    def offsets(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """Returns the group's committed offsets by topic and partition; the caller must not change them."""
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
            offset_commits.delete_offsets(group, partitions, waiter, turn)

    def topics_deleted(self, topics: Mapping[str, bytes], now: Now) -> None:
        """Removes the offsets committed for deleted topics, given as a map of name to id."""
        turn = self._turn(now)
        records = [
            record for group in self.groups.values() for record in offset_commits.tombstones(group, topics)
        ]
        if records:
            turn.append(tuple(records), GroupsRemoved(None, (), ()), replay=True)

    def expire(self, group_ids: Iterable[str], now: Now) -> int:
        """Removes expired offsets, and empty groups without offsets; returns the number of tombstones."""
        turn = self._turn(now)
        records: list[OffsetsRecord] = []
        removed = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.deleting:
                continue
            gone = offset_commits.expired(group, self.config.offsets_retention_ms, now.wall_ms)
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
                records.extend(offset_commits.tombstones(group))
                records.append(GroupRecord(group_id, None))
                errors.append(ErrorCode.NONE)
        if records:
            turn.append(tuple(records), GroupsRemoved(waiter, tuple(removed), tuple(errors)), replay=True)
        else:
            turn.reply(waiter, DeleteGroupsResult(tuple(errors)))

    def describe(self, group_id: str) -> DescribedGroup:
        """Describes the group for administrators; a group that does not exist is reported as Dead."""
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
        """Returns all groups that are not being deleted."""
        return [
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
            for group in self.groups.values()
            if not group.deleting
        ]

    # Records and leadership.

    def replay(self, record: OffsetsRecord, now: Now) -> None:
        """Applies a record of the log, in log order: once it is committed, or while loading."""
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
                self._drop_if_empty(group)
        elif record.value is not None:
            (group or self._create(record.group, now)).load(record.value)
        elif group is not None:
            self._remove(group, now)

    def _remove(self, group: GroupMetadata, now: Now) -> None:
        """Applies the group's tombstone; offsets without a tombstone stay, as those of simple consumers."""
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
        """Called after the log was replayed to its end: starts sessions, and rebalances oversized groups."""
        turn = self._turn(now)
        for group in list(self.groups.values()):
            for member in group.members.values():
                touch(group, member, turn)
            if len(group.members) > self.config.max_size:
                prepare_rebalance(group, turn, f"{len(group.members)} members are over group.max.size")

    def unload(self, now: Now) -> None:
        """Drops all groups, which another broker coordinates now; waiting requests get NOT_COORDINATOR."""
        turn = self._turn(now)
        for group in self.groups.values():
            for member in group.members.values():
                joining, syncing = group.set_joining(member, None), member.syncing
                member.syncing = None
                if joining is not None:
                    turn.reply(joining, JoinResult(ErrorCode.NOT_COORDINATOR, member.member_id))
                if syncing is not None:
                    turn.reply(syncing, SyncResult(ErrorCode.NOT_COORDINATOR))
            turn.change_state(group, GroupState.DEAD, "the partition has another leader")
        self.groups.clear()

    def appended(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when records were committed (and replayed, where requested), or failed with ``error``."""
        turn = self._turn(now)
        if isinstance(done, OffsetsStored):
            offset_commits.respond_to_commit(done, error, turn)
            self._commit_ended(done)
        elif isinstance(done, OffsetsRemoved):
            offset_commits.offsets_removed(done, error, turn)
        elif isinstance(done, GroupsRemoved):
            self._respond_to_removal(done, error, turn)
            self._removal_ended(done)
        else:
            self._group_stored(done, error, turn)

    def append_timed_out(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when records are not committed in time: responds to the waiting request with ``error``.

        The write continues. Its end calls :meth:`timed_out_append_ended` instead of :meth:`appended`.
        """
        turn = self._turn(now)
        if isinstance(done, OffsetsStored):
            offset_commits.respond_to_commit(done, error, turn)
        elif isinstance(done, GroupsRemoved):
            self._respond_to_removal(done, error, turn)
        elif isinstance(done, StaticMemberStored):
            group = self.groups.get(done.group_id)
            if group is not None:
                membership.static_member_timed_out(group, done, error, turn)
        else:
            self.appended(done, error, now)

    def timed_out_append_ended(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when the write behind a timed-out append ended: committed and replayed, or failed."""
        if isinstance(done, OffsetsStored):
            self._commit_ended(done)
        elif isinstance(done, GroupsRemoved):
            self._removal_ended(done)
        elif isinstance(done, StaticMemberStored):
            self._group_stored(done, error, self._turn(now))

    def _commit_ended(self, done: OffsetsStored) -> None:
        group = self.groups.get(done.group_id)
        if group is not None:
            offset_commits.commit_ended(group, done)
            self._drop_if_empty(group)

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

    def _respond_to_removal(self, done: GroupsRemoved, error: ErrorCode, turn: Turn) -> None:
        if done.waiter is not None:
            errors = done.errors
            if error is not ErrorCode.NONE:
                errors = tuple(error if code is ErrorCode.NONE else code for code in errors)
            turn.reply(done.waiter, DeleteGroupsResult(errors))

    def _create(self, group_id: str, now: Now) -> GroupMetadata:
        group = GroupMetadata(group_id, now.wall_ms)
        self.groups[group_id] = group
        return group

    def _drop_if_empty(self, group: GroupMetadata) -> None:
        """Drops a group from memory that a failed request created, and that the log does not contain."""
        if group.is_droppable and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
