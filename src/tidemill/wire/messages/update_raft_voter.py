"""UpdateRaftVoter (key 82): a voter of the Raft quorum changes its endpoints (KIP-853)."""

from __future__ import annotations

from tidemill.wire.messages.add_raft_voter import Listener
from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class KRaftVersionFeature(Struct):
    """Levels of kraft.version that it can run."""

    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class UpdateRaftVoterRequest(Struct, versions="0", flexible="0+"):
    """The voter and its endpoints."""

    cluster_id: str | None = field(STRING, nullable="0+")
    current_leader_epoch: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID)
    listeners: list[Listener] = field([Listener])
    k_raft_version_feature: KRaftVersionFeature = field(KRaftVersionFeature)


class CurrentLeader(Struct):
    """The leader and its address."""

    leader_id: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32, default=-1)
    host: str = field(STRING)
    port: int = field(INT32)


class UpdateRaftVoterResponse(Struct, versions="0", flexible="0+"):
    """The result, and the current leader."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    current_leader: CurrentLeader = field(CurrentLeader, tag=0)
