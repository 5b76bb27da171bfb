"""ListGroups: the groups that this broker coordinates, filtered by state (v4) and type (v5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

GROUP_TYPE: Final = "classic"


@in_slices
async def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Filters know no case; one that is unknown matches nothing."""
    error, groups = broker.groups.list_groups()
    if error is not ErrorCode.NONE:
        return ListGroupsResponse(error_code=error)
    turns = context.turns
    states = {state.strip().lower() async for state in turns.over(request.states_filter)}
    types = {kind.strip().lower() async for kind in turns.over(request.types_filter)}
    if types and GROUP_TYPE not in types:
        groups = []
    response = ListGroupsResponse()
    async for group in turns.over(groups):
        if not states or group.state.lower() in states:
            response.groups.append(
                ListedGroup(
                    group_id=context.external_name(group.group_id),
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=GROUP_TYPE,
                )
            )
    await turns.let_go(states)
    await turns.let_go(types)
    return response
