"""ApiVersions: the versions that this broker supports.

A request of an unknown version gets a response of version 0, with the versions of ApiVersions, so that the
client can retry. Some clients get fewer versions than this broker supports: see
:mod:`tidemill.broker.client_software`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import declare_api
from tidemill.broker.finalized_features import SUPPORTED
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import api_versions as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The format of a client's name and version (KIP-511)."""


def handle(
    broker: Broker, context: RequestContext, request: messages.ApiVersionsRequest
) -> messages.ApiVersionsResponse:
    """Returns the announced versions, and records the client's name."""
    if context.api_version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not SOFTWARE.fullmatch(name) or not SOFTWARE.fullmatch(version):
            return messages.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.peer.software_name, context.peer.software_version = name, version
    fetch_max = broker.client_software.fetch_version_max(
        context.peer, context.client_id, broker.apis[ApiKey.FETCH].last
    )
    return messages.ApiVersionsResponse(
        api_keys=[
            messages.ApiVersion(
                api_key=api.key,
                min_version=api.first,
                max_version=fetch_max if api.key == ApiKey.FETCH else api.last,
            )
            for api in broker.apis.values()
        ],
        # Clients before version 4 cannot read a range that starts at 0.
        supported_features=[
            messages.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in SUPPORTED.items()
        ]
        if context.api_version >= 4
        else [],
        finalized_features_epoch=broker.features.epoch,
        finalized_features=[
            messages.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in broker.features.levels.items()
            if level
        ]
        if context.api_version >= 3
        else [],
    )


API: Final = declare_api(ApiKey.API_VERSIONS, 0, 4, lambda: messages.ApiVersionsRequest, handle)


def unsupported() -> messages.ApiVersionsResponse:
    """Returns the response, in version 0, to an unknown version of ApiVersions."""
    return messages.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[messages.ApiVersion(api_key=API.key, min_version=API.first, max_version=API.last)],
    )
