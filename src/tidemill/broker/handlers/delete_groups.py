"""DeleteGroups: removes groups without members, with all that they committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import slices_of
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
    gone: list[str] = []
    asked = await context.turns.unique(request.groups_names)
    for names in slices_of(list(asked)):
        work = broker.groups.delete_groups(tuple([context.internal_name(name) for name in names]))
        errors = await context.turns.rest(work)
        for name, error in zip(names, errors, strict=True):
            results.append(DeletableGroupResult(group_id=name, error_code=error))
        gone += [name for name, error in zip(names, errors, strict=True) if error == ErrorCode.NONE]
    await note_each(context, "groups deleted", gone, str)
    await context.turns.let_go(asked)
    return DeleteGroupsResponse(results=results)
