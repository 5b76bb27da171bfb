"""Envelope (key 58)."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, Struct, field


class EnvelopeRequest(Struct, versions="0", flexible="0+"):
    """Envelope Request."""

    request_data: bytes = field(BYTES)
    request_principal: bytes | None = field(BYTES, nullable="0+")
    client_host_address: bytes = field(BYTES)


class EnvelopeResponse(Struct, versions="0", flexible="0+"):
    """Envelope Response."""

    response_data: bytes | None = field(BYTES, nullable="0+", default=None)
    error_code: int = field(INT16)
