"""DeleteGroups: removes groups without members, with all that they committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note
from tidemill.broker.request_slices import slices_of
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Answers each group by itself."""
    results = []
    for names in slices_of(list(dict.fromkeys(request.groups_names))):
        work = broker.groups.delete_groups(tuple([context.internal_name(name) for name in names]))
        errors = await context.turns.rest(work)
        for name, error in zip(names, errors, strict=True):
            results.append(DeletableGroupResult(group_id=name, error_code=error))
    note(context, "groups deleted", [one.group_id for one in results if one.error_code == ErrorCode.NONE])
    return DeleteGroupsResponse(results=results)
