"""A consumer group's state: who is in it, in which phase it is, what it committed.

======================  ==================================================================================
state                   what it means, and what may come next
======================  ==================================================================================
Empty                   no members, perhaps offsets; a join leads to PreparingRebalance
PreparingRebalance      members are given time to join; all there or time over: CompletingRebalance, or
                        Empty when nobody is left
CompletingRebalance     the generation is fixed, the leader works out the assignment: Stable, or
                        PreparingRebalance when somebody joins, leaves or fails
Stable                  everybody has an assignment; a join, leave or failure: PreparingRebalance
Dead                    removed, or moved to another coordinator: nothing comes after
======================  ==================================================================================
"""

from __future__ import annotations

import struct
from collections import Counter
from enum import Enum
from typing import Final

from tidemill.groups.effects import JoinedMember, Protocol, Waiter
from tidemill.groups.offsets import CommittedOffset, GroupMetadataValue, GroupRecord, MemberMetadata
from tidemill.model.errors import TidemillError

CONSUMER_PROTOCOL: Final = "consumer"


class GroupState(Enum):
    """The phases of a group, by the names that clients are told."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Where each state may lead; every other transition raises."""


class GroupInvariantError(TidemillError):
    """The coordinator broke a rule of its own."""


class Member:
    """One member of a group."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "joining",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "syncing",
        "timer_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[Protocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.joining: Waiter | None = None
        self.syncing: Waiter | None = None
        self.is_new = False
        self.deadline_ms = 0
        self.timer_ms: int | None = None
        """When the timer that is set for this member fires; None without one."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member sent for the protocol; empty where it sent none."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    @property
    def excused(self) -> bool:
        """Whether the member cannot send heartbeats now: it waits for us. New members get no such grace."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)


class Group:
    """One group: its members (in memory, written at each assignment) and its committed offsets."""

    __slots__ = (
        "awaiting",
        "deleting",
        "generation",
        "group_id",
        "in_flight",
        "initial_delay_ms",
        "initial_remaining_ms",
        "leader",
        "members",
        "new_member_added",
        "offsets",
        "pending_joins",
        "pending_syncs",
        "persisted",
        "previous_state",
        "protocol_counts",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "storing_generation",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = wall_ms
        """When the state last changed, wall time; -1 where an old record did not say."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.pending_joins: set[str] = set()
        """Ids handed out to members that have yet to join with them."""
        self.pending_syncs: set[str] = set()
        self.awaiting = 0
        """Members whose join waits for an answer."""
        self.protocol_counts: Counter[str] = Counter()
        self.subscribed_topics: frozenset[str] | None = None
        """None where the members' subscriptions cannot be read."""
        self.new_member_added = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms: int | None = None
        """What is left to extend a first rebalance by; None when this is not one."""
        self.storing_generation: int | None = None
        """The generation whose assignment is on its way to the log."""
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.in_flight: Counter[tuple[str, int, bytes]] = Counter()
        """Partitions whose commits are on their way to the log, with the ids of their topics."""
        self.deleting = False
        """Tombstones are on their way to the log."""
        self.persisted = False
        """Whether the log has, or may have, a record of the group itself."""

    def transition(self, to: GroupState, wall_ms: int) -> None:
        """Goes to another state; raises :class:`GroupInvariantError` when the table has no such step."""
        if to not in TRANSITIONS[self.state]:
            raise GroupInvariantError(
                f"group {self.group_id} cannot go from {self.state.value} to {to.value}: no such transition"
            )
        self.previous_state = self.state
        self.state = to
        self.state_timestamp_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start in this state."""
        return GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]

    @property
    def all_joined(self) -> bool:
        """Whether every member, and everybody with an id of ours, waits for the next generation."""
        return len(self.members) == self.awaiting and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is lost when memory forgets the group: no member, offset or record of it."""
        return (
            self.state is GroupState.EMPTY
            and not self.persisted
            and not (self.members or self.pending_joins or self.offsets or self.in_flight or self.deleting)
        )

    def add(self, member: Member) -> None:
        """Takes a member in; the first one gives the group its protocol type by the caller's hand."""
        if member.instance_id is not None:
            if member.instance_id in self.static_members:
                raise GroupInvariantError(
                    f"group {self.group_id} has instance {member.instance_id} already as "
                    f"{self.static_members[member.instance_id]}, and would add {member.member_id}"
                )
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self.protocol_counts.update(protocol.name for protocol in member.protocols)
        self.pending_joins.discard(member.member_id)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Takes a member, or an id that was handed out, off every list; the leader is replaced."""
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self.protocol_counts.subtract(protocol.name for protocol in member.protocols)
            self.protocol_counts = +self.protocol_counts
            if member.joining is not None:
                self.awaiting -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def set_joining(self, member: Member, waiter: Waiter | None) -> Waiter | None:
        """Changes who waits for the member's join; the one who did before."""
        before = member.joining
        self.awaiting += (waiter is not None) - (before is not None)
        member.joining = waiter
        return before

    def set_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        """Changes what a member supports."""
        self.protocol_counts.subtract(protocol.name for protocol in member.protocols)
        member.protocols = protocols
        self.protocol_counts.update(protocol.name for protocol in protocols)
        self.protocol_counts = +self.protocol_counts

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols can be in the group with those who are."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.protocol_counts[protocol.name] == count for protocol in protocols
        )

    def select_protocol(self) -> str:
        """The protocol that most members prefer of those that all support; a tie goes to the earlier vote."""
        count = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            for protocol in member.protocols:
                if self.protocol_counts[protocol.name] == count:
                    votes[protocol.name] += 1
                    break
        if not votes:
            raise GroupInvariantError(f"group {self.group_id} has no protocol that all its members support")
        return votes.most_common(1)[0][0]

    def read_subscriptions(self) -> None:
        """Works out which topics the members consume, for what may expire or be deleted."""
        self.subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is not None:
            topics: set[str] = set()
            for member in self.members.values():
                subscribed = subscription_topics(member.metadata(self.protocol_name))
                if subscribed is None:
                    return
                topics.update(subscribed)
            self.subscribed_topics = frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member consumes the topic; consumers whose subscriptions are unreadable consume all."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """What the leader is told."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def record(self, assignment: dict[str, bytes]) -> GroupRecord:
        """The group as it is written, with ``assignment`` by member id."""
        members = [
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=assignment.get(member.member_id, b""),
            )
            for member in self.members.values()
        ]
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=self.state_timestamp_ms,
            members=members,
        )
        return GroupRecord(self.group_id, value)

    def load(self, value: GroupMetadataValue) -> None:
        """Becomes what its record says; offsets stay."""
        self.persisted = True
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.members, self.static_members, self.leader = {}, {}, None
        self.protocol_counts, self.awaiting = Counter(), 0
        for one in value.members:
            timeout_ms = one.rebalance_timeout if one.rebalance_timeout >= 0 else one.session_timeout
            self.add(
                Member(
                    one.member_id,
                    one.group_instance_id,
                    one.client_id,
                    one.client_host,
                    one.session_timeout,
                    timeout_ms,
                    (Protocol(value.protocol or "", one.subscription),),
                    one.assignment,
                )
            )
        self.leader = value.leader if value.leader in self.members else self.leader
        self.read_subscriptions()


def subscription_topics(data: bytes) -> list[str] | None:
    """The topics of a consumer's subscription: version INT16, then ARRAY of STRING; None when it is none.

    Every version begins like version 0. Source: ``ConsumerProtocolSubscription``.
    """
    try:
        _, count = struct.unpack_from(">hi", data)
        if not 0 <= count <= len(data):
            return None
        topics = []
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", data, position)
            end = position + 2 + length
            if length < 0 or end > len(data):
                return None
            topics.append(data[position + 2 : end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
