"""FindCoordinator: the coordinator of a group or a transactional id; from v4 on of several in one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text
from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorEndpoint
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import find_coordinator as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

GROUP: Final = 0
TRANSACTION: Final = 1
NO_ENDPOINT: Final = CoordinatorEndpoint(node_id=-1, host="", port=-1)
BATCHED_FROM: Final = 4


async def handle(
    broker: Broker, context: RequestContext, request: messages.FindCoordinatorRequest
) -> messages.FindCoordinatorResponse:
    """Responds for each key separately; once per key, even if it is repeated."""
    if context.api_version >= BATCHED_FROM:
        found = []
        keys = await context.slices.unique(request.coordinator_keys)
        async for key in context.slices.over(keys):
            error, message, endpoint = await _find(broker, context, request.key_type, key, len(keys))
            found.append(
                messages.Coordinator(
                    key=key,
                    node_id=endpoint.node_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    error_code=error,
                    error_message=message,
                )
            )
        await context.slices.clear(keys)
        return messages.FindCoordinatorResponse(coordinators=found)
    error, message, endpoint = await _find(broker, context, request.key_type, request.key, 1)
    return messages.FindCoordinatorResponse(
        error_code=error,
        error_message=message,
        node_id=endpoint.node_id,
        host=endpoint.host,
        port=endpoint.port,
    )


API: Final = declare_api(ApiKey.FIND_COORDINATOR, 0, 6, lambda: messages.FindCoordinatorRequest, handle)


async def _find(
    broker: Broker, context: RequestContext, key_type: int, key: str, items: int
) -> tuple[ErrorCode, str | None, CoordinatorEndpoint]:
    if key_type == GROUP:
        find = broker.group_coordinator.runtime.find_coordinator
    elif key_type == TRANSACTION:
        find = broker.transaction_coordinator.runtime.find_coordinator
    else:
        text = f"coordinator type {key_type} does not exist: use 0 for groups, 1 for transactions"
        return ErrorCode.INVALID_REQUEST, text, NO_ENDPOINT
    delayed_metadata = broker.cluster.delayed_metadata if broker.cluster is not None else None
    while True:
        try:
            endpoint = await find(key, context.listener.name)
        except KafkaError as problem:
            return problem.code, external_text(problem), NO_ENDPOINT
        if delayed_metadata is None or endpoint.node_id not in delayed_metadata.suspected:
            break
        if not await delayed_metadata.wait_for_change(context, items, delayed_metadata.change_count):
            break
    host = context.advertised_host(endpoint.node_id, endpoint.host)
    return ErrorCode.NONE, None, CoordinatorEndpoint(node_id=endpoint.node_id, host=host, port=endpoint.port)
