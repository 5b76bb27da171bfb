"""Heartbeat (key 12)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class HeartbeatRequest(Struct, versions="0-4", flexible="4+"):
    """Heartbeat Request."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)


class HeartbeatResponse(Struct, versions="0-4", flexible="4+"):
    """Heartbeat Response."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
