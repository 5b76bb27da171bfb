"""ListOffsets (key 2)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, INT8, STRING, Struct, field


class ListOffsetsPartition(Struct):
    """List Offsets Partition."""

    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, "0", default=1)


class ListOffsetsTopic(Struct):
    """List Offsets Topic."""

    name: str = field(STRING)
    partitions: list[ListOffsetsPartition] = field([ListOffsetsPartition])


class ListOffsetsRequest(Struct, versions="0-11", flexible="6+"):
    """List Offsets Request."""

    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, "2+")
    topics: list[ListOffsetsTopic] = field([ListOffsetsTopic])
    timeout_ms: int = field(INT32, "10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    """List Offsets Partition Response."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    old_style_offsets: list[int] = field([INT64], "0")
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """List Offsets Topic Response."""

    name: str = field(STRING)
    partitions: list[ListOffsetsPartitionResponse] = field([ListOffsetsPartitionResponse])


class ListOffsetsResponse(Struct, versions="0-11", flexible="6+"):
    """List Offsets Response."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field([ListOffsetsTopicResponse])
