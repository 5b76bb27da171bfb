"""DescribeClientQuotas: there are no quotas, so nothing matches; a filter that makes no sense is refused.

Clients (sarama, kafka-go) send it without asking whether it is served.

Source: Apache Kafka, ``ClientQuotasImage.describe``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.handlers.common import external_text
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

USER, CLIENT_ID, ADDRESS = "user", "client-id", "ip"
EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2
"""What ``match_type`` may be: this name, the default entity, whichever has a quota."""


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """No entries, or what is wrong with the filter."""
    seen: set[str] = set()
    try:
        async for component in context.turns.over(request.components):
            _check(component, seen)
            seen.add(component.entity_type)
        if ADDRESS in seen and len(seen) > 1:
            raise KafkaError(
                "an IP filter cannot be combined with one for users or client ids: ask for each by itself",
                ErrorCode.INVALID_REQUEST,
            )
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=external_text(error), entries=None
        )
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message=None, entries=[])


def _check(component: ComponentData, seen: set[str]) -> None:
    kind, match = component.entity_type, component.match
    if not kind:
        raise KafkaError("a filter names no entity type", ErrorCode.INVALID_REQUEST)
    if kind in seen:
        raise KafkaError(f"the entity type {kind} comes twice in the filter", ErrorCode.INVALID_REQUEST)
    if kind not in (USER, CLIENT_ID, ADDRESS):
        raise KafkaError(
            f"there is no entity type {kind}: quotas are of {USER}, {CLIENT_ID} and {ADDRESS}",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if component.match_type not in (EXACT, DEFAULT, ANY):
        raise KafkaError(f"there is no match type {component.match_type}", ErrorCode.INVALID_REQUEST)
    if (component.match_type == EXACT) != (match is not None):
        raise KafkaError(
            f"match type {component.match_type} of {kind} goes with "
            f"{'a name' if component.match_type == EXACT else 'no name'}",
            ErrorCode.INVALID_REQUEST,
        )
