"""UpdateFeatures: the levels of features that are announced are 0, and stay.

A feature whose level is asked to be what it is succeeds; every other change is one that cannot be made. All
changes of a request are made, or none.

Source: KIP-584; Apache Kafka, ``FeatureControlManager.updateFeatures``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.handlers.api_versions import FEATURES
from tidemill.broker.handlers.common import shortened
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

LEVEL: Final = 0
"""Of every feature that this broker has."""
RESULTS_VERSION_MAX: Final = 1
"""Later versions of the response tell of all changes together only."""


@in_slices
async def handle(
    broker: Broker, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """INVALID_UPDATE_VERSION where a change cannot be made, with the first such; else success."""
    results: list[UpdatableFeatureResult] = []
    async for update in context.turns.over(request.feature_updates):
        problem = _problem(update)
        if problem:
            text = shortened(f"No feature is changed, as one cannot be: {problem}")
            return UpdateFeaturesResponse(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=text)
        if context.api_version <= RESULTS_VERSION_MAX:
            results.append(
                UpdatableFeatureResult(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)
            )
    return UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


def _problem(update: FeatureUpdateKey) -> str:
    name, level = update.feature, update.max_version_level
    if name not in FEATURES:
        return f"there is no feature {name} here, only {' and '.join(FEATURES)}"
    if level != LEVEL:
        return f"{name} cannot have the level {level}: {LEVEL} is the only one that is supported"
    return ""
