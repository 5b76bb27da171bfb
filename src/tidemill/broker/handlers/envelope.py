"""Envelope: a client's request that a broker forwards, because only the controller can apply it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import HandledApi, declare_api, response_of
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.net.peer import Peer
from tidemill.wire.apis import ApiKey
from tidemill.wire.codec import decode_prefix
from tidemill.wire.header import encode_response, parse_request_header
from tidemill.wire.messages import envelope as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

SIZE_BYTES = 4


async def handle(
    broker: Broker, context: RequestContext, request: messages.EnvelopeRequest
) -> messages.EnvelopeResponse:
    """Returns the whole response to the request inside, without its size. It is not forwarded again."""
    if not broker.is_from_broker(context):
        return messages.EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not broker.controller.is_active:
        return messages.EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    data = request.request_data
    try:
        header = parse_request_header(data)
        api = broker.apis.get(header.api_key)
        if (
            not isinstance(api, HandledApi)
            or not api.to_controller
            or not api.has_version(header.api_version)
        ):
            return messages.EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner, _ = decode_prefix(
            api.request_class(), header.api_version, data, header.body_position, len(data)
        )
        address = str(ipaddress.ip_address(request.client_host_address))
    except (ProtocolError, ValueError):
        return messages.EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    principal = (request.request_principal or b"").decode(errors="replace") or context.principal
    peer = Peer(context.listener, principal, address, 0)
    inside = RequestContext(
        peer,
        header.client_id,
        int(header.api_key),
        int(header.api_version),
        int(header.correlation_id),
    )
    response = await response_of(api.handle(broker, inside, inner))
    key = ApiKey(header.api_key)
    encoded = encode_response(key, header.api_version, header.correlation_id, response)
    return messages.EnvelopeResponse(response_data=encoded[SIZE_BYTES:], error_code=0)


API: Final = declare_api(ApiKey.ENVELOPE, 0, 0, lambda: messages.EnvelopeRequest, handle)
