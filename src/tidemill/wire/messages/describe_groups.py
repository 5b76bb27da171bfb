"""DescribeGroups (key 15): state and members of groups of the classic protocol."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, BYTES, INT16, INT32, STRING, Struct, field


class DescribeGroupsRequest(Struct, versions="0-6", flexible="5+"):
    """The groups of the request."""

    groups: list[str] = field([STRING])
    include_authorized_operations: bool = field(BOOL, "3+")


class DescribedGroupMember(Struct):
    """A member, with the bytes that its client sent."""

    member_id: str = field(STRING)
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


class DescribedGroup(Struct):
    """A group, or the error."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "6+", nullable="6+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)  # as Kafka spells it: "Stable", "PreparingRebalance" ..
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)  # the assignor chosen
    members: list[DescribedGroupMember] = field([DescribedGroupMember])
    # bit set by operation code; the default means that it was not requested
    authorized_operations: int = field(INT32, "3+", default=-(2**31))


class DescribeGroupsResponse(Struct, versions="0-6", flexible="5+"):
    """The groups."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    groups: list[DescribedGroup] = field([DescribedGroup])
