"""The memory bound holds for unread responses, and they delay no other connection for long."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from net_stage import Crowd, framed

from tidemill.net import memory_pool as memory_module
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory_pool import EXEMPT_BYTES

RESPONSE_BYTES = 2_000_000
BOUND_BYTES = 10_000_000
SMALL, LARGE = 1, 2
FRAMES = {kind: framed(bytes([kind])) for kind in (SMALL, LARGE)}


class Responder(FrameHandler):
    """Responds to one kind of request with many bytes, and to the other with few."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.later: list[tuple[Connection, int]] | None = None

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        if data[start] == SMALL:
            connection.respond_now(b"small")
            return True
        if not connection.memory.can_respond(connection):
            return False
        connection.respond_now(bytes(RESPONSE_BYTES))
        return True

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)


Readers = Crowd[Responder]
"""Connections whose peers read on request."""


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Readers]:
    monkeypatch.setattr(memory_module, "TICK_S", 0.05)
    made = Crowd(20, BOUND_BYTES, Responder())
    yield made
    made.close()


def test_unread_responses_do_not_fill_the_memory(readers: Readers) -> None:
    for peer in readers.peers:
        peer.send(FRAMES[LARGE])
    for _ in range(3):
        readers.turn()
    assert readers.most <= BOUND_BYTES // 2 + RESPONSE_BYTES
    assert len(readers.memory.delayed) > 10
    # Small requests are handled beside them.
    readers.peers[-1].send(FRAMES[SMALL])
    fresh = readers.add()
    fresh.send(FRAMES[SMALL])
    readers.turn(0.01)
    assert fresh.recv(100) == b"small"
    fresh.close()
    readers.turn(0.01)


def test_all_reading_clients_get_their_responses_in_turn(readers: Readers) -> None:
    for peer in readers.peers:
        peer.send(FRAMES[LARGE] * 2)
    got = [0] * len(readers.peers)
    deadline = time.monotonic() + 30
    while min(got) < 2 * RESPONSE_BYTES:
        assert time.monotonic() < deadline, got
        for number in range(len(got)):
            got[number] += readers.read(number)
        readers.turn()
    assert got == [2 * RESPONSE_BYTES] * len(got)
    assert readers.handler.closed == []
    assert readers.most <= BOUND_BYTES // 2 + 3 * RESPONSE_BYTES


def test_clients_that_do_not_read_are_closed_when_others_need_memory(readers: Readers) -> None:
    silent = range(3)
    for number in silent:
        readers.peers[number].send(FRAMES[LARGE])
        readers.turn()
    readers.turn(0.3)
    assert readers.handler.closed == []  # No connection waits for memory, so they are not closed.
    for number in range(4, 8):
        readers.peers[number].send(FRAMES[LARGE])
    got = [0] * 8
    deadline = time.monotonic() + 30
    while min(got[4:]) < RESPONSE_BYTES:
        assert time.monotonic() < deadline, got
        for number in range(4, 8):
            got[number] += readers.read(number)
        readers.turn(0.001)
    assert readers.handler.closed
    assert all("are not read, and other connections wait" in reason for reason in readers.handler.closed)
    assert not any(one.closed for one in readers.connections[4:])


def test_responses_behind_a_pending_response_are_counted(readers: Readers) -> None:
    connection = readers.connections[0]
    first, second = connection.respond_later(), connection.respond_later()
    second.complete([bytes(RESPONSE_BYTES)])
    assert readers.memory.unsent == RESPONSE_BYTES
    first.complete([b"first"])
    received = 0
    while received < RESPONSE_BYTES + 5:
        received += readers.read(0)
        readers.turn()
    assert readers.memory.total <= EXEMPT_BYTES
    assert readers.memory.unsent == 0
