"""ApiVersions (key 18)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class ApiVersionsRequest(Struct, versions="0-4", flexible="3+"):
    """Api Versions Request."""

    client_software_name: str = field(STRING, "3+", ignorable=True)
    client_software_version: str = field(STRING, "3+", ignorable=True)


class ApiVersion(Struct):
    """Api Version."""

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class SupportedFeatureKey(Struct):
    """Supported Feature Key."""

    name: str = field(STRING, "3+")
    min_version: int = field(INT16, "3+")
    max_version: int = field(INT16, "3+")


class FinalizedFeatureKey(Struct):
    """Finalized Feature Key."""

    name: str = field(STRING, "3+")
    max_version_level: int = field(INT16, "3+")
    min_version_level: int = field(INT16, "3+")


class ApiVersionsResponse(Struct, versions="0-4", flexible="3+"):
    """Api Versions Response."""

    error_code: int = field(INT16)
    api_keys: list[ApiVersion] = field([ApiVersion])
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field([SupportedFeatureKey], "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = field(INT64, "3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field([FinalizedFeatureKey], "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = field(BOOL, "3+", tag=3, ignorable=True)
