"""ListConfigResources (key 74)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT8, STRING, Struct, field


class ListConfigResourcesRequest(Struct, versions="0-1", flexible="0+"):
    """List Config Resources Request."""

    resource_types: list[int] = field([INT8], "1+")


class ConfigResource(Struct):
    """Config Resource."""

    resource_name: str = field(STRING)
    resource_type: int = field(INT8, "1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Struct, versions="0-1", flexible="0+"):
    """List Config Resources Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    config_resources: list[ConfigResource] = field([ConfigResource])
