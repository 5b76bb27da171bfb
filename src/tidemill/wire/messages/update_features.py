"""UpdateFeatures (key 57): finalize feature levels."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, Struct, field


class FeatureUpdateKey(Struct):
    """A feature and its new level."""

    feature: str = field(STRING)
    max_version_level: int = field(INT16)  # below 1 removes it
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)  # 1: up, 2: safe down, 3: unsafe down


class UpdateFeaturesRequest(Struct, versions="0-2", flexible="0+"):
    """The features to change."""

    timeout_ms: int = field(INT32, default=60000)
    feature_updates: list[FeatureUpdateKey] = field([FeatureUpdateKey])
    validate_only: bool = field(BOOL, "1+")  # check, but change nothing


class UpdatableFeatureResult(Struct):
    """Whether one feature was changed."""

    feature: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class UpdateFeaturesResponse(Struct, versions="0-2", flexible="0+"):
    """The result of each feature; from version 2 all or none."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[UpdatableFeatureResult] = field([UpdatableFeatureResult], "0-1", ignorable=True)
