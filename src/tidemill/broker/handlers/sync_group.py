"""SyncGroup: the leader hands in the assignment, and everybody is told of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.groups.effects import SyncRequest
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


async def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Waits for the leader, and for its assignment to be written."""
    result = await broker.groups.sync(
        SyncRequest(
            group_id=context.internal_name(request.group_id),
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
        )
    )
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
