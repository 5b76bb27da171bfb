"""OffsetFetch: what groups have committed; from v8 on of several groups, all topics when none is named.

A partition without a commit has offset -1 and no error; only in v0, whose offsets are in the coordination
store, it is unknown. Nor does an offset count that was committed for a former topic of the same name: a
coordinator that missed the deletion still has it, and the ids of the topics tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidemill.groups.commits import may_be_of
from tidemill.groups.offsets import CommittedOffset
from tidemill.groups.stored_offsets import NO_OFFSET, StoredOffset, StoredOffsets
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import slices_of
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

GROUP_ERROR_FROM: Final = 2
BATCHED_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10
NO_COMMIT: Final = CommittedOffset(-1)
UNKNOWN: Final = StoredOffset(NO_OFFSET, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

Offsets = dict[str, dict[int, CommittedOffset]]


async def handle(broker: Broker, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Answers from memory; a group of another coordinator, or one that comes twice, gets an error."""
    if context.api_version >= BATCHED_FROM:
        groups: dict[str, OffsetFetchResponseGroup] = {}
        async for group in context.turns.over(request.groups):
            if group.group_id in groups:
                groups[group.group_id] = OffsetFetchResponseGroup(
                    group_id=group.group_id, error_code=ErrorCode.INVALID_REQUEST
                )
            else:
                groups[group.group_id] = await _group(broker, context, group, request.require_stable)
        return OffsetFetchResponse(groups=list(groups.values()))
    group_id = context.internal_name(request.group_id)
    if context.api_version == 0:
        return OffsetFetchResponse(topics=await _from_store(broker, context, group_id, request.topics or []))
    error, offsets = await broker.groups.fetch(group_id, request.require_stable)
    if error is not ErrorCode.NONE and context.api_version >= GROUP_ERROR_FROM:
        return OffsetFetchResponse(error_code=error)
    topics = []
    async for name, partitions in context.turns.over(_asked(context, request.topics, dict(offsets))):
        internal = context.internal_name(name)
        committed = dict(offsets.get(internal, {}))
        topic_id = _topic_id(broker, internal)
        answers = []
        async for index in context.turns.over(partitions):
            answers.append(_partition(index, _present(committed.get(index, NO_COMMIT), topic_id), error))
        topics.append(OffsetFetchResponseTopic(name=name, partitions=answers))
    return OffsetFetchResponse(topics=topics)


def _asked(
    context: RequestContext, topics: list[OffsetFetchRequestTopic] | None, offsets: Offsets
) -> Iterator[tuple[str, list[int]]]:
    """The topics asked for, by the client's names, with their partitions; null asks for all."""
    if topics is not None:
        for topic in topics:
            yield topic.name, list(dict.fromkeys(topic.partition_indexes))
    else:
        for name, committed in offsets.items():
            yield context.external_name(name), list(committed)


def _topic_id(broker: Broker, name: str) -> bytes:
    image = broker.metadata.topic(name)
    return ZERO_ID if image is None else image.topic_id


def _present(offset: CommittedOffset, topic_id: bytes) -> CommittedOffset:
    """``offset``, unless it was committed for a topic of that name that was deleted since."""
    return offset if may_be_of(offset, topic_id) else NO_COMMIT


def _partition(index: int, offset: CommittedOffset, error: ErrorCode) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )


async def _from_store(
    broker: Broker, context: RequestContext, group_id: str, topics: list[OffsetFetchRequestTopic]
) -> list[OffsetFetchResponseTopic]:
    turns = context.turns
    kept: dict[TopicPartition, StoredOffset] = {}
    async for topic in turns.over(topics):
        name = context.internal_name(topic.name)
        image = broker.metadata.topic(name)
        count = 0 if image is None else len(image.partitions)
        async for index in turns.over(topic.partition_indexes):
            if 0 <= index < count:
                kept[TopicPartition(name, index)] = UNKNOWN
    stored = StoredOffsets(broker.store)
    for some in slices_of(list(kept)):
        kept.update(zip(some, await turns.rest(stored.fetch(group_id, some)), strict=True))
    answers = []
    async for topic in turns.over(topics):
        name = context.internal_name(topic.name)
        partitions = []
        async for index in turns.over(topic.partition_indexes):
            offset, error = kept.get(TopicPartition(name, index), UNKNOWN)
            partitions.append(_partition(index, CommittedOffset(offset), error))
        answers.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    await turns.let_go(kept)
    return answers


async def _group(
    broker: Broker, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    error, offsets = await broker.groups.fetch(context.internal_name(group.group_id), require_stable)
    if error is not ErrorCode.NONE:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    if group.topics is None:
        topics = await _all_topics(broker, context, offsets)
    else:
        topics = []
        async for topic in context.turns.over(group.topics):
            answer = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            name, error = _topic_name(broker, context, topic.name, topic.topic_id)
            committed = offsets.get(name, {})
            topic_id = _topic_id(broker, name) if topic.topic_id == ZERO_ID else topic.topic_id
            async for index in context.turns.over(dict.fromkeys(topic.partition_indexes)):
                offset = _present(committed.get(index, NO_COMMIT), topic_id)
                answer.partitions.append(_partitions(index, offset, error))
            topics.append(answer)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _topic_name(broker: Broker, context: RequestContext, name: str, topic_id: bytes) -> tuple[str, ErrorCode]:
    if context.api_version < TOPIC_IDS_FROM:
        return context.internal_name(name), ErrorCode.NONE
    image = None if topic_id == ZERO_ID else broker.metadata.topic_by_id(topic_id)
    return ("", ErrorCode.UNKNOWN_TOPIC_ID) if image is None else (image.name, ErrorCode.NONE)


async def _all_topics(
    broker: Broker, context: RequestContext, offsets: Offsets
) -> list[OffsetFetchResponseTopics]:
    """Everything committed for topics as they are now; those that are gone have no id to be named by."""
    topics = []
    async for name, committed in context.turns.over(list(offsets.items())):
        image = broker.metadata.topic(name)
        if context.api_version >= TOPIC_IDS_FROM and image is None:
            continue
        topic_id = ZERO_ID if image is None else image.topic_id
        partitions = []
        async for index, offset in context.turns.over(list(committed.items())):
            partitions.append(_partitions(index, _present(offset, topic_id), ErrorCode.NONE))
        topics.append(
            OffsetFetchResponseTopics(
                name=context.external_name(name), topic_id=topic_id, partitions=partitions
            )
        )
    return topics


def _partitions(index: int, offset: CommittedOffset, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )
