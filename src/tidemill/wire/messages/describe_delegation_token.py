"""DescribeDelegationToken (key 41)."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT64, STRING, Struct, field


class DescribeDelegationTokenOwner(Struct):
    """Describe Delegation Token Owner."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)


class DescribeDelegationTokenRequest(Struct, versions="0-3", flexible="2+"):
    """Describe Delegation Token Request."""

    owners: list[DescribeDelegationTokenOwner] | None = field([DescribeDelegationTokenOwner], nullable="0+")


class DescribedDelegationTokenRenewer(Struct):
    """Described Delegation Token Renewer."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)


class DescribedDelegationToken(Struct):
    """Described Delegation Token."""

    principal_type: str = field(STRING)
    principal_name: str = field(STRING)
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp: int = field(INT64)
    expiry_timestamp: int = field(INT64)
    max_timestamp: int = field(INT64)
    token_id: str = field(STRING)
    hmac: bytes = field(BYTES)
    renewers: list[DescribedDelegationTokenRenewer] = field([DescribedDelegationTokenRenewer])


class DescribeDelegationTokenResponse(Struct, versions="0-3", flexible="2+"):
    """Describe Delegation Token Response."""

    error_code: int = field(INT16)
    tokens: list[DescribedDelegationToken] = field([DescribedDelegationToken])
    throttle_time_ms: int = field(INT32)
