"""LeaveGroup: members go; from v3 on several at once, each with its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.request_slices import slices_of
from tidemill.groups.effects import LeavingMember
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

BATCHED_FROM: Final = 3


async def handle(broker: Broker, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Before v3 the one member's error is the answer's."""
    is_batched = context.api_version >= BATCHED_FROM
    if is_batched:
        members = []
        async for one in context.turns.over(request.members):
            members.append(LeavingMember(one.member_id, one.group_instance_id, one.reason or ""))
    else:
        members = [LeavingMember(request.member_id)]
    group_id = context.internal_name(request.group_id)
    told: list[tuple[LeavingMember, ErrorCode]] = []
    for some in slices_of(members) or [[]]:
        result = await context.turns.rest(broker.groups.leave(group_id, tuple(some)))
        told += result.members
        if result.error is not ErrorCode.NONE:
            break
    if not is_batched:
        error = result.error
        if error is ErrorCode.NONE and told:
            error = told[0][1]
        return LeaveGroupResponse(error_code=error)
    response = LeaveGroupResponse(error_code=result.error)
    async for left, error in context.turns.over(told):
        response.members.append(
            MemberResponse(member_id=left.member_id, group_instance_id=left.instance_id, error_code=error)
        )
    return response
