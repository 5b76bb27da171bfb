"""UpdateFeatures: changes the feature levels of the cluster. A request applies all its updates, or none.

Source: KIP-584; Apache Kafka, ``FeatureControlManager.updateFeatures``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.finalized_features import FeatureUpdate
from tidemill.broker.handlers.common import external_text, shortened
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import update_features as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

UPGRADE: Final = 1
"""The type of an update that raises the level only."""
RESULTS_VERSION_MAX: Final = 1
"""Later versions of the response have one result for all updates together."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.UpdateFeaturesRequest
) -> messages.UpdateFeaturesResponse:
    """Returns INVALID_UPDATE_VERSION with the first refused update; else success."""
    changes: dict[str, int] = {}
    async for one in context.slices.over(request.feature_updates):
        may_downgrade = one.allow_downgrade if context.api_version == 0 else one.upgrade_type != UPGRADE
        refusal = broker.features.check(FeatureUpdate(one.feature, one.max_version_level, may_downgrade))
        if refusal:
            text = shortened(f"No feature is changed, as one update was refused: {refusal}")
            return messages.UpdateFeaturesResponse(
                error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=text
            )
        changes[one.feature] = one.max_version_level
    if not request.validate_only and any(
        broker.features.levels[name] != level for name, level in changes.items()
    ):
        try:
            await context.slices.wait_for(broker.features.update(changes))
        except (KafkaError, StoreError) as problem:
            failure = wire_error(problem)
            return messages.UpdateFeaturesResponse(
                error_code=failure.code, error_message=external_text(failure)
            )
    results = [
        messages.UpdatableFeatureResult(feature=name, error_code=ErrorCode.NONE, error_message=None)
        for name in changes
        if context.api_version <= RESULTS_VERSION_MAX
    ]
    return messages.UpdateFeaturesResponse(error_code=ErrorCode.NONE, error_message=None, results=results)


API: Final = declare_api(ApiKey.UPDATE_FEATURES, 0, 2, lambda: messages.UpdateFeaturesRequest, handle)
