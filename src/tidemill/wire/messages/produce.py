"""Produce (key 0): append record batches to partitions."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, RECORDS, STRING, UUID, Struct, field


class PartitionProduceData(Struct):
    """Batches for one partition."""

    index: int = field(INT32)
    records: bytes | None = field(RECORDS, nullable="0+")  # batches, one in versions from 3 on


class TopicProduceData(Struct):
    """One topic's share of a produce request."""

    name: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field([PartitionProduceData])


class ProduceRequest(Struct, versions="0-13", flexible="9+"):
    """Requests that a leader appends batches."""

    # null outside of transactions
    transactional_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    acks: int = field(INT16)  # -1: the whole ISR, 1: the leader, 0: none, and no response
    timeout_ms: int = field(INT32)  # how long to wait for the replicas
    topic_data: list[TopicProduceData] = field([TopicProduceData])


class BatchIndexAndErrorMessage(Struct):
    """A refused record, with its error."""

    batch_index: int = field(INT32, "8+")  # counts records from 0
    batch_index_error_message: str | None = field(STRING, "8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    """The current leader, for NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH."""

    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


class PartitionProduceResponse(Struct):
    """The result of one partition's batches."""

    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)  # the offset that the first record got; -1 after an error
    # -1 where the topic keeps the producer's times
    log_append_time_ms: int = field(INT64, "2+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)  # -1 after an error
    # the records that made the batch fail
    record_errors: list[BatchIndexAndErrorMessage] = field([BatchIndexAndErrorMessage], "8+", ignorable=True)
    # null where there is none
    error_message: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    """One topic's share of a produce response."""

    name: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field([PartitionProduceResponse])


class NodeEndpoint(Struct):
    """The address of a leader in the response."""

    node_id: int = field(INT32, "10+")
    host: str = field(STRING, "10+")
    port: int = field(INT32, "10+")
    rack: str | None = field(STRING, "10+", nullable="10+", default=None)  # null where the broker has none


class ProduceResponse(Struct, versions="0-13", flexible="9+"):
    """The response to a produce request; not sent when acks is 0."""

    responses: list[TopicProduceResponse] = field([TopicProduceResponse])
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    # of the leaders that the partitions name
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "10+", tag=0)
