"""Responses with an error: built in the broker's place, or from the broker's response.

Where an API has errors at several levels, the error goes to the level that Kafka's brokers use: the
partitions of Produce, Fetch and ListOffsets, the topics of Metadata and CreateTopics, the groups,
coordinators or resources where a request names several, otherwise the response as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tidemill.model.errors import ErrorCode
from tidemill.model.similar_names import did_you_mean
from tidemill.wire.apis import API, ApiKey, response_class
from tidemill.wire.codegen import carries
from tidemill.wire.messages import (
    alter_configs,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    fetch,
    incremental_alter_configs,
    offset_commit,
    offset_delete,
    produce,
)
from tidemill.wire.schema import Struct

TEXT: Final = "injected by a test"
OF_ITEMS: Final = frozenset({ApiKey.METADATA, ApiKey.FETCH, ApiKey.OFFSET_DELETE})
"""APIs whose errors belong to the items, although the response as a whole can have an error, too."""
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
    if of_whole and (api not in OF_ITEMS or code in OF_SESSIONS):
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
    return any(field.name == "error_code" and carries(field, version) for field in message.fields_)


def _set(message: Any, version: int, code: ErrorCode) -> None:
    message.error_code = int(code)
    for field in message.fields_:
        if field.name == "error_message" and carries(field, version):
            message.error_message = TEXT


def failed_fetch(
    session_id: int, partitions: dict[tuple[str, bytes], set[int]], code: ErrorCode
) -> fetch.FetchResponse:
    """Returns the response to a Fetch whose partitions (by topic name and id) all fail."""
    if code in OF_SESSIONS:
        return fetch.FetchResponse(error_code=int(code))
    return fetch.FetchResponse(
        session_id=session_id,
        responses=[
            fetch.FetchableTopicResponse(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    fetch.PartitionData(
                        partition_index=index, error_code=int(code), high_watermark=-1, records=b""
                    )
                    for index in sorted(indexes)
                ],
            )
            for (name, topic_id), indexes in partitions.items()
        ],
    )

    # Responses in the broker's place


def can_refuse(api: ApiKey) -> bool:
    """Returns whether :func:`refusal` supports the API: its requests change something."""
    return api in _WHOLE or api in _REFUSALS


def refusal(api: ApiKey, request: Any, code: ErrorCode) -> Struct | None:
    """Returns the response to a request that no broker executes; None for APIs that change nothing."""
    if api in _WHOLE:
        return response_class(api)(error_code=int(code))
    make = _REFUSALS.get(api)
    return None if make is None else make(request, int(code))


_WHOLE: Final = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
    }
)


def _produce(request: produce.ProduceRequest, code: int) -> Struct:
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    produce.PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=-1, error_message=TEXT
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _offset_commit(request: offset_commit.OffsetCommitRequest, code: int) -> Struct:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _create_topics(request: create_topics.CreateTopicsRequest, code: int) -> Struct:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(name=topic.name, error_code=code, error_message=TEXT)
            for topic in request.topics
        ]
    )


def _delete_topics(request: delete_topics.DeleteTopicsRequest, code: int) -> Struct:
    topics = [(topic.name, topic.topic_id) for topic in request.topics]
    topics += [(name, bytes(16)) for name in request.topic_names]
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code, error_message=TEXT
            )
            for name, topic_id in topics
        ]
    )


def _create_partitions(request: create_partitions.CreatePartitionsRequest, code: int) -> Struct:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=code, error_message=TEXT
            )
            for topic in request.topics
        ]
    )


def _delete_records(request: delete_records.DeleteRecordsRequest, code: int) -> Struct:
    return delete_records.DeleteRecordsResponse(
        topics=[
            delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index, low_watermark=-1, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _alter_configs(request: alter_configs.AlterConfigsRequest, code: int) -> Struct:
    return alter_configs.AlterConfigsResponse(
        responses=[
            alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=TEXT,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _incremental(request: incremental_alter_configs.IncrementalAlterConfigsRequest, code: int) -> Struct:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(
                error_code=code,
                error_message=TEXT,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _delete_groups(request: delete_groups.DeleteGroupsRequest, code: int) -> Struct:
    return delete_groups.DeleteGroupsResponse(
        results=[
            delete_groups.DeletableGroupResult(group_id=name, error_code=code)
            for name in request.groups_names
        ]
    )


def _offset_delete(request: offset_delete.OffsetDeleteRequest, code: int) -> Struct:
    return offset_delete.OffsetDeleteResponse(
        topics=[
            offset_delete.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    offset_delete.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _alter_replica_log_dirs(request: alter_replica_log_dirs.AlterReplicaLogDirsRequest, code: int) -> Struct:
    return alter_replica_log_dirs.AlterReplicaLogDirsResponse(
        results=[
            alter_replica_log_dirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    alter_replica_log_dirs.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


_REFUSALS: Final[dict[ApiKey, Callable[[Any, int], Struct]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
}
