"""AlterConfigs (key 33)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT8, STRING, Struct, field


class AlterableConfig(Struct):
    """Alterable Config."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class AlterConfigsResource(Struct):
    """Alter Configs Resource."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: list[AlterableConfig] = field([AlterableConfig])


class AlterConfigsRequest(Struct, versions="0-2", flexible="2+"):
    """Alter Configs Request."""

    resources: list[AlterConfigsResource] = field([AlterConfigsResource])
    validate_only: bool = field(BOOL)


class AlterConfigsResourceResponse(Struct):
    """Alter Configs Resource Response."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


class AlterConfigsResponse(Struct, versions="0-2", flexible="2+"):
    """Alter Configs Response."""

    throttle_time_ms: int = field(INT32)
    responses: list[AlterConfigsResourceResponse] = field([AlterConfigsResourceResponse])
