"""OffsetDelete (key 47)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class OffsetDeleteRequestPartition(Struct):
    """Offset Delete Request Partition."""

    partition_index: int = field(INT32)


class OffsetDeleteRequestTopic(Struct):
    """Offset Delete Request Topic."""

    name: str = field(STRING)
    partitions: list[OffsetDeleteRequestPartition] = field([OffsetDeleteRequestPartition])


class OffsetDeleteRequest(Struct, versions="0"):
    """Offset Delete Request."""

    group_id: str = field(STRING)
    topics: list[OffsetDeleteRequestTopic] = field([OffsetDeleteRequestTopic])


class OffsetDeleteResponsePartition(Struct):
    """Offset Delete Response Partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetDeleteResponseTopic(Struct):
    """Offset Delete Response Topic."""

    name: str = field(STRING)
    partitions: list[OffsetDeleteResponsePartition] = field([OffsetDeleteResponsePartition])


class OffsetDeleteResponse(Struct, versions="0"):
    """Offset Delete Response."""

    error_code: int = field(INT16)
    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = field([OffsetDeleteResponseTopic])
