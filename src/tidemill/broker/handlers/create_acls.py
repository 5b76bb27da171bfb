"""CreateAcls: refused, see :mod:`tidemill.broker.handlers.describe_acls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.handlers.describe_acls import NO_AUTHORIZER
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


@in_slices
async def handle(broker: Broker, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """The same refusal for each rule."""
    response = CreateAclsResponse()
    async for _ in context.turns.over(request.creations):
        response.results.append(
            AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        )
    return response
