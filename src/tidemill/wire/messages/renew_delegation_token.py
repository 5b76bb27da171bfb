"""RenewDelegationToken (key 39): let a token live longer."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT64, Struct, field


class RenewDelegationTokenRequest(Struct, versions="0-2", flexible="2+"):
    """Names a token by its secret."""

    hmac: bytes = field(BYTES, secret=True)
    renew_period_ms: int = field(INT64)


class RenewDelegationTokenResponse(Struct, versions="0-2", flexible="2+"):
    """When the token ends now."""

    error_code: int = field(INT16)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32)
