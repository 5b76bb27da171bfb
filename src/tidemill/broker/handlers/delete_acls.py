"""DeleteAcls: refused, see :mod:`tidemill.broker.handlers.describe_acls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.handlers.describe_acls import NO_AUTHORIZER
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


@in_slices
async def handle(broker: Broker, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """The same refusal for each filter."""
    response = DeleteAclsResponse()
    async for _ in context.turns.over(request.filters):
        response.filter_results.append(
            DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        )
    return response
