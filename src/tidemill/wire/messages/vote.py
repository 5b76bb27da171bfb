"""Vote (key 52): a candidate of the Raft quorum requests votes."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, UINT16, UUID, Struct, field


class VoteRequestPartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    replica_epoch: int = field(INT32)
    replica_id: int = field(INT32)
    replica_directory_id: bytes = field(UUID, "1+", ignorable=True)
    voter_directory_id: bytes = field(UUID, "1+", ignorable=True)
    last_offset_epoch: int = field(INT32)
    last_offset: int = field(INT64)
    pre_vote: bool = field(BOOL, "2+")


class VoteRequestTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING)
    partitions: list[VoteRequestPartitionData] = field([VoteRequestPartitionData])


class VoteRequest(Struct, versions="0-2", flexible="0+"):
    """Requests a voter's vote, per partition."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None)
    voter_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = field([VoteRequestTopicData])


class VoteResponsePartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    vote_granted: bool = field(BOOL)


class VoteResponseTopicData(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING)
    partitions: list[VoteResponsePartitionData] = field([VoteResponsePartitionData])


class NodeEndpoint(Struct):
    """The address of a node."""

    node_id: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    port: int = field(UINT16, "1+")


class VoteResponse(Struct, versions="0-2", flexible="0+"):
    """The votes."""

    error_code: int = field(INT16)
    topics: list[VoteResponseTopicData] = field([VoteResponseTopicData])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "1+", tag=0)
