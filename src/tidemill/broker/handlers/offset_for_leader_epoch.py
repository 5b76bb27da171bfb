"""OffsetForLeaderEpoch: where a leader's time ended, so that readers notice a log that diverged."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def handle(
    broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """For each partition the largest epoch up to the asked one, and the offset at which it ended."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    look_up(broker, context.internal_name(topic.topic), wanted) for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


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
