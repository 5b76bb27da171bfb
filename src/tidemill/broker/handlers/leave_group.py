"""LeaveGroup: members go; from v3 on several at once, each with its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.groups.effects import LeavingMember
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import slices_of
from tidemill.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

BATCHED_FROM: Final = 3


async def handle(broker: Broker, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Before v3 the one member's error is the answer's."""
    group_id = context.internal_name(request.group_id)
    if context.api_version < BATCHED_FROM:
        result = await context.turns.rest(broker.groups.leave(group_id, (LeavingMember(request.member_id),)))
        error = result.error
        if error is ErrorCode.NONE and result.members:
            error = result.members[0][1]
        return LeaveGroupResponse(error_code=error)
    response = LeaveGroupResponse()
    for some in slices_of(request.members) or [[]]:
        # No more of them at a time: a hundred thousand that are dropped together hold the loop.
        members = tuple(LeavingMember(one.member_id, one.group_instance_id, one.reason or "") for one in some)
        result = await context.turns.rest(broker.groups.leave(group_id, members))
        response.members += [
            MemberResponse(member_id=left.member_id, group_instance_id=left.instance_id, error_code=error)
            for left, error in result.members
        ]
        response.error_code = result.error
        if result.error is not ErrorCode.NONE:
            break
        await context.turns.step()
    return response
