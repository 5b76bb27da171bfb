"""DescribeGroups: states, members, assignments. An unknown group is Dead, and an error from v6 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import shortened
from tidemill.groups.coordinator_effects import DescribedGroup
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_groups as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

MISSING_GROUP_ERROR_FROM: Final = 6


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeGroupsRequest
) -> messages.DescribeGroupsResponse:
    """Returns one result per group, in the order of the request; once per group, even if repeated."""
    groups = []
    requested = await context.slices.unique(request.groups)
    async for group_id in context.slices.over(requested):
        view = broker.group_coordinator.describe(group_id)
        if isinstance(view, ErrorCode):
            groups.append(messages.DescribedGroup(group_id=group_id, error_code=view))
        else:
            groups.append(_described(context, group_id, view))
    await context.slices.clear(requested)
    return messages.DescribeGroupsResponse(groups=groups)


API: Final = declare_api(ApiKey.DESCRIBE_GROUPS, 0, 6, lambda: messages.DescribeGroupsRequest, handle)


def _described(context: RequestContext, group_id: str, view: DescribedGroup) -> messages.DescribedGroup:
    described = messages.DescribedGroup(
        group_id=group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol_name,
        members=[
            messages.DescribedGroupMember(
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
    if not view.known and context.api_version >= MISSING_GROUP_ERROR_FROM:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = shortened(f"Group {group_id} not found.")
    return described
