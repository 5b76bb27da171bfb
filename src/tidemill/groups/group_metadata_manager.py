"""The state machine of the groups of one ``__consumer_offsets`` partition: events in, effects out.

The state machine has no clock, no log and no socket. A method receives an event and its time.
:meth:`GroupMetadataManager.take_effects` returns the effects, which the caller performs in order. Committed
offsets and deleted groups change only when their records are replayed. Members live in memory, as in the
classic protocol, and are written with each assignment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from tidemill.coordinator_runtime.coordinator_effects import Now, Waiter
from tidemill.coordinator_runtime.state_machine import APPEND_ERRORS
from tidemill.groups import membership, offset_commits
from tidemill.groups.coordinator_effects import (
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
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    MarkerResult,
    MarkerStored,
    MemberProtocol,
    OffsetsRemoved,
    OffsetsStored,
    StaticMemberStored,
    SyncRequest,
    SyncResult,
    TimerKey,
    TimerKind,
)
from tidemill.groups.event_context import EventContext
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata import UNLOAD, GroupMetadata, subtract_counts
from tidemill.groups.offset_records import (
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    OffsetsRecord,
    TransactionalOffset,
)
from tidemill.groups.rebalance import (
    drop_member,
    fail_waiting_requests,
    join_timer_fired,
    member_timer_fired,
    pending_join_timer_fired,
    prepare_rebalance,
    sync_timer_fired,
    touch,
)
from tidemill.groups.transactional_offsets import TransactionalOffsets
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import MarkerToWrite

TOO_LARGE: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE}
)


class GroupMetadataManager:
    """All groups of one partition of ``__consumer_offsets``."""

    def __init__(self, config: GroupCoordinatorConfig) -> None:
        self.config = config
        self.groups: dict[str, GroupMetadata] = {}
        self._transactional = TransactionalOffsets()
        self._replayed = 0
        """The number of replayed records."""
        self._effects: list[Effect] = []

    def take_effects(self) -> list[Effect]:
        """Returns the effects since the last call, in order; the caller performs them once."""
        effects, self._effects = self._effects, []
        return effects

    def __str__(self) -> str:
        return f"{len(self.groups)} groups"

    @property
    def has_effects(self) -> bool:
        """Whether :meth:`take_effects` would return effects."""
        return bool(self._effects)

    def _context(self, now: Now) -> EventContext:
        return EventContext(self.config, now, self._effects)

    # Members.

    def join(self, request: JoinRequest, waiter: Waiter, now: Now) -> None:
        """Adds a member; ``waiter`` gets a :class:`JoinResult` when the generation is complete."""
        context = self._context(now)
        unique: dict[str, MemberProtocol] = {}
        for protocol in request.protocols:
            unique.setdefault(protocol.name, protocol)
        if len(unique) != len(request.protocols):
            request = request.replace(protocols=tuple(unique.values()))
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                context.reply(
                    waiter, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
                )
                return
            group = self._create(request.group_id, now)
        membership.join(group, request, waiter, context)
        self._drop_if_empty(group)

    def sync(self, request: SyncRequest, waiter: Waiter, now: Now) -> None:
        """Requests a member's assignment; ``waiter`` gets a :class:`SyncResult`."""
        context = self._context(now)
        group = self.groups.get(request.group_id)
        if group is None:
            context.reply(waiter, SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            membership.sync(group, request, waiter, context)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, now: Now
    ) -> ErrorCode:
        """Restarts the member's session; returns REBALANCE_IN_PROGRESS if the member should rejoin."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return membership.heartbeat(group, member_id, generation, instance_id, self._context(now))

    def leave(self, group_id: str, members: tuple[LeavingMember, ...], waiter: Waiter, now: Now) -> None:
        """Removes members; ``waiter`` gets a :class:`LeaveResult`."""
        context = self._context(now)
        group = self.groups.get(group_id)
        if group is None:
            errors = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members)
            context.reply(waiter, LeaveResult(error=ErrorCode.NONE, members=errors))
            return
        membership.leave(group, members, waiter, context)
        self._drop_if_empty(group)

    def timer_fired(self, key: TimerKey, now: Now) -> None:
        """Handles the expiry of the timer ``key``."""
        group = self.groups.get(key.group_id)
        if group is None:
            return
        context = self._context(now)
        if key.kind == TimerKind.MEMBER:
            member_timer_fired(group, key.member_id, context)
        elif key.kind == TimerKind.PENDING_JOIN:
            pending_join_timer_fired(group, key.member_id, context)
        elif key.kind == TimerKind.JOIN:
            join_timer_fired(group, context)
        else:
            sync_timer_fired(group, context)
        self._drop_if_empty(group)

    # Offsets.

    def commit(self, request: CommitRequest, waiter: Waiter, now: Now) -> None:
        """Commits offsets; ``waiter`` gets a :class:`CommitResult` once they are in the log."""
        context = self._context(now)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                missing = ErrorCode.ILLEGAL_GENERATION
                if request.reports_missing_group:
                    missing = ErrorCode.GROUP_ID_NOT_FOUND
                context.reply(waiter, CommitResult(errors=(missing,) * len(request.offsets)))
                return
            group = self._create(request.group_id, now)
        offset_commits.commit(group, request, waiter, context)
        self._drop_if_empty(group)

    def end_transaction(self, marker: MarkerToWrite, waiter: Waiter, now: Now) -> None:
        """Writes the marker of a transaction; ``waiter`` gets a :class:`MarkerResult`."""
        then = MarkerStored(
            waiter=waiter, producer_id=marker.producer.producer_id, is_commit=marker.is_commit
        )
        self._context(now).append_marker(marker, then)

    def unstable(self, group_id: str) -> Collection[tuple[str, int]]:
        """Returns the partitions of a group with offsets in open transactions; they change as these end."""
        group = self.groups.get(group_id)
        return () if group is None else group.unstable

    def offsets(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """Returns the group's committed offsets by topic and partition; the caller must not change them."""
        group = self.groups.get(group_id)
        return {} if group is None else group.offsets

    def delete_offsets(
        self, group_id: str, partitions: tuple[tuple[str, int], ...], waiter: Waiter, now: Now
    ) -> None:
        """Removes committed offsets; ``waiter`` gets a :class:`DeleteOffsetsResult`."""
        context = self._context(now)
        group = self.groups.get(group_id)
        if group is None:
            context.reply(waiter, DeleteOffsetsResult(error=ErrorCode.GROUP_ID_NOT_FOUND))
        else:
            offset_commits.delete_offsets(group, partitions, waiter, context)

    def topics_deleted(self, topics: Mapping[str, bytes], group_ids: Iterable[str], now: Now) -> None:
        """Removes the groups' offsets for deleted topics, given as a map of name to id."""
        records: list[Iterator[OffsetsRecord]] = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                partitions = offset_commits.partitions_of_deleted_topics(
                    group, topics, self._transactional.of_group(group, topics)
                )
                if partitions:
                    records.append(offset_commits.tombstones(group_id, partitions))
        if records:
            then = GroupsRemoved(waiter=None, group_ids=(), errors=())
            self._context(now).append(chain.from_iterable(records), then, replay=True)

    def expire(self, group_ids: Iterable[str], now: Now) -> int:
        """Removes expired offsets, and empty groups without offsets; returns the number of tombstones."""
        records: list[Iterable[OffsetsRecord]] = []
        removed: list[str] = []
        count = 0
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.deleting:
                continue
            partitions = offset_commits.expired(group, self.config.offsets_retention_ms, now.wall_ms)
            expired = sum(len(of_topic) for of_topic in partitions.values())
            count += expired
            records.append(offset_commits.tombstones(group_id, partitions))
            is_pending = group.pending_joins or group.in_flight or group.unstable
            if group.offset_count == expired and group.state is GroupState.EMPTY and not is_pending:
                group.deleting = True
                removed.append(group_id)
                records.append((GroupRecord(group_id, None),))
        count += len(removed)
        if count:
            then = GroupsRemoved(waiter=None, group_ids=tuple(removed), errors=())
            self._context(now).append(chain.from_iterable(records), then, replay=True)
        return count

    # Administration.

    def delete_groups(self, group_ids: tuple[str, ...], waiter: Waiter, now: Now) -> None:
        """Removes groups without members; ``waiter`` gets a :class:`DeleteGroupsResult`."""
        context = self._context(now)
        records: list[Iterable[OffsetsRecord]] = []
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
                records.append(offset_commits.tombstones(group_id, offset_commits.all_partitions(group)))
                records.append((GroupRecord(group_id, None),))
                errors.append(ErrorCode.NONE)
        if records:
            then = GroupsRemoved(waiter=waiter, group_ids=tuple(removed), errors=tuple(errors))
            context.append(chain.from_iterable(records), then, replay=True)
        else:
            context.reply(waiter, DeleteGroupsResult(errors=tuple(errors)))

    def describe(self, group_id: str) -> DescribedGroup:
        """Describes the group for administrators; a group that does not exist is reported as Dead."""
        group = self.groups.get(group_id)
        if group is None or group.deleting:
            return DescribedGroup(
                group_id=group_id,
                state=GroupState.DEAD.value,
                protocol_type="",
                protocol_name="",
                members=(),
                known=False,
            )
        is_stable = group.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(group.protocol_name) if is_stable else b"",
                assignment=member.assignment,
            )
            for member in group.members.values()
        )
        name = (group.protocol_name or "") if is_stable else ""
        return DescribedGroup(
            group_id=group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_name=name,
            members=members,
        )

    def list_groups(self) -> list[ListedGroup]:
        """Returns all groups that are not being deleted."""
        return [
            ListedGroup(
                group_id=group.group_id, protocol_type=group.protocol_type or "", state=group.state.value
            )
            for group in self.groups.values()
            if not group.deleting
        ]

    # Records and leadership.

    def replay(self, record: OffsetsRecord, now: Now) -> None:
        """Applies a record of the log, in log order: once it is committed, or while loading."""
        self._replayed += 1
        if isinstance(record, TransactionalOffset):
            owner = self.groups.get(record.group) or self._create(record.group, now)
            self._transactional.add(record.producer_id, owner, record.record, self._replayed)
            return
        group = self.groups.get(record.group)
        if isinstance(record, OffsetRecord):
            if group is not None:
                self._transactional.remove_older(group, (record.topic, record.partition), self._replayed)
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

    def transaction_ended(self, producer_id: int, is_commit: bool, now: Now) -> None:
        """Applies the marker of a transaction, in log order: once it is committed, or while loading."""
        for group_id, pending in self._transactional.pop(producer_id).items():
            group = self.groups.get(group_id)
            if group is not None:
                self._transactional.end(producer_id, group, pending, is_commit)
                self._drop_if_empty(group)

    def _remove(self, group: GroupMetadata, now: Now) -> None:
        """Applies the group's tombstone; offsets without a tombstone stay, as those of simple consumers."""
        del self.groups[group.group_id]
        context = self._context(now)
        for member in list(group.members.values()):
            drop_member(group, member, context)
        for member_id in group.pending_joins:
            context.cancel_timer(TimerKind.PENDING_JOIN, group, member_id)
        context.cancel_timer(TimerKind.JOIN, group)
        context.cancel_timer(TimerKind.SYNC, group)
        if group.offsets or group.in_flight or group.unstable:
            rest = self._create(group.group_id, now)
            rest.offsets, rest.in_flight, rest.unstable = group.offsets, group.in_flight, group.unstable

    def loaded(self, now: Now) -> None:
        """Called after the log was replayed to its end: starts sessions, and rebalances oversized groups."""
        context = self._context(now)
        for group in list(self.groups.values()):
            for member in group.members.values():
                touch(group, member, context)
            if len(group.members) > self.config.max_size:
                prepare_rebalance(group, context, f"{len(group.members)} members are over group.max.size")

    def unload(self, now: Now) -> None:
        """Drops all groups, which another broker coordinates now; waiting requests get NOT_COORDINATOR."""
        context = self._context(now)
        for group in self.groups.values():
            for member in group.members.values():
                fail_waiting_requests(group, member, context, ErrorCode.NOT_COORDINATOR, member.member_id)
            context.change_state(group, UNLOAD, "the partition has another leader")
        self.groups.clear()
        self._transactional.clear()

    def client_error(self, done: Continuation, error: ErrorCode) -> ErrorCode:
        """Returns the error for clients when the append before ``done`` failed with ``error``."""
        if error in TOO_LARGE and isinstance(done, OffsetsStored):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if isinstance(done, MarkerStored):
            return error  # A coordinator gets it, and not a client.
        return APPEND_ERRORS.get(error, error)

    def appended(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when records were committed (and replayed, where requested), or failed with ``error``."""
        context = self._context(now)
        if isinstance(done, MarkerStored):
            self._marker_ended(done, error, now)
            context.reply(done.waiter, MarkerResult(error=error))
        elif isinstance(done, OffsetsStored):
            offset_commits.respond_to_commit(done, error, context)
            self._commit_ended(done)
        elif isinstance(done, OffsetsRemoved):
            offset_commits.offsets_removed(done, error, context)
        elif isinstance(done, GroupsRemoved):
            self._respond_to_removal(done, error, context)
            self._removal_ended(done)
        else:
            self._group_stored(done, error, context)

    def append_timed_out(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when records are not committed in time: responds to the waiting request with ``error``.

        The write continues. Its end calls :meth:`timed_out_append_ended` instead of :meth:`appended`.
        """
        context = self._context(now)
        if isinstance(done, MarkerStored):
            context.reply(done.waiter, MarkerResult(error=error))
        elif isinstance(done, OffsetsStored):
            offset_commits.respond_to_commit(done, error, context)
        elif isinstance(done, GroupsRemoved):
            self._respond_to_removal(done, error, context)
        elif isinstance(done, StaticMemberStored):
            group = self.groups.get(done.group_id)
            if group is not None:
                membership.static_member_timed_out(group, done, error, context)
        else:
            self.appended(done, error, now)

    def timed_out_append_ended(self, done: Continuation, error: ErrorCode, now: Now) -> None:
        """Called when the write behind a timed-out append ended: committed and replayed, or failed."""
        if isinstance(done, MarkerStored):
            self._marker_ended(done, error, now)
        elif isinstance(done, OffsetsStored):
            self._commit_ended(done)
        elif isinstance(done, GroupsRemoved):
            self._removal_ended(done)
        elif isinstance(done, StaticMemberStored):
            self._group_stored(done, error, self._context(now))

    def _marker_ended(self, done: MarkerStored, error: ErrorCode, now: Now) -> None:
        if error is ErrorCode.NONE:
            self.transaction_ended(done.producer_id, done.is_commit, now)

    def _commit_ended(self, done: OffsetsStored) -> None:
        """Removes a commit from the pending ones: its offsets were replayed, or the write failed."""
        group = self.groups.get(done.group_id)
        if group is not None:
            subtract_counts(group.in_flight, done.partitions)
            self._drop_if_empty(group)

    def _group_stored(
        self,
        done: AssignmentStored | StaticMemberStored | EmptyGroupStored,
        error: ErrorCode,
        context: EventContext,
    ) -> None:
        group = self.groups.get(done.group_id)
        if group is None:
            return
        if isinstance(done, AssignmentStored):
            membership.assignment_stored(group, done, error, context)
        elif isinstance(done, StaticMemberStored):
            membership.static_member_stored(group, done, error, context)

    def _removal_ended(self, done: GroupsRemoved) -> None:
        for group_id in done.group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                group.deleting = False

    def _respond_to_removal(self, done: GroupsRemoved, error: ErrorCode, context: EventContext) -> None:
        if done.waiter is not None:
            errors = tuple(error if code is ErrorCode.NONE else code for code in done.errors)
            context.reply(done.waiter, DeleteGroupsResult(errors=errors))

    def _create(self, group_id: str, now: Now) -> GroupMetadata:
        group = GroupMetadata(group_id, now.wall_ms)
        self.groups[group_id] = group
        return group

    def _drop_if_empty(self, group: GroupMetadata) -> None:
        """Drops a group from memory that a failed request created, and that the log does not contain."""
        if group.is_droppable and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
