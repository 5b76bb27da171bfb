"""ListOffsets (key 2): first, last and time-based offsets of partitions."""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, INT64, STRING, Struct, field


class ListOffsetsPartition(Struct):
    """The timestamp to look up in one partition."""

    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)  # fences; -1 for none
    # ms, or -1 latest, -2 earliest, -3 of the greatest time, -4 earliest local, -5 latest tiered, -6
    # earliest not tiered
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, "0", default=1)


class ListOffsetsTopic(Struct):
    """One topic's share of the request."""

    name: str = field(STRING)
    partitions: list[ListOffsetsPartition] = field([ListOffsetsPartition])


class ListOffsetsRequest(Struct, versions="0-11", flexible="6+"):
    """Requests offsets by timestamp from leaders."""

    replica_id: int = field(INT32)  # the follower's broker id; -1 from a consumer
    isolation_level: int = field(INT8, "2+")  # 0: read uncommitted, 1: read committed
    topics: list[ListOffsetsTopic] = field([ListOffsetsTopic])
    timeout_ms: int = field(INT32, "10+", ignorable=True)  # for lookups in remote storage


class ListOffsetsPartitionResponse(Struct):
    """The offset found in one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    old_style_offsets: list[int] = field([INT64], "0")  # segment starts, newest first
    timestamp: int = field(INT64, "1+", default=-1)  # of the record found; -1 for none
    offset: int = field(INT64, "1+", default=-1)  # -1 where no record matched
    leader_epoch: int = field(INT32, "4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """One topic's share of the response."""

    name: str = field(STRING)
    partitions: list[ListOffsetsPartitionResponse] = field([ListOffsetsPartitionResponse])


class ListOffsetsResponse(Struct, versions="0-11", flexible="6+"):
    """The offsets found."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = field([ListOffsetsTopicResponse])
