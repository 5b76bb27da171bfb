"""AlterConfigs: replaces all settings that a topic or broker got at run time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from tidemill.broker import loggers
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, internal_resource
from tidemill.controller.configs import ResourceType
from tidemill.controller.shell import ConfigCommand
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

RESOURCES_A_TURN = 50
"""After so many the loop does its other work."""


async def handle(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """One result a resource."""
    resources = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    commands = [
        ConfigCommand(
            resource.resource_type,
            internal_resource(context, resource.resource_type, resource.resource_name),
            None,
            [(config.name, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    errors = await alter(broker, resources, commands, request.validate_only)
    return AlterConfigsResponse(
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


async def alter(
    broker: Broker, resources: list[tuple[int, str]], commands: list[ConfigCommand], validate_only: bool
) -> list[KafkaError | None]:
    """Carries the commands out, except those for a resource that comes more than once; the error of each."""
    errors: list[KafkaError | None] = []
    counts = Counter(resources)
    for resource, command in zip(resources, commands, strict=True):
        if len(errors) % RESOURCES_A_TURN == 0:
            await asyncio.sleep(0)
        try:
            if counts[resource] > 1:
                raise KafkaError("the resource comes twice in this request", ErrorCode.INVALID_REQUEST)
            if command.resource_type == ResourceType.BROKER_LOGGER:
                loggers.alter(broker.node_id, command, validate_only)
            else:
                (error,) = await broker.controller.alter_configs([command], validate_only=validate_only)
                if error is not None:
                    raise error
        except KafkaError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors
