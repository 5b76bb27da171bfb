"""ApiVersions: what this broker speaks.

A version of the request that is unknown is answered in version 0, with the versions of ApiVersions, so that
the client can ask again. Some clients are told less than this broker speaks: see
:mod:`tidemill.broker.client_software`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidemill.broker.registry import APIS
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What a client's name and version may look like (KIP-511)."""

FEATURES = ("group.version", "transaction.version")
"""Features whose level a client may ask for; level 0 says that none of their protocol is served."""


def handle(broker: Broker, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Tells the announced versions, and notes the client's name."""
    if context.api_version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not SOFTWARE.fullmatch(name) or not SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.peer.software_name, context.peer.software_version = name, version
    fetch_max = broker.client_software.fetch_version_max(
        context.peer, context.client_id, APIS[ApiKey.FETCH].last
    )
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=api.key,
                min_version=api.announced_min,
                max_version=fetch_max if api.key == ApiKey.FETCH else api.last,
            )
            for api in APIS.values()
        ],
        # A range that begins at 0 can be read from version 4 on only.
        supported_features=[SupportedFeatureKey(name=name, min_version=0, max_version=0) for name in FEATURES]
        if context.api_version >= 4
        else [],
        finalized_features_epoch=0,
    )


def unsupported() -> ApiVersionsResponse:
    """The answer, in version 0, to a version of ApiVersions that is unknown."""
    api = APIS[ApiKey.API_VERSIONS]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=api.key, min_version=api.first, max_version=api.last)],
    )
