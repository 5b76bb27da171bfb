"""CreateDelegationToken (key 38): creates a token for a principal."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT64, STRING, Struct, field


class Principal(Struct):
    """The owner or a renewer of a token."""

    principal_type: str = field(STRING)  # "User"
    principal_name: str = field(STRING)


class CreateDelegationTokenRequest(Struct, versions="0-3", flexible="2+"):
    """Requests a token."""

    owner_principal_type: str | None = field(STRING, "3+", nullable="3+")
    owner_principal_name: str | None = field(STRING, "3+", nullable="3+")
    renewers: list[Principal] = field([Principal])
    max_lifetime_ms: int = field(INT64)


class CreateDelegationTokenResponse(Struct, versions="0-3", flexible="2+"):
    """The token."""

    error_code: int = field(INT16)
    principal_type: str = field(STRING)  # "User"
    principal_name: str = field(STRING)
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp_ms: int = field(INT64)
    expiry_timestamp_ms: int = field(INT64)
    max_timestamp_ms: int = field(INT64)
    token_id: str = field(STRING)
    hmac: bytes = field(BYTES, secret=True)
    throttle_time_ms: int = field(INT32)
