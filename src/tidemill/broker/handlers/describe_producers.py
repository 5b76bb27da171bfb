"""DescribeProducers: the idempotent producers that a partition remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.handlers.common import external_text
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import KafkaError
from tidemill.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext
    from tidemill.replication.partition import Partition


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Tells each partition's producers."""
    topics = []
    async for topic in context.turns.over(request.topics):
        name = context.internal_name(topic.name)
        partitions = []
        async for index in context.turns.over(dict.fromkeys(topic.partition_indexes)):
            answer = PartitionResponse(partition_index=index)
            try:
                partition = broker.partition(name, index)
                partition.check_leader(-1)
                answer.active_producers = describe(partition)
            except KafkaError as error:
                answer.error_code = error.code
                answer.error_message = external_text(error)
            partitions.append(answer)
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def describe(partition: Partition) -> list[ProducerState]:
    """The producers that the partition's log remembers."""
    return [
        ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=-1,
        )
        for entry in partition.log.producers()
    ]
