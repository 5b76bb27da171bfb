"""OffsetCommit: a group's positions are written to ``__consumer_offsets``.

v0 keeps them in ZooKeeper where there is one, else here like all others. v10 names topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.groups.effects import CommitRequest, OffsetToCommit
from tidemill.groups.offsets import CommittedOffset
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
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
    """Commits what names a partition that exists; the rest gets an error of its own."""
    topics = []
    answers: list[OffsetCommitResponsePartition] = []
    offsets: list[OffsetToCommit] = []
    for topic in request.topics:
        image, unknown = _topic(broker, context, topic)
        partitions = []
        for one in topic.partitions:
            answer = OffsetCommitResponsePartition(partition_index=one.partition_index)
            partitions.append(answer)
            if image is None or not 0 <= one.partition_index < len(image.partitions):
                answer.error_code = unknown if image is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            answers.append(answer)
            offsets.append(
                OffsetToCommit(
                    image.name,
                    one.partition_index,
                    one.committed_offset,
                    one.committed_leader_epoch,
                    one.committed_metadata,
                    image.topic_id,
                    one.commit_timestamp,
                )
            )
        topics.append(
            OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
    if offsets:
        errors = await _commit(broker, context, request, offsets)
        for answer, error in zip(answers, errors, strict=True):
            answer.error_code = error
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
    broker: Broker, context: RequestContext, request: OffsetCommitRequest, offsets: list[OffsetToCommit]
) -> tuple[ErrorCode, ...]:
    group_id = context.internal_name(request.group_id)
    if context.api_version == 0 and broker.groups.zookeeper_offsets is not None:
        return tuple([await _commit_to_zookeeper(broker, group_id, offset) for offset in offsets])
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


async def _commit_to_zookeeper(broker: Broker, group_id: str, offset: OffsetToCommit) -> ErrorCode:
    kept = broker.groups.zookeeper_offsets
    metadata = offset.metadata or ""
    if len(metadata) > broker.groups.config.offset_metadata_size_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    if kept is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    try:
        value = CommittedOffset(offset.offset, metadata=metadata)
        await kept.commit(group_id, offset.topic, offset.partition, value)
    except KafkaError as problem:
        return problem.code
    return ErrorCode.NONE
