"""AlterUserScramCredentials (key 51): set and remove SCRAM credentials."""

from __future__ import annotations

from tidemill.wire.schema import BYTES, INT8, INT16, INT32, STRING, Struct, field


class ScramCredentialDeletion(Struct):
    """A credential to remove."""

    name: str = field(STRING)
    mechanism: int = field(INT8)  # 1: SCRAM-SHA-256, 2: SCRAM-SHA-512


class ScramCredentialUpsertion(Struct):
    """A credential to set; its password came salted from the client."""

    name: str = field(STRING)
    mechanism: int = field(INT8)  # 1: SCRAM-SHA-256, 2: SCRAM-SHA-512
    iterations: int = field(INT32)
    salt: bytes = field(BYTES, secret=True)
    salted_password: bytes = field(BYTES, secret=True)


class AlterUserScramCredentialsRequest(Struct, versions="0", flexible="0+"):
    """The credentials to change."""

    deletions: list[ScramCredentialDeletion] = field([ScramCredentialDeletion])
    upsertions: list[ScramCredentialUpsertion] = field([ScramCredentialUpsertion])


class AlterUserScramCredentialsResult(Struct):
    """Whether one user was changed."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class AlterUserScramCredentialsResponse(Struct, versions="0", flexible="0+"):
    """The result of each user."""

    throttle_time_ms: int = field(INT32)
    results: list[AlterUserScramCredentialsResult] = field([AlterUserScramCredentialsResult])
