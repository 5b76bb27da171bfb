"""JoinGroup (key 11)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, BYTES, INT16, INT32, STRING, Struct, field


class JoinGroupRequestProtocol(Struct):
    """Join Group Request Protocol."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


class JoinGroupRequest(Struct, versions="0-9", flexible="6+"):
    """Join Group Request."""

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)
    protocols: list[JoinGroupRequestProtocol] = field([JoinGroupRequestProtocol])
    reason: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    """Join Group Response Member."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = field(BYTES)


class JoinGroupResponse(Struct, versions="0-9", flexible="6+"):
    """Join Group Response."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, "9+")
    member_id: str = field(STRING)
    members: list[JoinGroupResponseMember] = field([JoinGroupResponseMember])
