"""ExpireDelegationToken (key 40): expire a token earlier."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT64, Struct, field


class ExpireDelegationTokenRequest(Struct, versions="0-2", flexible="2+"):
    """Identifies a token by its secret."""

    hmac: bytes = field(BYTES, secret=True)
    expiry_time_period_ms: int = field(INT64)


class ExpireDelegationTokenResponse(Struct, versions="0-2", flexible="2+"):
    """The new expiry time of the token."""

    error_code: int = field(INT16)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32)
