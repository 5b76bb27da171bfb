"""LeaveGroup: members go; from v3 on several at once, each with its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
        members = tuple(
            LeavingMember(one.member_id, one.group_instance_id, one.reason or "") for one in request.members
        )
    else:
        members = (LeavingMember(request.member_id),)
    result = await broker.groups.leave(context.internal_name(request.group_id), members)
    if not is_batched:
        error = result.error
        if error is ErrorCode.NONE and result.members:
            error = result.members[0][1]
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(member_id=one.member_id, group_instance_id=one.instance_id, error_code=error)
            for one, error in result.members
        ],
    )
