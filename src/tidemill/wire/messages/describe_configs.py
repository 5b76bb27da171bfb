"""DescribeConfigs (key 32): configuration values, and where they come from."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, Struct, field


class DescribeConfigsResource(Struct):
    """A resource, and the keys to describe."""

    resource_type: int = field(INT8)  # 2: topic, 4: broker, 8: broker logger, 16: client metrics, 32: group
    resource_name: str = field(STRING)
    configuration_keys: list[str] | None = field([STRING], nullable="0+")  # null for all


class DescribeConfigsRequest(Struct, versions="0-4", flexible="4+"):
    """The resources to describe."""

    resources: list[DescribeConfigsResource] = field([DescribeConfigsResource])
    include_synonyms: bool = field(BOOL, "1+")
    include_documentation: bool = field(BOOL, "3+")


class DescribeConfigsSynonym(Struct):
    """A value that would apply if the ones before it were removed."""

    name: str = field(STRING, "1+")
    value: str | None = field(STRING, "1+", nullable="1+")
    source: int = field(INT8, "1+")


class DescribeConfigsResourceResult(Struct):
    """One configuration value."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    is_default: bool = field(BOOL, "0")
    # the code of Kafka's ConfigSource; -1 in old versions
    config_source: int = field(INT8, "1+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL)  # then the value is null
    # the one that applies first
    synonyms: list[DescribeConfigsSynonym] = field([DescribeConfigsSynonym], "1+", ignorable=True)
    config_type: int = field(INT8, "3+", ignorable=True)  # the code of Kafka's ConfigType; 0 where unknown
    documentation: str | None = field(STRING, "3+", nullable="3+", ignorable=True)


class DescribeConfigsResult(Struct):
    """One resource's values, or the error."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)  # 2: topic, 4: broker, 8: broker logger, 16: client metrics, 32: group
    resource_name: str = field(STRING)
    configs: list[DescribeConfigsResourceResult] = field([DescribeConfigsResourceResult])


class DescribeConfigsResponse(Struct, versions="0-4", flexible="4+"):
    """The values of each resource."""

    throttle_time_ms: int = field(INT32)
    results: list[DescribeConfigsResult] = field([DescribeConfigsResult])
