"""ControlledShutdown: a broker that is about to stop hands its leaderships over first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import store_error
from tidemill.coordination.port import StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    """What the broker still leads, so that it can ask again."""
    if not broker.commands.are_open_to(context):
        return ControlledShutdownResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, remaining_partitions=[]
        )
    try:
        remaining = await broker.controller.leading.shut_down(request.broker_id, request.broker_epoch)
    except (KafkaError, StoreError) as problem:
        error = problem if isinstance(problem, KafkaError) else store_error(problem)
        return ControlledShutdownResponse(error_code=error.code, remaining_partitions=[])
    return ControlledShutdownResponse(
        error_code=0,
        remaining_partitions=[
            RemainingPartition(topic_name=topic, partition_index=number) for topic, number in remaining
        ],
    )
