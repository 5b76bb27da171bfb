"""SyncGroup: the leader sends the assignment, and every member receives its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.groups.coordinator_effects import SyncRequest
from tidemill.model.errors import ErrorCode
from tidemill.model.log_lines import cut_short
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import sync_group as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


logger = logging.getLogger("tidemill.groups")

NAME_CHARACTERS_MAX: Final = 100

ASSIGNMENTS_MAX: Final = 10_000
"""The limit for all members of one group."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.SyncGroupRequest
) -> messages.SyncGroupResponse:
    """Waits for the leader, and for its assignment to be written."""
    if len(request.assignments) > ASSIGNMENTS_MAX:
        logger.warning(
            "the leader of group %r sends %d assignments: at most %d are accepted. Split the group",
            cut_short(request.group_id, NAME_CHARACTERS_MAX),
            len(request.assignments),
            ASSIGNMENTS_MAX,
        )
        return messages.SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST, assignment=b"")
    work = broker.group_coordinator.sync(
        SyncRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=tuple(
                (assignment.member_id, assignment.assignment) for assignment in request.assignments
            ),
        )
    )
    result = await context.slices.wait_for(work)
    return messages.SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API: Final = declare_api(ApiKey.SYNC_GROUP, 0, 5, lambda: messages.SyncGroupRequest, handle)
