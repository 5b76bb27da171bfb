"""EndQuorumEpoch (key 54): a leader of the Raft quorum resigns."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UINT16, UUID, Struct, field


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


class LeaderEndpoint(Struct):
    """The leader's address."""

    name: str = field(STRING, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class EndQuorumEpochRequest(Struct, versions="0-1", flexible="1+"):
    """Notifies the voters of the leader's resignation and of its possible successors."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    topics: list[EndQuorumEpochRequestTopicData] = field([EndQuorumEpochRequestTopicData])
    leader_endpoints: list[LeaderEndpoint] = field([LeaderEndpoint], "1+", ignorable=True)


class EndQuorumEpochResponsePartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class EndQuorumEpochResponseTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING)
    partitions: list[EndQuorumEpochResponsePartitionData] = field([EndQuorumEpochResponsePartitionData])


class NodeEndpoint(Struct):
    """The address of a node."""

    node_id: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class EndQuorumEpochResponse(Struct, versions="0-1", flexible="1+"):
    """The result of the notification."""

    error_code: int = field(INT16)
    topics: list[EndQuorumEpochResponseTopicData] = field([EndQuorumEpochResponseTopicData])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "1+", tag=0)
