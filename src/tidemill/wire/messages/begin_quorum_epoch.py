"""BeginQuorumEpoch (key 53): a new leader of the Raft quorum notifies its voters."""

from __future__ import annotations

from tidemill.wire.messages.vote import NodeEndpoint
from tidemill.wire.schema import INT16, INT32, STRING, UINT16, UUID, Struct, field


class BeginQuorumEpochRequestPartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    voter_directory_id: bytes = field(UUID, "1+", ignorable=True)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class BeginQuorumEpochRequestTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING)
    partitions: list[BeginQuorumEpochRequestPartitionData] = field([BeginQuorumEpochRequestPartitionData])


class LeaderEndpoint(Struct):
    """The leader's address."""

    name: str = field(STRING, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class BeginQuorumEpochRequest(Struct, versions="0-1", flexible="1+"):
    """Notifies a voter of the leader and its epoch."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData] = field([BeginQuorumEpochRequestTopicData])
    leader_endpoints: list[LeaderEndpoint] = field([LeaderEndpoint], "1+", ignorable=True)


class QuorumEpochResponsePartition(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class QuorumEpochResponseTopic(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING)
    partitions: list[QuorumEpochResponsePartition] = field([QuorumEpochResponsePartition])


class BeginQuorumEpochResponse(Struct, versions="0-1", flexible="1+"):
    """The result of the notification."""

    error_code: int = field(INT16)
    topics: list[QuorumEpochResponseTopic] = field([QuorumEpochResponseTopic])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "1+", tag=0)
