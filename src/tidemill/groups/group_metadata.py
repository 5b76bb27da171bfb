"""A consumer group: its state, its members and its committed offsets.

======================  ==================================================================================
state                   meaning, and the possible next states
======================  ==================================================================================
Empty                   no members, perhaps offsets; a join leads to PreparingRebalance
PreparingRebalance      members have time to join; all joined or timeout: CompletingRebalance, or Empty
                        when no members are left
CompletingRebalance     the generation is fixed, the leader computes the assignment: Stable, or
                        PreparingRebalance when a member joins, leaves or fails
Stable                  every member has an assignment; a join, leave or failure: PreparingRebalance
Dead                    removed, or moved to another coordinator: the final state
======================  ==================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Final, TypeVar

from tidemill.coordinator_runtime.coordinator_effects import Waiter
from tidemill.groups.coordinator_effects import GroupState, JoinedMember, MemberProtocol
from tidemill.groups.offset_records import CommittedOffset, GroupMetadataValue, GroupRecord, MemberMetadata
from tidemill.model.errors import ProtocolError, TidemillError
from tidemill.model.transition_table import NONE, TransitionTable

Key = TypeVar("Key")

CONSUMER_PROTOCOL: Final = "consumer"
SUBSCRIBED_TOPICS_MAX: Final = 100_000
"""The topics of a group that are held in memory. A group with more counts as a consumer of all topics."""


STATES: Final = tuple(GroupState)
EMPTY, PREPARING_REBALANCE, COMPLETING_REBALANCE, STABLE, DEAD = range(len(STATES))

REBALANCE: Final = 0
"""The members have to rejoin."""
ALL_JOINED: Final = 1
"""The next generation is complete, or its time to join has ended."""
ALL_LEFT: Final = 2
"""The time to join has ended without members."""
ASSIGN: Final = 3
"""The leader's assignment is in the log."""
UNLOAD: Final = 4
"""Another broker coordinates the group."""

TRANSITIONS: Final = TransitionTable(
    "group",
    [state.value for state in STATES],
    ["REBALANCE", "ALL_JOINED", "ALL_LEFT", "ASSIGN", "UNLOAD"],
    [
        [PREPARING_REBALANCE, NONE, NONE, NONE, DEAD],  # EMPTY
        [NONE, COMPLETING_REBALANCE, EMPTY, NONE, DEAD],  # PREPARING_REBALANCE
        [PREPARING_REBALANCE, NONE, NONE, STABLE, DEAD],  # COMPLETING_REBALANCE
        [PREPARING_REBALANCE, NONE, NONE, NONE, DEAD],  # STABLE
        [NONE, NONE, NONE, NONE, NONE],  # DEAD
    ],
)
"""Loading a record sets the state without a transition."""


class GroupInvariantError(TidemillError):
    """The coordinator violated one of its own invariants."""


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
        protocols: tuple[MemberProtocol, ...],
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
        """When the timer that is set for this member fires; None without a timer."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """The metadata that the member sent for the protocol; empty where it sent none."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    @property
    def awaits_response(self) -> bool:
        """Whether the member waits for a response and cannot send heartbeats; False for new members."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)


class GroupMetadata:
    """One group: its members (in memory, written at each assignment) and its committed offsets."""

    __slots__ = (
        "awaiting_join",
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
        "protocol_counts",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "storing_generation",
        "subscribed_topics",
        "unread_subscriptions",
        "unstable",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = wall_ms
        """When the state last changed, wall time; -1 where the record, of an old version, has no time."""
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
        self.awaiting_join = 0
        """The number of members that wait for the response to a join."""
        self.protocol_counts: Counter[str] = Counter()
        self.subscribed_topics: frozenset[str] | None = None
        """None while the members' subscriptions are unread, or where they cannot be read."""
        self.unread_subscriptions: list[bytes] | None = None
        """The subscriptions of the generation, until :meth:`read_subscriptions_in_slices` decodes them."""
        self.new_member_added = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms: int | None = None
        """The time by which a first rebalance may still be extended; None in any other rebalance."""
        self.storing_generation: int | None = None
        """The generation whose assignment is being written to the log."""
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.in_flight: Counter[tuple[str, int, bytes]] = Counter()
        """Partitions with commits that are being written to the log, with the ids of their topics."""
        self.unstable: dict[tuple[str, int], tuple[int, ...]] = {}
        """Partitions with offsets in open transactions, with the producer ids of these."""
        self.deleting = False
        """Whether the group's tombstones are being written to the log."""
        self.persisted = False
        """Whether the log has, or may have, a record of the group itself."""

    def transition(self, event: int, wall_ms: int) -> None:
        """Changes the state; raises :class:`GroupInvariantError` when the table has no such transition."""
        try:
            self.state = STATES[TRANSITIONS.after(STATES.index(self.state), event)]
        except RuntimeError as problem:
            raise GroupInvariantError(f"group {self.group_id}: {problem}") from problem
        self.state_timestamp_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start in this state."""
        return TRANSITIONS.rows[STATES.index(self.state)][REBALANCE] != NONE

    @property
    def all_joined(self) -> bool:
        """Whether every member waits for the next generation, and every id that was handed out is in use."""
        return len(self.members) == self.awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def offset_count(self) -> int:
        """The number of committed offsets."""
        return sum(len(of_topic) for of_topic in self.offsets.values())

    @property
    def is_droppable(self) -> bool:
        """Whether the group may be dropped from memory: it has no member, no offset and no record."""
        return (
            self.state is GroupState.EMPTY
            and not self.persisted
            and not (self.members or self.pending_joins or self.deleting)
            and not (self.offsets or self.in_flight or self.unstable)
        )

    def add(self, member: Member) -> None:
        """Adds a member. The caller sets the protocol type when the member is the first."""
        if member.instance_id is not None:
            if member.instance_id in self.static_members:
                raise GroupInvariantError(
                    f"group {self.group_id} already has instance {member.instance_id} as "
                    f"{self.static_members[member.instance_id]}, and cannot add {member.member_id}"
                )
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self.protocol_counts.update(protocol.name for protocol in member.protocols)
        self.pending_joins.discard(member.member_id)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Removes a member, or an id that was handed out; elects another leader where it was the leader."""
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            subtract_counts(self.protocol_counts, (protocol.name for protocol in member.protocols))
            if member.joining is not None:
                self.awaiting_join -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def set_joining(self, member: Member, waiter: Waiter | None) -> Waiter | None:
        """Sets the waiter of the member's join; returns the previous one."""
        before = member.joining
        self.awaiting_join += (waiter is not None) - (before is not None)
        member.joining = waiter
        return before

    def set_protocols(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        """Changes the protocols that a member supports."""
        subtract_counts(self.protocol_counts, (protocol.name for protocol in member.protocols))
        member.protocols = protocols
        self.protocol_counts.update(protocol.name for protocol in protocols)

    def supports(self, protocol_type: str, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Whether a member with these protocols is compatible with the group's other members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.protocol_counts[protocol.name] == count for protocol in protocols
        )

    def select_protocol(self) -> str:
        """The protocol that most members prefer among those that all support; the first vote wins a tie."""
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

    def set_subscriptions(self) -> None:
        """Sets the subscriptions of the generation, which decide the offsets that may expire.

        They are not decoded here: the members choose their number and their size.
        """
        self.subscribed_topics = self.unread_subscriptions = None
        if self.protocol_type == CONSUMER_PROTOCOL and (self.protocol_name is not None or not self.members):
            self.unread_subscriptions = [
                member.metadata(self.protocol_name) for member in self.members.values()
            ]

    def read_subscriptions_in_slices(self) -> Generator[None, None, None]:
        """Decodes the subscriptions, if they are unread. A new generation meanwhile leaves its own unread."""
        unread = self.unread_subscriptions
        if unread is not None:
            topics = yield from _topics_in_slices(unread)
            if self.unread_subscriptions is unread:
                self.subscribed_topics, self.unread_subscriptions = topics, None

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member consumes the topic; with unknown subscriptions it consumes all topics."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """The members as the leader receives them."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )

    def record(self, assignment: dict[str, bytes]) -> GroupRecord:
        """The group's record, with ``assignment`` by member id."""
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
        """Replaces the group by its record, without a transition; offsets stay."""
        self.persisted = True
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_timestamp_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.members, self.static_members, self.leader = {}, {}, None
        self.protocol_counts, self.awaiting_join = Counter(), 0
        for member in value.members:
            timeout_ms = member.rebalance_timeout if member.rebalance_timeout >= 0 else member.session_timeout
            self.add(
                Member(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout,
                    timeout_ms,
                    (MemberProtocol(name=value.protocol or "", metadata=member.subscription),),
                    member.assignment,
                )
            )
        self.leader = value.leader if value.leader in self.members else self.leader
        self.set_subscriptions()


def subtract_counts(counts: Counter[Key], keys: Iterable[Key]) -> None:
    """Subtracts one for each of ``keys``, and removes those that reach zero; visits no others."""
    for key in keys:
        counts[key] -= 1
        if counts[key] <= 0:
            del counts[key]


def _topics_in_slices(subscriptions: Iterable[bytes]) -> Generator[None, None, frozenset[str] | None]:
    """Returns the topics of all subscriptions; None if one is unreadable, or if the topics are too many."""
    # Imported late: a broker without groups decodes no subscriptions.
    from tidemill.wire.consumer_protocol_codec import subscribed_topics_in_slices

    topics: set[str] = set()
    for data in subscriptions:
        try:
            topics.update((yield from subscribed_topics_in_slices(data)))
        except ProtocolError:
            return None
        if len(topics) > SUBSCRIBED_TOPICS_MAX:
            return None
    return frozenset(topics)
