"""ControlledShutdown: a stopping broker hands over its leaderships first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.request_context import RequestContext
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import controlled_shutdown as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.ControlledShutdownRequest
) -> messages.ControlledShutdownResponse:
    """Returns the partitions that the broker still leads, so that it can retry."""
    if not broker.is_from_broker(context):
        return messages.ControlledShutdownResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, remaining_partitions=[]
        )
    try:
        remaining = await broker.controller.leader_elections.handle_controlled_shutdown(
            request.broker_id, broker_epoch=request.broker_epoch
        )
    except (KafkaError, StoreError) as problem:
        return messages.ControlledShutdownResponse(
            error_code=wire_error(problem).code, remaining_partitions=[]
        )
    return messages.ControlledShutdownResponse(
        error_code=0,
        remaining_partitions=[
            messages.RemainingPartition(topic_name=topic, partition_index=number)
            for topic, number in remaining
        ],
    )


API: Final = declare_api(ApiKey.CONTROLLED_SHUTDOWN, 0, 3, lambda: messages.ControlledShutdownRequest, handle)
