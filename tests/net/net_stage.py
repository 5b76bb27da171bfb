"""Connections over pairs of sockets, and the frames of their peers."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Generic, TypeVar

from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory_pool import MemoryPool
from tidemill.net.peer import Listener, Peer

Handler = TypeVar("Handler", bound=FrameHandler)


def peer_of(number: int = 0) -> Peer:
    """Returns the peer of the connection with that number."""
    made = Peer(Listener("PLAINTEXT", "localhost", 9092), "User:ANONYMOUS", "127.0.0.1", 1)
    made.number = number
    return made


def framed(*bodies: bytes) -> bytes:
    """Returns the bytes of these frames."""
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns the socket of a connection and that of its peer."""
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    peer.setblocking(False)
    return ours, peer


class Crowd(Generic[Handler]):
    """Connections with one memory bound, and the sockets of their peers."""

    def __init__(self, count: int, bytes_max: int, handler: Handler) -> None:
        self.loop = asyncio.new_event_loop()
        self.memory = MemoryPool(self.loop, bytes_max)
        self.handler = handler
        self.peers: list[socket.socket] = []
        self.connections: list[Connection] = []
        self.most = 0
        """The most memory in use."""
        for _ in range(count):
            self.add()

    def add(self) -> socket.socket:
        """Starts a connection; returns the socket of its peer."""
        ours, peer = socket_pair()
        # Unread responses stay in the memory of the broker.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        client = peer_of(len(self.peers))
        self.connections.append(Connection(self.loop, ours, self.handler, 100 << 20, client, self.memory))
        self.connections[-1].start()
        self.peers.append(peer)
        return peer

    def turn(self, seconds: float = 0.0) -> None:
        """Runs the event loop once, or for this time."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.most = max(self.most, int(self.memory.total))

    def send(self, number: int, data: memoryview) -> memoryview:
        """Sends as much as the socket accepts; returns the rest."""
        try:
            return data[self.peers[number].send(data) :]
        except BlockingIOError:
            return data

    def read(self, number: int, count: int = 1 << 20) -> int:
        """Reads available bytes; returns their number."""
        try:
            return len(self.peers[number].recv(count))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Closes the connections, which release all memory."""
        for one in self.connections:
            one.close("the test is over")
        for peer in self.peers:
            peer.close()
        assert (self.memory.total, self.memory.unsent, self.memory.holders) == (0, 0, 0)
        assert not self.memory.waiting
        assert not self.memory.large_unsent
        assert not self.memory.delayed
        self.memory.close()
        self.loop.close()
