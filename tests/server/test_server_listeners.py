"""Who may connect how often, by addresses as they are configured and as connections bring them; buffers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

import pytest

from tidemill.broker.context import Listener
from tidemill.model.configs import BrokerConfig
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory import UNBOUNDED, Memory
from tidemill.server.app import limits_of
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


class Doorway:
    """Two listeners over a real loop, and who came through them."""

    def __init__(self, limits: Limits) -> None:
        self.loop = asyncio.get_running_loop()
        self.memory = Memory(self.loop, UNBOUNDED)
        self.taker = Taker()
        self.acceptor = Acceptor(self.loop, self.taker, limits, 1 << 20, 0, 0, self.memory)
        self.taker.on_close = self.acceptor.closed  # type: ignore[method-assign]
        self.ports: dict[str, int] = {}
        self.peers: list[socket.socket] = []
        for name in ("CLIENTS", "BROKERS"):
            listening = bind(name, "127.0.0.1", 0)
            self.ports[name] = listening[0].getsockname()[1]
            self.acceptor.listen(Listener(name, "127.0.0.1", self.ports[name]), listening)

    async def __aenter__(self) -> Doorway:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.acceptor.close()
        self.memory.close()
        for one in self.peers:
            one.close()

    async def come(self, listener: str) -> socket.socket | None:
        """A connection that a frame went over; None when it was refused."""
        peer = socket.socket()
        self.peers.append(peer)
        peer.setblocking(False)
        await self.loop.sock_connect(peer, ("127.0.0.1", self.ports[listener]))
        return peer if await self.use(peer) else None

    async def use(self, peer: socket.socket) -> bool:
        """Whether a frame goes over a connection; False when it is closed."""
        self.taker.took.clear()
        ended = asyncio.ensure_future(self.loop.sock_recv(peer, 1))
        took = asyncio.ensure_future(self.taker.took.wait())
        try:
            with contextlib.suppress(ConnectionError):
                await self.loop.sock_sendall(peer, bytes(4))
            async with asyncio.timeout(30):
                await asyncio.wait((ended, took), return_when=asyncio.FIRST_COMPLETED)
            return took.done()
        finally:
            for one in (ended, took):
                one.cancel()
            await asyncio.gather(ended, took, return_exceptions=True)

    async def is_closed(self, peer: socket.socket) -> bool:
        """Whether the other side has ended a connection."""
        await asyncio.sleep(0.01)
        try:
            return peer.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


def test_brokers_reach_each_other_while_clients_hold_all_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with Doorway(Limits(3, 99, {}, protected="BROKERS")) as door:
            first, second, third = [await door.come("CLIENTS") for _ in range(3)]
            assert first
            assert second
            assert third
            assert await door.come("CLIENTS") is None
            assert await door.use(first)
            # The client that was silent the longest makes room.
            assert await door.come("BROKERS")
            assert [await door.is_closed(one) for one in (first, second, third)] == [False, True, False]
            assert await door.come("CLIENTS") is None
            assert await door.come("BROKERS")
            assert [await door.is_closed(one) for one in (first, third)] == [False, True]
            # Brokers are let in where nobody is left to make room, too.
            for _ in range(4):
                assert await door.come("BROKERS")
            assert await door.is_closed(first)
            assert await door.come("CLIENTS") is None
            assert len(door.acceptor.connections) == 6

    with caplog.at_level(logging.INFO, "tidemill.server"):
        asyncio.run(scenario())
    assert caplog.text.count("ended: max.connections=3 are open, and a broker came") == 3


def test_a_client_that_waits_for_an_answer_is_not_the_first_to_make_room_for_a_broker() -> None:
    async def scenario() -> None:
        async with Doorway(Limits(2, 99, {}, protected="BROKERS")) as door:
            first, second = [await door.come("CLIENTS") for _ in range(2)]
            assert first
            assert second
            waiting = next(one for one in door.acceptor.connections if one.context.number == 1)
            waiting.reply_later()
            assert await door.come("BROKERS")
            assert [await door.is_closed(one) for one in (first, second)] == [False, True]

    asyncio.run(scenario())


def test_a_listener_has_no_more_connections_than_its_own_limit() -> None:
    async def scenario() -> None:
        limits = Limits(9, 99, {}, {"CLIENTS": 1, "BROKERS": 2}, "BROKERS")
        async with Doorway(limits) as door:
            only = await door.come("CLIENTS")
            assert only
            assert await door.come("CLIENTS") is None
            assert await door.come("BROKERS")
            assert await door.come("BROKERS")
            assert await door.come("BROKERS") is None
            assert not await door.is_closed(only)
            only.close()
            await asyncio.sleep(0.01)
            assert await door.come("CLIENTS")

    asyncio.run(scenario())


def test_an_address_has_no_more_connections_than_its_share_where_brokers_connect_too() -> None:
    async def scenario() -> None:
        async with Doorway(Limits(1, 2, {}, protected="BROKERS")) as door:
            client = await door.come("CLIENTS")
            assert client
            assert await door.come("BROKERS")
            assert await door.is_closed(client)
            assert await door.come("BROKERS")
            assert await door.come("BROKERS") is None

    asyncio.run(scenario())


def test_a_connection_that_sends_or_receives_is_not_idle() -> None:
    async def scenario() -> None:
        async with Doorway(Limits(9, 99, {})) as door:
            peers = [await door.come("CLIENTS") for _ in range(3)]
            assert door.acceptor.sweep() == 0
            assert peers[0]
            assert await door.use(peers[0])
            sender = next(one for one in door.acceptor.connections if one.context.number == 2)
            sender.reply_later().complete([bytes(4)])
            assert door.acceptor.sweep() == 1
            assert [await door.is_closed(one) for one in peers if one] == [False, False, True]
            assert door.acceptor.sweep() == 2

    asyncio.run(scenario())


def test_the_inter_broker_listener_is_protected_where_it_is_not_the_only_one() -> None:
    two = {
        "listeners": "CLIENTS://:1,BROKERS://:2",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }
    limits = limits_of(BrokerConfig.of({**two, "listener.name.clients.max.connections": "5"}))
    assert (limits.protected, limits.by_listener) == ("BROKERS", {"CLIENTS": 5})
    assert limits_of(BrokerConfig.of({})).protected == ""
