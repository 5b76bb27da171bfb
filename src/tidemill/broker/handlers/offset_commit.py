"""OffsetCommit: a group's positions are written to ``__consumer_offsets``.

v0 keeps them in the coordination store, whoever coordinates the group. v10 names topics by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.groups.effects import CommitRequest, OffsetToCommit
from tidemill.groups.stored_offsets import PartitionOffset, StoredOffsets
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import slices_of
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext
    from tidemill.broker.metadata import TopicImage

MISSING_GROUP_TOLD_FROM: Final = 9
TOPIC_IDS_FROM: Final = 10


async def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Commits what names a partition that exists; the rest gets an error of its own.

    Of a partition that comes twice the last offset counts. So many at a time are committed as one slice has
    room for: to the group these are commits that follow each other.
    """
    turns = context.turns
    topics = []
    answers: list[tuple[OffsetCommitResponsePartition, tuple[str, int]]] = []
    offsets: dict[tuple[str, int], OffsetToCommit] = {}
    async for topic in turns.over(request.topics):
        image, unknown = _topic(broker, context, topic)
        partitions = []
        async for one in turns.over(topic.partitions):
            answer = OffsetCommitResponsePartition(partition_index=one.partition_index)
            partitions.append(answer)
            if image is None or not 0 <= one.partition_index < len(image.partitions):
                answer.error_code = unknown if image is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            key = (image.name, one.partition_index)
            answers.append((answer, key))
            offsets[key] = OffsetToCommit(
                image.name,
                one.partition_index,
                one.committed_offset,
                one.committed_leader_epoch,
                one.committed_metadata,
                image.topic_id,
                one.commit_timestamp,
            )
        topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
    errors: dict[tuple[str, int], ErrorCode] = {}
    for some in slices_of(list(offsets.values())):
        results = await turns.rest(_commit(broker, context, request, some))
        for offset, error in zip(some, results, strict=True):
            errors[offset.topic, offset.partition] = error
    async for answer, key in turns.over(answers):
        answer.error_code = errors[key]
    await turns.let_go(answers)
    await turns.let_go(offsets)
    await turns.let_go(errors)
    return OffsetCommitResponse(topics=topics)


def _topic(
    broker: Broker, context: RequestContext, topic: OffsetCommitRequestTopic
) -> tuple[TopicImage | None, ErrorCode]:
    if context.api_version < TOPIC_IDS_FROM:
        return broker.metadata.topic(context.internal_name(topic.name)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.topic_id == ZERO_ID:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    return broker.metadata.topic_by_id(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID


async def _commit(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest, offsets: Sequence[OffsetToCommit]
) -> tuple[ErrorCode, ...]:
    group_id = context.internal_name(request.group_id)
    if context.api_version == 0:
        return await _commit_to_store(broker, group_id, offsets)
    result = await broker.groups.commit(
        CommitRequest(
            group_id=group_id,
            offsets=tuple(offsets),
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            retention_ms=request.retention_time_ms,
            tells_missing_group=context.api_version >= MISSING_GROUP_TOLD_FROM,
        )
    )
    return result.errors


async def _commit_to_store(
    broker: Broker, group_id: str, offsets: Sequence[OffsetToCommit]
) -> tuple[ErrorCode, ...]:
    longest = broker.groups.config.offset_metadata_size_max
    too_large = [len(offset.metadata or "") > longest for offset in offsets]
    kept = [
        PartitionOffset(TopicPartition(offset.topic, offset.partition), offset.offset)
        for offset, refused in zip(offsets, too_large, strict=True)
        if not refused
    ]
    errors = iter(await StoredOffsets(broker.store).commit(group_id, kept))
    return tuple(ErrorCode.OFFSET_METADATA_TOO_LARGE if refused else next(errors) for refused in too_large)
