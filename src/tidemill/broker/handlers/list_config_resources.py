"""ListConfigResources: the topics, brokers, loggers and groups with settings (KIP-1142).

Version 0, known as ListClientMetricsResources, requests client metrics subscriptions only. There are none:
the broker does not request metrics from clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.controller.configuration_control import ResourceType
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import list_config_resources as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)
"""The supported types, in the order of the response."""


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.ListConfigResourcesRequest
) -> messages.ListConfigResourcesResponse:
    """Returns the resources of the requested types, or of all; UNSUPPORTED_VERSION for an unknown type."""
    requested = set(request.resource_types) or set(LISTED)
    if context.api_version == 0:
        requested = {ResourceType.CLIENT_METRICS}
    if not requested <= set(LISTED):
        return messages.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = messages.ListConfigResourcesResponse(error_code=ErrorCode.NONE)
    for kind in LISTED:
        if kind not in requested:
            continue
        async for name in context.slices.over(_names(broker, kind)):
            response.config_resources.append(messages.ConfigResource(resource_name=name, resource_type=kind))
    return response


API: Final = declare_api(
    ApiKey.LIST_CONFIG_RESOURCES, 0, 1, lambda: messages.ListConfigResourcesRequest, handle
)


def _names(broker: Broker, kind: ResourceType) -> Iterable[str]:
    image = broker.metadata_cache.image
    if kind == ResourceType.TOPIC:
        return image.topics
    if kind == ResourceType.GROUP:
        return image.group_configs
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return map(str, image.brokers)
    return ()
