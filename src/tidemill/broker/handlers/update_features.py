"""UpdateFeatures: the announced features have level 0, which cannot be changed.

An update to a feature's current level succeeds; every other update is refused. A request applies all its
updates, or none.

Source: KIP-584; Apache Kafka, ``FeatureControlManager.updateFeatures``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.api_versions import FEATURES
from tidemill.broker.handlers.common import shortened
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import update_features as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

LEVEL: Final = 0
"""The level of every feature of this broker."""
RESULTS_VERSION_MAX: Final = 1
"""Later versions of the response have one result for all updates together."""


@eager_start
async def handle(
    broker: Broker, context: RequestContext, request: messages.UpdateFeaturesRequest
) -> messages.UpdateFeaturesResponse:
    """Returns INVALID_UPDATE_VERSION with the first refused update; else success."""
    results: list[messages.UpdatableFeatureResult] = []
    async for update in context.slices.over(request.feature_updates):
        problem = _problem(update)
        if problem:
            text = shortened(f"No feature is changed, as one update was refused: {problem}")
            return messages.UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=text
            )
        if context.api_version <= RESULTS_VERSION_MAX:
            results.append(
                messages.UpdatableFeatureResult(
                    feature=update.feature, error_code=ErrorCode.NONE, error_message=None
                )
            )
    return messages.UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


API: Final = declare_api(ApiKey.UPDATE_FEATURES, 0, 2, lambda: messages.UpdateFeaturesRequest, handle)


def _problem(update: messages.FeatureUpdateKey) -> str:
    name, level = update.feature, update.max_version_level
    if name not in FEATURES:
        return f"feature {name} does not exist here, only {' and '.join(FEATURES)}"
    if level != LEVEL:
        return f"{name} cannot have the level {level}: only {LEVEL} is supported"
    return ""
