"""Heartbeat: a member is alive, and learns whether it should join again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Answers at once."""
    error = broker.groups.heartbeat(
        context.internal_name(request.group_id),
        request.member_id,
        request.generation_id,
        request.group_instance_id,
    )
    return HeartbeatResponse(error_code=error)
