"""UnregisterBroker: removes a dead broker for good, so that nothing waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_change
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text
from tidemill.broker.request_context import RequestContext
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.model.errors import KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import unregister_broker as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.UnregisterBrokerRequest
) -> messages.UnregisterBrokerResponse:
    """Ends the wait of topic deletions for the broker. A live broker is refused."""
    try:
        await broker.controller.admin_manager.unregister_broker(request.broker_id)
    except (KafkaError, StoreError) as problem:
        error = wire_error(problem)
        return messages.UnregisterBrokerResponse(error_code=error.code, error_message=external_text(error))
    log_change(context, "brokers unregistered", [str(request.broker_id)])
    return messages.UnregisterBrokerResponse(error_code=0, error_message=None)


API: Final = declare_api(
    ApiKey.UNREGISTER_BROKER, 0, 0, lambda: messages.UnregisterBrokerRequest, handle, to_controller=True
)
