"""The memory bound of all connections: it holds, and it blocks no connection forever."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from net_stage import Crowd, framed

from tidemill.net.connection import SMALL_RECEIVE_BYTES, Connection, FrameHandler
from tidemill.net.memory_pool import EXEMPT_BYTES, RECEIVE_BYTES_MAX

FRAME_BYTES = 300_000
PATIENCE_S = 60.0


class Keeper(FrameHandler):
    """Counts complete frames by connection."""

    def __init__(self) -> None:
        self.frames: dict[int, int] = {}
        self.closed: list[str] = []

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        number = connection.peer.number
        assert data[start:end] == bytes([number % 256]) * (end - start)
        self.frames[number] = self.frames.get(number, 0) + 1
        return True

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)


@pytest.fixture
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd[Keeper]]:
    made = Crowd(*request.param, Keeper())
    yield made
    made.close()


def frame(number: int, size: int = FRAME_BYTES) -> memoryview:
    return memoryview(framed(bytes([number % 256]) * size))


@pytest.mark.parametrize(
    "crowd", [(40, 1), (40, FRAME_BYTES), (40, 2_000_000), (40, 1 << 40)], indirect=True, ids=str
)
def test_all_frames_are_completed_under_any_memory_bound(crowd: Crowd[Keeper]) -> None:
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
        # One connection continues at a time. Each of the others had received once before its pause.
        bound = (
            crowd.memory.bytes_max
            + FRAME_BYTES
            + RECEIVE_BYTES_MAX
            + count * (EXEMPT_BYTES + RECEIVE_BYTES_MAX)
        )
        assert crowd.most <= bound
    assert crowd.memory.total == 0


@pytest.mark.parametrize("crowd", [(30, 1_000_000)], indirect=True)
def test_the_memory_bound_holds_with_slow_senders(crowd: Crowd[Keeper]) -> None:
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
    assert crowd.most <= 2_000_000 + 30 * (EXEMPT_BYTES + SMALL_RECEIVE_BYTES)


@pytest.mark.parametrize("crowd", [(6, 200_000)], indirect=True)
def test_a_stalled_sender_does_not_block_other_connections(crowd: Crowd[Keeper]) -> None:
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
def test_small_requests_proceed_beside_large_ones(crowd: Crowd[Keeper]) -> None:
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
def test_nothing_is_read_while_received_requests_fill_the_bound(crowd: Crowd[Keeper]) -> None:
    crowd.memory.reserve(100_001)
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
def test_a_closed_connection_releases_its_memory(crowd: Crowd[Keeper]) -> None:
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
