"""Requests that another broker forwards to the controller: permitted senders and requests, and responses."""

from __future__ import annotations

import asyncio
import ipaddress
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.api_registry import APIS
from tidemill.broker.handlers import envelope
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode
from tidemill.net.peer import Listener, Peer
from tidemill.wire.apis import ApiKey, response_class
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidemill.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

VERSION = 3
LISTENER = Listener("INSIDE", "h", 1)


def request_bytes(key: int = ApiKey.CREATE_PARTITIONS, version: int = VERSION) -> bytes:
    """A request of a client with header version 2, from the API key on."""
    header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + (77).to_bytes(4, "big")
    return header + b"\0\3app" + b"\0" + encode(CreatePartitionsRequest(timeout_ms=5), VERSION)


def answer(data: bytes, *, is_open: bool = True, is_active: bool = True, **fields: Any) -> EnvelopeResponse:
    """What the handler answers to an envelope."""
    peer = Peer(LISTENER, "User:broker-2", "10.0.0.2", 5)
    context = RequestContext(peer, "broker-2", ApiKey.ENVELOPE, 0, 1)
    broker: Any = SimpleNamespace(
        apis=APIS,
        is_from_broker=lambda asked: is_open and asked is context,
        controller=SimpleNamespace(is_active=is_active),
    )
    given = {"client_host_address": ipaddress.ip_address("10.0.0.9").packed, "request_principal": b"User:ann"}
    return asyncio.run(
        envelope.handle(broker, context, EnvelopeRequest(request_data=data, **{**given, **fields}))
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RequestContext, Any]]:
    """The requests that the handler of CreatePartitions got."""
    asked: list[tuple[RequestContext, Any]] = []

    async def handle(broker: object, context: RequestContext, request: object) -> CreatePartitionsResponse:
        asked.append((context, request))
        return CreatePartitionsResponse(throttle_time_ms=9, results=[])

    api = APIS[ApiKey.CREATE_PARTITIONS]._replace(handle=handle)
    monkeypatch.setitem(APIS, ApiKey.CREATE_PARTITIONS, api)
    return asked


def test_the_forwarded_request_is_answered_as_from_its_client(
    served: list[tuple[RequestContext, Any]],
) -> None:
    found = answer(request_bytes())
    assert found.error_code == 0
    assert found.response_data is not None
    assert found.response_data[:5] == (77).to_bytes(4, "big") + b"\0", "the header of the client's request"
    inside = decode(response_class(ApiKey.CREATE_PARTITIONS), VERSION, found.response_data[5:])
    assert inside.throttle_time_ms == 9
    ((context, request),) = served
    assert request.timeout_ms == 5
    assert (context.api_key, context.api_version, context.correlation_id) == (37, VERSION, 77)
    assert (context.client_id, context.principal) == ("app", "User:ann")
    assert (context.peer.address, context.listener) == ("10.0.0.9", LISTENER)


def test_the_default_principal_is_the_forwarding_broker(served: list[tuple[RequestContext, Any]]) -> None:
    answer(request_bytes(), request_principal=None)
    assert served[0][0].principal == "User:broker-2"


@pytest.mark.parametrize(
    ("is_open", "is_active", "code"),
    [
        (False, True, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (False, False, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (True, False, ErrorCode.NOT_CONTROLLER),
    ],
)
def test_only_brokers_can_forward_and_only_to_the_controller(
    served: list[tuple[RequestContext, Any]], is_open: bool, is_active: bool, code: ErrorCode
) -> None:
    found = answer(request_bytes(), is_open=is_open, is_active=is_active)
    assert (found.error_code, found.response_data, served) == (code, None, [])


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (request_bytes(key=ApiKey.PRODUCE), {}),
        (request_bytes(key=ApiKey.ENVELOPE), {}),
        (request_bytes(key=999), {}),
        (request_bytes(version=4), {}),
        (request_bytes()[:-3], {}),
        (b"", {}),
        (request_bytes(), {"client_host_address": b"12345"}),
    ],
)
def test_requests_that_are_not_for_the_controller_are_not_forwarded(
    served: list[tuple[RequestContext, Any]], data: bytes, fields: dict[str, Any]
) -> None:
    found = answer(data, **fields)
    assert (found.error_code, found.response_data, served) == (ErrorCode.INVALID_REQUEST, None, [])
