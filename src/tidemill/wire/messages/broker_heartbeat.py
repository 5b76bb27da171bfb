"""BrokerHeartbeat (key 63): a broker keeps its registration with the controller of a KRaft cluster alive."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, UUID, Struct, field


class BrokerHeartbeatRequest(Struct, versions="0-2", flexible="0+"):
    """A broker's state, and its requested changes."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    current_metadata_offset: int = field(INT64)
    want_fence: bool = field(BOOL)
    want_shut_down: bool = field(BOOL)
    offline_log_dirs: list[bytes] = field([UUID], "1+", tag=0)
    cordoned_log_dirs: list[bytes] | None = field([UUID], "2+", nullable="2+", default=None, tag=1)


class BrokerHeartbeatResponse(Struct, versions="0-2", flexible="0+"):
    """The controller's instructions to the broker."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    is_caught_up: bool = field(BOOL)
    is_fenced: bool = field(BOOL, default=True)
    should_shut_down: bool = field(BOOL)
