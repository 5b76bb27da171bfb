"""DescribeUserScramCredentials: no user has any.

Clients (sarama, kafka-go) send it without asking whether it is served.

Source: Apache Kafka, ``ScramImage.describe``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Nothing for a request of all users; of each that is named that it has none."""
    response = DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message=None)
    counts = await context.turns.counts(one.name for one in request.users or ())
    async for name, count in context.turns.over(counts.items()):
        if count > 1:
            code, text = ErrorCode.DUPLICATE_RESOURCE, f"{name} comes twice in this request"
        else:
            code, text = ErrorCode.RESOURCE_NOT_FOUND, f"{name} has no SCRAM credentials"
        response.results.append(
            DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text)
        )
    await context.turns.let_go(counts)
    return response
