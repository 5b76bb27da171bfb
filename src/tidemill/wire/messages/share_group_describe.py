"""ShareGroupDescribe (key 77): share groups and their members (KIP-932)."""

from __future__ import annotations

from tidemill.wire.messages.consumer_group_describe import Assignment
from tidemill.wire.schema import BOOL, INT16, INT32, STRING, Struct, field


class ShareGroupDescribeRequest(Struct, versions="1", flexible="0+"):
    """The groups of the request."""

    group_ids: list[str] = field([STRING])
    include_authorized_operations: bool = field(BOOL)


class Member(Struct):
    """A member."""

    member_id: str = field(STRING)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: list[str] = field([STRING])
    assignment: Assignment = field(Assignment)


class DescribedGroup(Struct):
    """A group, or the error."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: list[Member] = field([Member])
    authorized_operations: int = field(INT32, default=-(2**31))


class ShareGroupDescribeResponse(Struct, versions="1", flexible="0+"):
    """The groups."""

    throttle_time_ms: int = field(INT32)
    groups: list[DescribedGroup] = field([DescribedGroup])
