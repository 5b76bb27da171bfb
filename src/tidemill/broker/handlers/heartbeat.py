"""Heartbeat: keeps a member's session alive, and reports whether the member must rejoin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import heartbeat as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: messages.HeartbeatRequest
) -> messages.HeartbeatResponse:
    """Responds at once."""
    error = broker.group_coordinator.heartbeat(
        request.group_id,
        request.member_id,
        request.generation_id,
        request.group_instance_id,
    )
    return messages.HeartbeatResponse(error_code=error)


API: Final = declare_api(ApiKey.HEARTBEAT, 0, 4, lambda: messages.HeartbeatRequest, handle)
