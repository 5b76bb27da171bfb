"""IncrementalAlterConfigs: sets, resets, or edits single settings of topics, brokers and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.config_changes import alter
from tidemill.controller.configs import Alteration
from tidemill.controller.shell import ConfigCommand
from tidemill.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


async def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """One result a resource: all of its changes are made, or none."""
    return IncrementalAlterConfigsResponse(
        responses=await alter(
            broker, context, request.resources, _command, AlterConfigsResourceResponse, request.validate_only
        )
    )


def _command(kind: int, name: str, resource: AlterConfigsResource) -> ConfigCommand:
    changes = [Alteration(config.name, config.config_operation, config.value) for config in resource.configs]
    return ConfigCommand(kind, name, changes)
