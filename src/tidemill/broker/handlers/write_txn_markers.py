"""WriteTxnMarkers: a transaction coordinator has markers written into partitions of this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.transaction_markers import VERSIONS, MarkerWriter
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import write_txn_markers as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: messages.WriteTxnMarkersRequest
) -> messages.WriteTxnMarkersResponse:
    """Responds once the markers are committed, with an error for each partition."""
    slices = context.slices
    writer = MarkerWriter(broker)
    async for marker in slices.over(request.markers):
        to_write = MarkerToWrite(
            ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        async for topic in slices.over(marker.topics):
            async for index in slices.over(topic.partition_indexes):
                writer.write(to_write, TopicPartition(topic.name, index))
    errors = iter(await slices.wait_for(writer.wait()))
    results: list[messages.WritableTxnMarkerResult] = []
    async for marker in slices.over(request.markers):
        result = messages.WritableTxnMarkerResult(producer_id=marker.producer_id)
        async for topic in slices.over(marker.topics):
            partitions = []
            async for index in slices.over(topic.partition_indexes):
                partitions.append(
                    messages.WritableTxnMarkerPartitionResult(partition_index=index, error_code=next(errors))
                )
            result.topics.append(
                messages.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions)
            )
        results.append(result)
    await slices.clear(writer.errors)
    return messages.WriteTxnMarkersResponse(markers=results)


API: Final = declare_api(ApiKey.WRITE_TXN_MARKERS, *VERSIONS, lambda: messages.WriteTxnMarkersRequest, handle)
