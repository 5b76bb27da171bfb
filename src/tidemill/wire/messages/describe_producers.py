"""DescribeProducers (key 61): the active producers of partitions."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class TopicRequest(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partition_indexes: list[int] = field([INT32])


class DescribeProducersRequest(Struct, versions="0", flexible="0+"):
    """The partitions to describe."""

    topics: list[TopicRequest] = field([TopicRequest])


class ProducerState(Struct):
    """A partition's state of one producer."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, default=-1)  # -1 for none


class PartitionResponse(Struct):
    """One partition's producers."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    active_producers: list[ProducerState] = field([ProducerState])


class TopicResponse(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partitions: list[PartitionResponse] = field([PartitionResponse])


class DescribeProducersResponse(Struct, versions="0", flexible="0+"):
    """The producers of each partition."""

    throttle_time_ms: int = field(INT32)
    topics: list[TopicResponse] = field([TopicResponse])
