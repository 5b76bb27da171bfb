"""UnregisterBroker (key 64): forget a broker that will not come back."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class UnregisterBrokerRequest(Struct, versions="0", flexible="0+"):
    """Names the broker."""

    broker_id: int = field(INT32)


class UnregisterBrokerResponse(Struct, versions="0", flexible="0+"):
    """Whether it was forgotten."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
