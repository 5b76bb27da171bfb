"""RemoveRaftVoter (key 81): a voter leaves the Raft quorum (KIP-853)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class RemoveRaftVoterRequest(Struct, versions="0", flexible="0+"):
    """The voter."""

    cluster_id: str | None = field(STRING, nullable="0+")
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)


class RemoveRaftVoterResponse(Struct, versions="0", flexible="0+"):
    """Whether it was removed."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", ignorable=True)
