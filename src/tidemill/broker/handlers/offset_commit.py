"""OffsetCommit: writes a group's offsets to ``__consumer_offsets``.

v0 stores them in the coordination store, regardless of the group's coordinator. v10 identifies topics by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.groups.zookeeper_offsets import PartitionOffset, ZooKeeperOffsets
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import slices_of
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import offset_commit as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.metadata_cache import TopicImage
    from tidemill.broker.request_context import RequestContext

MISSING_GROUP_ERROR_FROM: Final = 9
TOPIC_IDS_FROM: Final = 10


async def handle(
    broker: Broker, context: RequestContext, request: messages.OffsetCommitRequest
) -> messages.OffsetCommitResponse:
    """Commits the offsets of existing partitions; the others get their own errors.

    The last offset of a duplicate partition wins. Offsets are committed in slices: to the group these are
    consecutive commits.
    """
    slices = context.slices
    topics = []
    responses: list[tuple[messages.OffsetCommitResponsePartition, tuple[str, int]]] = []
    offsets: dict[tuple[str, int], OffsetToCommit] = {}
    async for topic in slices.over(request.topics):
        image, unknown = _topic(broker, context, topic)
        partitions = []
        async for partition in slices.over(topic.partitions):
            response = messages.OffsetCommitResponsePartition(partition_index=partition.partition_index)
            partitions.append(response)
            if image is None or not 0 <= partition.partition_index < len(image.partitions):
                response.error_code = unknown if image is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            key = (image.name, partition.partition_index)
            responses.append((response, key))
            offsets[key] = OffsetToCommit(
                topic=image.name,
                partition=partition.partition_index,
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata,
                topic_id=image.topic_id,
                commit_timestamp_ms=partition.commit_timestamp,
            )
        topics.append(
            messages.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    errors: dict[tuple[str, int], ErrorCode] = {}
    for some in slices_of(list(offsets.values())):
        results = await slices.wait_for(_commit(broker, context, request, some))
        for offset, error in zip(some, results, strict=True):
            errors[offset.topic, offset.partition] = error
    async for response, key in slices.over(responses):
        response.error_code = errors[key]
    await slices.clear(responses)
    await slices.clear(offsets)
    await slices.clear(errors)
    return messages.OffsetCommitResponse(topics=topics)


API: Final = declare_api(ApiKey.OFFSET_COMMIT, 0, 10, lambda: messages.OffsetCommitRequest, handle)


def _topic(
    broker: Broker, context: RequestContext, topic: messages.OffsetCommitRequestTopic
) -> tuple[TopicImage | None, ErrorCode]:
    if context.api_version < TOPIC_IDS_FROM:
        return broker.metadata_cache.topic(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.topic_id == ZERO_ID:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    return broker.metadata_cache.topic_by_id(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID


async def _commit(
    broker: Broker,
    context: RequestContext,
    request: messages.OffsetCommitRequest,
    offsets: Sequence[OffsetToCommit],
) -> tuple[ErrorCode, ...]:
    if context.api_version == 0:
        return await _commit_to_store(broker, request.group_id, offsets)
    result = await broker.group_coordinator.commit(
        CommitRequest(
            group_id=request.group_id,
            offsets=tuple(offsets),
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            retention_ms=request.retention_time_ms,
            reports_missing_group=context.api_version >= MISSING_GROUP_ERROR_FROM,
        )
    )
    return result.errors


async def _commit_to_store(
    broker: Broker, group_id: str, offsets: Sequence[OffsetToCommit]
) -> tuple[ErrorCode, ...]:
    longest = broker.group_coordinator.config.offset_metadata_size_max
    too_large = [len(offset.metadata or "") > longest for offset in offsets]
    kept = [
        PartitionOffset(partition=TopicPartition(offset.topic, offset.partition), offset=offset.offset)
        for offset, refused in zip(offsets, too_large, strict=True)
        if not refused
    ]
    errors = iter(await ZooKeeperOffsets(broker.store).commit(group_id, kept))
    return tuple(ErrorCode.OFFSET_METADATA_TOO_LARGE if refused else next(errors) for refused in too_large)
