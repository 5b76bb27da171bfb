"""Handles the join, sync, heartbeat and leave requests of members, by the state of the group.

=====================  ===========  =====================  ========================  ====================
request of a member    Empty        PreparingRebalance     CompletingRebalance       Stable
=====================  ===========  =====================  ========================  ====================
join, same metadata    unknown      waits                  current generation again  leader: rebalance,
                                                                                     others: current
                                                                                     generation again
join, new metadata     unknown      waits                  rebalance                 rebalance
join of a new member   rebalance    waits                  rebalance                 rebalance
sync                   unknown      REBALANCE_IN_PROGRESS  waits for the leader      assignment
heartbeat              unknown      REBALANCE_IN_PROGRESS  success                   success
leave                  unknown      may end the wait       rebalance                 rebalance
=====================  ===========  =====================  ========================  ====================

A static member (with an instance id) that rejoins without its member id replaces its old member under a new
id; the old id is fenced. When the group is stable and its protocol does not change, the new id is written and
no rebalance starts.
"""

from __future__ import annotations

from tidemill.coordinator_runtime.coordinator_effects import Waiter
from tidemill.groups.coordinator_effects import (
    AssignmentStored,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    StaticMemberStored,
    SyncRequest,
    SyncResult,
    TimerKind,
)
from tidemill.groups.event_context import EventContext
from tidemill.groups.group_metadata import ASSIGN, GroupInvariantError, GroupMetadata, Member
from tidemill.groups.rebalance import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    drop_member,
    fail_syncs,
    fail_waiting_requests,
    join_response,
    maybe_complete_join,
    prepare_rebalance,
    propagate_assignment,
    rebalance_or_complete_join,
    store_group,
    sync_received,
    sync_response,
    touch,
)
from tidemill.model.errors import ErrorCode


def check_member(group: GroupMetadata, member_id: str, instance_id: str | None) -> ErrorCode:
    """Checks that the ids name a member: returns NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def check_generation(
    group: GroupMetadata, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """Same as :func:`check_member`, and ILLEGAL_GENERATION for another generation.

    COORDINATOR_NOT_AVAILABLE for a group that is being deleted, or that this broker does not coordinate.
    """
    if group.deleting or group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = check_member(group, member_id, instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def join(group: GroupMetadata, request: JoinRequest, waiter: Waiter, context: EventContext) -> None:
    """Adds a new or existing member to the next generation."""
    if group.deleting or group.state is GroupState.DEAD:
        context.reply(
            waiter, JoinResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id)
        )
    elif not _has_capacity(group, request.member_id, context.config.max_size):
        _reject_join(group, request.member_id, context)
        context.reply(waiter, JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=""))
    elif not group.supports(request.protocol_type, request.protocols):
        context.reply(
            waiter, JoinResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id)
        )
    elif request.member_id == "":
        _join_new(group, request, waiter, context)
    elif request.member_id in group.pending_joins and request.instance_id is None:
        _add_member(group, request, request.member_id, waiter, context)
    else:
        error = check_member(group, request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            context.reply(waiter, JoinResult(error=error, member_id=request.member_id))
        else:
            _rejoin(group, group.members[request.member_id], request, waiter, context)


def _has_capacity(group: GroupMetadata, member_id: str, size_max: int) -> bool:
    """Whether the group may accept the join without exceeding its size limit.

    While members rejoin, the waiting members count, and not those of the last generation. So a limit that
    was lowered excludes the members that rejoin last.
    """
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.joining is not None) or group.awaiting_join < size_max
    if group.state is GroupState.EMPTY:
        return True
    return member is not None or len(group.members) < size_max


def _reject_join(group: GroupMetadata, member_id: str, context: EventContext) -> None:
    member = group.members.get(member_id)
    if member is not None:
        drop_member(group, member, context)
    elif member_id in group.pending_joins:
        group.remove(member_id)
        context.cancel_timer(TimerKind.PENDING_JOIN, group, member_id)
    maybe_complete_join(group, context)


def _join_new(group: GroupMetadata, request: JoinRequest, waiter: Waiter, context: EventContext) -> None:
    new_id = request.new_member_id
    if request.instance_id is not None:
        old_id = group.static_members.get(request.instance_id)
        if old_id is not None:
            _replace_static_member(group, request, old_id, waiter, context)
        else:
            _add_member(group, request, new_id, waiter, context)
    elif request.requires_known_member_id:
        # Without this, clients that time out and retry would fill the group with members that never return.
        group.pending_joins.add(new_id)
        context.set_timer(TimerKind.PENDING_JOIN, group, request.session_timeout_ms, new_id)
        context.reply(waiter, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id))
    else:
        _add_member(group, request, new_id, waiter, context)


def _add_member(
    group: GroupMetadata, request: JoinRequest, member_id: str, waiter: Waiter, context: EventContext
) -> None:
    member = Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
    )
    member.is_new = True
    if group.initial_remaining_ms is not None and group.state is GroupState.PREPARING_REBALANCE:
        group.new_member_added = True
    if member_id in group.pending_joins:
        context.cancel_timer(TimerKind.PENDING_JOIN, group, member_id)
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    group.set_joining(member, waiter)
    touch(group, member, context, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance_or_complete_join(group, context, f"member {member_id} joins{_reason_suffix(request.reason)}")


def _rejoin(
    group: GroupMetadata, member: Member, request: JoinRequest, waiter: Waiter, context: EventContext
) -> None:
    has_same_protocols = member.protocols == request.protocols
    is_leader = group.leader == member.member_id
    is_in_generation = group.state is GroupState.COMPLETING_REBALANCE or (
        group.state is GroupState.STABLE and not is_leader
    )
    if has_same_protocols and is_in_generation:
        context.reply(waiter, join_response(group, member))
    elif group.state is GroupState.EMPTY:
        raise GroupInvariantError(f"group {group.group_id} is Empty with member {member.member_id}")
    else:
        _update_member(group, member, request, waiter, context)
        rebalance_or_complete_join(
            group, context, f"member {member.member_id} rejoins{_reason_suffix(request.reason)}"
        )


def _update_member(
    group: GroupMetadata, member: Member, request: JoinRequest, waiter: Waiter, context: EventContext
) -> None:
    group.set_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    before = group.set_joining(member, waiter)
    if before is not None:
        # The client gave up on the earlier request and sent another; only one can get the JoinResult.
        context.reply(before, JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))


def _reason_suffix(reason: str) -> str:
    """The reason that a client gave, for the log line of a state change."""
    return f" ({reason})" if reason else ""


def _swap_static_member(group: GroupMetadata, old: Member, new_id: str, context: EventContext) -> Member:
    """Replaces ``old`` by a member ``new_id`` with the same state."""
    instance_id = old.instance_id
    if instance_id is None:
        raise GroupInvariantError(f"member {old.member_id} of group {group.group_id} has no instance id")
    new = Member(
        new_id,
        instance_id,
        old.client_id,
        old.client_host,
        old.session_timeout_ms,
        old.rebalance_timeout_ms,
        old.protocols,
        old.assignment,
    )
    was_leader = group.leader == old.member_id
    context.cancel_timer(TimerKind.MEMBER, group, old.member_id)
    fail_waiting_requests(group, old, context, ErrorCode.FENCED_INSTANCE_ID, old.member_id)
    group.remove(old.member_id)
    group.add(new)
    if was_leader:
        group.leader = new_id
    touch(group, new, context)
    return new


def _replace_static_member(
    group: GroupMetadata, request: JoinRequest, old_id: str, waiter: Waiter, context: EventContext
) -> None:
    old = group.members[old_id]
    old_leader = group.leader or ""
    new = _swap_static_member(group, old, request.new_member_id, context)
    _update_member(group, new, request, waiter, context)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        assignment = {member.member_id: member.assignment for member in group.members.values()}
        then = StaticMemberStored(
            group_id=group.group_id,
            generation=group.generation,
            old_member_id=old_id,
            new_member_id=new.member_id,
            old_leader=old_leader,
            old_protocols=old.protocols,
            old_session_timeout_ms=old.session_timeout_ms,
            old_rebalance_timeout_ms=old.rebalance_timeout_ms,
            supports_skipping_assignment=request.supports_skipping_assignment,
        )
        store_group(group, assignment, then, context)
    elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        # The leader may already have the old id, and its assignment would lack the new one.
        reason = f"static member {request.instance_id} rejoins{_reason_suffix(request.reason)}"
        prepare_rebalance(group, context, reason)
    else:
        maybe_complete_join(group, context)


def static_member_stored(
    group: GroupMetadata, done: StaticMemberStored, error: ErrorCode, context: EventContext
) -> None:
    """Responds to the replaced static member; restores the old member when the write failed.

    After a failed write, the new id stays if a rebalance began in the meantime: it takes part in that
    rebalance, and is written with the next assignment. Other members may have dropped the protocols of the
    old id since.
    """
    member = group.members.get(done.new_member_id)
    if member is None:
        return
    if error is not ErrorCode.NONE:
        if group.state is not GroupState.STABLE or group.generation != done.generation:
            return
        fail_waiting_requests(group, member, context, error)
        group.set_protocols(member, done.old_protocols)
        member.session_timeout_ms = done.old_session_timeout_ms
        member.rebalance_timeout_ms = done.old_rebalance_timeout_ms
        _swap_static_member(group, member, done.old_member_id, context)
        return
    if group.state is not GroupState.STABLE:
        return
    waiter = group.set_joining(member, None)
    if waiter is None:
        return
    touch(group, member, context)
    is_leader = group.leader == member.member_id
    response = join_response(group, member)
    if done.supports_skipping_assignment:
        response = response.replace(skip_assignment=is_leader)
    else:
        # An older client that sees itself as the leader would compute an assignment and never get its result.
        response = response.replace(leader=done.old_leader, members=())
    context.reply(waiter, response)


def static_member_timed_out(
    group: GroupMetadata, done: StaticMemberStored, error: ErrorCode, context: EventContext
) -> None:
    """Fails the join, so that the client retries. Its new id stays: its record may still be committed."""
    member = group.members.get(done.new_member_id)
    if member is not None and group.state is GroupState.STABLE and group.generation == done.generation:
        waiter = group.set_joining(member, None)
        if waiter is not None:
            context.reply(waiter, JoinResult(error=error, member_id=""))
            touch(group, member, context)


def sync(group: GroupMetadata, request: SyncRequest, waiter: Waiter, context: EventContext) -> None:
    """Requests a member's assignment; the leader's request contains the assignments of all members."""
    error = _check_sync(group, request)
    if error is not ErrorCode.NONE:
        context.reply(waiter, SyncResult(error=error))
        return
    member = group.members[request.member_id]
    sync_received(group, member.member_id, context)
    if group.state is GroupState.STABLE:
        context.reply(waiter, sync_response(group, member))
        return
    if member.syncing is not None:
        context.reply(member.syncing, SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
    member.syncing = waiter
    if group.leader == member.member_id and group.storing_generation is None:
        assignments = dict(request.assignments)
        assignment = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        group.storing_generation = group.generation
        then = AssignmentStored(group_id=group.group_id, generation=group.generation, assignment=assignment)
        store_group(group, assignment, then, context)


def _check_sync(group: GroupMetadata, request: SyncRequest) -> ErrorCode:
    error = check_generation(group, request.member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return error
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(requested: str | None, current: str | None) -> bool:
    return requested is not None and current is not None and requested != current


def assignment_stored(
    group: GroupMetadata, done: AssignmentStored, error: ErrorCode, context: EventContext
) -> None:
    """Distributes the written assignment; if the write failed, all members have to rejoin."""
    if group.generation == done.generation:
        group.storing_generation = None
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != done.generation:
        return
    if error is not ErrorCode.NONE:
        fail_syncs(group, context, error)
        prepare_rebalance(group, context, f"the assignment could not be written: {error.name}")
        return
    context.change_state(group, ASSIGN, "the leader's assignment is written")
    propagate_assignment(group, done.assignment, context)


def heartbeat(
    group: GroupMetadata, member_id: str, generation: int, instance_id: str | None, context: EventContext
) -> ErrorCode:
    """Restarts the member's session; returns REBALANCE_IN_PROGRESS if the member should rejoin."""
    error = check_generation(group, member_id, instance_id, generation)
    if error is not ErrorCode.NONE:
        return error
    touch(group, group.members[member_id], context)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(
    group: GroupMetadata, members: tuple[LeavingMember, ...], waiter: Waiter, context: EventContext
) -> None:
    """Removes members that leave, or that an administrator removes."""
    if group.deleting or group.state is GroupState.DEAD:
        context.reply(waiter, LeaveResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    results = []
    removed = []
    for leaving in members:
        was_pending = leaving.member_id in group.pending_joins
        error = _remove_leaving_member(group, leaving, context)
        results.append((leaving, error))
        if error is ErrorCode.NONE and not was_pending:
            name = leaving.member_id or leaving.instance_id or ""
            removed.append(f"{name}{_reason_suffix(leaving.reason)}")
    context.reply(waiter, LeaveResult(error=ErrorCode.NONE, members=tuple(results)))
    if removed and group.state is not GroupState.EMPTY:
        rebalance_or_complete_join(group, context, f"members {', '.join(removed)} leave")
    else:
        maybe_complete_join(group, context)


def _remove_leaving_member(group: GroupMetadata, leaving: LeavingMember, context: EventContext) -> ErrorCode:
    member_id = leaving.member_id
    if member_id == "":
        if leaving.instance_id is None or leaving.instance_id not in group.static_members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = group.static_members[leaving.instance_id]
    elif member_id in group.pending_joins:
        group.remove(member_id)
        context.cancel_timer(TimerKind.PENDING_JOIN, group, member_id)
        return ErrorCode.NONE
    else:
        error = check_member(group, member_id, leaving.instance_id)
        if error is not ErrorCode.NONE:
            return error
    drop_member(group, group.members[member_id], context)
    return ErrorCode.NONE
