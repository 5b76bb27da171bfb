"""DescribeUserScramCredentials: no user has credentials.

Some clients (sarama, kafka-go) send it without checking that it is served.

Source: Apache Kafka, ``ScramImage.describe``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_user_scram_credentials as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeUserScramCredentialsRequest
) -> messages.DescribeUserScramCredentialsResponse:
    """Returns no results for a request of all users, and RESOURCE_NOT_FOUND for each named user."""
    response = messages.DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message=None)
    counts = await context.slices.counts(user.name for user in request.users or ())
    async for name, count in context.slices.over(counts.items()):
        if count > 1:
            code, text = ErrorCode.DUPLICATE_RESOURCE, f"{name} comes twice in this request"
        else:
            code, text = ErrorCode.RESOURCE_NOT_FOUND, f"{name} has no SCRAM credentials"
        response.results.append(
            messages.DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text)
        )
    await context.slices.clear(counts)
    return response


API: Final = declare_api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, lambda: messages.DescribeUserScramCredentialsRequest, handle
)
