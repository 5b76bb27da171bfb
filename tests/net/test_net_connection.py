"""Framed connections over real sockets: order, bounds, and isolation of misbehaving peers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from net_stage import framed, peer_of, socket_pair

from tidemill.log.system_files import SystemFiles
from tidemill.net.connection import (
    PENDING_RESPONSES_MAX,
    TURN_SECONDS_MAX,
    Connection,
    FrameHandler,
    PendingResponse,
)
from tidemill.net.send_queue import FileRange

FRAME_BYTES_MAX = 1_000_000
Respond = Callable[[Connection, bytes], bool]


class Recorder(FrameHandler):
    """Records the frames; ``respond`` handles one frame."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: list[str] = []
        self.crashes: list[BaseException] = []
        self.read_aheads: list[tuple[FileRange, int]] = []
        self.respond: Respond = lambda connection, frame: True
        self.end: Callable[[Connection], None] = lambda connection: None
        self.close: Callable[[], None] = lambda: None

    def on_frame(self, connection: Connection, data: bytes, start: int, end: int) -> bool:
        frame = data[start:end]
        if not self.respond(connection, frame):
            return False
        self.frames.append(frame)
        return True

    def on_end(self, connection: Connection) -> None:
        self.end(connection)

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)
        self.close()

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        self.crashes.append(problem)

    def read_ahead(self, connection: Connection, part: FileRange, count: int) -> None:
        self.read_aheads.append((part, count))
        connection.loop.call_soon(connection.resume_send)


class Pair:
    """A connection, and the socket of its peer."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        ours, self.peer = socket_pair()
        self.handler = Recorder()
        self.connection = Connection(self.loop, ours, self.handler, FRAME_BYTES_MAX, peer_of())
        self.connection.start()

    def turn(self, until: Callable[[], bool] = lambda: False, turns: int = 20) -> None:
        """Runs the event loop until a condition is true, for a limited number of iterations."""
        for _ in range(turns):
            if until():
                return
            self.loop.run_until_complete(asyncio.sleep(0.001))

    def receive(self, size: int) -> bytes:
        got = b""
        for _ in range(2000):
            try:
                got += self.peer.recv(1 << 20)
            except BlockingIOError:
                self.turn(turns=1)
            if len(got) >= size:
                break
        return got


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.connection.close("the test is over")
    made.peer.close()
    made.loop.close()


def echo(connection: Connection, frame: bytes) -> bool:
    """Responds with the request."""
    connection.respond_now(frame)
    return True


def defer(responses: list[PendingResponse]) -> Respond:
    """Responds later to the requests "wait", which are added to ``responses``, and to others at once."""

    def respond(connection: Connection, frame: bytes) -> bool:
        if frame != b"wait":
            return echo(connection, frame)
        responses.append(connection.respond_later())
        return True

    return respond


def respond_with_body(body: bytes) -> Respond:
    """Responds with this body."""
    return lambda connection, frame: echo(connection, body)


def respond_with_parts(*parts: bytes | FileRange) -> Respond:
    """Responds with these parts."""

    def respond(connection: Connection, frame: bytes) -> bool:
        connection.respond_later().complete(list(parts))
        return True

    return respond


def test_the_peer_sees_the_end_after_the_reason_is_reported(pair: Pair) -> None:
    def expect_open() -> None:
        with pytest.raises(BlockingIOError):
            pair.peer.recv(1)

    pair.handler.close = expect_open
    pair.connection.close("no reason")
    assert pair.handler.closed == ["no reason"]
    assert pair.peer.recv(1) == b""


def test_frames_from_one_receive_are_delivered_in_order(pair: Pair) -> None:
    pair.peer.send(framed(b"one", b"", b"three"))
    pair.turn(lambda: len(pair.handler.frames) == 3)
    assert pair.handler.frames == [b"one", b"", b"three"]


def test_slow_frames_of_one_receive_are_handled_in_several_turns(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0

    def respond(connection: Connection, frame: bytes) -> bool:
        nonlocal now_s
        now_s += TURN_SECONDS_MAX * 0.4
        return True

    monkeypatch.setattr(pair.loop, "time", lambda: now_s)
    pair.handler.respond = respond
    pair.peer.send(framed(*[b"slow"] * 7))
    handled = []
    for _ in range(4):
        pair.loop.call_soon(pair.loop.stop)
        pair.loop.run_forever()
        handled.append(len(pair.handler.frames))
    assert handled == [3, 6, 7, 7]


def test_a_frame_received_byte_by_byte_is_complete(pair: Pair) -> None:
    for byte in framed(b"slowly", b"next"):
        pair.peer.send(bytes([byte]))
        pair.turn(turns=1)
    pair.turn(lambda: len(pair.handler.frames) == 2)
    assert pair.handler.frames == [b"slowly", b"next"]


def test_a_large_frame_is_joined(pair: Pair) -> None:
    body = bytes(range(256)) * 3000
    data = memoryview(framed(body, b"after"))
    while data:
        try:
            data = data[pair.peer.send(data) :]
        except BlockingIOError:
            pair.turn(turns=1)
    pair.turn(lambda: len(pair.handler.frames) == 2, turns=200)
    assert pair.handler.frames == [body, b"after"]


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1, 2**31 - 1, -(2**31)])
def test_an_invalid_length_closes_the_connection(pair: Pair, size: int) -> None:
    pair.peer.send(struct.pack(">i", size))
    pair.turn(lambda: bool(pair.handler.closed))
    assert "socket.request.max.bytes" in pair.handler.closed[0]
    assert str(size) in pair.handler.closed[0]


def test_a_peer_that_closes_within_a_frame_closes_the_connection(pair: Pair) -> None:
    pair.peer.send(framed(b"never whole")[:-3])
    pair.peer.close()
    pair.turn(lambda: bool(pair.handler.closed))
    assert pair.handler.closed == ["closed by the peer"]
    assert pair.handler.frames == []


def test_a_handler_exception_is_reported_and_closes_the_connection(pair: Pair) -> None:
    def crash(connection: Connection, frame: bytes) -> bool:
        raise ZeroDivisionError

    pair.handler.respond = crash
    pair.peer.send(framed(b"x"))
    pair.turn(lambda: bool(pair.handler.closed))
    assert isinstance(pair.handler.crashes[0], ZeroDivisionError)


def test_responses_are_sent_in_the_order_of_their_requests(pair: Pair) -> None:
    later: list[PendingResponse] = []
    pair.handler.respond = defer(later)
    pair.peer.send(framed(b"1", b"wait", b"2", b"wait", b"3"))
    pair.turn(lambda: len(pair.handler.frames) == 5)
    assert pair.receive(1) == b"1"
    later[1].complete([b"B"])
    pair.turn(turns=3)
    with pytest.raises(BlockingIOError):
        pair.peer.recv(10)
    later[0].complete([b"A"])
    assert pair.receive(4) == b"A2B3"
    with pytest.raises(RuntimeError):
        later[0].complete([b"again"])


def test_a_held_request_is_handled_after_the_pending_response(pair: Pair) -> None:
    waiting: list[PendingResponse] = []
    respond = defer(waiting)
    pair.handler.respond = lambda connection, frame: (
        not connection.has_pending_responses and respond(connection, frame)
    )
    pair.peer.send(framed(b"wait", b"held", b"back"))
    pair.turn(lambda: bool(waiting))
    assert pair.handler.frames == [b"wait"]
    pair.peer.send(framed(b"too"))
    pair.turn(turns=3)
    waiting[0].complete([b"W"])
    assert pair.receive(12) == b"Wheldbacktoo"


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_unblocked_connection_handles_the_received_frames(pair: Pair, *, is_closed: bool) -> None:
    waiting: list[PendingResponse] = []
    respond = defer(waiting)
    pair.handler.respond = lambda connection, frame: not connection.is_blocked and respond(connection, frame)
    pair.peer.send(framed(b"wait", b"held", b"wait", b"too"))
    pair.turn(lambda: bool(waiting))
    pair.turn(turns=3)
    assert pair.handler.frames == [b"wait"]
    if is_closed:
        pair.connection.close("the test closes it")
    waiting[0].unblock_requests()
    pair.turn(turns=3)
    # The next response blocks again, and no response leaves before the first one.
    assert pair.handler.frames == ([b"wait"] if is_closed else [b"wait", b"held", b"wait"])
    if not is_closed:
        with pytest.raises(BlockingIOError):
            pair.peer.recv(10)
        waiting[0].complete([b"W"])
        waiting[1].complete([b"X"])
        assert pair.receive(9) == b"WheldXtoo"
        assert not pair.connection.is_blocked


def test_requests_after_a_held_request_are_not_read_into_memory(pair: Pair) -> None:
    pair.handler.respond = lambda connection, frame: (
        not connection.has_pending_responses and bool(connection.respond_later())
    )
    pair.peer.send(framed(b"wait"))
    pair.turn(turns=3)
    taken = 0
    for _ in range(400):
        try:
            taken += pair.peer.send(framed(b"x" * 10_000))
        except BlockingIOError:
            pair.turn(turns=1)
    assert taken < 4_000_000
    assert pair.connection.account.held_bytes < 1_000_000


def test_too_many_pending_responses_pause_reading(pair: Pair) -> None:
    responses: list[PendingResponse] = []
    pair.handler.respond = defer(responses)
    pair.peer.send(framed(b"wait") * (PENDING_RESPONSES_MAX + 10))
    pair.turn(turns=5)
    assert len(responses) == PENDING_RESPONSES_MAX
    for response in list(responses):
        response.complete([b"."])
    pair.turn(lambda: len(responses) == PENDING_RESPONSES_MAX + 10)
    assert len(responses) == PENDING_RESPONSES_MAX + 10


def test_a_client_that_does_not_read_is_not_served_further(pair: Pair) -> None:
    pair.handler.respond = respond_with_body(b"z" * 1_000_000)
    pair.peer.send(framed(b"x") * 50)
    pair.turn(turns=20)
    assert len(pair.handler.frames) < 10
    assert pair.connection.account.unsent_bytes < 6_000_000
    assert len(pair.receive(50_000_000)) == 50_000_000
    assert len(pair.handler.frames) == 50


def test_file_ranges_are_sent_between_bytes(pair: Pair, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    path = tmp_path / "log"
    path.write_bytes(content)
    file = SystemFiles().open(str(path))
    half = len(content) // 2

    first = FileRange(file, 0, half, False, None)
    second = FileRange(file, half, len(content) - half, True, None)
    pair.handler.respond = respond_with_parts(b"<", first, b"|", second, b">")
    pair.peer.send(framed(b"x"))
    received = pair.receive(len(content) + 3)
    assert received == b"<" + content[:half] + b"|" + content[half:] + b">"
    file.close()


def test_an_uncached_range_is_read_ahead_before_it_is_sent(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"q" * 3_000_000)

    files = SystemFiles()
    file = files.open(str(path))
    requested: list[tuple[int, int]] = []

    import tidemill.model.system_interfaces as ports

    class NeverCached(ports.File):
        def is_cached(self, position: int, count: int) -> bool:
            requested.append((position, count))
            return False

        def send_to(self, descriptor: int, position: int, count: int) -> int:
            return int(file.send_to(descriptor, position, count))

    pair.handler.respond = respond_with_parts(FileRange(NeverCached(), 0, 3_000_000, True, None))
    pair.peer.send(framed(b"x"))
    assert pair.receive(3_000_000) == b"q" * 3_000_000
    assert [count for _, count in pair.handler.read_aheads] == [1 << 20, 1 << 20, 3_000_000 - (2 << 20)]
    file.close()


def test_a_file_shorter_than_its_range_closes_the_connection(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short")
    file = SystemFiles().open(str(path))

    pair.handler.respond = respond_with_parts(FileRange(file, 0, 100, False, None))
    pair.peer.send(framed(b"x"))
    pair.turn(lambda: bool(pair.handler.closed))
    assert "95 bytes before the end" in pair.handler.closed[0]
    file.close()


def test_responses_to_a_closed_connection_are_dropped(pair: Pair) -> None:
    responses: list[PendingResponse] = []
    pair.handler.respond = defer(responses)
    pair.peer.send(framed(b"wait"))
    pair.turn(lambda: bool(responses))
    pair.peer.close()
    pair.turn(lambda: bool(pair.handler.closed))
    responses[0].complete([b"nobody"])
    assert pair.handler.closed == ["closed by the peer"]


def test_responses_before_an_invalid_frame_are_sent_before_the_close(pair: Pair) -> None:
    pair.handler.respond = echo
    pair.peer.send(framed(b"good") + struct.pack(">i", -1))
    pair.turn(lambda: bool(pair.handler.closed))
    assert pair.receive(4) == b"good"
    assert pair.peer.recv(1) == b""


def test_requests_paused_by_a_full_output_continue_after_two_writes(pair: Pair) -> None:
    """The socket accepts the rest only at the second attempt of the same call. No other event follows."""

    class Slow:
        """A socket that is full at every other send."""

        def __init__(self, sock: socket.socket) -> None:
            self.sock = sock
            self.full = True
            self.holds = True

        def send(self, data: bytes, flags: int) -> int:
            if self.holds:
                raise BlockingIOError
            self.full = not self.full
            if not self.full:
                raise BlockingIOError
            return len(data)

        def recv(self, count: int) -> bytes:
            return self.sock.recv(count)

        def close(self) -> None:
            self.sock.close()

    slow = Slow(pair.connection.sock)
    pair.connection.sock = pair.connection.output.sock = slow
    pair.handler.respond = respond_with_body(bytes(5_000_000))
    pair.peer.send(framed(b"1", b"2"))
    pair.turn(lambda: bool(pair.handler.frames))
    assert pair.handler.frames == [b"1"]
    slow.holds = False
    pair.connection.writable()
    assert pair.handler.frames == [b"1", b"2"]


def test_a_closed_connection_is_released_when_its_last_wait_ends_during_a_read(
    pair: Pair,
) -> None:
    """The first response fails to be sent; the pending requests are then completed in the same iteration."""
    waiting: list[PendingResponse] = []
    pair.handler.respond = defer(waiting)
    pair.handler.end = lambda connection: waiting[0].complete([b"W"])
    pair.peer.send(framed(b"now", b"wait"))
    pair.peer.close()
    pair.turn(lambda: bool(pair.handler.closed))
    assert pair.handler.closed == ["send failed: [Errno 32] Broken pipe"]
