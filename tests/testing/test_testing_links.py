"""Connections that are being opened when a cut starts or ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemill.testing.network_process import CLIENTS, HOST, RESET, SILENT, Network

FRAME = b"\0\0\0\x04data"
SHORT_S = 0.3
LONG_S = 10.0


class Receiver(asyncio.Protocol):
    """A server that records the received data."""

    def __init__(self, received: asyncio.Queue[bytes]) -> None:
        self._received = received

    def data_received(self, data: bytes) -> None:
        self._received.put_nowait(data)


@asynccontextmanager
async def while_it_opens(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], before: dict[str, Any] | None = None
) -> AsyncIterator[tuple[asyncio.Queue[bytes], socket.socket]]:
    """The data that a server receives if ``change`` is applied to the link while a client connects."""
    received: asyncio.Queue[bytes] = asyncio.Queue()
    network, loop = Network(), asyncio.get_running_loop()
    broker = await loop.create_server(lambda: Receiver(received), HOST, 0)
    number = network.do({"do": "open", "kind": CLIENTS, "target": "1", "source": CLIENTS})["port"]
    network.do({"do": "lead", "port": number, "host": HOST, "to": broker.sockets[0].getsockname()[1]})
    network.do({"do": "listen", "port": number})
    if before is not None:
        network.do(before)
    connect: Callable[..., Awaitable[Any]] = loop.create_connection

    async def connect_slowly(*arguments: Any) -> Any:
        made = await connect(*arguments)
        network.do(change)
        return made

    monkeypatch.setattr(loop, "create_connection", connect_slowly)
    port = network.ports[number]
    with socket.socket() as client:
        client.setblocking(False)
        try:
            await loop.sock_connect(client, (HOST, number))
            await loop.sock_sendall(client, FRAME)
            yield received, client
        finally:
            for pair in list(port.pairs):
                pair.cut(RESET)
            loop.remove_reader(port._socket)
            port._socket.close()
            broker.close()
            await asyncio.sleep(0.05)  # The transports close in the next turns of the event loop.


def cut(how: str) -> dict[str, Any]:
    return {"do": "cut", "ends": [CLIENTS, "1"], "how": how}


async def test_a_silent_cut_holds_a_connection_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async with while_it_opens(monkeypatch, cut(SILENT)) as (received, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(received.get(), SHORT_S)


async def test_a_reset_cut_closes_a_connection_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async with while_it_opens(monkeypatch, cut(RESET)) as (received, client):
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), LONG_S)
        assert received.empty()


async def test_a_link_healed_while_a_connection_is_being_opened_forwards_its_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with while_it_opens(monkeypatch, {"do": "heal"}, before=cut(SILENT)) as (received, _):
        assert await asyncio.wait_for(received.get(), LONG_S) == FRAME
