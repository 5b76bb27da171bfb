"""What a member asks of its coordinator, and what an administrator asks in its stead."""

from __future__ import annotations

from typing import Any

from tidemill.client.assignors import Member
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError
from tidemill.client.group_protocol import decode_assignment, decode_subscription
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members are consumers."""


def read_members(answer: Any, group: str, protocol: str) -> list[Member]:
    """The members that JoinGroup tells the leading one of, with their subscriptions."""
    try:
        return [
            decode_subscription(m.metadata, m.member_id, m.group_instance_id, protocol)
            for m in answer.members
        ]
    except ProtocolError as problem:
        raise ClientError(
            f"a member of group {group!r} sent a subscription that cannot be read: {problem}; "
            "are all members consumers?",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ) from problem


def read_assignment(data: bytes, group: str) -> list[TopicPartition]:
    """The partitions that the leading member has given in SyncGroup."""
    try:
        return decode_assignment(data)
    except ProtocolError as problem:
        raise ClientError(
            f"the leading member of group {group!r} sent an assignment that cannot be read: {problem}; "
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
) -> Any:
    """Has a member leave; the answer. A static member is named by its instance id, which goes for good."""
    version = connection.version(ApiKey.LEAVE_GROUP)
    request = LeaveGroupRequest(group_id=group)
    if version >= 3:
        request.members = [MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=reason)]
    else:
        request.member_id = member_id
    return connection.call(ApiKey.LEAVE_GROUP, request, version=version, timeout=timeout)
