"""LeaveGroup: members leave; from v3 on several at once, each with its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.groups.coordinator_effects import LeavingMember
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import slices_of
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import leave_group as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

BATCHED_FROM: Final = 3


async def handle(
    broker: Broker, context: RequestContext, request: messages.LeaveGroupRequest
) -> messages.LeaveGroupResponse:
    """Before v3, the only member's error is the response's."""
    if context.api_version < BATCHED_FROM:
        result = await context.slices.wait_for(
            broker.group_coordinator.leave(request.group_id, (LeavingMember(member_id=request.member_id),))
        )
        error = result.error
        if error is ErrorCode.NONE and result.members:
            error = result.members[0][1]
        return messages.LeaveGroupResponse(error_code=error)
    response = messages.LeaveGroupResponse()
    for some in slices_of(request.members) or [[]]:
        # In slices: a hundred thousand members removed at once would block the event loop.
        members = tuple(
            LeavingMember(
                member_id=member.member_id, instance_id=member.group_instance_id, reason=member.reason or ""
            )
            for member in some
        )
        result = await context.slices.wait_for(broker.group_coordinator.leave(request.group_id, members))
        response.members += [
            messages.MemberResponse(
                member_id=left.member_id, group_instance_id=left.instance_id, error_code=error
            )
            for left, error in result.members
        ]
        response.error_code = result.error
        if result.error is not ErrorCode.NONE:
            break
        await context.slices.step()
    return response


API: Final = declare_api(ApiKey.LEAVE_GROUP, 0, 5, lambda: messages.LeaveGroupRequest, handle)
