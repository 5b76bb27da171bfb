"""UpdateMetadata: a request of the active controller to this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import update_metadata as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.UpdateMetadataRequest
) -> messages.UpdateMetadataResponse:
    """Applies the request if it arrived at the listener for brokers."""
    cluster = broker.cluster
    if cluster is None or not broker.is_from_broker(context):
        return messages.UpdateMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await cluster.controller_requests.update_metadata(request, context.peer.number)


API: Final = declare_api(ApiKey.UPDATE_METADATA, 7, 8, lambda: messages.UpdateMetadataRequest, handle)
