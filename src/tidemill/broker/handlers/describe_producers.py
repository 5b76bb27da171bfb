"""DescribeProducers: the active idempotent producers of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import external_text
from tidemill.model.errors import KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_producers as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext
    from tidemill.replication.partition import Partition


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """Returns each partition's producers."""
    topics = []
    async for topic in context.slices.over(request.topics):
        name = topic.name
        partitions = []
        async for index in context.slices.over(dict.fromkeys(topic.partition_indexes)):
            response = messages.PartitionResponse(partition_index=index)
            try:
                partition = broker.partition(name, index)
                partition.check_leader(-1)
                response.active_producers = describe(partition)
            except KafkaError as error:
                response.error_code = error.code
                response.error_message = external_text(error)
            partitions.append(response)
        topics.append(messages.TopicResponse(name=topic.name, partitions=partitions))
    return messages.DescribeProducersResponse(topics=topics)


API: Final = declare_api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, lambda: messages.DescribeProducersRequest, handle)


def describe(partition: Partition) -> list[messages.ProducerState]:
    """Returns the producers in the partition's producer state."""
    return [
        messages.ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_first_offset,
        )
        for entry in partition.log.producers()
    ]
