"""OffsetDelete: removes a group's committed offsets of partitions that it does not consume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import slices_of
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import offset_delete as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: messages.OffsetDeleteRequest
) -> messages.OffsetDeleteResponse:
    """Partitions that do not exist get their own error; the group's errors apply to the others."""
    slices = context.slices
    result = await slices.wait_for(broker.group_coordinator.delete_offsets(request.group_id, ()))
    if result.error is not ErrorCode.NONE:
        return messages.OffsetDeleteResponse(error_code=result.error)
    topics = []
    responses: list[tuple[messages.OffsetDeleteResponsePartition, tuple[str, int]]] = []
    requested: dict[tuple[str, int], ErrorCode] = {}
    async for topic in slices.over(request.topics):
        image = broker.metadata_cache.topic(topic.name)
        partitions = []
        async for partition in slices.over(topic.partitions):
            response = messages.OffsetDeleteResponsePartition(partition_index=partition.partition_index)
            partitions.append(response)
            if image is None or not 0 <= partition.partition_index < len(image.partitions):
                response.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                key = (image.name, partition.partition_index)
                responses.append((response, key))
                requested[key] = ErrorCode.NONE
        topics.append(messages.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    for some in slices_of(list(requested)):
        result = await slices.wait_for(broker.group_coordinator.delete_offsets(request.group_id, tuple(some)))
        if result.error is not ErrorCode.NONE:
            return messages.OffsetDeleteResponse(error_code=result.error)
        requested.update(zip(some, result.errors, strict=True))
    async for response, key in slices.over(responses):
        response.error_code = requested[key]
    done = [key for key, error in requested.items() if error == ErrorCode.NONE]
    await log_changes(context, f"offsets of group {request.group_id} deleted", done, _shown)
    await slices.clear(done)
    await slices.clear(responses)
    await slices.clear(requested)
    return messages.OffsetDeleteResponse(topics=topics)


API: Final = declare_api(ApiKey.OFFSET_DELETE, 0, 0, lambda: messages.OffsetDeleteRequest, handle)


def _shown(key: tuple[str, int]) -> str:
    return f"{key[0]}-{key[1]}"
