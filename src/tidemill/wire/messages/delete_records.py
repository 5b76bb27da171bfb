"""DeleteRecords (key 21)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class DeleteRecordsPartition(Struct):
    """Delete Records Partition."""

    partition_index: int = field(INT32)
    offset: int = field(INT64)


class DeleteRecordsTopic(Struct):
    """Delete Records Topic."""

    name: str = field(STRING)
    partitions: list[DeleteRecordsPartition] = field([DeleteRecordsPartition])


class DeleteRecordsRequest(Struct, versions="0-2", flexible="2+"):
    """Delete Records Request."""

    topics: list[DeleteRecordsTopic] = field([DeleteRecordsTopic])
    timeout_ms: int = field(INT32)


class DeleteRecordsPartitionResult(Struct):
    """Delete Records Partition Result."""

    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16)


class DeleteRecordsTopicResult(Struct):
    """Delete Records Topic Result."""

    name: str = field(STRING)
    partitions: list[DeleteRecordsPartitionResult] = field([DeleteRecordsPartitionResult])


class DeleteRecordsResponse(Struct, versions="0-2", flexible="2+"):
    """Delete Records Response."""

    throttle_time_ms: int = field(INT32)
    topics: list[DeleteRecordsTopicResult] = field([DeleteRecordsTopicResult])
