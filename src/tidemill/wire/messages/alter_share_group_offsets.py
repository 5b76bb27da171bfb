"""AlterShareGroupOffsets (key 91): sets the start offsets of a share group (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, UUID, Struct, field


class AlterShareGroupOffsetsRequestPartition(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    start_offset: int = field(INT64)


class AlterShareGroupOffsetsRequestTopic(Struct):
    """One topic."""

    topic_name: str = field(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field([AlterShareGroupOffsetsRequestPartition])


class AlterShareGroupOffsetsRequest(Struct, versions="0", flexible="0+"):
    """The offsets to set."""

    group_id: str = field(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = field([AlterShareGroupOffsetsRequestTopic])


class AlterShareGroupOffsetsResponsePartition(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    """One topic."""

    topic_name: str = field(STRING)
    topic_id: bytes = field(UUID)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(
        [AlterShareGroupOffsetsResponsePartition]
    )


class AlterShareGroupOffsetsResponse(Struct, versions="0", flexible="0+"):
    """The result of each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = field([AlterShareGroupOffsetsResponseTopic])
