"""DeleteTopics (key 20): remove topics."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, UUID, Struct, field


class DeleteTopicState(Struct):
    """A topic to remove, by name or by id."""

    name: str | None = field(STRING, "6+", nullable="6+", default=None)  # null where the id is given
    topic_id: bytes = field(UUID, "6+")


class DeleteTopicsRequest(Struct, versions="0-6", flexible="4+"):
    """The topics to remove: names up to version 5, names or ids after it."""

    topics: list[DeleteTopicState] = field([DeleteTopicState], "6+")
    topic_names: list[str] = field([STRING], "0-5", ignorable=True)
    timeout_ms: int = field(INT32)


class DeletableTopicResult(Struct):
    """A topic that was removed, or the error."""

    name: str | None = field(STRING, nullable="6+")  # null where the requested id is unknown
    topic_id: bytes = field(UUID, "6+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Struct, versions="0-6", flexible="4+"):
    """The result of each topic."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    responses: list[DeletableTopicResult] = field([DeletableTopicResult])
