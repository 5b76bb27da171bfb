"""Produce (key 0)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, RECORDS, STRING, UUID, Struct, field


class PartitionProduceData(Struct):
    """Partition Produce Data."""

    index: int = field(INT32)
    records: bytes | None = field(RECORDS, nullable="0+")


class TopicProduceData(Struct):
    """Topic Produce Data."""

    name: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partition_data: list[PartitionProduceData] = field([PartitionProduceData])


class ProduceRequest(Struct, versions="0-13", flexible="9+"):
    """Produce Request."""

    transactional_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: list[TopicProduceData] = field([TopicProduceData])


class BatchIndexAndErrorMessage(Struct):
    """Batch Index And Error Message."""

    batch_index: int = field(INT32, "8+")
    batch_index_error_message: str | None = field(STRING, "8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    """Leader Id And Epoch."""

    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


class PartitionProduceResponse(Struct):
    """Partition Produce Response."""

    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, "2+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = field([BatchIndexAndErrorMessage], "8+", ignorable=True)
    error_message: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    """Topic Produce Response."""

    name: str = field(STRING, "0-12", ignorable=True)
    topic_id: bytes = field(UUID, "13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = field([PartitionProduceResponse])


class NodeEndpoint(Struct):
    """Node Endpoint."""

    node_id: int = field(INT32, "10+")
    host: str = field(STRING, "10+")
    port: int = field(INT32, "10+")
    rack: str | None = field(STRING, "10+", nullable="10+", default=None)


class ProduceResponse(Struct, versions="0-13", flexible="9+"):
    """Produce Response."""

    responses: list[TopicProduceResponse] = field([TopicProduceResponse])
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "10+", tag=0)
