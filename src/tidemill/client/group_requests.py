"""Requests to the coordinator of a group: by a member, or by an administrator for the member."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidemill.client.assignors import Member
from tidemill.client.connection import Connection
from tidemill.client.consumer_protocol import decode_assignment, decode_subscription
from tidemill.client.errors import ClientClosed, ClientError
from tidemill.client.network_client import COORDINATED, GROUP, NetworkClient
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from tidemill.wire.messages.join_group import JoinGroupResponse

ResultT = TypeVar("ResultT")

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members are consumers."""

COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors after which the coordinator is looked up again."""

MEMBERSHIP_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""The group rebalanced without this member: it joins as a new member, and its partitions are lost."""


def call_coordinator(
    network_client: NetworkClient,
    group: str,
    deadline: float,
    send: Callable[[Connection], ResultT],
    kind: str = GROUP,
) -> ResultT:
    """Calls ``send`` with a connection to the coordinator; retries while the coordinator moves.

    ``kind``: whether ``group`` is a group, or a transactional id.
    """
    while True:
        try:
            node_id = network_client.find_coordinator(group, deadline, kind)
            found = send(network_client.connection(node_id, kind, deadline))
        except ClientError as problem:
            if isinstance(problem, ClientClosed) or problem.code not in COORDINATOR_MOVED:
                raise
            network_client.coordinator_warnings.failed(group, problem, COORDINATED[kind])
            network_client.back_off(problem, deadline)
            network_client.request_refresh()
        else:
            network_client.coordinator_warnings.ended(group, COORDINATED[kind])
            return found


def read_members(response: JoinGroupResponse, group: str, protocol: str) -> list[Member]:
    """Returns the members in the group leader's response to JoinGroup, with their subscriptions."""
    try:
        return [
            decode_subscription(m.metadata, m.member_id, m.group_instance_id, protocol)
            for m in response.members
        ]
    except ProtocolError as problem:
        raise ClientError(
            f"a member of group {group!r} sent a subscription that cannot be read: {problem}; "
            "are all members consumers?",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ) from problem


def read_assignment(data: bytes, group: str) -> list[TopicPartition]:
    """Returns the partitions that the group leader assigned in SyncGroup."""
    try:
        return decode_assignment(data)
    except ProtocolError as problem:
        raise ClientError(
            f"the leader of group {group!r} sent an assignment that cannot be read: {problem}; "
            "are all members consumers?",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ) from problem


def leave_group(
    connection: Connection,
    group: str,
    member_id: str,
    instance_id: str | None,
    reason: str,
    timeout: float | None = None,
) -> LeaveGroupResponse:
    """Removes a member; returns the response. A static member, named by instance id, is removed for good."""
    version = connection.version(ApiKey.LEAVE_GROUP)
    request = LeaveGroupRequest(group_id=group)
    if version >= 3:
        request.members = [MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=reason)]
    else:
        request.member_id = member_id
    return connection.call(ApiKey.LEAVE_GROUP, request, LeaveGroupResponse, version=version, timeout=timeout)
