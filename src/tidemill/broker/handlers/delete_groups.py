"""DeleteGroups: removes groups without members, with their committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import slices_of
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import delete_groups as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: messages.DeleteGroupsRequest
) -> messages.DeleteGroupsResponse:
    """Returns one result per group."""
    results = []
    gone: list[str] = []
    requested = await context.slices.unique(request.groups_names)
    for names in slices_of(list(requested)):
        work = broker.group_coordinator.delete_groups(tuple(names))
        errors = await context.slices.wait_for(work)
        for name, error in zip(names, errors, strict=True):
            results.append(messages.DeletableGroupResult(group_id=name, error_code=error))
        gone += [name for name, error in zip(names, errors, strict=True) if error == ErrorCode.NONE]
    await log_changes(context, "groups deleted", gone, str)
    await context.slices.clear(requested)
    return messages.DeleteGroupsResponse(results=results)


API: Final = declare_api(ApiKey.DELETE_GROUPS, 0, 2, lambda: messages.DeleteGroupsRequest, handle)
