"""How a group gets from one generation to the next.

Every function here takes the group and the :class:`Turn` of the event under way, and leaves its effects
there. Source of the rules: the classic rebalance protocol as Apache Kafka's group coordinator has it (KIP-62
rebalance timeouts, KIP-134 initial delay, KIP-345 static members, KIP-394 member ids, KIP-559 protocol
checks).
"""

from __future__ import annotations

from typing import Any, Final

from tidemill.groups.effects import (
    JOIN_TIMER,
    MEMBER_TIMER,
    SYNC_TIMER,
    Append,
    CancelTimer,
    Continuation,
    Effect,
    EmptyGroupStored,
    JoinResult,
    Moved,
    Now,
    Reply,
    Response,
    SetTimer,
    SyncResult,
    TimerKey,
    Waiter,
)
from tidemill.groups.offsets import OffsetsRecord
from tidemill.groups.state import Group, GroupState, Member
from tidemill.model.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member's join may wait: it cannot send heartbeats before it has the answer."""
SERVING_STATES: Final = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class GroupConfig:
    """What the broker's configuration says of groups. Times in milliseconds."""

    __slots__ = (
        "initial_rebalance_delay_ms",
        "max_session_timeout_ms",
        "max_size",
        "min_session_timeout_ms",
        "offset_metadata_size_max",
        "offsets_retention_ms",
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
    ) -> None:
        self.initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.max_size = max_size
        self.min_session_timeout_ms = min_session_timeout_ms
        self.max_session_timeout_ms = max_session_timeout_ms
        self.offset_metadata_size_max = offset_metadata_size_max
        self.offsets_retention_ms = offsets_retention_ms

    @classmethod
    def from_broker(cls, config: Any) -> GroupConfig:
        """Reads the keys from a broker configuration (anything with Kafka's key names under ``int``)."""
        return cls(
            initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            max_size=config.int("group.max.size"),
            min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
            offset_metadata_size_max=config.int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
        )


class Turn:
    """One event's time, and the effects that it has."""

    __slots__ = ("config", "effects", "now")

    def __init__(self, config: GroupConfig, now: Now, effects: list[Effect]) -> None:
        self.config = config
        self.now = now
        self.effects = effects

    def reply(self, waiter: Waiter, response: Response) -> None:
        """Answers ``waiter``."""
        self.effects.append(Reply(waiter, response))

    def set_timer(self, kind: str, group: Group, after_ms: int) -> None:
        """Sets the group's timer of that kind."""
        self.effects.append(SetTimer(TimerKey(kind, group.group_id), self.now.steady_ms + after_ms))

    def cancel_timer(self, kind: str, group: Group, member_id: str = "") -> None:
        """Cancels a timer."""
        self.effects.append(CancelTimer(TimerKey(kind, group.group_id, member_id)))

    def append(self, records: tuple[OffsetsRecord, ...], then: Continuation, replay: bool) -> None:
        """Writes ``records``, and goes on with ``then``."""
        self.effects.append(Append(records, then, replay))

    def move(self, group: Group, to: GroupState, reason: str) -> None:
        """Takes the group to another state."""
        before = group.state
        group.transition(to, self.now.wall_ms)
        self.effects.append(
            Moved(group.group_id, before.value, to.value, group.generation, len(group.members), reason)
        )


def touch(group: Group, member: Member, turn: Turn, timeout_ms: int | None = None) -> None:
    """The member was heard of: its session begins anew.

    The timer that is set already stays; when it fires before the session ends it is set again. So a
    heartbeat costs no timer.
    """
    after_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
    member.deadline_ms = turn.now.steady_ms + after_ms
    if member.timer_ms is None or member.timer_ms > member.deadline_ms:
        member.timer_ms = member.deadline_ms
        key = TimerKey(MEMBER_TIMER, group.group_id, member.member_id)
        turn.effects.append(SetTimer(key, member.deadline_ms))


def prepare_rebalance(group: Group, turn: Turn, reason: str) -> None:
    """Begins a rebalance: everybody is to join again."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        fail_syncs(group, turn, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    group.storing_generation = None
    turn.cancel_timer(SYNC_TIMER, group)
    is_first = group.state is GroupState.EMPTY
    turn.move(group, GroupState.PREPARING_REBALANCE, reason)
    group.initial_remaining_ms = None
    if is_first:
        # The members of a group that starts up come one after the other: one rebalance for all of them.
        group.new_member_added = False
        group.initial_delay_ms = turn.config.initial_rebalance_delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - group.initial_delay_ms, 0)
        turn.set_timer(JOIN_TIMER, group, group.initial_delay_ms)
    elif group.all_joined:
        complete_join(group, turn)
    else:
        turn.set_timer(JOIN_TIMER, group, group.rebalance_timeout_ms)


def rebalance_or_complete_join(group: Group, turn: Turn, reason: str) -> None:
    """Somebody came or went: begins a rebalance, or ends the one that waited for just this."""
    if group.can_rebalance:
        prepare_rebalance(group, turn, reason)
    else:
        maybe_complete_join(group, turn)


def maybe_complete_join(group: Group, turn: Turn) -> None:
    """Ends the wait for joins when nobody is missing; a group's first rebalance waits for its delay."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_remaining_ms is None
        and group.all_joined
    ):
        complete_join(group, turn)


def join_timer_fired(group: Group, turn: Turn) -> None:
    """The time to join is over, or the initial delay is; that one is extended while members still come."""
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


def complete_join(group: Group, turn: Turn) -> None:
    """Fixes the next generation with those who joined; dynamic members who did not are out."""
    turn.cancel_timer(JOIN_TIMER, group)
    group.initial_remaining_ms = None
    for member in [one for one in group.members.values() if one.joining is None and one.instance_id is None]:
        drop_member(group, member, turn)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none has come: their sessions decide.
        turn.set_timer(JOIN_TIMER, group, group.rebalance_timeout_ms)
        return
    group.generation += 1
    group.pending_syncs.clear()
    if not group.members:
        group.protocol_name = None
        group.leader = None
        group.read_subscriptions()
        turn.move(group, GroupState.EMPTY, "no members are left")
        store_group(group, {}, EmptyGroupStored(group.group_id), turn)
        return
    group.protocol_name = group.select_protocol()
    group.read_subscriptions()
    turn.move(group, GroupState.COMPLETING_REBALANCE, "members have joined")
    for member in group.members.values():
        waiter = group.set_joining(member, None)
        if waiter is not None:
            turn.reply(waiter, joined(group, member))
        member.is_new = False
        touch(group, member, turn)
        group.pending_syncs.add(member.member_id)
    turn.set_timer(SYNC_TIMER, group, group.rebalance_timeout_ms)


def store_group(group: Group, assignment: dict[str, bytes], then: Continuation, turn: Turn) -> None:
    """Writes the group with ``assignment``, and goes on with ``then``."""
    group.persisted = True
    turn.append((group.record(assignment),), then, replay=False)


def joined(group: Group, member: Member) -> JoinResult:
    """The answer to a member of the current generation; the leader is told of everybody."""
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


def _elect_joined_leader(group: Group) -> bool:
    """Keeps the leader when it has joined, else takes the first member that has; False without one."""
    leader = group.members.get(group.leader) if group.leader is not None else None
    if leader is not None and leader.joining is not None:
        return True
    for member in group.members.values():
        if member.joining is not None:
            group.leader = member.member_id
            return True
    return False


def sync_timer_fired(group: Group, turn: Turn) -> None:
    """Members that never asked for their assignment are out, and a rebalance begins."""
    if group.state not in SERVING_STATES or not group.pending_syncs:
        return
    missing = sorted(group.pending_syncs)
    for member_id in missing:
        drop_member(group, group.members[member_id], turn)
    prepare_rebalance(group, turn, f"members {', '.join(missing)} did not ask for their assignment")


def member_timer_fired(group: Group, member_id: str, turn: Turn) -> None:
    """A session ended, unless the member was heard of since, or waits for us."""
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
    elif not member.excused:
        drop_member(group, member, turn)
        rebalance_or_complete_join(group, turn, f"member {member_id} was not heard of in its session timeout")


def drop_member(group: Group, member: Member, turn: Turn) -> None:
    """Takes the member out; whatever it waits for says that it is unknown now."""
    turn.cancel_timer(MEMBER_TIMER, group, member.member_id)
    joining, syncing = member.joining, member.syncing
    group.remove(member.member_id)
    member.joining = member.syncing = None
    if joining is not None:
        turn.reply(joining, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, ""))
    if syncing is not None:
        turn.reply(syncing, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))


def sync_received(group: Group, member_id: str, turn: Turn) -> None:
    """One member less to wait for."""
    if member_id in group.pending_syncs:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            turn.cancel_timer(SYNC_TIMER, group)


def fail_syncs(group: Group, turn: Turn, error: ErrorCode) -> None:
    """Answers everybody who waits for an assignment with an error; there is none."""
    for member in group.members.values():
        member.assignment = b""
        answer_sync(group, member, turn, SyncResult(error))


def hand_out(group: Group, assignment: dict[str, bytes], turn: Turn) -> None:
    """Gives every member its assignment."""
    for member in group.members.values():
        member.assignment = assignment.get(member.member_id, b"")
        answer_sync(group, member, turn, assigned(group, member))


def assigned(group: Group, member: Member) -> SyncResult:
    """The answer to a member that asks for its assignment."""
    return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)


def answer_sync(group: Group, member: Member, turn: Turn, response: SyncResult) -> None:
    """Answers a member that waits; its session begins anew, since it could send no heartbeat meanwhile."""
    waiter = member.syncing
    if waiter is not None:
        member.syncing = None
        turn.reply(waiter, response)
        touch(group, member, turn)
