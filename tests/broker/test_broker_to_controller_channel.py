"""The channel to the controller: connections, requests, and errors without a controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemill.broker import broker_to_controller_channel
from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel
from tidemill.broker.handlers import envelope
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.net.link import Link, LinkError
from tidemill.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

OWN, FIRST, SECOND = 1, 2, 3


class Connection:
    """A fake link, whose response is the id of its broker."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.close_reason: str | None = None
        self.on_close: Callable[[str], None] | None = None

    @property
    def is_closed(self) -> bool:
        return self.close_reason is not None

    def version_of(self, key: int, lowest: int, highest: int) -> int:
        return highest

    def close(self, reason: str) -> None:
        if not self.is_closed:
            self.close_reason = reason
            if self.on_close is not None:
                self.on_close(reason)

    async def request(
        self, key: int, version: int, request: Any, response_type: type, timeout_s: float
    ) -> int:
        if self.is_closed:
            raise LinkError(f"broker {self.broker}: {self.close_reason}")
        return self.broker


class Brokers:
    """Accepts connections, except for unresponsive brokers."""

    def __init__(self, *unresponsive: int) -> None:
        self.unresponsive = unresponsive
        self.connections: list[Connection] = []

    async def connect(self, broker: int) -> Link:
        if broker in self.unresponsive:
            await asyncio.Event().wait()
        self.connections.append(Connection(broker))
        link: Any = self.connections[-1]
        return link


@asynccontextmanager
async def channel_to(brokers: Brokers) -> AsyncIterator[BrokerToControllerChannel]:
    channel = BrokerToControllerChannel(OWN, brokers.connect, lambda broker: None)
    try:
        async with asyncio.timeout(10):
            yield channel
    finally:
        channel.stop()


async def send(channel: BrokerToControllerChannel) -> Any:
    return await channel.send_request(envelope.API, EnvelopeRequest(), EnvelopeResponse)


def message_of(problem: pytest.ExceptionInfo[KafkaError]) -> str:
    assert problem.value.code == ErrorCode.NOT_CONTROLLER
    return str(problem.value)


async def test_a_request_is_sent_to_the_current_controller() -> None:
    brokers = Brokers()

    async with channel_to(brokers) as channel:
        channel.set_controller(FIRST)
        assert await send(channel) == FIRST
        channel.set_controller(SECOND)
        assert brokers.connections[0].is_closed
        assert await send(channel) == SECOND


async def test_a_closed_connection_is_replaced() -> None:
    brokers = Brokers()

    async with channel_to(brokers) as channel:
        channel.set_controller(FIRST)
        assert await send(channel) == FIRST
        brokers.connections[0].close("it broke")
        assert await send(channel) == FIRST
    assert len(brokers.connections) == 2


async def test_the_controller_and_a_broker_without_a_controller_send_no_request() -> None:
    async with channel_to(Brokers()) as channel:
        for controller in (-1, OWN):
            channel.set_controller(controller)
            with pytest.raises(KafkaError) as problem:
                await send(channel)
            assert "this broker knows no other broker as the controller" in message_of(problem)


async def test_a_request_fails_if_the_controller_accepts_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_to_controller_channel, "CONNECTION_WAIT_S_MAX", 0.01)

    async with channel_to(Brokers(FIRST)) as channel:
        channel.set_controller(FIRST)
        with pytest.raises(KafkaError) as problem:
            await send(channel)
        assert "broker 2 has not accepted a connection within 0.01 s" in message_of(problem)


async def test_a_request_fails_if_the_controller_is_replaced_before_the_response() -> None:
    async with channel_to(Brokers(FIRST)) as channel:
        channel.set_controller(FIRST)
        waiting = asyncio.create_task(send(channel))
        await asyncio.sleep(0)
        channel.set_controller(SECOND)
        with pytest.raises(KafkaError) as problem:
            await waiting
        assert "another broker has become the controller" in message_of(problem)


async def test_a_cancelled_request_raises_cancelled_error() -> None:
    async with channel_to(Brokers(FIRST)) as channel:
        channel.set_controller(FIRST)
        waiting = asyncio.create_task(send(channel))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
