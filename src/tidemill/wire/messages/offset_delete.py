"""OffsetDelete (key 47): delete a group's offsets."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class OffsetDeleteRequestPartition(Struct):
    """A partition whose offset is deleted."""

    partition_index: int = field(INT32)


class OffsetDeleteRequestTopic(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partitions: list[OffsetDeleteRequestPartition] = field([OffsetDeleteRequestPartition])


class OffsetDeleteRequest(Struct, versions="0"):
    """The offsets to delete."""

    group_id: str = field(STRING)
    topics: list[OffsetDeleteRequestTopic] = field([OffsetDeleteRequestTopic])


class OffsetDeleteResponsePartition(Struct):
    """The result of one deletion."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetDeleteResponseTopic(Struct):
    """One topic's results."""

    name: str = field(STRING)
    partitions: list[OffsetDeleteResponsePartition] = field([OffsetDeleteResponsePartition])


class OffsetDeleteResponse(Struct, versions="0"):
    """The result of each offset."""

    error_code: int = field(INT16)
    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = field([OffsetDeleteResponseTopic])
