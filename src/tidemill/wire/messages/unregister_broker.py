"""UnregisterBroker (key 64): remove a dead broker from the cluster."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class UnregisterBrokerRequest(Struct, versions="0", flexible="0+"):
    """The broker of the request."""

    broker_id: int = field(INT32)


class UnregisterBrokerResponse(Struct, versions="0", flexible="0+"):
    """The result of the removal."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
