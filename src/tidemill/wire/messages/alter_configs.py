"""AlterConfigs (key 33): replace the configuration of resources."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, Struct, field


class AlterableConfig(Struct):
    """A value to set."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class AlterConfigsResource(Struct):
    """All values of the resource; others revert to their defaults."""

    resource_type: int = field(INT8)  # 2: topic, 4: broker, 8: broker logger, 16: client metrics, 32: group
    resource_name: str = field(STRING)
    configs: list[AlterableConfig] = field([AlterableConfig])


class AlterConfigsRequest(Struct, versions="0-2", flexible="2+"):
    """The resources to configure."""

    resources: list[AlterConfigsResource] = field([AlterConfigsResource])
    validate_only: bool = field(BOOL)  # check, but change nothing


class AlterConfigsResourceResponse(Struct):
    """Whether one resource was changed."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)  # 2: topic, 4: broker, 8: broker logger, 16: client metrics, 32: group
    resource_name: str = field(STRING)


class AlterConfigsResponse(Struct, versions="0-2", flexible="2+"):
    """The result of each resource."""

    throttle_time_ms: int = field(INT32)
    responses: list[AlterConfigsResourceResponse] = field([AlterConfigsResourceResponse])
