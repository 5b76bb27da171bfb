"""DescribeUserScramCredentials (key 50)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT8, STRING, Struct, field


class UserName(Struct):
    """User Name."""

    name: str = field(STRING)


class DescribeUserScramCredentialsRequest(Struct, versions="0", flexible="0+"):
    """Describe User Scram Credentials Request."""

    users: list[UserName] | None = field([UserName], nullable="0+")


class CredentialInfo(Struct):
    """Credential Info."""

    mechanism: int = field(INT8)
    iterations: int = field(INT32)


class DescribeUserScramCredentialsResult(Struct):
    """Describe User Scram Credentials Result."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    credential_infos: list[CredentialInfo] = field([CredentialInfo])


class DescribeUserScramCredentialsResponse(Struct, versions="0", flexible="0+"):
    """Describe User Scram Credentials Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field([DescribeUserScramCredentialsResult])
