"""StopReplica: a request of the active controller to this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import stop_replica as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.StopReplicaRequest
) -> messages.StopReplicaResponse:
    """Applies the request if it arrived at the listener for brokers."""
    cluster = broker.cluster
    if cluster is None or not broker.is_from_broker(context):
        return messages.StopReplicaResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, partition_errors=[]
        )
    return await cluster.controller_requests.stop_replica(request, context.peer.number)


API: Final = declare_api(ApiKey.STOP_REPLICA, 3, 4, lambda: messages.StopReplicaRequest, handle)
