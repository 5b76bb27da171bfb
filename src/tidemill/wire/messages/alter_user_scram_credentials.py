"""AlterUserScramCredentials (key 51)."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT16, INT32, INT8, STRING, Struct, field


class ScramCredentialDeletion(Struct):
    """Scram Credential Deletion."""

    name: str = field(STRING)
    mechanism: int = field(INT8)


class ScramCredentialUpsertion(Struct):
    """Scram Credential Upsertion."""

    name: str = field(STRING)
    mechanism: int = field(INT8)
    iterations: int = field(INT32)
    salt: bytes = field(BYTES, secret=True)
    salted_password: bytes = field(BYTES, secret=True)


class AlterUserScramCredentialsRequest(Struct, versions="0", flexible="0+"):
    """Alter User Scram Credentials Request."""

    deletions: list[ScramCredentialDeletion] = field([ScramCredentialDeletion])
    upsertions: list[ScramCredentialUpsertion] = field([ScramCredentialUpsertion])


class AlterUserScramCredentialsResult(Struct):
    """Alter User Scram Credentials Result."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class AlterUserScramCredentialsResponse(Struct, versions="0", flexible="0+"):
    """Alter User Scram Credentials Response."""

    throttle_time_ms: int = field(INT32)
    results: list[AlterUserScramCredentialsResult] = field([AlterUserScramCredentialsResult])
