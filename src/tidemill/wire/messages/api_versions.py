"""ApiVersions (key 18): the APIs, versions and features of a broker."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class ApiVersionsRequest(Struct, versions="0-4", flexible="3+"):
    """A client's first request on a connection."""

    client_software_name: str = field(STRING, "3+", ignorable=True)
    client_software_version: str = field(STRING, "3+", ignorable=True)


class ApiVersion(Struct):
    """The versions of one API that the broker supports."""

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class SupportedFeatureKey(Struct):
    """Levels of a feature that the broker could run."""

    name: str = field(STRING, "3+")
    min_version: int = field(INT16, "3+")
    max_version: int = field(INT16, "3+")


class FinalizedFeatureKey(Struct):
    """Levels of a feature that the cluster runs."""

    name: str = field(STRING, "3+")
    max_version_level: int = field(INT16, "3+")
    min_version_level: int = field(INT16, "3+")


class ApiVersionsResponse(Struct, versions="0-4", flexible="3+"):
    """The supported versions; the error UNSUPPORTED_VERSION is always sent in version 0."""

    error_code: int = field(INT16)
    api_keys: list[ApiVersion] = field([ApiVersion])
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field([SupportedFeatureKey], "3+", tag=0, ignorable=True)
    # -1 where it is unknown
    finalized_features_epoch: int = field(INT64, "3+", default=-1, tag=1, ignorable=True)
    # only meant where the epoch is known
    finalized_features: list[FinalizedFeatureKey] = field([FinalizedFeatureKey], "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = field(BOOL, "3+", tag=3, ignorable=True)  # of Raft controllers
