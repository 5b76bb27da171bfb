"""InitProducerId: assigns an id to an idempotent producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import init_producer_id as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """Assigns an id that no producer had before.

    A transactional id is refused with an error that clients treat as fatal: there are no transactions yet.
    """
    if request.transactional_id is not None:
        code = (
            ErrorCode.INVALID_REQUEST
            if request.transactional_id == ""
            else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
        return messages.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await broker.producer_id_manager.next()
    except KafkaError as error:
        return messages.InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


API: Final = declare_api(ApiKey.INIT_PRODUCER_ID, 0, 5, lambda: messages.InitProducerIdRequest, handle)
