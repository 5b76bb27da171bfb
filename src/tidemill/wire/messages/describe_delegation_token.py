"""DescribeDelegationToken (key 41): list tokens."""

from __future__ import annotations

from tidemill.wire.messages.create_delegation_token import Principal
from tidemill.wire.schema import BYTES, INT16, INT32, INT64, STRING, Struct, field


class DescribeDelegationTokenRequest(Struct, versions="0-3", flexible="2+"):
    """The owners whose tokens are requested."""

    owners: list[Principal] | None = field([Principal], nullable="0+")


class DescribedDelegationToken(Struct):
    """A token."""

    principal_type: str = field(STRING)  # "User"
    principal_name: str = field(STRING)
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp: int = field(INT64)
    expiry_timestamp: int = field(INT64)
    max_timestamp: int = field(INT64)
    token_id: str = field(STRING)
    hmac: bytes = field(BYTES, secret=True)
    renewers: list[Principal] = field([Principal])


class DescribeDelegationTokenResponse(Struct, versions="0-3", flexible="2+"):
    """The tokens that the client may see."""

    error_code: int = field(INT16)
    tokens: list[DescribedDelegationToken] = field([DescribedDelegationToken])
    throttle_time_ms: int = field(INT32)
