"""How a group changes from one generation to the next.

Every function here receives the group and the :class:`Turn` of the current event, and adds its effects to it.
Source of the rules: the classic rebalance protocol of Apache Kafka's group coordinator (KIP-62 rebalance
timeouts, KIP-134 initial delay, KIP-345 static members, KIP-394 member ids, KIP-559 protocol checks).
"""

from __future__ import annotations

from typing import Any, Final

from tidemill.groups.coordinator_effects import (
    JOIN_TIMER,
    MEMBER_TIMER,
    SYNC_TIMER,
    Append,
    CancelTimer,
    Continuation,
    Effect,
    EmptyGroupStored,
    JoinResult,
    Now,
    Reply,
    Response,
    SetTimer,
    StateChanged,
    SyncResult,
    TimerKey,
    Waiter,
)
from tidemill.groups.group_metadata import GroupMetadata, GroupState, Member
from tidemill.groups.offset_records import OffsetsRecord
from tidemill.model.errors import ErrorCode
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX, UNPACKED_KEY

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member's join may wait: the member cannot send heartbeats before the response."""
SERVING_STATES: Final = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class GroupConfig:
    """The group settings of the broker configuration. Times in milliseconds."""

    __slots__ = (
        "initial_rebalance_delay_ms",
        "max_session_timeout_ms",
        "max_size",
        "min_session_timeout_ms",
        "offset_metadata_size_max",
        "offsets_retention_ms",
        "unpacked_bytes_max",
    )

    def __init__(
        self,
        *,
        initial_rebalance_delay_ms: int = 3_000,
        max_size: int = 2**31 - 1,
        min_session_timeout_ms: int = 6_000,
        max_session_timeout_ms: int = 1_800_000,
        offset_metadata_size_max: int = 4_096,
        offsets_retention_ms: int = 10_080 * 60_000,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        self.initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.max_size = max_size
        self.min_session_timeout_ms = min_session_timeout_ms
        self.max_session_timeout_ms = max_session_timeout_ms
        self.offset_metadata_size_max = offset_metadata_size_max
        self.offsets_retention_ms = offsets_retention_ms
        self.unpacked_bytes_max = unpacked_bytes_max

    @classmethod
    def from_broker(cls, config: Any) -> GroupConfig:
        """Reads the keys from a broker configuration: any object whose ``int`` accepts Kafka's key names."""
        return cls(
            initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            max_size=config.int("group.max.size"),
            min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
            offset_metadata_size_max=config.int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
            unpacked_bytes_max=config.int(UNPACKED_KEY),
        )


class Turn:
    """The time of one event, and its effects."""

    __slots__ = ("config", "effects", "now")

    def __init__(self, config: GroupConfig, now: Now, effects: list[Effect]) -> None:
        self.config = config
        self.now = now
        self.effects = effects

    def reply(self, waiter: Waiter, response: Response) -> None:
        """Sends ``response`` to ``waiter``."""
        self.effects.append(Reply(waiter, response))

    def set_timer(self, kind: str, group: GroupMetadata, after_ms: int) -> None:
        """Sets the group's timer of kind ``kind``."""
        self.effects.append(SetTimer(TimerKey(kind, group.group_id), self.now.steady_ms + after_ms))

    def cancel_timer(self, kind: str, group: GroupMetadata, member_id: str = "") -> None:
        """Cancels a timer."""
        self.effects.append(CancelTimer(TimerKey(kind, group.group_id, member_id)))

    def append(self, records: tuple[OffsetsRecord, ...], then: Continuation, replay: bool) -> None:
        """Appends ``records``; the core continues with ``then``."""
        self.effects.append(Append(records, then, replay))

    def change_state(self, group: GroupMetadata, to: GroupState, reason: str) -> None:
        """Changes the group's state."""
        before = group.state
        group.transition(to, self.now.wall_ms)
        self.effects.append(
            StateChanged(group.group_id, before.value, to.value, group.generation, len(group.members), reason)
        )


def touch(group: GroupMetadata, member: Member, turn: Turn, timeout_ms: int | None = None) -> None:
    """Restarts the member's session.

    A timer that is already set stays. If it fires before the session ends, it is set again. So a heartbeat
    sets no timer.
    """
    after_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
    member.deadline_ms = turn.now.steady_ms + after_ms
    if member.timer_ms is None or member.timer_ms > member.deadline_ms:
        member.timer_ms = member.deadline_ms
        key = TimerKey(MEMBER_TIMER, group.group_id, member.member_id)
        turn.effects.append(SetTimer(key, member.deadline_ms))


def prepare_rebalance(group: GroupMetadata, turn: Turn, reason: str) -> None:
    """Starts a rebalance: all members have to rejoin."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        fail_syncs(group, turn, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    group.storing_generation = None
    turn.cancel_timer(SYNC_TIMER, group)
    is_first = group.state is GroupState.EMPTY
    turn.change_state(group, GroupState.PREPARING_REBALANCE, reason)
    group.initial_remaining_ms = None
    if is_first:
        # The members of a new group join one after the other: one rebalance covers all of them.
        group.new_member_added = False
        group.initial_delay_ms = turn.config.initial_rebalance_delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - group.initial_delay_ms, 0)
        turn.set_timer(JOIN_TIMER, group, group.initial_delay_ms)
    elif group.all_joined:
        complete_join(group, turn)
    else:
        turn.set_timer(JOIN_TIMER, group, group.rebalance_timeout_ms)


def rebalance_or_complete_join(group: GroupMetadata, turn: Turn, reason: str) -> None:
    """Starts a rebalance after a change of members, or completes the current one if all have joined."""
    if group.can_rebalance:
        prepare_rebalance(group, turn, reason)
    else:
        maybe_complete_join(group, turn)


def maybe_complete_join(group: GroupMetadata, turn: Turn) -> None:
    """Completes the join phase when all members have joined; a first rebalance waits for its delay."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_remaining_ms is None
        and group.all_joined
    ):
        complete_join(group, turn)


def join_timer_fired(group: GroupMetadata, turn: Turn) -> None:
    """Ends the join phase, or extends the initial delay while new members still join."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    remaining_ms = group.initial_remaining_ms
    if remaining_ms and group.new_member_added:
        group.new_member_added = False
        delay_ms = min(turn.config.initial_rebalance_delay_ms, remaining_ms)
        group.initial_remaining_ms = max(remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        turn.set_timer(JOIN_TIMER, group, delay_ms)
    else:
        complete_join(group, turn)


def complete_join(group: GroupMetadata, turn: Turn) -> None:
    """Starts the next generation with the joined members; removes dynamic members that did not join."""
    turn.cancel_timer(JOIN_TIMER, group)
    group.initial_remaining_ms = None
    absent = [m for m in group.members.values() if m.joining is None and m.instance_id is None]
    for member in absent:
        drop_member(group, member, turn)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has joined: their session timeouts decide.
        turn.set_timer(JOIN_TIMER, group, group.rebalance_timeout_ms)
        return
    group.generation += 1
    group.pending_syncs.clear()
    if not group.members:
        group.protocol_name = None
        group.leader = None
        group.read_subscriptions()
        turn.change_state(group, GroupState.EMPTY, "no members are left")
        store_group(group, {}, EmptyGroupStored(group.group_id), turn)
        return
    group.protocol_name = group.select_protocol()
    group.read_subscriptions()
    turn.change_state(group, GroupState.COMPLETING_REBALANCE, "members have joined")
    for member in group.members.values():
        waiter = group.set_joining(member, None)
        if waiter is not None:
            turn.reply(waiter, join_response(group, member))
        member.is_new = False
        touch(group, member, turn)
        group.pending_syncs.add(member.member_id)
    turn.set_timer(SYNC_TIMER, group, group.rebalance_timeout_ms)


def store_group(group: GroupMetadata, assignment: dict[str, bytes], then: Continuation, turn: Turn) -> None:
    """Writes the group with ``assignment``; the core continues with ``then``."""
    group.persisted = True
    turn.append((group.record(assignment),), then, replay=False)


def join_response(group: GroupMetadata, member: Member) -> JoinResult:
    """The response to a member of the current generation; the leader's lists all members."""
    is_leader = group.leader == member.member_id
    return JoinResult(
        ErrorCode.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader or "",
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


def sync_timer_fired(group: GroupMetadata, turn: Turn) -> None:
    """Removes the members that sent no SyncGroup, and starts a rebalance."""
    if group.state not in SERVING_STATES or not group.pending_syncs:
        return
    missing = sorted(group.pending_syncs)
    for member_id in missing:
        drop_member(group, group.members[member_id], turn)
    prepare_rebalance(group, turn, f"members {', '.join(missing)} sent no SyncGroup in time")


def member_timer_fired(group: GroupMetadata, member_id: str, turn: Turn) -> None:
    """Removes the member if its session has expired and it waits for no response."""
    if member_id in group.pending_joins:
        group.remove(member_id)
        maybe_complete_join(group, turn)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    member.timer_ms = None
    if member.deadline_ms > turn.now.steady_ms:
        member.timer_ms = member.deadline_ms
        turn.effects.append(SetTimer(TimerKey(MEMBER_TIMER, group.group_id, member_id), member.deadline_ms))
    elif not member.awaits_response:
        drop_member(group, member, turn)
        rebalance_or_complete_join(group, turn, f"member {member_id} exceeded its session timeout")


def drop_member(group: GroupMetadata, member: Member, turn: Turn) -> None:
    """Removes the member; its waiting requests fail with UNKNOWN_MEMBER_ID."""
    turn.cancel_timer(MEMBER_TIMER, group, member.member_id)
    joining, syncing = member.joining, member.syncing
    group.remove(member.member_id)
    member.joining = member.syncing = None
    if joining is not None:
        turn.reply(joining, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, ""))
    if syncing is not None:
        turn.reply(syncing, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))


def sync_received(group: GroupMetadata, member_id: str, turn: Turn) -> None:
    """Marks the member's SyncGroup as received; cancels the timer after the last one."""
    if member_id in group.pending_syncs:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            turn.cancel_timer(SYNC_TIMER, group)


def fail_syncs(group: GroupMetadata, turn: Turn, error: ErrorCode) -> None:
    """Clears all assignments, and fails the waiting SyncGroup requests with ``error``."""
    for member in group.members.values():
        member.assignment = b""
        respond_to_sync(group, member, turn, SyncResult(error))


def propagate_assignment(group: GroupMetadata, assignment: dict[str, bytes], turn: Turn) -> None:
    """Sends every member its assignment."""
    for member in group.members.values():
        member.assignment = assignment.get(member.member_id, b"")
        respond_to_sync(group, member, turn, sync_response(group, member))


def sync_response(group: GroupMetadata, member: Member) -> SyncResult:
    """The response to a member that requests its assignment."""
    return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)


def respond_to_sync(group: GroupMetadata, member: Member, turn: Turn, response: SyncResult) -> None:
    """Responds to a waiting SyncGroup and restarts the session: the member could send no heartbeat."""
    waiter = member.syncing
    if waiter is not None:
        member.syncing = None
        turn.reply(waiter, response)
        touch(group, member, turn)
