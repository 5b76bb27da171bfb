"""The bound on memory holds for replies that their readers do not take, and nobody waits long for these."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tidemill.net import memory as memory_module
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory import FREE_BYTES, Memory

REPLY_BYTES = 2_000_000
BOUND_BYTES = 10_000_000
SMALL, LARGE = 1, 2
FRAMES = {kind: struct.pack(">ib", 1, kind) for kind in (SMALL, LARGE)}


class Answerer(FrameHandler):
    """Answers one kind of request with much, the other with little."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.later: list[tuple[Connection, int]] | None = None

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        if data[start] == SMALL:
            connection.reply_now(b"small")
            return True
        if not connection.memory.may_answer(connection):
            return False
        connection.reply_now(bytes(REPLY_BYTES))
        return True

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)


class Readers:
    """Connections with one bound, whose peers read when they are told to."""

    def __init__(self, count: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.memory = Memory(self.loop, BOUND_BYTES)
        self.handler = Answerer()
        self.peers: list[socket.socket] = []
        self.connections: list[Connection] = []
        self.most = 0
        for _ in range(count):
            ours, peer = socket.socketpair()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            ours.setblocking(False)
            peer.setblocking(False)
            self.connections.append(Connection(self.loop, ours, self.handler, 1 << 20, None, self.memory))
            self.connections[-1].start()
            self.peers.append(peer)

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.most = max(self.most, int(self.memory.total))

    def read(self, number: int, count: int = 1 << 20) -> int:
        """Takes what is there; how much."""
        try:
            return len(self.peers[number].recv(count))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        for one in self.connections:
            one.close("the test is over")
        for peer in self.peers:
            peer.close()
        assert (self.memory.total, self.memory.unsent) == (0, 0)
        assert not self.memory.senders
        assert not self.memory.held_up
        self.memory.close()
        self.loop.close()


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Readers]:
    monkeypatch.setattr(memory_module, "TICK_S", 0.05)
    made = Readers(20)
    yield made
    made.close()


def test_replies_that_nobody_takes_do_not_fill_the_memory(readers: Readers) -> None:
    for peer in readers.peers:
        peer.send(FRAMES[LARGE])
    for _ in range(3):
        readers.turn()
    assert readers.most <= BOUND_BYTES // 2 + REPLY_BYTES
    assert len(readers.memory.held_up) > 10
    # Small requests come through beside them.
    readers.peers[-1].send(FRAMES[SMALL])
    fresh_ours, fresh = socket.socketpair()
    fresh_ours.setblocking(False)
    Connection(readers.loop, fresh_ours, readers.handler, 1 << 20, None, readers.memory).start()
    fresh.send(FRAMES[SMALL])
    readers.turn(0.01)
    assert fresh.recv(100) == b"small"
    fresh.close()
    readers.turn(0.01)


def test_all_who_read_are_answered_one_after_the_other(readers: Readers) -> None:
    for peer in readers.peers:
        peer.send(FRAMES[LARGE] * 2)
    got = [0] * len(readers.peers)
    deadline = time.monotonic() + 30
    while min(got) < 2 * REPLY_BYTES:
        assert time.monotonic() < deadline, got
        for number in range(len(got)):
            got[number] += readers.read(number)
        readers.turn()
    assert got == [2 * REPLY_BYTES] * len(got)
    assert readers.handler.closed == []
    assert readers.most <= BOUND_BYTES // 2 + 3 * REPLY_BYTES


def test_readers_that_take_nothing_are_closed_once_others_wait_for_their_memory(readers: Readers) -> None:
    silent = range(3)
    for number in silent:
        readers.peers[number].send(FRAMES[LARGE])
        readers.turn()
    readers.turn(0.3)
    assert readers.handler.closed == []  # Nobody waits: they may take their time.
    for number in range(4, 8):
        readers.peers[number].send(FRAMES[LARGE])
    got = [0] * 8
    deadline = time.monotonic() + 30
    while min(got[4:]) < REPLY_BYTES:
        assert time.monotonic() < deadline, got
        for number in range(4, 8):
            got[number] += readers.read(number)
        readers.turn(0.001)
    assert readers.handler.closed
    assert all("are not taken, and others wait" in reason for reason in readers.handler.closed)
    assert not any(one.closed for one in readers.connections[4:])


def test_replies_that_wait_for_one_before_them_are_counted(readers: Readers) -> None:
    connection = readers.connections[0]
    first, second = connection.reply_later(), connection.reply_later()
    second.complete([bytes(REPLY_BYTES)])
    assert readers.memory.unsent == REPLY_BYTES
    first.complete([b"first"])
    received = 0
    while received < REPLY_BYTES + 5:
        received += readers.read(0)
        readers.turn()
    assert readers.memory.total <= FREE_BYTES
    assert readers.memory.unsent == 0
