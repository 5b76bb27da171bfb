"""SaslHandshake (key 17)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, STRING, Struct, field


class SaslHandshakeRequest(Struct, versions="0-1"):
    """Sasl Handshake Request."""

    mechanism: str = field(STRING)


class SaslHandshakeResponse(Struct, versions="0-1"):
    """Sasl Handshake Response."""

    error_code: int = field(INT16)
    mechanisms: list[str] = field([STRING])
