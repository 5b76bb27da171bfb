"""What goes into the coordinator and what comes out of it, as plain values.

The core never waits. A request that cannot be answered at once leaves its *waiter* behind, an object that the
core only hands back: exactly one :class:`Reply` names it later. Effects are performed in the order in which
they come out.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType, TypeAlias

from tidemill.groups.offsets import OffsetsRecord
from tidemill.groups.values import Value
from tidemill.model.errors import ErrorCode

Waiter = NewType("Waiter", object)
"""Whoever waits for a reply."""

NO_GENERATION = -1
NO_MEMBER = ""


class Now(NamedTuple):
    """The time of an event. Deadlines are steady; what is written down is wall time."""

    steady_ms: int
    wall_ms: int


class Protocol(NamedTuple):
    """An assignment strategy that a member supports, with the subscription it sends for it."""

    name: str
    metadata: bytes


class JoinRequest(Value):
    """A member asks to be in the group's next generation."""

    group_id: str
    member_id: str
    new_member_id: str
    """The id that a member without one is given."""
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    must_know_its_id: bool = False
    """JoinGroup v4 and later: a dynamic member is told its id first, and joins with it (KIP-394)."""
    may_skip_assignment: bool = False
    """JoinGroup v9 and later: a leader may be told to leave the assignment as it is (KIP-814)."""


class JoinedMember(Value):
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(Value):
    """The answer to a join."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(Value):
    """A member asks for its assignment; the leader brings everybody's."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncResult(Value):
    """The answer to a sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(Value):
    """Who is to leave: by member id, or an administrator's removal by instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveResult(Value):
    """The answer to a leave: an error for all, else one for each member asked for."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class OffsetToCommit(Value):
    """One partition of a commit, as the client sent it. ``commit_timestamp_ms`` -1: now."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: bytes = b"\x00" * 16
    commit_timestamp_ms: int = -1


class CommitRequest(Value):
    """Offsets to commit. Without generation and member it is a simple consumer's or an administrator's."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    retention_ms: int = -1
    tells_missing_group: bool = False
    """OffsetCommit v9 and later: an unknown group is GROUP_ID_NOT_FOUND, before it was ILLEGAL_GENERATION."""


class CommitResult(Value):
    """One error for each offset of the request, in its order."""

    errors: tuple[ErrorCode, ...]


class DeleteOffsetsResult(Value):
    """An error for all, else one for each (topic, partition) of the request, in its order."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


class DeleteGroupsResult(Value):
    """One error for each group of the request, in its order."""

    errors: tuple[ErrorCode, ...]


Response: TypeAlias = (
    JoinResult | SyncResult | LeaveResult | CommitResult | DeleteOffsetsResult | DeleteGroupsResult
)


class TimerKey(NamedTuple):
    """What a timer is for: its kind and group, and for ``MEMBER_TIMER`` the member."""

    kind: str
    group_id: str
    member_id: str = ""


JOIN_TIMER: Final = "join"
"""Ends the wait for members to rejoin."""
SYNC_TIMER: Final = "sync"
"""Ends the wait for members to ask for their assignment."""
MEMBER_TIMER: Final = "member"
"""Ends a member that was not heard of."""


class AssignmentStored(Value):
    """The leader's assignment of a generation was written, or was not."""

    group_id: str
    generation: int
    assignment: dict[str, bytes]


class StaticMemberStored(Value):
    """A static member's new id was written, or was not; then the old one comes back."""

    group_id: str
    generation: int
    instance_id: str
    old_member_id: str
    new_member_id: str
    old_leader: str
    old_protocols: tuple[Protocol, ...]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int
    may_skip_assignment: bool


class EmptyGroupStored(Value):
    """A group without members was written, or was not; nobody waits for it."""

    group_id: str


class OffsetsStored(Value):
    """Committed offsets were written, or were not."""

    waiter: Waiter
    group_id: str
    partitions: tuple[tuple[str, int, bytes], ...]
    """Topic, partition and topic id of each offset."""
    errors: tuple[ErrorCode, ...]


class OffsetsRemoved(Value):
    """Tombstones of offsets were written, or were not."""

    waiter: Waiter
    errors: tuple[ErrorCode, ...]


class GroupsRemoved(Value):
    """Tombstones of groups were written, or were not. Without a waiter it was the broker's own cleaning."""

    waiter: Waiter | None
    group_ids: tuple[str, ...]
    errors: tuple[ErrorCode, ...]


Continuation: TypeAlias = (
    AssignmentStored | StaticMemberStored | EmptyGroupStored | OffsetsStored | OffsetsRemoved | GroupsRemoved
)


class Reply(Value):
    """The waiter's one answer."""

    waiter: Waiter
    response: Response


class SetTimer(Value):
    """Calls back with ``key`` at ``deadline_ms`` (steady); replaces a timer of the same key."""

    key: TimerKey
    deadline_ms: int


class CancelTimer(Value):
    """The timer of ``key``, if there is one, is not to fire."""

    key: TimerKey


class Append(Value):
    """Records for the log, in one piece where they fit.

    Once they are committed they are replayed, if ``replay`` says so (a group's members are in memory
    already), and then the core is told ``then``; when they are not written, it is told the error with it.
    """

    records: tuple[OffsetsRecord, ...]
    then: Continuation
    replay: bool


class Moved(Value):
    """A group went to another state: for the log and the metrics."""

    group_id: str
    before: str
    after: str
    generation: int
    members: int
    reason: str


Effect: TypeAlias = Reply | SetTimer | CancelTimer | Append | Moved


class DescribedMember(Value):
    """A member as an administrator sees it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(Value):
    """A group as an administrator sees it."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]
    known: bool = True
    """False: there is no such group; it is shown as dead."""


class ListedGroup(Value):
    """A line of the list of groups."""

    group_id: str
    protocol_type: str
    state: str
