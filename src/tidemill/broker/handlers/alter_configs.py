"""AlterConfigs: replaces all dynamic settings of topics or brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.alter_configs_common import alter
from tidemill.broker.request_context import RequestContext
from tidemill.controller.admin_manager import ConfigCommand
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import alter_configs as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    """Returns one result per resource."""
    return messages.AlterConfigsResponse(
        responses=await alter(broker, context, request.resources, _command, request.validate_only)
    )


API: Final = declare_api(
    ApiKey.ALTER_CONFIGS, 0, 2, lambda: messages.AlterConfigsRequest, handle, to_controller=True
)


def _command(kind: int, name: str, resource: messages.AlterConfigsResource) -> ConfigCommand:
    return ConfigCommand(kind, name, None, [(config.name, config.value) for config in resource.configs])
