"""IncrementalAlterConfigs (key 44): change single configuration values."""

from __future__ import annotations

from tidemill.wire.messages.alter_configs import AlterConfigsResourceResponse
from tidemill.wire.schema import BOOL, INT8, INT32, STRING, Struct, field


class AlterableConfig(Struct):
    """One change."""

    name: str = field(STRING)
    config_operation: int = field(INT8)  # 0: set, 1: delete, 2: append, 3: subtract
    value: str | None = field(STRING, nullable="0+")  # null to fall back to the default


class AlterConfigsResource(Struct):
    """The changes to one resource; other values stay."""

    resource_type: int = field(INT8)  # 2: topic, 4: broker, 8: broker logger, 16: client metrics, 32: group
    resource_name: str = field(STRING)
    configs: list[AlterableConfig] = field([AlterableConfig])


class IncrementalAlterConfigsRequest(Struct, versions="0-1", flexible="1+"):
    """The resources to change."""

    resources: list[AlterConfigsResource] = field([AlterConfigsResource])
    validate_only: bool = field(BOOL)  # check, but change nothing


class IncrementalAlterConfigsResponse(Struct, versions="0-1", flexible="1+"):
    """The result of each resource."""

    throttle_time_ms: int = field(INT32)
    responses: list[AlterConfigsResourceResponse] = field([AlterConfigsResourceResponse])
