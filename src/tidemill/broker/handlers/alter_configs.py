"""AlterConfigs: replaces all settings that a topic or broker got at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.config_changes import alter
from tidemill.controller.shell import ConfigCommand
from tidemill.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """One result a resource."""
    return AlterConfigsResponse(
        responses=await alter(
            broker, context, request.resources, _command, AlterConfigsResourceResponse, request.validate_only
        )
    )


def _command(kind: int, name: str, resource: AlterConfigsResource) -> ConfigCommand:
    return ConfigCommand(kind, name, None, [(config.name, config.value) for config in resource.configs])
