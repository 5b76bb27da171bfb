"""Envelope: a broker passes on what a client asked of it, and only the controller can do."""

from __future__ import annotations

import inspect
import ipaddress
from typing import TYPE_CHECKING

from tidemill.broker.context import Peer, RequestContext
from tidemill.broker.registry import APIS
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.apis import ApiKey, request_class
from tidemill.wire.header import encode_response, parse_request_header
from tidemill.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidemill.wire.schema import decode_prefix

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

SIZE_BYTES = 4


async def handle(broker: Broker, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    """The whole answer to the request inside, without its size. It is not passed on once more."""
    if not broker.commands.are_open_to(context):
        return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not broker.controller.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    data = request.request_data
    try:
        header = parse_request_header(data)
        api = APIS.get(header.api_key)
        if api is None or not api.to_controller or not api.first <= header.api_version <= api.last:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner, _ = decode_prefix(
            request_class(header.api_key), header.api_version, data, header.body_position, len(data)
        )
        address = str(ipaddress.ip_address(request.client_host_address))
    except (ProtocolError, ValueError):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    principal = (request.request_principal or b"").decode(errors="replace") or context.principal
    peer = Peer(context.listener, context.tenant, principal, address, 0)
    inside = RequestContext(
        peer,
        header.client_id,
        int(header.api_key),
        int(header.api_version),
        int(header.correlation_id),
        context.connection,
    )
    response = api.handler()(broker, inside, inner)
    if inspect.isawaitable(response):
        response = await response
    key = ApiKey(header.api_key)
    encoded = encode_response(key, header.api_version, header.correlation_id, response)
    return EnvelopeResponse(response_data=encoded[SIZE_BYTES:], error_code=0)
