"""OffsetForLeaderEpoch: where a leader's time ended, so that readers notice a log that diverged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import KafkaError
from tidemill.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """For each partition the largest epoch up to the asked one, and the offset at which it ended."""
    response = OffsetForLeaderEpochResponse()
    async for topic in context.turns.over(request.topics):
        result = OffsetForLeaderTopicResult(topic=topic.topic)
        name = context.internal_name(topic.topic)
        async for wanted in context.turns.over(topic.partitions):
            result.partitions.append(look_up(broker, name, wanted))
        response.topics.append(result)
    return response


def look_up(broker: Broker, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    """One partition's answer; epoch and offset are -1 where the log holds none so old."""
    try:
        partition = broker.partition(topic, wanted.partition)
        partition.check_leader(wanted.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset(wanted.leader_epoch, log.end_offset)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
