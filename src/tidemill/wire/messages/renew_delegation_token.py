"""RenewDelegationToken (key 39): extend a token's lifetime."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT64, Struct, field


class RenewDelegationTokenRequest(Struct, versions="0-2", flexible="2+"):
    """Identifies a token by its secret."""

    hmac: bytes = field(BYTES, secret=True)
    renew_period_ms: int = field(INT64)


class RenewDelegationTokenResponse(Struct, versions="0-2", flexible="2+"):
    """The new expiry time of the token."""

    error_code: int = field(INT16)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32)
