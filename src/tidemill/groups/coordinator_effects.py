"""The events and effects of the groups' state machine
(:class:`~tidemill.groups.group_metadata_manager.GroupMetadataManager`), as plain values.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from tidemill.coordinator_runtime.coordinator_effects import (
    Append,
    CancelTimer,
    Reply,
    SetTimer,
    TransactionProducer,
    Waiter,
)
from tidemill.coordinator_runtime.value_classes import Value
from tidemill.groups.offset_records import OffsetsRecord
from tidemill.model.errors import ErrorCode
from tidemill.model.types import NO_LEADER_EPOCH, ZERO_ID

NO_GENERATION = -1
NO_MEMBER = ""


class MemberProtocol(Value):
    """A protocol that a member supports, with its metadata: an assignor and the subscription."""

    name: str
    metadata: bytes


class JoinRequest(Value):
    """A member's request to join the group's next generation."""

    group_id: str
    member_id: str
    new_member_id: str
    """The id for a member that has none."""
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    requires_known_member_id: bool = False
    """JoinGroup v4 and later: a dynamic member first receives its id, and then joins with it (KIP-394)."""
    supports_skipping_assignment: bool = False
    """JoinGroup v9 and later: the response may instruct the leader to keep the assignment (KIP-814)."""


class JoinedMember(Value):
    """A member as the leader receives it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(Value):
    """The response to a join."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(Value):
    """A member's request for its assignment; the leader's contains the assignments of all members."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncResult(Value):
    """The response to a sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(Value):
    """A member to remove: by member id, or, for an administrator, by instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveResult(Value):
    """The response to a leave: an error for the request, else one per member."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class OffsetToCommit(Value):
    """One partition of a commit, as the client sent it. ``commit_timestamp_ms`` -1 means now."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = ""
    topic_id: bytes = ZERO_ID
    commit_timestamp_ms: int = -1


class CommitRequest(Value):
    """Offsets to commit. Simple consumers and administrators send no generation and no member."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    retention_ms: int = -1
    producer: TransactionProducer | None = None
    """The producer of the transaction that commits the offsets."""
    reports_missing_group: bool = False
    """OffsetCommit v9 and later: an unknown group is GROUP_ID_NOT_FOUND, and ILLEGAL_GENERATION before."""


class MarkerResult(Value):
    """The response to a marker of a transaction."""

    error: ErrorCode


class CommitResult(Value):
    """One error per offset of the request, in its order."""

    errors: tuple[ErrorCode, ...]


class DeleteOffsetsResult(Value):
    """An error for the request, else one per (topic, partition), in its order."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


class DeleteGroupsResult(Value):
    """One error per group of the request, in its order."""

    errors: tuple[ErrorCode, ...]


Response: TypeAlias = (
    MarkerResult
    | JoinResult
    | SyncResult
    | LeaveResult
    | CommitResult
    | DeleteOffsetsResult
    | DeleteGroupsResult
)


class CoordinatorTimer(Enum):
    """The timers of the group coordinator that belong to no group."""

    EXPIRE_OFFSETS = "expire offsets"
    REPORT_MOVES = "report moves"
    """Ends the delay of responses to OffsetFetch requests for groups that moved."""


class TimerKind(Enum):
    """The timers of a group."""

    JOIN = "join"
    """Ends the wait for members to rejoin."""
    SYNC = "sync"
    """Ends the wait for the members' SyncGroup requests."""
    MEMBER = "member"
    """Removes a member that sent no heartbeat."""
    PENDING_JOIN = "pending join"
    """Removes a member id with which no client has joined."""


class TimerKey(NamedTuple):
    """Identifies a timer of a group: its kind, and for ``MEMBER`` and ``PENDING_JOIN`` the member."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


class AssignmentStored(Value):
    """The write of the leader's assignment of a generation has ended."""

    group_id: str
    generation: int
    assignment: dict[str, bytes]


class StaticMemberStored(Value):
    """The write of a static member's new id has ended; if it failed, the old id is restored."""

    group_id: str
    generation: int
    old_member_id: str
    new_member_id: str
    old_leader: str
    old_protocols: tuple[MemberProtocol, ...]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int
    supports_skipping_assignment: bool


class EmptyGroupStored(Value):
    """The write of a group without members has ended; no client waits for it."""

    group_id: str


class OffsetsStored(Value):
    """The write of committed offsets has ended."""

    waiter: Waiter
    group_id: str
    partitions: tuple[tuple[str, int, bytes], ...]
    """Topic, partition and topic id of each offset."""
    errors: tuple[ErrorCode, ...]


class MarkerStored(Value):
    """The write of the marker of a transaction has ended."""

    waiter: Waiter
    producer_id: int
    is_commit: bool


class OffsetsRemoved(Value):
    """The write of tombstones of offsets has ended."""

    waiter: Waiter
    errors: tuple[ErrorCode, ...]


class GroupsRemoved(Value):
    """The write of tombstones of groups has ended. The broker's own cleanup has no waiter."""

    waiter: Waiter | None
    group_ids: tuple[str, ...]
    errors: tuple[ErrorCode, ...]


Continuation: TypeAlias = (
    MarkerStored
    | AssignmentStored
    | StaticMemberStored
    | EmptyGroupStored
    | OffsetsStored
    | OffsetsRemoved
    | GroupsRemoved
)


class GroupState(Enum):
    """The states of a group, by their names in the protocol."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class StateChanged(Value):
    """A group changed its state; for the log and the metrics."""

    group_id: str
    before: GroupState
    after: GroupState
    generation: int
    members: int
    reason: str


Effect: TypeAlias = (
    Reply[Response]
    | SetTimer[TimerKey]
    | CancelTimer[TimerKey]
    | Append[OffsetsRecord, Continuation]
    | StateChanged
)


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
    """False if the group does not exist; it is then shown as Dead."""


class ListedGroup(Value):
    """An entry of the list of groups."""

    group_id: str
    protocol_type: str
    state: str
