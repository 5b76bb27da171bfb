"""ShareGroupHeartbeat (key 76): a member of a share group keeps its session alive (KIP-932)."""

from __future__ import annotations

from tidemill.wire.messages.consumer_group_heartbeat import Assignment
from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class ShareGroupHeartbeatRequest(Struct, versions="1", flexible="0+"):
    """A member and its subscription."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = field([STRING], nullable="0+", default=None)


class ShareGroupHeartbeatResponse(Struct, versions="1", flexible="0+"):
    """The member's epoch and assignment."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
