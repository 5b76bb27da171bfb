"""Responses with an error: built in the broker's place, or from the broker's response.

Where an API has errors at several levels, the error goes to the level that Kafka's brokers use: the
partitions of Produce, Fetch and ListOffsets, the topics of Metadata and CreateTopics, the groups,
coordinators or resources where a request names several, otherwise the response as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.similar_names import did_you_mean
from tidemill.wire.apis import API, ApiKey, response_class
from tidemill.wire.error_responses import (
    ERROR,
    ERROR_TEXT,
    ERRORS_OF_ITEMS,
    error_response_in_slices,
    has_field,
)
from tidemill.wire.messages import fetch
from tidemill.wire.schema import Struct, carries

TEXT: Final = "injected by a test"
OF_SESSIONS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors of a Fetch response as a whole."""


def api_named(api: str | int) -> ApiKey:
    """Returns the API ``Produce``, ``PRODUCE`` or 0. Raises ValueError, with a similar name, for another."""
    if isinstance(api, int):
        if api in API:
            return ApiKey(api)
        raise ValueError(f"{api} is not an API key: see tidemill.wire.apis.ApiKey")
    plain = api.replace("_", "").lower()
    names = {spec.name.lower(): spec for spec in API.values()}
    if plain in names:
        return names[plain].key
    hint = did_you_mean(plain, (spec.name for spec in API.values())) or ", as Produce or OffsetCommit"
    raise ValueError(f"{api!r} is not an API of the protocol{hint}")


def error_named(error: str | int) -> ErrorCode:
    """Returns the error ``NOT_LEADER_OR_FOLLOWER`` or 6. Raises ValueError, with a similar name."""
    if isinstance(error, int):
        try:
            found = ErrorCode(error)
        except ValueError:
            raise ValueError(f"{error} is not an error code of the protocol") from None
    elif error.upper() in ErrorCode.__members__:
        found = ErrorCode[error.upper()]
    else:
        hint = did_you_mean(error, ErrorCode.__members__)
        raise ValueError(f"{error!r} is not an error of the protocol{hint}")
    if found is ErrorCode.NONE:
        raise ValueError("NONE is not an error: name the error for the clients")
    return found


def has_error(api: ApiKey) -> bool:
    """Returns whether responses of the API have an error code."""
    return _has_code(response_class(api))


def _has_code(cls: type[Struct]) -> bool:
    return any(
        field.name == "error_code" or (isinstance(field.element, type) and _has_code(field.element))
        for field in cls.fields_
    )

    # Errors in the broker's response


def with_error(api: ApiKey, version: int, response: Struct, code: ErrorCode) -> bool:
    """Sets the error in a response; False where the response has no field for it (no partitions)."""
    of_whole = _carries_code(response, version)
    if of_whole and (api not in ERRORS_OF_ITEMS or code in OF_SESSIONS):
        _set(response, version, code)
        return True
    found = False
    for item in _items(response, version):
        _set(item, version, code)
        found = True
    return found


def _items(message: Struct, version: int) -> Iterator[Struct]:
    """Yields the outermost parts of a message that have an error code."""
    for field in message.fields_:
        if not field.is_array or not isinstance(field.element, type) or not carries(field, version):
            continue
        for item in getattr(message, field.name) or ():
            if _carries_code(item, version):
                yield item
            else:
                yield from _items(item, version)


def _carries_code(message: Struct, version: int) -> bool:
    return has_field(type(message), ERROR, version)


def _set(message: Any, version: int, code: ErrorCode) -> None:
    message.error_code = int(code)
    if has_field(type(message), ERROR_TEXT, version):
        message.error_message = TEXT


def failed_fetch(
    version: int, session_id: int, partitions: Mapping[tuple[str, bytes], set[int]], code: ErrorCode
) -> fetch.FetchResponse:
    """Returns the response to a Fetch whose partitions (by topic name and id) all fail."""
    if code in OF_SESSIONS:
        return fetch.FetchResponse(error_code=int(code))
    topics = [
        fetch.FetchTopic(
            topic=name,
            topic_id=topic_id,
            partitions=[fetch.FetchPartition(partition=index) for index in sorted(indexes)],
        )
        for (name, topic_id), indexes in partitions.items()
    ]
    refused: Any = refusal(ApiKey.FETCH, version, fetch.FetchRequest(topics=topics), code)
    return fetch.FetchResponse(session_id=session_id, responses=refused.responses)

    # Responses in the broker's place


CHANGES: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.OFFSET_COMMIT,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_GROUPS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.OFFSET_DELETE,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
    }
)
"""The APIs whose requests change something: no broker executes a request that gets an error."""


def refusal(api: ApiKey, version: int, request: Struct, code: ErrorCode) -> Struct:
    """Returns the response to a request that no broker executes."""
    return run_at_once(error_response_in_slices(api, version, request, code, TEXT))
