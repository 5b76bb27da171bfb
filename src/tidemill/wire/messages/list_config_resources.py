"""ListConfigResources (key 74): resources that have a configuration.

Version 0 is known as ListClientMetricsResources.
"""

from __future__ import annotations

from tidemill.wire.schema import INT8, INT16, INT32, STRING, Struct, field


class ListConfigResourcesRequest(Struct, versions="0-1", flexible="0+"):
    """The kinds of resources to list."""

    resource_types: list[int] = field([INT8], "1+")  # empty for all


class ConfigResource(Struct):
    """A resource that has a configuration."""

    resource_name: str = field(STRING)
    resource_type: int = field(INT8, "1+", default=16, ignorable=True)  # 16 in version 0: client metrics


class ListConfigResourcesResponse(Struct, versions="0-1", flexible="0+"):
    """The resources."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    config_resources: list[ConfigResource] = field([ConfigResource])
