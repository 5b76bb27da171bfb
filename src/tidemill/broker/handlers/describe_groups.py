"""DescribeGroups: states, members, assignments. An unknown group is dead, and from v6 on an error too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.handlers.common import shortened
from tidemill.broker.request_slices import in_slices
from tidemill.groups.effects import DescribedGroup as GroupView
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

MISSING_GROUP_TOLD_FROM: Final = 6


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Answers each group by itself, in the order asked; once, however often it is named."""
    groups = []
    asked = await context.turns.unique(request.groups)
    async for group_id in context.turns.over(asked):
        view = broker.groups.describe(context.internal_name(group_id))
        if isinstance(view, ErrorCode):
            groups.append(DescribedGroup(group_id=group_id, error_code=view))
        else:
            groups.append(_described(context, group_id, view))
    await context.turns.let_go(asked)
    return DescribeGroupsResponse(groups=groups)


def _described(context: RequestContext, group_id: str, view: GroupView) -> DescribedGroup:
    described = DescribedGroup(
        group_id=group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in view.members
        ],
    )
    if not view.known and context.api_version >= MISSING_GROUP_TOLD_FROM:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = shortened(f"Group {group_id} not found.")
    return described
