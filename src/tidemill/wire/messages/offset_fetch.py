"""OffsetFetch (key 9): read a group's committed offsets."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, UUID, Struct, field


class OffsetFetchRequestTopic(Struct):
    """Partitions to look up."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partition_indexes: list[int] = field([INT32])


class OffsetFetchRequestGroup(Struct):
    """A group whose offsets are requested."""

    group_id: str = field(STRING, "8+")
    # of the consumer protocol; null without
    member_id: str | None = field(STRING, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    # null for all of the group's
    topics: list[OffsetFetchRequestTopic] | None = field([OffsetFetchRequestTopic], "8+", nullable="8+")


class OffsetFetchRequest(Struct, versions="0-10", flexible="6+"):
    """Requests offsets: of one group up to version 7, of several from version 8 on."""

    group_id: str = field(STRING, "0-7")
    # null for all of the group's
    topics: list[OffsetFetchRequestTopic] | None = field([OffsetFetchRequestTopic], "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field([OffsetFetchRequestGroup], "8+")
    require_stable: bool = field(BOOL, "7+")  # refuse while a transaction's offsets are open


class OffsetFetchResponsePartition(Struct):
    """An offset."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)  # -1 where none is stored
    committed_leader_epoch: int = field(INT32, "5+", default=-1, ignorable=True)
    metadata: str | None = field(STRING, nullable="0+")
    error_code: int = field(INT16)


class OffsetFetchResponseTopic(Struct):
    """One topic's offsets."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartition] = field([OffsetFetchResponsePartition])


class OffsetFetchResponseGroup(Struct):
    """One group's offsets, or the error."""

    group_id: str = field(STRING, "8+")
    topics: list[OffsetFetchResponseTopic] = field([OffsetFetchResponseTopic], "8+")
    error_code: int = field(INT16, "8+")


class OffsetFetchResponse(Struct, versions="0-10", flexible="6+"):
    """The offsets found."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field([OffsetFetchResponseTopic], "0-7")
    error_code: int = field(INT16, "2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field([OffsetFetchResponseGroup], "8+")
