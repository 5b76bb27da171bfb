"""ListGroups: the groups that this broker coordinates, filtered by state (v4) and type (v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import list_groups as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

GROUP_TYPE: Final = "classic"


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.ListGroupsRequest
) -> messages.ListGroupsResponse:
    """Filters ignore case; an unknown filter value matches nothing."""
    error, groups = broker.group_coordinator.list_groups()
    if error is not ErrorCode.NONE:
        return messages.ListGroupsResponse(error_code=error)
    slices = context.slices
    states = {state.strip().lower() async for state in slices.over(request.states_filter)}
    types = {kind.strip().lower() async for kind in slices.over(request.types_filter)}
    if types and GROUP_TYPE not in types:
        groups = []
    response = messages.ListGroupsResponse()
    async for group in slices.over(groups):
        if not states or group.state.lower() in states:
            response.groups.append(
                messages.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=GROUP_TYPE,
                )
            )
    await slices.clear(states)
    await slices.clear(types)
    return response


API: Final = declare_api(ApiKey.LIST_GROUPS, 0, 5, lambda: messages.ListGroupsRequest, handle)
