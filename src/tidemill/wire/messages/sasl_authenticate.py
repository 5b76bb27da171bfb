"""SaslAuthenticate (key 36): one step of a SASL exchange."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT64, STRING, Struct, field


class SaslAuthenticateRequest(Struct, versions="0-2", flexible="2+"):
    """The client's next message to the mechanism."""

    auth_bytes: bytes = field(BYTES, secret=True)


class SaslAuthenticateResponse(Struct, versions="0-2", flexible="2+"):
    """The mechanism's next message to the client."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    auth_bytes: bytes = field(BYTES, secret=True)
    session_lifetime_ms: int = field(INT64, "1+", ignorable=True)  # 0: no need to authenticate again
