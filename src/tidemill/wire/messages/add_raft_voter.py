"""AddRaftVoter (key 80): a voter joins the Raft quorum (KIP-853)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UINT16, UUID, Struct, field


class Listener(Struct):
    """The address of an endpoint."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class AddRaftVoterRequest(Struct, versions="0-1", flexible="0+"):
    """The voter and its endpoints."""

    cluster_id: str | None = field(STRING, nullable="0+")
    timeout_ms: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)
    listeners: list[Listener] = field([Listener])
    ack_when_committed: bool = field(BOOL, "1+", default=True)


class AddRaftVoterResponse(Struct, versions="0-1", flexible="0+"):
    """Whether it was added."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", ignorable=True)
