"""Envelope (key 58): a request that a broker forwards for its client."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, Struct, field


class EnvelopeRequest(Struct, versions="0", flexible="0+"):
    """A whole request, and the principal of its client."""

    request_data: bytes = field(BYTES)
    # in the encoding of Kafka's DefaultPrincipalData
    request_principal: bytes | None = field(BYTES, nullable="0+")
    client_host_address: bytes = field(BYTES)


class EnvelopeResponse(Struct, versions="0", flexible="0+"):
    """The whole response to the request."""

    response_data: bytes | None = field(BYTES, nullable="0+", default=None)
    error_code: int = field(INT16)
