"""The bound on what all connections hold together: it holds, and nobody waits for ever because of it."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tidemill.net.connection import SMALL_RECEIVE_BYTES, Connection, FrameHandler
from tidemill.net.memory import FREE_BYTES, RECEIVE_BYTES, Memory

FRAME_BYTES = 300_000
PATIENCE_S = 60.0


class Keeper(FrameHandler):
    """Counts whole frames by connection, and the most that was held."""

    def __init__(self) -> None:
        self.frames: dict[int, int] = {}
        self.closed: list[str] = []

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        number = connection.context
        assert data[start:end] == bytes([number % 256]) * (end - start)
        self.frames[number] = self.frames.get(number, 0) + 1
        return True

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)


class Crowd:
    """Connections with one bound."""

    def __init__(self, count: int, bytes_max: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.memory = Memory(self.loop, bytes_max)
        self.handler = Keeper()
        self.peers: list[socket.socket] = []
        self.connections: list[Connection] = []
        self.most = 0
        for number in range(count):
            ours, peer = socket.socketpair()
            ours.setblocking(False)
            peer.setblocking(False)
            made = Connection(self.loop, ours, self.handler, 100 << 20, number, self.memory)
            made.start()
            self.peers.append(peer)
            self.connections.append(made)

    def turn(self, seconds: float = 0.0) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.most = max(self.most, int(self.memory.total))

    def send(self, number: int, data: memoryview) -> memoryview:
        """Sends what the socket takes; the rest."""
        try:
            return data[self.peers[number].send(data) :]
        except BlockingIOError:
            return data

    def close(self) -> None:
        for one in self.connections:
            one.close("the test is over")
        for peer in self.peers:
            peer.close()
        assert self.memory.total == 0
        assert self.memory.holders == 0
        assert not self.memory.waiting
        self.memory.close()
        self.loop.close()


@pytest.fixture
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    made = Crowd(*request.param)
    yield made
    made.close()


def frame(number: int, size: int = FRAME_BYTES) -> memoryview:
    return memoryview(struct.pack(">i", size) + bytes([number % 256]) * size)


@pytest.mark.parametrize(
    "crowd", [(40, 1), (40, FRAME_BYTES), (40, 2_000_000), (40, 1 << 40)], indirect=True, ids=str
)
def test_all_frames_become_whole_whatever_the_bound(crowd: Crowd) -> None:
    count = len(crowd.peers)
    chance = random.Random(7)
    left = {number: memoryview(bytes(frame(number)) * 2) for number in range(count)}
    deadline = time.monotonic() + PATIENCE_S
    while sum(crowd.handler.frames.values()) < 2 * count:
        assert time.monotonic() < deadline, (len(left), crowd.memory.total, len(crowd.memory.waiting))
        for number in chance.sample(sorted(left), len(left)):
            left[number] = crowd.send(number, left[number])
            if not left[number]:
                del left[number]
        crowd.turn()
    assert crowd.handler.frames == dict.fromkeys(range(count), 2)
    assert not crowd.handler.closed
    if crowd.memory.bytes_max < 1 << 30:
        assert crowd.memory.pauses > 0
        # One goes on at a time; each of the others had taken in one receive when it was stopped.
        bound = crowd.memory.bytes_max + FRAME_BYTES + RECEIVE_BYTES + count * (FREE_BYTES + RECEIVE_BYTES)
        assert crowd.most <= bound
    assert crowd.memory.total == 0


@pytest.mark.parametrize("crowd", [(30, 1_000_000)], indirect=True)
def test_a_bound_holds_though_all_send_slowly(crowd: Crowd) -> None:
    left = {number: frame(number, 1_000_000) for number in range(30)}
    deadline = time.monotonic() + PATIENCE_S
    while left:
        assert time.monotonic() < deadline
        for number in sorted(left):
            rest = crowd.send(number, left[number][:8000])
            left[number] = left[number][8000 - len(rest) :]
            if not left[number]:
                del left[number]
        crowd.turn()
    while len(crowd.handler.frames) < 30:
        assert time.monotonic() < deadline
        crowd.turn()
    assert crowd.most <= 2_000_000 + 30 * (FREE_BYTES + SMALL_RECEIVE_BYTES)


@pytest.mark.parametrize("crowd", [(6, 200_000)], indirect=True)
def test_who_sends_nothing_more_does_not_hold_up_the_others(crowd: Crowd) -> None:
    for number in range(4):
        crowd.send(number, frame(number, 1_000_000)[:100_000])
        crowd.turn(0.01)
    assert crowd.memory.pauses > 0
    left = {number: frame(number) for number in (4, 5)}
    deadline = time.monotonic() + PATIENCE_S
    while len(crowd.handler.frames) < 2:
        assert time.monotonic() < deadline
        for number in left:
            left[number] = crowd.send(number, left[number])
        crowd.turn(0.01)
    assert crowd.handler.frames == {4: 1, 5: 1}


@pytest.mark.parametrize("crowd", [(5, 100_000)], indirect=True)
def test_small_requests_come_through_beside_those_that_hold_most(crowd: Crowd) -> None:
    for number in range(3):
        crowd.send(number, frame(number, 1_000_000)[:100_000])
        crowd.turn(0.01)
    assert crowd.memory.is_short
    for done in range(1, 4):
        crowd.send(4, frame(4, 20_000))
        for _ in range(5):
            crowd.turn(0.005)
        assert crowd.handler.frames == {4: done}


@pytest.mark.parametrize("crowd", [(2, 100_000)], indirect=True)
def test_nothing_is_read_while_what_was_taken_fills_the_bound(crowd: Crowd) -> None:
    crowd.memory.take(100_001)
    crowd.send(0, frame(0, 100))
    for _ in range(5):
        crowd.turn(0.005)
    assert crowd.handler.frames == {}
    crowd.memory.release(60_000)
    for _ in range(5):
        crowd.turn(0.005)
    assert crowd.handler.frames == {0: 1}
    crowd.memory.release(40_001)


@pytest.mark.parametrize("crowd", [(3, 300_000)], indirect=True)
def test_a_connection_that_ends_makes_room(crowd: Crowd) -> None:
    crowd.send(0, frame(0, 1_000_000)[:190_000])
    crowd.turn(0.02)
    crowd.send(1, frame(1, 1_000_000)[:190_000])
    crowd.turn(0.02)
    assert crowd.memory.total >= 300_000
    for one in crowd.connections[:2]:
        one.close("gone")
    assert crowd.memory.total == 0
    assert not crowd.memory.waiting
    left = frame(2, 1_000_000)
    deadline = time.monotonic() + PATIENCE_S
    while 2 not in crowd.handler.frames:
        assert time.monotonic() < deadline
        left = crowd.send(2, left)
        crowd.turn()
