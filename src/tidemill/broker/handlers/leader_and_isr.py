"""LeaderAndIsr: a request of the active controller to this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import leader_and_isr as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.LeaderAndIsrRequest
) -> messages.LeaderAndIsrResponse:
    """Applies the request if it arrived at the listener for brokers."""
    cluster = broker.cluster
    if cluster is None or not broker.is_from_broker(context):
        return messages.LeaderAndIsrResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, partition_errors=[], topics=[]
        )
    return await cluster.controller_requests.leader_and_isr(request, context.peer.number)


API: Final = declare_api(ApiKey.LEADER_AND_ISR, 5, 7, lambda: messages.LeaderAndIsrRequest, handle)
