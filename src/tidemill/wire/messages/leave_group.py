"""LeaveGroup (key 13): members leave a group."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class MemberIdentity(Struct):
    """A member that leaves."""

    member_id: str = field(STRING, "3+")
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    # for the coordinator's log
    reason: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Struct, versions="0-5", flexible="4+"):
    """One member up to version 2, several from version 3 on."""

    group_id: str = field(STRING)
    member_id: str = field(STRING, "0-2")
    members: list[MemberIdentity] = field([MemberIdentity], "3+")


class MemberResponse(Struct):
    """The result for one member."""

    member_id: str = field(STRING, "3+")
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "3+", nullable="3+")
    error_code: int = field(INT16, "3+")


class LeaveGroupResponse(Struct, versions="0-5", flexible="4+"):
    """The result of each member."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    members: list[MemberResponse] = field([MemberResponse], "3+")
