"""Functions that AlterConfigs and IncrementalAlterConfigs share: one command and result per resource."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidemill.broker import broker_loggers
from tidemill.broker.admin_log import log_change
from tidemill.broker.handlers.common import check_setting_count, external_text
from tidemill.broker.request_context import RequestContext
from tidemill.controller.admin_manager import ConfigCommand
from tidemill.controller.configuration_control import AlterOperation, ResourceType
from tidemill.model.configs import BROKER_KEYS, TOPIC_KEYS
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.messages import alter_configs as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

VERBS = {
    AlterOperation.SET: "set to",
    AlterOperation.DELETE: "reset",
    AlterOperation.APPEND: "extended by",
    AlterOperation.SUBTRACT: "reduced by",
}


class Resource(Protocol):
    """A resource in either request, with its changes in ``configs``."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[object]:
        """The changes of the resource."""


Change = TypeVar("Change", bound=Resource)


async def alter(
    broker: Broker,
    context: RequestContext,
    resources: list[Change],
    command_for: Callable[[int, str, Change], ConfigCommand],
    validate_only: bool,
) -> list[messages.AlterConfigsResourceResponse]:
    """Applies the command that ``command_for`` creates for each resource, by its name inside the broker.

    A duplicate resource is refused each time.
    """
    counts = await context.slices.counts(
        (resource.resource_type, resource.resource_name) for resource in resources
    )
    results: list[messages.AlterConfigsResourceResponse] = []
    async for resource in context.slices.over(resources):
        kind, name = resource.resource_type, resource.resource_name
        error: KafkaError | None = None
        try:
            if counts[kind, name] > 1:
                raise KafkaError(
                    f"the resource {name!r} comes twice in this request. Name each resource once.",
                    ErrorCode.INVALID_REQUEST,
                )
            check_setting_count(len(resource.configs))
            command = command_for(kind, name, resource)
            error = await context.slices.wait_for(_apply(broker, command, validate_only))
            if error is None and not validate_only:
                log_change(context, "settings altered", [described(command)])
        except KafkaError as problem:
            error = problem
        results.append(
            messages.AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else external_text(error),
                resource_type=kind,
                resource_name=name,
            )
        )
    await context.slices.clear(counts)
    return results


def described(command: ConfigCommand) -> str:
    """Describes a change, for the log of administrative changes. Passwords are hidden."""
    kind = ResourceType(command.resource_type).name.lower()
    if command.alterations is None:
        texts = [f"all replaced by {len(command.settings)}"]
        texts += [f"{name}={_shown(name, value)}" for name, value in command.settings]
    else:
        texts = [
            f"{name} {VERBS[AlterOperation(operation)]}"
            + (f" {_shown(name, value)}" if operation != AlterOperation.DELETE else "")
            for name, operation, value in command.alterations
        ]
    return f"{kind} {command.name or 'defaults'}: {', '.join(texts)}"


def _shown(name: str, value: str | None) -> str:
    key = TOPIC_KEYS.get(name) or BROKER_KEYS.get(name)
    return "(hidden)" if key is not None and key.sensitive else str(value)


async def _apply(broker: Broker, command: ConfigCommand, validate_only: bool) -> KafkaError | None:
    """Returns the controller's error instead of raising it.

    Raised from here, it would refer to this frame and the frame to it: only the cycle collector could free
    such an error, and it is off while a large request is handled.
    """
    if command.resource_type == ResourceType.BROKER_LOGGER:
        broker_loggers.alter(broker.node_id, command, validate_only)
        return None
    (error,) = await broker.controller.admin_manager.alter_configs([command], validate_only=validate_only)
    return error
