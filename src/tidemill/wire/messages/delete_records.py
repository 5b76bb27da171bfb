"""DeleteRecords (key 21): advance the log start offsets of partitions."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class DeleteRecordsPartition(Struct):
    """The new log start offset of one partition."""

    partition_index: int = field(INT32)
    offset: int = field(INT64)  # the first to keep; -1 for the high watermark


class DeleteRecordsTopic(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partitions: list[DeleteRecordsPartition] = field([DeleteRecordsPartition])


class DeleteRecordsRequest(Struct, versions="0-2", flexible="2+"):
    """Requests that leaders delete the records before an offset."""

    topics: list[DeleteRecordsTopic] = field([DeleteRecordsTopic])
    timeout_ms: int = field(INT32)


class DeleteRecordsPartitionResult(Struct):
    """The new low watermark of one partition."""

    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)  # the lowest start of all replicas; -1 after an error
    error_code: int = field(INT16)


class DeleteRecordsTopicResult(Struct):
    """One topic's results."""

    name: str = field(STRING)
    partitions: list[DeleteRecordsPartitionResult] = field([DeleteRecordsPartitionResult])


class DeleteRecordsResponse(Struct, versions="0-2", flexible="2+"):
    """The result of each partition."""

    throttle_time_ms: int = field(INT32)
    topics: list[DeleteRecordsTopicResult] = field([DeleteRecordsTopicResult])
