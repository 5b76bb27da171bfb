"""DescribeUserScramCredentials (key 50): users' SCRAM credentials."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class UserName(Struct):
    """A user."""

    name: str = field(STRING)


class DescribeUserScramCredentialsRequest(Struct, versions="0", flexible="0+"):
    """The users whose credentials are requested."""

    users: list[UserName] | None = field([UserName], nullable="0+")  # null for all


class CredentialInfo(Struct):
    """A credential, without its secrets."""

    mechanism: int = field(INT8)  # 1: SCRAM-SHA-256, 2: SCRAM-SHA-512
    iterations: int = field(INT32)


class DescribeUserScramCredentialsResult(Struct):
    """One user's credentials."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    credential_infos: list[CredentialInfo] = field([CredentialInfo])


class DescribeUserScramCredentialsResponse(Struct, versions="0", flexible="0+"):
    """The credentials of each user."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field([DescribeUserScramCredentialsResult])
