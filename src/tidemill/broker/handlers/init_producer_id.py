"""InitProducerId: an id for an idempotent producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Gives out an id that no producer had before.

    A transactional id is refused with an error that clients take for final: there are no transactions yet.
    """
    if request.transactional_id is not None:
        code = (
            ErrorCode.INVALID_REQUEST
            if request.transactional_id == ""
            else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await broker.producer_ids.next()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
