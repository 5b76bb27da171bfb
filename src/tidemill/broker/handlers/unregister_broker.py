"""UnregisterBroker: a dead broker does not return, and nothing waits for it any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, store_error
from tidemill.coordination.port import StoreError
from tidemill.model.errors import KafkaError
from tidemill.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Ends the wait of topic deletions for the broker. One that is live is refused."""
    try:
        await broker.controller.unregister_broker(request.broker_id)
    except (KafkaError, StoreError) as problem:
        error = problem if isinstance(problem, KafkaError) else store_error(problem)
        return UnregisterBrokerResponse(error_code=error.code, error_message=external_text(error))
    note(context, "brokers unregistered", [str(request.broker_id)])
    return UnregisterBrokerResponse(error_code=0, error_message=None)
