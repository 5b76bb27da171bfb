"""SaslHandshake (key 17): agree on a SASL mechanism."""

from __future__ import annotations

from tidemill.wire.schema import INT16, STRING, Struct, field


class SaslHandshakeRequest(Struct, versions="0-1"):
    """The mechanism that the client requests."""

    mechanism: str = field(STRING)


class SaslHandshakeResponse(Struct, versions="0-1"):
    """Accepts the mechanism, or lists the supported mechanisms."""

    error_code: int = field(INT16)
    mechanisms: list[str] = field([STRING])  # those that the listener has
