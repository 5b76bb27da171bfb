"""DescribeProducers (key 61)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class TopicRequest(Struct):
    """Topic Request."""

    name: str = field(STRING)
    partition_indexes: list[int] = field([INT32])


class DescribeProducersRequest(Struct, versions="0", flexible="0+"):
    """Describe Producers Request."""

    topics: list[TopicRequest] = field([TopicRequest])


class ProducerState(Struct):
    """Producer State."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, default=-1)


class PartitionResponse(Struct):
    """Partition Response."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    active_producers: list[ProducerState] = field([ProducerState])


class TopicResponse(Struct):
    """Topic Response."""

    name: str = field(STRING)
    partitions: list[PartitionResponse] = field([PartitionResponse])


class DescribeProducersResponse(Struct, versions="0", flexible="0+"):
    """Describe Producers Response."""

    throttle_time_ms: int = field(INT32)
    topics: list[TopicResponse] = field([TopicResponse])
