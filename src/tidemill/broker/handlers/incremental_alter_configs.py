"""IncrementalAlterConfigs: sets, resets, or edits single settings of topics, brokers and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.alter_configs_common import alter
from tidemill.broker.request_context import RequestContext
from tidemill.controller.admin_manager import ConfigCommand
from tidemill.controller.configuration_control import Alteration
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import incremental_alter_configs as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    """Returns one result per resource: all of its changes are applied, or none."""
    return messages.IncrementalAlterConfigsResponse(
        responses=await alter(broker, context, request.resources, _command, request.validate_only)
    )


API: Final = declare_api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    0,
    1,
    lambda: messages.IncrementalAlterConfigsRequest,
    handle,
    to_controller=True,
)


def _command(kind: int, name: str, resource: messages.AlterConfigsResource) -> ConfigCommand:
    changes = [Alteration(config.name, config.config_operation, config.value) for config in resource.configs]
    return ConfigCommand(kind, name, changes)
