"""DeleteRecords: moves the start of a log forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext
    from tidemill.replication.partition import Partition

HIGH_WATERMARK = -1


async def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Deletes up to the offset that each partition names; -1 stands for its high watermark."""
    topics = []
    for topic in request.topics:
        name = context.internal_name(topic.name)
        results = []
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
            try:
                partition = broker.partition(name, wanted.partition_index)
                result.low_watermark = delete(partition, wanted.offset)
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    await broker.partitions.checkpoints.log_starts()
    return DeleteRecordsResponse(topics=topics)


def delete(partition: Partition, offset: int) -> int:
    """Moves the log's start to ``offset``; the start after that."""
    partition.check_leader(-1)
    if not partition.log.config.delete:
        raise KafkaError(
            f"{partition.topic} is compacted only: records go when their key has a newer value",
            ErrorCode.POLICY_VIOLATION,
        )
    target = partition.high_watermark if offset == HIGH_WATERMARK else offset
    if target < 0 or target > partition.high_watermark:
        raise KafkaError(
            f"offset {offset} is not between 0 and the high watermark {partition.high_watermark}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    partition.advance_start(target)
    return partition.log.start_offset
