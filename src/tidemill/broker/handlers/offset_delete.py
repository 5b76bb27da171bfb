"""OffsetDelete: removes what a group committed for partitions that it does not consume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import slices_of
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Partitions that do not exist are told so; what the group says counts for the rest."""
    turns = context.turns
    group_id = context.internal_name(request.group_id)
    result = await turns.rest(broker.groups.delete_offsets(group_id, ()))
    if result.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=result.error)
    topics = []
    answers: list[tuple[OffsetDeleteResponsePartition, tuple[str, int]]] = []
    asked: dict[tuple[str, int], ErrorCode] = {}
    async for topic in turns.over(request.topics):
        image = broker.metadata.topic(context.internal_name(topic.name))
        partitions = []
        async for one in turns.over(topic.partitions):
            answer = OffsetDeleteResponsePartition(partition_index=one.partition_index)
            partitions.append(answer)
            if image is None or not 0 <= one.partition_index < len(image.partitions):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                key = (image.name, one.partition_index)
                answers.append((answer, key))
                asked[key] = ErrorCode.NONE
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    for some in slices_of(list(asked)):
        result = await turns.rest(broker.groups.delete_offsets(group_id, tuple(some)))
        if result.error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=result.error)
        asked.update(zip(some, result.errors, strict=True))
    async for answer, key in turns.over(answers):
        answer.error_code = asked[key]
    done = [key for key, error in asked.items() if error == ErrorCode.NONE]
    await note_each(context, f"offsets of group {request.group_id} deleted", done, _shown)
    await turns.let_go(done)
    await turns.let_go(answers)
    await turns.let_go(asked)
    return OffsetDeleteResponse(topics=topics)


def _shown(key: tuple[str, int]) -> str:
    return f"{key[0]}-{key[1]}"
