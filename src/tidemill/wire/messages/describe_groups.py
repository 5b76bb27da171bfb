"""DescribeGroups (key 15)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, BYTES, INT16, INT32, STRING, Struct, field


class DescribeGroupsRequest(Struct, versions="0-6", flexible="5+"):
    """Describe Groups Request."""

    groups: list[str] = field([STRING])
    include_authorized_operations: bool = field(BOOL, "3+")


class DescribedGroupMember(Struct):
    """Described Group Member."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


class DescribedGroup(Struct):
    """Described Group."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "6+", nullable="6+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: list[DescribedGroupMember] = field([DescribedGroupMember])
    authorized_operations: int = field(INT32, "3+", default=-(2**31))


class DescribeGroupsResponse(Struct, versions="0-6", flexible="5+"):
    """Describe Groups Response."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    groups: list[DescribedGroup] = field([DescribedGroup])
