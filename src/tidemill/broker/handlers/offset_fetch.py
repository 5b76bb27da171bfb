"""OffsetFetch: committed offsets of groups; from v8 on of several groups, and of all topics if none is given.

A partition without a commit has offset -1 and no error, except in v0, whose offsets are in the coordination
store: there it is unknown. Offsets committed for a deleted topic of the same name do not count: a coordinator
that missed the deletion still has them, and the topic ids distinguish the topics.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.groups.offset_commits import may_belong_to
from tidemill.groups.offset_records import CommittedOffset
from tidemill.groups.zookeeper_offsets import StoredOffset, ZooKeeperOffsets
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import slices_of
from tidemill.model.types import NO_OFFSET, ZERO_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import offset_fetch as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

GROUP_ERROR_FROM: Final = 2
BATCHED_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10
NO_COMMIT: Final = CommittedOffset(-1)
UNKNOWN_PARTITION: Final = StoredOffset(offset=NO_OFFSET, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

Offsets = dict[str, dict[int, CommittedOffset]]


async def handle(
    broker: Broker, context: RequestContext, request: messages.OffsetFetchRequest
) -> messages.OffsetFetchResponse:
    """Responds from memory; a group of another coordinator, or a duplicate group, gets an error."""
    if context.api_version >= BATCHED_FROM:
        groups: dict[str, messages.OffsetFetchResponseGroup] = {}
        async for group in context.slices.over(request.groups):
            if group.group_id in groups:
                groups[group.group_id] = messages.OffsetFetchResponseGroup(
                    group_id=group.group_id, error_code=ErrorCode.INVALID_REQUEST
                )
            else:
                groups[group.group_id] = await _group(broker, context, group, request.require_stable)
        return messages.OffsetFetchResponse(groups=list(groups.values()))
    if context.api_version == 0:
        return messages.OffsetFetchResponse(
            topics=await _from_store(broker, context, request.group_id, request.topics or [])
        )
    wanted = messages.OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)
    found = await _group(broker, context, wanted, request.require_stable)
    return messages.OffsetFetchResponse(topics=found.topics, error_code=found.error_code)


API: Final = declare_api(ApiKey.OFFSET_FETCH, 0, 10, lambda: messages.OffsetFetchRequest, handle)


def _topic_id(broker: Broker, name: str) -> bytes:
    image = broker.metadata_cache.topic(name)
    return ZERO_ID if image is None else image.topic_id


def _present(offset: CommittedOffset, topic_id: bytes) -> CommittedOffset:
    """Returns ``offset``, unless it was committed for a deleted topic of that name."""
    return offset if may_belong_to(offset.topic_id, topic_id) else NO_COMMIT


def _partition(
    index: int, offset: CommittedOffset, error: ErrorCode
) -> messages.OffsetFetchResponsePartition:
    return messages.OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )


async def _from_store(
    broker: Broker, context: RequestContext, group_id: str, topics: list[messages.OffsetFetchRequestTopic]
) -> list[messages.OffsetFetchResponseTopic]:
    slices = context.slices
    kept: dict[TopicPartition, StoredOffset] = {}
    async for topic in slices.over(topics):
        name = topic.name
        image = broker.metadata_cache.topic(name)
        count = 0 if image is None else len(image.partitions)
        async for index in slices.over(topic.partition_indexes):
            if 0 <= index < count:
                kept[TopicPartition(name, index)] = UNKNOWN_PARTITION
    stored = ZooKeeperOffsets(broker.store)
    for some in slices_of(list(kept)):
        kept.update(zip(some, await slices.wait_for(stored.fetch(group_id, some)), strict=True))
    results = []
    async for topic in slices.over(topics):
        name = topic.name
        partitions = []
        async for index in slices.over(topic.partition_indexes):
            found = kept.get(TopicPartition(name, index), UNKNOWN_PARTITION)
            partitions.append(_partition(index, CommittedOffset(found.offset), found.error))
        results.append(messages.OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    await slices.clear(kept)
    return results


async def _group(
    broker: Broker, context: RequestContext, group: messages.OffsetFetchRequestGroup, require_stable: bool
) -> messages.OffsetFetchResponseGroup:
    error, offsets = await broker.group_coordinator.fetch(group.group_id, require_stable)
    unstable = broker.group_coordinator.unstable(group.group_id) if require_stable else ()
    if error is not ErrorCode.NONE and context.api_version >= GROUP_ERROR_FROM:
        return messages.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    if group.topics is None:
        topics = await _all_topics(broker, context, offsets, unstable)
    else:
        topics = []
        async for topic in context.slices.over(group.topics):
            result = messages.OffsetFetchResponseTopic(name=topic.name, topic_id=topic.topic_id)
            name, topic_error = _topic_name(broker, context, topic.name, topic.topic_id)
            topic_id = _topic_id(broker, name) if topic.topic_id == ZERO_ID else topic.topic_id
            async for index in context.slices.over(dict.fromkeys(topic.partition_indexes)):
                found = _found(offsets, unstable, name, index, topic_id, error or topic_error)
                result.partitions.append(found)
            topics.append(result)
    return messages.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _found(
    offsets: Offsets,
    unstable: Collection[tuple[str, int]],
    name: str,
    index: int,
    topic_id: bytes,
    error: ErrorCode,
) -> messages.OffsetFetchResponsePartition:
    """Returns the result of a partition, from its state at this moment.

    A transaction may end while the response is built: then its offset has replaced the one before, and the
    partition is not unstable any more.
    """
    if (name, index) in unstable:
        return _partition(index, NO_COMMIT, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    offset = offsets.get(name, {}).get(index, NO_COMMIT)
    return _partition(index, _present(offset, topic_id), error)


def _topic_name(broker: Broker, context: RequestContext, name: str, topic_id: bytes) -> tuple[str, ErrorCode]:
    if context.api_version < TOPIC_IDS_FROM:
        return name, ErrorCode.NONE
    image = None if topic_id == ZERO_ID else broker.metadata_cache.topic_by_id(topic_id)
    return ("", ErrorCode.UNKNOWN_TOPIC_ID) if image is None else (image.name, ErrorCode.NONE)


async def _all_topics(
    broker: Broker, context: RequestContext, offsets: Offsets, unstable: Collection[tuple[str, int]]
) -> list[messages.OffsetFetchResponseTopic]:
    """Returns all offsets committed for existing topics; deleted topics have no id to return.

    ``unstable``: the partitions whose offsets are not returned, because a transaction has others.
    """
    topics = []
    async for name, committed in context.slices.over(list(offsets.items())):
        image = broker.metadata_cache.topic(name)
        if context.api_version >= TOPIC_IDS_FROM and image is None:
            continue
        topic_id = ZERO_ID if image is None else image.topic_id
        partitions = []
        async for index in context.slices.over(list(committed)):
            partitions.append(_found(offsets, unstable, name, index, topic_id, ErrorCode.NONE))
        topics.append(messages.OffsetFetchResponseTopic(name=name, topic_id=topic_id, partitions=partitions))
    return topics
