"""SyncGroup (key 14): the leader sends the assignment, every member gets its own."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, STRING, Struct, field


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member, from the group leader."""

    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


class SyncGroupRequest(Struct, versions="0-5", flexible="4+"):
    """Requests the member's assignment; the leader's contains all assignments."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = field([SyncGroupRequestAssignment])


class SyncGroupResponse(Struct, versions="0-5", flexible="4+"):
    """The member's assignment."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = field(BYTES)
