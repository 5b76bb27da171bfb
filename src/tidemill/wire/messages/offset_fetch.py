"""OffsetFetch (key 9): read a group's committed offsets."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, UUID, Struct, field


class OffsetFetchRequestTopic(Struct):
    """Partitions to look up, in versions with one group per request."""

    name: str = field(STRING, "0-7")
    partition_indexes: list[int] = field([INT32], "0-7")


class OffsetFetchRequestTopics(Struct):
    """Partitions to look up, in versions with several groups per request."""

    name: str = field(STRING, "8-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partition_indexes: list[int] = field([INT32], "8+")


class OffsetFetchRequestGroup(Struct):
    """A group whose offsets are requested."""

    group_id: str = field(STRING, "8+")
    # of the consumer protocol; null without
    member_id: str | None = field(STRING, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    # null for all of the group's
    topics: list[OffsetFetchRequestTopics] | None = field([OffsetFetchRequestTopics], "8+", nullable="8+")


class OffsetFetchRequest(Struct, versions="0-10", flexible="6+"):
    """Requests offsets: of one group up to version 7, of several from version 8 on."""

    group_id: str = field(STRING, "0-7")
    # null for all of the group's
    topics: list[OffsetFetchRequestTopic] | None = field([OffsetFetchRequestTopic], "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field([OffsetFetchRequestGroup], "8+")
    require_stable: bool = field(BOOL, "7+")  # refuse while a transaction's offsets are open


class OffsetFetchResponsePartition(Struct):
    """An offset, in versions with one group per request."""

    partition_index: int = field(INT32, "0-7")
    committed_offset: int = field(INT64, "0-7")  # -1 where none is stored
    committed_leader_epoch: int = field(INT32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "0-7", nullable="0-7")
    error_code: int = field(INT16, "0-7")


class OffsetFetchResponseTopic(Struct):
    """One topic's offsets, in versions with one group per request."""

    name: str = field(STRING, "0-7")
    partitions: list[OffsetFetchResponsePartition] = field([OffsetFetchResponsePartition], "0-7")


class OffsetFetchResponsePartitions(Struct):
    """An offset, in versions with several groups per request."""

    partition_index: int = field(INT32, "8+")
    committed_offset: int = field(INT64, "8+")  # -1 where none is stored
    committed_leader_epoch: int = field(INT32, "8+", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "8+", nullable="8+")
    error_code: int = field(INT16, "8+")


class OffsetFetchResponseTopics(Struct):
    """One topic's offsets, in versions with several groups per request."""

    name: str = field(STRING, "8-9", ignorable=True)
    topic_id: bytes = field(UUID, "10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = field([OffsetFetchResponsePartitions], "8+")


class OffsetFetchResponseGroup(Struct):
    """One group's offsets, or the error."""

    group_id: str = field(STRING, "8+")
    topics: list[OffsetFetchResponseTopics] = field([OffsetFetchResponseTopics], "8+")
    error_code: int = field(INT16, "8+")


class OffsetFetchResponse(Struct, versions="0-10", flexible="6+"):
    """The offsets found."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = field([OffsetFetchResponseTopic], "0-7")
    error_code: int = field(INT16, "2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field([OffsetFetchResponseGroup], "8+")
