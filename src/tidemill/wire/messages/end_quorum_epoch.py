"""EndQuorumEpoch (key 54): a leader of the Raft quorum resigns."""

from __future__ import annotations

from tidemill.wire.messages.begin_quorum_epoch import LeaderEndpoint, QuorumEpochResponseTopic
from tidemill.wire.messages.vote import NodeEndpoint
from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class ReplicaInfo(Struct):
    """A voter that may be elected."""

    candidate_id: int = field(INT32, "1+")
    candidate_directory_id: bytes = field(UUID, "1+")


class EndQuorumEpochRequestPartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    preferred_successors: list[int] = field([INT32], "0", ignorable=True)
    preferred_candidates: list[ReplicaInfo] = field([ReplicaInfo], "1+", ignorable=True)


class EndQuorumEpochRequestTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING)
    partitions: list[EndQuorumEpochRequestPartitionData] = field([EndQuorumEpochRequestPartitionData])


class EndQuorumEpochRequest(Struct, versions="0-1", flexible="1+"):
    """Notifies the voters of the leader's resignation and of its possible successors."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    topics: list[EndQuorumEpochRequestTopicData] = field([EndQuorumEpochRequestTopicData])
    leader_endpoints: list[LeaderEndpoint] = field([LeaderEndpoint], "1+", ignorable=True)


class EndQuorumEpochResponse(Struct, versions="0-1", flexible="1+"):
    """The result of the notification."""

    error_code: int = field(INT16)
    topics: list[QuorumEpochResponseTopic] = field([QuorumEpochResponseTopic])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "1+", tag=0)
