"""DescribeAcls, CreateAcls, DeleteAcls: there are no ACLs yet, and the response says so.

Apache Kafka responds with SECURITY_DISABLED when it has no authorizer. Clients have an error for it, while an
API that is not announced only shows them an old broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_acls as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

NO_AUTHORIZER: Final = "This broker has no authorizer: every client may do everything, and there are no ACLs."


def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeAclsRequest
) -> messages.DescribeAclsResponse:
    """Returns the error without rules."""
    return messages.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


API: Final = declare_api(ApiKey.DESCRIBE_ACLS, 0, 3, lambda: messages.DescribeAclsRequest, handle)
