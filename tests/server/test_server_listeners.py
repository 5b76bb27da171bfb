"""Who may connect how often, by addresses as they are configured and as connections bring them; buffers."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from tidemill.broker.context import Listener
from tidemill.model.configs import BrokerConfig
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory import UNBOUNDED, Memory
from tidemill.server.listeners import Acceptor, Limits, addresses_of, bind


def test_host_names_and_long_addresses_count_as_the_addresses_that_connections_come_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(name: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        if name != "loader.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, 1, 6, "", ("10.0.0.9", 0)),
            (socket.AF_INET6, 1, 6, "", ("fd00::9", 0, 0, 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with caplog.at_level(logging.WARNING, "tidemill.server"):
        found = addresses_of({"10.0.0.1": 5, "0:0:0:0:0:0:0:1": 7, "loader.example": 9, "gone.example": 2})
    assert found == {"10.0.0.1": 5, "::1": 7, "10.0.0.9": 9, "fd00::9": 9}
    assert "gone.example cannot be resolved" in caplog.text


BUFFERS = ((socket.SO_SNDBUF, "socket.send.buffer.bytes"), (socket.SO_RCVBUF, "socket.receive.buffer.bytes"))


class Taker(FrameHandler):
    def __init__(self) -> None:
        self.took = asyncio.Event()

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        self.took.set()
        return True

    def on_close(self, connection: Connection, reason: str) -> None:
        pass


async def accepted_buffers(settings: dict[str, str]) -> list[int]:
    """Bytes of the buffers that a connection has for which a broker with ``settings`` was asked."""
    loop = asyncio.get_running_loop()
    config = BrokerConfig.of(settings)
    sizes = [config.int(key) for _, key in BUFFERS]
    memory, taker = Memory(loop, UNBOUNDED), Taker()
    acceptor = Acceptor(loop, taker, Limits(9, 9, {}), 1 << 20, sizes[0], sizes[1], memory)
    listening = bind("PLAINTEXT", "127.0.0.1", 0, 1)
    acceptor.listen(Listener("PLAINTEXT", "127.0.0.1", 0), listening)
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, listening[0].getsockname())
        await loop.sock_sendall(client, bytes(4))
        async with asyncio.timeout(30):
            await taker.took.wait()
        (connection,) = acceptor.connections
        found = [connection.sock.getsockopt(socket.SOL_SOCKET, option) for option, _ in BUFFERS]
        for one in listening:
            loop.remove_reader(one)
            one.close()
        connection.close("enough")
    return found


def test_the_system_sizes_the_buffers_that_connections_send_from_unless_their_size_is_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted = server.accept()[0]
        own = [accepted.getsockopt(socket.SOL_SOCKET, option) for option, _ in BUFFERS]
        accepted.close()
    assert asyncio.run(accepted_buffers({}))[0] == own[0]
    assert asyncio.run(accepted_buffers({key: "-1" for _, key in BUFFERS})) == own
    fixed = asyncio.run(accepted_buffers({key: "8192" for _, key in BUFFERS}))
    assert fixed != own
    assert all(8192 <= size <= 4 * 8192 for size in fixed)
