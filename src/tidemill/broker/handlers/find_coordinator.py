"""FindCoordinator: which broker coordinates a group; from v4 on several in one request.

Transactions are not served yet. Their coordinator is refused as for an id that one may not use: that is what
clients give up on at once, where they would ask for ever for a coordinator that is not available.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.handlers.common import external_text, shortened
from tidemill.groups.ports import CoordinatorEndpoint
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

GROUP: Final = 0
TRANSACTION: Final = 1
NOWHERE: Final = CoordinatorEndpoint(-1, "", -1)
BATCHED_FROM: Final = 4


async def handle(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Answers each key by itself; once, however often it is named."""
    if context.api_version >= BATCHED_FROM:
        found = []
        keys = await context.turns.unique(request.coordinator_keys)
        async for key in context.turns.over(keys):
            error, message, endpoint = await _find(broker, context, request.key_type, key, len(keys))
            found.append(
                Coordinator(
                    key=key,
                    node_id=endpoint.node_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    error_code=error,
                    error_message=message,
                )
            )
        await context.turns.let_go(keys)
        return FindCoordinatorResponse(coordinators=found)
    error, message, endpoint = await _find(broker, context, request.key_type, request.key, 1)
    return FindCoordinatorResponse(
        error_code=error,
        error_message=message,
        node_id=endpoint.node_id,
        host=endpoint.host,
        port=endpoint.port,
    )


async def _find(
    broker: Broker, context: RequestContext, key_type: int, key: str, items: int
) -> tuple[ErrorCode, str | None, CoordinatorEndpoint]:
    if key_type == TRANSACTION:
        text = shortened(f"transactional id {key!r} is refused: this broker does not serve transactions yet")
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text, NOWHERE
    if key_type != GROUP:
        text = f"there is no coordinator of type {key_type} here: 0 is a group's, 1 a transaction's"
        return ErrorCode.INVALID_REQUEST, text, NOWHERE
    held = broker.held_answers
    while True:
        try:
            endpoint = await broker.groups.find_coordinator(context.internal_name(key), context.listener.name)
        except KafkaError as problem:
            return problem.code, external_text(problem), NOWHERE
        if held is None or endpoint.node_id not in held.doubted:
            break
        if not await held.hold(context, items, held.edition):
            break
    host = context.host_of(endpoint.node_id, endpoint.host)
    return ErrorCode.NONE, None, CoordinatorEndpoint(endpoint.node_id, host, endpoint.port)
