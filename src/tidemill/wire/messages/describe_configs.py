"""DescribeConfigs (key 32)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT8, STRING, Struct, field


class DescribeConfigsResource(Struct):
    """Describe Configs Resource."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configuration_keys: list[str] | None = field([STRING], nullable="0+")


class DescribeConfigsRequest(Struct, versions="0-4", flexible="4+"):
    """Describe Configs Request."""

    resources: list[DescribeConfigsResource] = field([DescribeConfigsResource])
    include_synonyms: bool = field(BOOL, "1+")
    include_documentation: bool = field(BOOL, "3+")


class DescribeConfigsSynonym(Struct):
    """Describe Configs Synonym."""

    name: str = field(STRING, "1+")
    value: str | None = field(STRING, "1+", nullable="1+")
    source: int = field(INT8, "1+")


class DescribeConfigsResourceResult(Struct):
    """Describe Configs Resource Result."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    is_default: bool = field(BOOL, "0")
    config_source: int = field(INT8, "1+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL)
    synonyms: list[DescribeConfigsSynonym] = field([DescribeConfigsSynonym], "1+", ignorable=True)
    config_type: int = field(INT8, "3+", ignorable=True)
    documentation: str | None = field(STRING, "3+", nullable="3+", ignorable=True)


class DescribeConfigsResult(Struct):
    """Describe Configs Result."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: list[DescribeConfigsResourceResult] = field([DescribeConfigsResourceResult])


class DescribeConfigsResponse(Struct, versions="0-4", flexible="4+"):
    """Describe Configs Response."""

    throttle_time_ms: int = field(INT32)
    results: list[DescribeConfigsResult] = field([DescribeConfigsResult])
