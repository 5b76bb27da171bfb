"""The rebalance: a group changes from one generation to the next.

Every function here receives the group and the :class:`EventContext` of the current event, and
adds its effects to the context.
Source of the rules: the classic rebalance protocol of Apache Kafka's group coordinator (KIP-62 rebalance
timeouts, KIP-134 initial delay, KIP-345 static members, KIP-394 member ids, KIP-559 protocol checks).
"""

from __future__ import annotations

from typing import Final

from tidemill.groups.coordinator_effects import (
    Continuation,
    EmptyGroupStored,
    GroupState,
    JoinResult,
    SyncResult,
    TimerKind,
)
from tidemill.groups.event_context import EventContext
from tidemill.groups.group_metadata import ALL_JOINED, ALL_LEFT, REBALANCE, GroupMetadata, Member
from tidemill.model.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member's join may wait: the member cannot send heartbeats before the response."""
SERVING_STATES: Final = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def touch(group: GroupMetadata, member: Member, context: EventContext, timeout_ms: int | None = None) -> None:
    """Restarts the member's session.

    A timer that is already set stays. If it fires before the session ends, it is set again. So a heartbeat
    sets no timer.
    """
    after_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
    member.deadline_ms = context.now.monotonic_ms + after_ms
    if member.timer_ms is None or member.timer_ms > member.deadline_ms:
        member.timer_ms = member.deadline_ms
        context.set_timer(TimerKind.MEMBER, group, after_ms, member.member_id)


def prepare_rebalance(group: GroupMetadata, context: EventContext, reason: str) -> None:
    """Starts a rebalance: all members have to rejoin."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        fail_syncs(group, context, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    group.storing_generation = None
    context.cancel_timer(TimerKind.SYNC, group)
    is_first = group.state is GroupState.EMPTY
    context.change_state(group, REBALANCE, reason)
    group.initial_remaining_ms = None
    if is_first:
        # The members of a new group join one after the other: one rebalance covers all of them.
        group.new_member_added = False
        group.initial_delay_ms = context.config.initial_rebalance_delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - group.initial_delay_ms, 0)
        context.set_timer(TimerKind.JOIN, group, group.initial_delay_ms)
    elif group.all_joined:
        complete_join(group, context)
    else:
        context.set_timer(TimerKind.JOIN, group, group.rebalance_timeout_ms)


def rebalance_or_complete_join(group: GroupMetadata, context: EventContext, reason: str) -> None:
    """Starts a rebalance after a change of members, or completes the current one if all have joined."""
    if group.can_rebalance:
        prepare_rebalance(group, context, reason)
    else:
        maybe_complete_join(group, context)


def maybe_complete_join(group: GroupMetadata, context: EventContext) -> None:
    """Completes the join phase when all members have joined; a first rebalance waits for its delay."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_remaining_ms is None
        and group.all_joined
    ):
        complete_join(group, context)


def join_timer_fired(group: GroupMetadata, context: EventContext) -> None:
    """Ends the join phase, or extends the initial delay while new members still join."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    remaining_ms = group.initial_remaining_ms
    if remaining_ms and group.new_member_added:
        group.new_member_added = False
        delay_ms = min(context.config.initial_rebalance_delay_ms, remaining_ms)
        group.initial_remaining_ms = max(remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        context.set_timer(TimerKind.JOIN, group, delay_ms)
    else:
        complete_join(group, context)


def complete_join(group: GroupMetadata, context: EventContext) -> None:
    """Starts the next generation with the joined members; removes dynamic members that did not join."""
    context.cancel_timer(TimerKind.JOIN, group)
    group.initial_remaining_ms = None
    absent = [m for m in group.members.values() if m.joining is None and m.instance_id is None]
    for member in absent:
        drop_member(group, member, context)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has joined: their session timeouts decide.
        context.set_timer(TimerKind.JOIN, group, group.rebalance_timeout_ms)
        return
    group.generation += 1
    group.pending_syncs.clear()
    if not group.members:
        group.protocol_name = None
        group.leader = None
        group.set_subscriptions()
        context.change_state(group, ALL_LEFT, "no members are left")
        store_group(group, {}, EmptyGroupStored(group_id=group.group_id), context)
        return
    group.protocol_name = group.select_protocol()
    group.set_subscriptions()
    context.change_state(group, ALL_JOINED, "members have joined")
    for member in group.members.values():
        waiter = group.set_joining(member, None)
        if waiter is not None:
            context.reply(waiter, join_response(group, member))
        member.is_new = False
        touch(group, member, context)
        group.pending_syncs.add(member.member_id)
    context.set_timer(TimerKind.SYNC, group, group.rebalance_timeout_ms)


def store_group(
    group: GroupMetadata, assignment: dict[str, bytes], then: Continuation, context: EventContext
) -> None:
    """Writes the group with ``assignment``; the state machine continues with ``then``."""
    group.persisted = True
    context.append((group.record(assignment),), then, replay=False)


def join_response(group: GroupMetadata, member: Member) -> JoinResult:
    """The response to a member of the current generation; the leader's lists all members."""
    is_leader = group.leader == member.member_id
    return JoinResult(
        error=ErrorCode.NONE,
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=group.joined_members() if is_leader else (),
    )


def _elect_joined_leader(group: GroupMetadata) -> bool:
    """Keeps a leader that has joined, else elects the first joined member; False if none has joined."""
    leader = group.members.get(group.leader) if group.leader is not None else None
    if leader is not None and leader.joining is not None:
        return True
    for member in group.members.values():
        if member.joining is not None:
            group.leader = member.member_id
            return True
    return False


def sync_timer_fired(group: GroupMetadata, context: EventContext) -> None:
    """Removes the members that sent no SyncGroup, and starts a rebalance."""
    if group.state not in SERVING_STATES or not group.pending_syncs:
        return
    missing = sorted(group.pending_syncs)
    for member_id in missing:
        drop_member(group, group.members[member_id], context)
    prepare_rebalance(group, context, f"members {', '.join(missing)} sent no SyncGroup in time")


def pending_join_timer_fired(group: GroupMetadata, member_id: str, context: EventContext) -> None:
    """Removes an id with which no client has joined; a later join with it fails."""
    if member_id in group.pending_joins:
        group.remove(member_id)
        maybe_complete_join(group, context)


def member_timer_fired(group: GroupMetadata, member_id: str, context: EventContext) -> None:
    """Removes the member if its session has expired and it waits for no response."""
    member = group.members.get(member_id)
    if member is None:
        return
    member.timer_ms = None
    left_ms = member.deadline_ms - context.now.monotonic_ms
    if left_ms > 0:
        member.timer_ms = member.deadline_ms
        context.set_timer(TimerKind.MEMBER, group, left_ms, member_id)
    elif not member.awaits_response:
        drop_member(group, member, context)
        rebalance_or_complete_join(group, context, f"member {member_id} exceeded its session timeout")


def drop_member(group: GroupMetadata, member: Member, context: EventContext) -> None:
    """Removes the member; its waiting requests fail with UNKNOWN_MEMBER_ID."""
    context.cancel_timer(TimerKind.MEMBER, group, member.member_id)
    fail_waiting_requests(group, member, context, ErrorCode.UNKNOWN_MEMBER_ID)
    group.remove(member.member_id)


def fail_waiting_requests(
    group: GroupMetadata, member: Member, context: EventContext, error: ErrorCode, member_id: str = ""
) -> None:
    """Responds with ``error`` to the member's waiting join, with ``member_id``, and to its waiting sync."""
    joining = group.set_joining(member, None)
    if joining is not None:
        context.reply(joining, JoinResult(error=error, member_id=member_id))
    if member.syncing is not None:
        context.reply(member.syncing, SyncResult(error=error))
        member.syncing = None


def sync_received(group: GroupMetadata, member_id: str, context: EventContext) -> None:
    """Marks the member's SyncGroup as received; cancels the timer after the last one."""
    if member_id in group.pending_syncs:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            context.cancel_timer(TimerKind.SYNC, group)


def fail_syncs(group: GroupMetadata, context: EventContext, error: ErrorCode) -> None:
    """Clears all assignments, and fails the waiting SyncGroup requests with ``error``."""
    for member in group.members.values():
        member.assignment = b""
        respond_to_sync(group, member, context, SyncResult(error=error))


def propagate_assignment(group: GroupMetadata, assignment: dict[str, bytes], context: EventContext) -> None:
    """Sends every member its assignment."""
    for member in group.members.values():
        member.assignment = assignment.get(member.member_id, b"")
        respond_to_sync(group, member, context, sync_response(group, member))


def sync_response(group: GroupMetadata, member: Member) -> SyncResult:
    """The response to a member that requests its assignment."""
    return SyncResult(
        error=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def respond_to_sync(
    group: GroupMetadata, member: Member, context: EventContext, response: SyncResult
) -> None:
    """Responds to a waiting SyncGroup and restarts the session: the member could send no heartbeat."""
    waiter = member.syncing
    if waiter is not None:
        member.syncing = None
        context.reply(waiter, response)
        touch(group, member, context)
