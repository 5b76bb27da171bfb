"""DeleteAcls: refused, see :mod:`tidemill.broker.handlers.describe_acls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.describe_acls import NO_AUTHORIZER
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import delete_acls as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DeleteAclsRequest
) -> messages.DeleteAclsResponse:
    """Returns the same error for each filter."""
    response = messages.DeleteAclsResponse()
    async for _ in context.slices.over(request.filters):
        response.filter_results.append(
            messages.DeleteAclsFilterResult(
                error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
            )
        )
    return response


API: Final = declare_api(ApiKey.DELETE_ACLS, 0, 3, lambda: messages.DeleteAclsRequest, handle)
