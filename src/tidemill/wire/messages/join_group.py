"""JoinGroup (key 11): join a group, or its next generation."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, BYTES, INT16, INT32, STRING, Struct, field


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member supports, with its subscription."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)  # a subscription, for consumers


class JoinGroupRequest(Struct, versions="0-9", flexible="6+"):
    """A member's request to join the next generation."""

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)  # without a heartbeat for so long the member is out
    # how long others wait for it to join again
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING)  # empty at first; the coordinator assigns one
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)  # "consumer" for consumers
    protocols: list[JoinGroupRequestProtocol] = field([JoinGroupRequestProtocol])  # in order of preference
    # for the coordinator's log
    reason: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    """A member, listed for the leader only."""

    member_id: str = field(STRING)
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = field(BYTES)


class JoinGroupResponse(Struct, versions="0-9", flexible="6+"):
    """The member's new generation."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)  # its member id
    skip_assignment: bool = field(BOOL, "9+")  # the leader keeps the assignment
    member_id: str = field(STRING)
    members: list[JoinGroupResponseMember] = field([JoinGroupResponseMember])  # for the leader only
