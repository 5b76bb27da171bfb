"""Fetch (key 1): read record batches from partitions, for consumers and for followers."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Struct, field


class ReplicaState(Struct):
    """The follower that fetches."""

    replica_id: int = field(INT32, "15+", default=-1)
    replica_epoch: int = field(INT64, "15+", default=-1)


class FetchPartition(Struct):
    """The fetch offset and size limit for one partition."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1, ignorable=True)  # fences; -1 for none
    fetch_offset: int = field(INT64)
    # of the record before fetch_offset; -1 for none
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    # the follower's; -1 from a consumer
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32)  # the first batch comes whole all the same
    replica_directory_id: bytes = field(UUID, "17+", tag=0, ignorable=True)  # the follower's directory
    # as the follower knows it; the default means that it is unknown
    high_watermark: int = field(INT64, "18+", default=2**63 - 1, tag=1, ignorable=True)


class FetchTopic(Struct):
    """One topic's share of a fetch request."""

    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partitions: list[FetchPartition] = field([FetchPartition])


class ForgottenTopic(Struct):
    """Partitions that leave an incremental fetch session."""

    topic: str = field(STRING, "7-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partitions: list[int] = field([INT32], "7+")


class FetchRequest(Struct, versions="0-18", flexible="12+"):
    """Requests records, and limits the time to wait for them."""

    # from followers only
    cluster_id: str | None = field(STRING, "12+", nullable="12+", default=None, tag=0, ignorable=True)
    replica_id: int = field(INT32, "0-14", default=-1)  # the follower's broker id; -1 from a consumer
    replica_state: ReplicaState = field(ReplicaState, "15+", tag=1)
    max_wait_ms: int = field(INT32)  # for min_bytes to come together
    min_bytes: int = field(INT32)
    # of the whole response; the first batch comes whole all the same
    max_bytes: int = field(INT32, "3+", default=2**31 - 1, ignorable=True)
    isolation_level: int = field(INT8, "4+", ignorable=True)  # 0: read uncommitted, 1: read committed
    session_id: int = field(INT32, "7+", ignorable=True)  # 0 for no session, or to begin one
    # 0 begins a session, -1 ends it or has none
    session_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = field([FetchTopic])  # in a session: new or changed partitions
    forgotten_topics_data: list[ForgottenTopic] = field([ForgottenTopic], "7+")
    rack_id: str = field(STRING, "11+", ignorable=True)  # the client's, to find a replica nearby


class EpochEndOffset(Struct):
    """The point at which the follower's log diverged."""

    epoch: int = field(INT32, "12+", default=-1)
    end_offset: int = field(INT64, "12+", default=-1)


class LeaderIdAndEpoch(Struct):
    """The current leader, for NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

    leader_id: int = field(INT32, "12+", default=-1)
    leader_epoch: int = field(INT32, "12+", default=-1)


class SnapshotId(Struct):
    """The snapshot to read first; Raft logs only."""

    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


class AbortedTransaction(Struct):
    """An aborted transaction, whose records read_committed consumers skip."""

    producer_id: int = field(INT64, "4+")
    first_offset: int = field(INT64, "4+")  # of the transaction in this partition


class PartitionData(Struct):
    """The records of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    # where open transactions begin; -1 for none
    last_stable_offset: int = field(INT64, "4+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    # set where the follower must truncate
    diverging_epoch: EpochEndOffset = field(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = field(SnapshotId, "12+", tag=2)
    # null for readers of everything
    aborted_transactions: list[AbortedTransaction] | None = field(
        [AbortedTransaction], "4+", nullable="4+", ignorable=True
    )
    # a follower nearer to the client; -1 for none
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    # batches; the last one may be cut off in old versions
    records: bytes | None = field(RECORDS, nullable="0+")


class FetchableTopicResponse(Struct):
    """One topic's share of a fetch response."""

    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partitions: list[PartitionData] = field([PartitionData])


class NodeEndpoint(Struct):
    """The address of a leader in the response."""

    node_id: int = field(INT32, "16+")
    host: str = field(STRING, "16+")
    port: int = field(INT32, "16+")
    rack: str | None = field(STRING, "16+", nullable="16+", default=None)  # null where the broker has none


class FetchResponse(Struct, versions="0-18", flexible="12+"):
    """The response to a fetch; in a session it lists only changed partitions."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "7+", ignorable=True)
    session_id: int = field(INT32, "7+")  # 0 for no session
    responses: list[FetchableTopicResponse] = field([FetchableTopicResponse])
    # of the leaders that the partitions name
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "16+", tag=0)
