"""ListConfigResources: the topics, brokers, loggers and groups that have settings (KIP-1142).

Version 0, known as ListClientMetricsResources, asks for subscriptions to clients' metrics alone. There are
none: clients are not asked for their metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.broker.request_slices import in_slices
from tidemill.controller.configs import ResourceType
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)
"""The types that there are, in the order of the response."""


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Of the types that are asked for, or of all; UNSUPPORTED_VERSION for a type that there is not."""
    asked = set(request.resource_types) or set(LISTED)
    if context.api_version == 0:
        asked = {ResourceType.CLIENT_METRICS}
    if not asked <= set(LISTED):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = ListConfigResourcesResponse(error_code=ErrorCode.NONE)
    for kind in LISTED:
        if kind not in asked:
            continue
        async for name in context.turns.over(_names(broker, context, kind)):
            response.config_resources.append(ConfigResource(resource_name=name, resource_type=kind))
    return response


def _names(broker: Broker, context: RequestContext, kind: ResourceType) -> Iterable[str]:
    image = broker.metadata.image
    if kind == ResourceType.TOPIC:
        return map(context.external_name, image.topics)
    if kind == ResourceType.GROUP:
        return image.group_configs
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return map(str, image.brokers)
    return ()
