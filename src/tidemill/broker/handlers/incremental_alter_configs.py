"""IncrementalAlterConfigs: sets, resets, or edits single settings of topics, brokers and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.alter_configs import alter
from tidemill.broker.handlers.common import external_text, internal_resource
from tidemill.controller.configs import Alteration
from tidemill.controller.shell import ConfigCommand
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.incremental_alter_configs import (
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
    resources = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    commands = [
        ConfigCommand(
            resource.resource_type,
            internal_resource(context, resource.resource_type, resource.resource_name),
            [Alteration(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    errors = await alter(broker, resources, commands, request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=error.code if error is not None else ErrorCode.NONE,
                error_message=external_text(error) if error is not None else None,
                resource_type=kind,
                resource_name=name,
            )
            for (kind, name), error in zip(resources, errors, strict=True)
        ]
    )
