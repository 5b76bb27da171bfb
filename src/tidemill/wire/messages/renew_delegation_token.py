"""RenewDelegationToken (key 39)."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT64, Struct, field


class RenewDelegationTokenRequest(Struct, versions="0-2", flexible="2+"):
    """Renew Delegation Token Request."""

    hmac: bytes = field(BYTES)
    renew_period_ms: int = field(INT64)


class RenewDelegationTokenResponse(Struct, versions="0-2", flexible="2+"):
    """Renew Delegation Token Response."""

    error_code: int = field(INT16)
    expiry_timestamp_ms: int = field(INT64)
    throttle_time_ms: int = field(INT32)
