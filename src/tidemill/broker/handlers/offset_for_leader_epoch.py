"""OffsetForLeaderEpoch: the end offsets of leader epochs, with which clients detect a diverged log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import offset_for_leader_epoch as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    """Returns, per partition, the largest epoch up to the requested one, and its end offset."""
    response = messages.OffsetForLeaderEpochResponse()
    async for topic in context.slices.over(request.topics):
        result = messages.OffsetForLeaderTopicResult(topic=topic.topic)
        name = topic.topic
        async for wanted in context.slices.over(topic.partitions):
            result.partitions.append(look_up(broker, name, wanted))
        response.topics.append(result)
    return response


API: Final = declare_api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, lambda: messages.OffsetForLeaderEpochRequest, handle
)


def look_up(broker: Broker, topic: str, wanted: messages.OffsetForLeaderPartition) -> messages.EpochEndOffset:
    """Looks up one partition; epoch and offset are -1 where the log has no such epoch."""
    try:
        partition = broker.partition(topic, wanted.partition)
        partition.check_leader(wanted.current_leader_epoch)
    except KafkaError as error:
        return messages.EpochEndOffset(partition=wanted.partition, error_code=error.code)
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset(wanted.leader_epoch, log.end_offset)
    return messages.EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
