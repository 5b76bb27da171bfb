"""OffsetDelete: removes what a group committed for partitions that it does not consume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.audit import note
from tidemill.model.errors import ErrorCode
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
    topics = []
    answers: list[OffsetDeleteResponsePartition] = []
    asked: list[tuple[str, int]] = []
    for topic in request.topics:
        image = broker.metadata.topic(context.internal_name(topic.name))
        partitions = []
        for one in topic.partitions:
            answer = OffsetDeleteResponsePartition(partition_index=one.partition_index)
            partitions.append(answer)
            if image is None or not 0 <= one.partition_index < len(image.partitions):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                answers.append(answer)
                asked.append((image.name, one.partition_index))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    result = await broker.groups.delete_offsets(context.internal_name(request.group_id), tuple(asked))
    if result.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=result.error)
    for answer, error in zip(answers, result.errors, strict=True):
        answer.error_code = error
    done = [
        f"{name}-{index}"
        for (name, index), error in zip(asked, result.errors, strict=True)
        if error == ErrorCode.NONE
    ]
    note(context, f"offsets of group {request.group_id} deleted", done)
    return OffsetDeleteResponse(topics=topics)
