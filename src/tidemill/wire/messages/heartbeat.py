"""Heartbeat (key 12): a group member keeps its session alive."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class HeartbeatRequest(Struct, versions="0-4", flexible="4+"):
    """A heartbeat, fenced by generation and member."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    # names a static member across restarts
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)


class HeartbeatResponse(Struct, versions="0-4", flexible="4+"):
    """Success, or the reason to rejoin."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
