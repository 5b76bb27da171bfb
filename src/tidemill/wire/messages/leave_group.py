"""LeaveGroup (key 13)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class MemberIdentity(Struct):
    """Member Identity."""

    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    reason: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Struct, versions="0-5", flexible="4+"):
    """Leave Group Request."""

    group_id: str = field(STRING)
    member_id: str = field(STRING, "0-2")
    members: list[MemberIdentity] = field([MemberIdentity], "3+")


class MemberResponse(Struct):
    """Member Response."""

    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+")
    error_code: int = field(INT16, "3+")


class LeaveGroupResponse(Struct, versions="0-5", flexible="4+"):
    """Leave Group Response."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    members: list[MemberResponse] = field([MemberResponse], "3+")
