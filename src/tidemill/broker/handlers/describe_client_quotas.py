"""DescribeClientQuotas: there are no quotas, so nothing matches; an invalid filter is refused.

Some clients (sarama, kafka-go) send it without checking that it is served.

Source: Apache Kafka, ``ClientQuotasImage.describe``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import external_text
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_client_quotas as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

USER, CLIENT_ID, ADDRESS = "user", "client-id", "ip"
EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2
"""The values of ``match_type``: this name, the default entity, any entity with a quota."""


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeClientQuotasRequest
) -> messages.DescribeClientQuotasResponse:
    """Returns no entries, or the error of the filter."""
    seen: set[str] = set()
    try:
        async for component in context.slices.over(request.components):
            _check(component, seen)
            seen.add(component.entity_type)
        if ADDRESS in seen and len(seen) > 1:
            raise KafkaError(
                "an IP filter cannot be combined with one for users or client ids: ask for each by itself",
                ErrorCode.INVALID_REQUEST,
            )
    except KafkaError as error:
        return messages.DescribeClientQuotasResponse(
            error_code=error.code, error_message=external_text(error), entries=None
        )
    return messages.DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message=None, entries=[])


API: Final = declare_api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, lambda: messages.DescribeClientQuotasRequest, handle
)


def _check(component: messages.ComponentData, seen: set[str]) -> None:
    kind, match = component.entity_type, component.match
    if not kind:
        raise KafkaError("a filter has no entity type", ErrorCode.INVALID_REQUEST)
    if kind in seen:
        raise KafkaError(f"the entity type {kind} comes twice in the filter", ErrorCode.INVALID_REQUEST)
    if kind not in (USER, CLIENT_ID, ADDRESS):
        raise KafkaError(
            f"there is no entity type {kind}: quotas are of {USER}, {CLIENT_ID} and {ADDRESS}",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if component.match_type not in (EXACT, DEFAULT, ANY):
        raise KafkaError(f"match type {component.match_type} does not exist", ErrorCode.INVALID_REQUEST)
    if (component.match_type == EXACT) != (match is not None):
        raise KafkaError(
            f"match type {component.match_type} of {kind} goes with "
            f"{'a name' if component.match_type == EXACT else 'no name'}",
            ErrorCode.INVALID_REQUEST,
        )
