"""UpdateFeatures (key 57)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT8, STRING, Struct, field


class FeatureUpdateKey(Struct):
    """Feature Update Key."""

    feature: str = field(STRING)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)


class UpdateFeaturesRequest(Struct, versions="0-2", flexible="0+"):
    """Update Features Request."""

    timeout_ms: int = field(INT32, default=60000)
    feature_updates: list[FeatureUpdateKey] = field([FeatureUpdateKey])
    validate_only: bool = field(BOOL, "1+")


class UpdatableFeatureResult(Struct):
    """Updatable Feature Result."""

    feature: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class UpdateFeaturesResponse(Struct, versions="0-2", flexible="0+"):
    """Update Features Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[UpdatableFeatureResult] = field([UpdatableFeatureResult], "0-1", ignorable=True)
