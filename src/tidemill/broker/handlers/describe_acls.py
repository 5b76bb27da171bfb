"""DescribeAcls, CreateAcls, DeleteAcls: there are no access rules here yet, and that is what is answered.

SECURITY_DISABLED is what Apache Kafka answers without an authorizer; clients have a name for it, where an API
that is not announced only tells them that the broker is old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

NO_AUTHORIZER: Final = "This broker has no authorizer: every client may do everything, and there are no ACLs."


def handle(broker: Broker, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """No rules, and why."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
