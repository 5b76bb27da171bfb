"""Connection limits by address and listener, idle connections, and socket buffers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import Any

import pytest

from tidemill.model.configs import BrokerConfig
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory_pool import UNBOUNDED, MemoryPool
from tidemill.net.peer import Listener
from tidemill.server import socket_server
from tidemill.server.broker_server import limits_of
from tidemill.server.socket_server import ConnectionLimits, ConnectionQuotas, SocketServer, addresses_of, bind


def test_resolves_host_names_and_normalizes_addresses_in_limits(
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


class Handler(FrameHandler):
    def __init__(self) -> None:
        self.took = asyncio.Event()

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        self.took.set()
        return True

    def on_close(self, connection: Connection, reason: str) -> None:
        pass


async def accepted_buffers(settings: dict[str, str]) -> list[int]:
    """The sizes of the socket buffers of a connection to a broker with ``settings``."""
    loop = asyncio.get_running_loop()
    config = BrokerConfig.of(settings)
    sizes = [config.int(key) for _, key in BUFFERS]
    memory, handler = MemoryPool(loop, UNBOUNDED), Handler()
    each = ConnectionLimits(
        frame_bytes_max=1 << 20, send_buffer_bytes=sizes[0], receive_buffer_bytes=sizes[1]
    )
    acceptor = SocketServer(loop, handler, ConnectionQuotas(9, 9, {}), each, memory)
    listening = bind("PLAINTEXT", "127.0.0.1", 0, 1)
    acceptor.listen(Listener("PLAINTEXT", "127.0.0.1", 0), listening)
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, listening[0].getsockname())
        await loop.sock_sendall(client, bytes(4))
        async with asyncio.timeout(30):
            await handler.took.wait()
        (connection,) = acceptor.connections
        found = [connection.sock.getsockopt(socket.SOL_SOCKET, option) for option, _ in BUFFERS]
        for one in listening:
            loop.remove_reader(one)
            one.close()
        connection.close("enough")
    return found


def test_sets_socket_buffer_sizes_only_if_configured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted = server.accept()[0]
        own = [accepted.getsockopt(socket.SOL_SOCKET, option) for option, _ in BUFFERS]
        accepted.close()
    assert asyncio.run(accepted_buffers({}))[0] == own[0]
    assert asyncio.run(accepted_buffers({key: "-1" for _, key in BUFFERS})) == own
    fixed = asyncio.run(accepted_buffers({key: "8192" for _, key in BUFFERS}))
    assert fixed != own
    assert all(8192 <= size <= 4 * 8192 for size in fixed)


class TwoListeners:
    """A socket server with two listeners on an event loop."""

    def __init__(self, limits: ConnectionQuotas) -> None:
        self.loop = asyncio.get_running_loop()
        self.memory = MemoryPool(self.loop, UNBOUNDED)
        self.handler = Handler()
        each = ConnectionLimits(frame_bytes_max=1 << 20)
        self.acceptor = SocketServer(self.loop, self.handler, limits, each, self.memory)
        self.handler.on_close = self.acceptor.closed  # type: ignore[method-assign]
        self.ports: dict[str, int] = {}
        self.peers: list[socket.socket] = []
        for name in ("CLIENTS", "BROKERS"):
            listening = bind(name, "127.0.0.1", 0)
            self.ports[name] = listening[0].getsockname()[1]
            self.acceptor.listen(Listener(name, "127.0.0.1", self.ports[name]), listening)

    async def __aenter__(self) -> TwoListeners:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.acceptor.close()
        self.memory.close()
        for one in self.peers:
            one.close()

    async def connect(self, listener: str) -> socket.socket | None:
        """A connection that carried a frame; None if it was refused."""
        peer = socket.socket()
        self.peers.append(peer)
        peer.setblocking(False)
        await self.loop.sock_connect(peer, ("127.0.0.1", self.ports[listener]))
        return peer if await self.use(peer) else None

    async def use(self, peer: socket.socket) -> bool:
        """Whether the connection carries a frame; False if it is closed."""
        self.handler.took.clear()
        ended = asyncio.ensure_future(self.loop.sock_recv(peer, 1))
        took = asyncio.ensure_future(self.handler.took.wait())
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
        """Whether the server has closed a connection."""
        await asyncio.sleep(0.01)
        try:
            return peer.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


def test_the_inter_broker_listener_accepts_beyond_max_connections(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with TwoListeners(ConnectionQuotas(3, 99, {}, protected="BROKERS")) as door:
            first, second, third = [await door.connect("CLIENTS") for _ in range(3)]
            assert first
            assert second
            assert third
            assert await door.connect("CLIENTS") is None
            assert await door.use(first)
            # The least recently used client connection is closed.
            assert await door.connect("BROKERS")
            assert [await door.is_closed(one) for one in (first, second, third)] == [False, True, False]
            assert await door.connect("CLIENTS") is None
            assert await door.connect("BROKERS")
            assert [await door.is_closed(one) for one in (first, third)] == [False, True]
            # Brokers are accepted also without client connections to close.
            for _ in range(4):
                assert await door.connect("BROKERS")
            assert await door.is_closed(first)
            assert await door.connect("CLIENTS") is None
            assert len(door.acceptor.connections) == 6

    with caplog.at_level(logging.INFO, "tidemill.server"):
        asyncio.run(scenario())
    assert caplog.text.count("was closed: max.connections=3 are open, and a broker connected") == 3


async def test_connections_with_delayed_requests_are_closed_last() -> None:
    async with TwoListeners(ConnectionQuotas(2, 99, {}, protected="BROKERS")) as door:
        first, second = [await door.connect("CLIENTS") for _ in range(2)]
        assert first
        assert second
        waiting = next(one for one in door.acceptor.connections if one.peer.number == 1)
        waiting.respond_later()
        assert await door.connect("BROKERS")
        assert [await door.is_closed(one) for one in (first, second)] == [False, True]


class WithoutDescriptors(socket.socket):
    """A listening socket of a process that has no file descriptors left."""

    accepts = 0
    tenth: asyncio.Event

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts += 1
        if self.accepts == 10:
            self.tenth.set()
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_lack_of_file_descriptors_is_logged_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket_server, "PAUSE_WITHOUT_DESCRIPTORS_S", 0.001)
    with WithoutDescriptors() as listening, socket.socket() as client:
        listening.tenth = asyncio.Event()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        async with TwoListeners(ConnectionQuotas(9, 9, {})) as both:
            both.acceptor.listen(Listener("PLAINTEXT", "127.0.0.1", 0), [listening])
            found = []
            for interval_s in (60.0, 0.0):
                monkeypatch.setattr(socket_server, "PAUSE_LOG_INTERVAL_S", interval_s)
                listening.accepts = 0
                listening.tenth = asyncio.Event()
                async with asyncio.timeout(30):
                    await listening.tenth.wait()
                found.append(caplog.text.count("no connection can be accepted: Too many open files"))
    assert found[0] == 1
    assert found[1] > 5


async def test_limits_the_connections_of_a_listener() -> None:
    limits = ConnectionQuotas(9, 99, {}, {"CLIENTS": 1, "BROKERS": 2}, "BROKERS")
    async with TwoListeners(limits) as door:
        only = await door.connect("CLIENTS")
        assert only
        assert await door.connect("CLIENTS") is None
        assert await door.connect("BROKERS")
        assert await door.connect("BROKERS")
        assert await door.connect("BROKERS") is None
        assert not await door.is_closed(only)
        only.close()
        await asyncio.sleep(0.01)
        assert await door.connect("CLIENTS")


async def test_limits_the_connections_of_an_address_on_the_inter_broker_listener() -> None:
    async with TwoListeners(ConnectionQuotas(1, 2, {}, protected="BROKERS")) as door:
        client = await door.connect("CLIENTS")
        assert client
        assert await door.connect("BROKERS")
        assert await door.is_closed(client)
        assert await door.connect("BROKERS")
        assert await door.connect("BROKERS") is None


async def test_a_sending_or_receiving_connection_is_not_idle() -> None:
    async with TwoListeners(ConnectionQuotas(9, 99, {})) as door:
        peers = [await door.connect("CLIENTS") for _ in range(3)]
        assert door.acceptor.close_idle() == 0
        assert peers[0]
        assert await door.use(peers[0])
        sender = next(one for one in door.acceptor.connections if one.peer.number == 2)
        sender.respond_later().complete([bytes(4)])
        assert door.acceptor.close_idle() == 1
        assert [await door.is_closed(one) for one in peers if one] == [False, False, True]
        assert door.acceptor.close_idle() == 2


def test_a_separate_inter_broker_listener_is_protected() -> None:
    two = {
        "listeners": "CLIENTS://:1,BROKERS://:2",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }
    limits = limits_of(BrokerConfig.of({**two, "listener.name.clients.max.connections": "5"}))
    assert (limits.protected, limits.by_listener) == ("BROKERS", {"CLIENTS": 5})
    assert limits_of(BrokerConfig.of({})).protected == ""
