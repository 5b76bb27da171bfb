"""DeleteShareGroupOffsets (key 92): deletes the offsets of a share group (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class DeleteShareGroupOffsetsRequestTopic(Struct):
    """One topic."""

    topic_name: str = field(STRING)


class DeleteShareGroupOffsetsRequest(Struct, versions="0", flexible="0+"):
    """The topics."""

    group_id: str = field(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field([DeleteShareGroupOffsetsRequestTopic])


class DeleteShareGroupOffsetsResponseTopic(Struct):
    """One topic."""

    topic_name: str = field(STRING)
    topic_id: bytes = field(UUID)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Struct, versions="0", flexible="0+"):
    """The result of each topic."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field([DeleteShareGroupOffsetsResponseTopic])
