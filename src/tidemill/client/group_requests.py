"""Requests of a group's member to its coordinator, also as sent by an administrator for the member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.client.assignors import Member
from tidemill.client.connection import Connection
from tidemill.client.consumer_protocol import decode_assignment, decode_subscription
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from tidemill.wire.messages.join_group import JoinGroupResponse

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members are consumers."""


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
