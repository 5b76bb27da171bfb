"""DeleteGroups: removes groups without members, with all that they committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.audit import note
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
    asked = tuple(dict.fromkeys(request.groups_names))
    errors = await broker.groups.delete_groups(tuple(context.internal_name(name) for name in asked))
    deleted = [name for name, error in zip(asked, errors, strict=True) if error == ErrorCode.NONE]
    note(context, "groups deleted", deleted)
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=name, error_code=error)
            for name, error in zip(asked, errors, strict=True)
        ]
    )
