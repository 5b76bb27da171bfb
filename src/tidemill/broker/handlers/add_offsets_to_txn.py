"""AddOffsetsToTxn: adds the partition of ``__consumer_offsets`` that stores a group to a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import fenced_error
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.transactions.coordinator_effects import AddPartitionsRequest
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import add_offsets_to_txn as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

PRODUCER_FENCED_FROM: Final = 2


async def handle(
    broker: Broker, context: RequestContext, request: messages.AddOffsetsToTxnRequest
) -> messages.AddOffsetsToTxnResponse:
    """Responds once the partition is in the log of the coordinator."""
    if not request.group_id:
        return messages.AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    partition = broker.group_coordinator.runtime.partition_for(request.group_id)
    error = await context.slices.wait_for(
        broker.transaction_coordinator.add_partitions(
            AddPartitionsRequest(
                transactional_id=request.transactional_id,
                producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                partitions=frozenset({TopicPartition(OFFSETS_TOPIC, partition)}),
            )
        )
    )
    return messages.AddOffsetsToTxnResponse(
        error_code=fenced_error(error, context.api_version >= PRODUCER_FENCED_FROM)
    )


API: Final = declare_api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, lambda: messages.AddOffsetsToTxnRequest, handle)
